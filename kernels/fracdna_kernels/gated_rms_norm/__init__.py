"""Skip, gate and normalise in one operator."""

from torch import Tensor

from fracdna_kernels.forms import choose_form, without_autocast
from fracdna_kernels.fused import lazily
from fracdna_kernels.gated_rms_norm.reference import ORDERS, gated_rms_norm_reference
from fracdna_kernels.rows import rows_refusal
from fracdna_kernels.shapes import check_shapes

FORMS = {
    "reference": gated_rms_norm_reference,
    "triton": lazily("fracdna_kernels.gated_rms_norm.triton_form", "gated_rms_norm_triton"),
}


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    *,
    gate_bias: float = 0.0,
    skip: tuple[Tensor, Tensor] | None = None,
    order: str = "gate_first",
    group_size: int | None = None,
    eps: float = 1e-6,
    form: str = "auto",
) -> Tensor:
    """A gate silu(gate + gate_bias) and an RMS norm, in either order, after an optional skip.

    With y = x + factor * values: "gate_first" normalises y silu(gate) and multiplies by weight,
    as FRAC and Mamba-2 do; "norm_first" normalises y and multiplies by weight and silu(gate), as
    gated delta networks do for each head.

    Args:
        x: (B, T, D).
        gate: (B, T, D), pre-activation.
        weight: (D,), or (group_size,) for all groups alike.
        gate_bias: constant added to the gate's pre-activation.
        skip: (values (B, T, D), factor (D,)), added to x as factor * values; None adds nothing.
        order: "gate_first" or "norm_first".
        group_size: channels that are normalised together, D / group_size groups in channel order;
            None: all D.
        eps: added to the mean square.
        form: "auto", "reference" or "triton".

    Returns:
        (B, T, D) in the dtype of x; sums in float32 (float64 for float64 inputs).

    Raises:
        ValueError: axes that do not fit, a group size that does not divide D, an unknown order, or
            a form that does not exist or cannot run.
    """
    values, factor = skip if skip is not None else (None, None)
    sizes = check_shapes(
        x=(x, "BTD"), gate=(gate, "BTD"), skip_values=(values, "BTD"), skip_factor=(factor, "D")
    )
    size = _group_size(sizes["D"], group_size, weight)
    if order not in ORDERS:
        raise ValueError(f"order={order!r} is unknown; use one of {ORDERS}")
    inputs = tuple(tensor for tensor in (x, gate, weight, values, factor) if tensor is not None)
    refusal = rows_refusal(size, *inputs)
    chosen = choose_form(form, tuple(FORMS), sizes["T"], inputs, refusal=refusal)
    with without_autocast(chosen, x):
        return FORMS[chosen](x, gate, weight, gate_bias, values, factor, order, size, eps)


def _group_size(channels: int, group_size: int | None, weight: Tensor) -> int:
    """Channels of a group, after the checks that go with it."""
    size = channels if group_size is None else group_size
    if size < 1 or channels % size:
        raise ValueError(f"group_size={size} does not divide {channels} channels")
    if tuple(weight.shape) not in ((channels,), (size,)):
        raise ValueError(
            f"weight needs shape ({channels},) or ({size},) for {channels} channels in groups "
            f"of {size}, got {tuple(weight.shape)}"
        )
    return size
