"""Causal depthwise convolution over a few positions, with the tail carried as state."""

from torch import Tensor

from fracdna_kernels.forms import choose_form, without_autocast
from fracdna_kernels.fused import fused_refusal, lazily
from fracdna_kernels.shapes import check_packing, check_shapes
from fracdna_kernels.short_convolution.chunk import short_convolution_chunk
from fracdna_kernels.short_convolution.recurrent import short_convolution_recurrent
from fracdna_kernels.short_convolution.reference import (
    MOST_READERS,
    short_convolution_reference,
)

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
    readers: int = 1,
    form: str = "auto",
) -> tuple[Tensor | tuple[Tensor, ...], Tensor]:
    """y_t = activation(bias + sum_w weight_w x_{t - W + 1 + w}), each channel alone.

    Args:
        x: (B, T, D).
        weight: (D, W), the last tap meets the present position.
        bias: (D,) or None.
        activation: None or "silu".
        initial_state: (N, D, W - 1), inputs before the first position, oldest first; None: zeros.
        cu_seqlens: (N + 1,) bounds of packed sequences, needs B = 1; None: N = B.
        readers: 1 to 3; above 1 y comes so many times, once for each operator that reads it. The
            fused backward pass then adds up their gradients as it reads them, where autograd would
            write and read sums.
        form: "auto", "reference", "chunk", "recurrent" or "triton".

    Returns:
        y (B, T, D) in the dtype of x, a tuple of it for more than one reader, and the last W - 1
        inputs (N, D, W - 1) in float32 (float64 for float64 inputs), also where a sequence is
        shorter. Positions outside the bounds give 0.

    Raises:
        ValueError: axes that do not fit, an unknown activation or form, or too many readers.
    """
    sizes = check_shapes(x=(x, "BTD"), weight=(weight, "DW"), bias=(bias, "D"))
    check_shapes(
        weight=(weight[:, 1:], "DS"), initial_state=(initial_state, "NDS")
    )  # S = W - 1 positions of state
    check_packing(sizes["B"], sizes["T"], cu_seqlens, initial_state, x.device)
    if activation not in (None, "silu"):
        raise ValueError(f"activation={activation!r} is unknown; use None or 'silu'")
    if not 1 <= readers <= MOST_READERS:
        raise ValueError(f"readers={readers} must be 1 to {MOST_READERS}")
    inputs = (x, weight) if bias is None else (x, weight, bias)
    packed = cu_seqlens is not None
    chosen = choose_form(
        form, tuple(FORMS), sizes["T"], inputs, packed=packed, refusal=fused_refusal(x)
    )
    arguments = (x, weight, bias, initial_state, cu_seqlens, activation)
    with without_autocast(chosen, x):
        if chosen == "triton":
            *ys, final = FORMS[chosen](*arguments, readers)
        else:
            y, final = FORMS[chosen](*arguments)
            ys = (y.to(x.dtype),) * readers
    return ys[0] if readers == 1 else tuple(ys), final
