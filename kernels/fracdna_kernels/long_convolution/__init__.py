"""Causal depthwise convolution with a filter as long as the sequence."""

from torch import Tensor

from fracdna_kernels.forms import check_exact, choose_form, without_autocast
from fracdna_kernels.long_convolution.chunk import long_convolution_chunk
from fracdna_kernels.long_convolution.recurrent import long_convolution_recurrent
from fracdna_kernels.long_convolution.reference import long_convolution_reference
from fracdna_kernels.shapes import check_packing, check_shapes

FORMS = {
    "reference": long_convolution_reference,
    "chunk": long_convolution_chunk,
    "recurrent": long_convolution_recurrent,
}


def long_convolution(
    x: Tensor,
    filter: Tensor,
    skip: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor]:
    """y_t = skip x_t + sum_l filter_l x_{t - l}, each channel alone.

    Computed in float32 whatever the dtype of x. Inputs must be finite; other sequences of a packed
    row stay untouched by what is not. The form "chunk" multiplies spectra: its rounding is relative
    to the largest outputs of a channel, not to each, and packed rows take the memory of T / L + N
    blocks of 2 L positions, L at most T.

    Args:
        x: (B, T, D).
        filter: (D, L), the first tap meets the present position; L may exceed T.
        skip: (D,) or None, factor of the input itself.
        initial_state: (N, D, L - 1) float32, inputs before the first position, oldest first; None:
            zeros.
        cu_seqlens: (N + 1,) int32 or int64 bounds of packed sequences, needs B = 1; None: N = B.
        form: "auto", "reference", "chunk" or "recurrent".

    Returns:
        y (B, T, D) in the dtype of x, and the last L - 1 inputs (N, D, L - 1) in float32 (float64
        for float64 inputs), also where a sequence is shorter. Positions outside the bounds give 0.

    Raises:
        ValueError: axes that do not fit, a filter without taps, a state in half precision, or an
            unknown form.

    Source: Poli et al. 2023, Hyena Hierarchy, arXiv 2302.10866.
    """
    sizes = check_shapes(x=(x, "BTD"), filter=(filter, "DL"), skip=(skip, "D"))
    if not sizes["L"]:
        raise ValueError(f"filter needs at least one tap, got shape {tuple(filter.shape)}")
    check_shapes(
        filter=(filter[:, 1:], "DS"), initial_state=(initial_state, "NDS")
    )  # S = L - 1 positions of state
    if not x.is_floating_point():
        raise ValueError(f"x needs a floating-point dtype, got {x.dtype}")
    check_packing(sizes["B"], sizes["T"], cu_seqlens, initial_state, x.device)
    check_exact(initial_state=initial_state)
    inputs = tuple(t for t in (x, filter, skip, initial_state) if t is not None)
    packed = cu_seqlens is not None
    chosen = choose_form(form, tuple(FORMS), sizes["T"], inputs, packed=packed)
    with without_autocast(chosen, x):
        y, final = FORMS[chosen](x, filter, skip, initial_state, cu_seqlens)
        return y.to(x.dtype), final
