"""Causal depthwise convolution over a few positions, with the tail carried as state."""

from torch import Tensor

from fracdna_kernels.forms import choose_form, without_autocast
from fracdna_kernels.fused import fused_refusal, lazily
from fracdna_kernels.shapes import check_packing, check_shapes
from fracdna_kernels.short_convolution.chunk import short_convolution_chunk
from fracdna_kernels.short_convolution.recurrent import short_convolution_recurrent
from fracdna_kernels.short_convolution.reference import short_convolution_reference

FORMS = {
    "reference": short_convolution_reference,
    "chunk": short_convolution_chunk,
    "recurrent": short_convolution_recurrent,
    "triton": lazily("fracdna_kernels.short_convolution.triton_form", "short_convolution_triton"),
}


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor]:
    """y_t = activation(bias + sum_w weight_w x_{t - W + 1 + w}), each channel alone.

    Args:
        x: (B, T, D).
        weight: (D, W), the last tap meets the present position.
        bias: (D,) or None.
        activation: None or "silu".
        initial_state: (N, D, W - 1), inputs before the first position, oldest first; None: zeros.
        cu_seqlens: (N + 1,) bounds of packed sequences, needs B = 1; None: N = B.
        form: "auto", "reference", "chunk", "recurrent" or "triton".

    Returns:
        y (B, T, D) in the dtype of x, and the last W - 1 inputs (N, D, W - 1) in float32 (float64
        for float64 inputs), also where a sequence is shorter. Positions outside the bounds give 0.

    Raises:
        ValueError: axes that do not fit, an unknown activation or form.
    """
    sizes = check_shapes(x=(x, "BTD"), weight=(weight, "DW"), bias=(bias, "D"))
    check_shapes(
        weight=(weight[:, 1:], "DS"), initial_state=(initial_state, "NDS")
    )  # S = W - 1 positions of state
    check_packing(sizes["B"], sizes["T"], cu_seqlens, initial_state, x.device)
    if activation not in (None, "silu"):
        raise ValueError(f"activation={activation!r} is unknown; use None or 'silu'")
    inputs = (x, weight) if bias is None else (x, weight, bias)
    packed = cu_seqlens is not None
    chosen = choose_form(
        form, tuple(FORMS), sizes["T"], inputs, packed=packed, refusal=fused_refusal(x)
    )
    with without_autocast(chosen, x):
        y, final = FORMS[chosen](x, weight, bias, initial_state, cu_seqlens, activation)
        return y.to(x.dtype), final
