"""Which rows the kernels that treat every position alone can take; imported before Triton is."""

from torch import Tensor

from fracdna_kernels.fused import fused_refusal

WIDEST = 8192  # elements of a row; beyond, a thread would hold more than its registers


def rows_refusal(width: int, *tensors: Tensor | None) -> str | None:
    """Why the fused kernels cannot take tensors or normalise over that many channels, or None."""
    for tensor in tensors:
        refusal = None if tensor is None else fused_refusal(tensor)
        if refusal is not None:
            return refusal
    return None if width <= WIDEST else f"normalises up to {WIDEST} channels, got {width}"
