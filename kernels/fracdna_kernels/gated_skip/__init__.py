"""A skip within each position, a gate, and a sum over the rank, in one operator."""

from torch import Tensor

from fracdna_kernels.forms import check_exact, choose_form, without_autocast
from fracdna_kernels.fused import fused_refusal, lazily
from fracdna_kernels.gated_skip.reference import gated_skip_reference
from fracdna_kernels.shapes import check_shapes

FORMS = {
    "reference": gated_skip_reference,
    "triton": lazily("fracdna_kernels.gated_skip.triton_form", "gated_skip_triton"),
}
WIDEST = 4096  # channels of all heads; beyond, a thread would hold more than its registers


def gated_skip(
    x: Tensor,
    values: Tensor,
    factor: Tensor,
    gate: Tensor,
    gate_mix: Tensor | None = None,
    output_mix: Tensor | None = None,
    *,
    form: str = "auto",
) -> Tensor:
    """sum_r output_mix_r (x_r + sum_s factor_rs values_s) silu(gate gate_mix_r), for every head.

    Args:
        x: (B, T, R, H, V).
        values: (B, T, R, H, V).
        factor: (B, T, H, R, R) in float32 or float64.
        gate: (B, T, H V), pre-activation, shared by the ranks.
        gate_mix: (H, R, V); None: 1.
        output_mix: (H, R, V), given where gate_mix is; None: 1.
        form: "auto", "reference" or "triton"; the last takes at most 4096 channels H V.

    Returns:
        (B, T, H V) in the dtype of x; computed in float32 (float64 for float64 inputs).

    Raises:
        ValueError: axes that do not fit, one mix without the other, a factor in half precision, or
            a form that does not exist or cannot run.

    Source: Mamba-3, arXiv 2603.15569.
    """
    sizes = check_shapes(
        x=(x, "BTRHV"),
        values=(values, "BTRHV"),
        gate=(gate, "BTD"),
        gate_mix=(gate_mix, "HRV"),
        output_mix=(output_mix, "HRV"),
    )
    shape = tuple(sizes[axis] for axis in "BTHRR")
    if tuple(factor.shape) != shape or sizes["D"] != sizes["H"] * sizes["V"]:
        raise ValueError(
            f"x {tuple(x.shape)} needs a factor {shape} and a gate of {sizes['H'] * sizes['V']} "
            f"channels, got {tuple(factor.shape)} and {sizes['D']}"
        )
    if (gate_mix is None) != (output_mix is None):
        raise ValueError("gate_mix and output_mix go together: give both or neither")
    check_exact(factor=factor)
    inputs = (x, values, factor, gate, gate_mix, output_mix)
    given = tuple(tensor for tensor in inputs if tensor is not None)
    refusal = _refusal(sizes["D"], given)
    chosen = choose_form(form, tuple(FORMS), sizes["T"], given, refusal=refusal)
    with without_autocast(chosen, x):
        return FORMS[chosen](*inputs)


def _refusal(width: int, inputs: tuple[Tensor, ...]) -> str | None:
    """Why the fused kernels cannot take these inputs, or None."""
    if width > WIDEST:
        return f"takes at most {WIDEST} channels, got {width}"
    return next(filter(None, map(fused_refusal, inputs)), None)
