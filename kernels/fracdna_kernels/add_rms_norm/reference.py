"""The equation of add_rms_norm."""

import torch
from torch import Tensor

from fracdna_kernels.forms import accumulator


def add_rms_norm_reference(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """See add_rms_norm for shapes and meaning."""
    stream = x if residual is None else residual + x
    dtype = accumulator(stream)
    exact = stream.to(dtype)
    scale = (exact.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (exact * scale * weight.to(dtype)).to(out_dtype), stream
