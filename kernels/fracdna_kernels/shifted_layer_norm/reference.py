"""The equations of shifted_layer_norm."""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from fracdna_kernels.forms import accumulator


def shifted_layer_norm_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shares: Tensor,
    addend: Tensor | None,
    last: Tensor | None,
    starts: Tensor | None,
    lengths: Tensor | None,
    eps: float,
    out_dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """See shifted_layer_norm for shapes and meaning; starts (T,) is true where sequences begin."""
    dtype = accumulator(x)
    batch, length, width = x.shape
    stream = x.to(dtype) if addend is None else x.to(dtype) + addend.to(dtype)
    normed = layer_norm(stream, (width,), weight.to(dtype), bias.to(dtype), eps)
    before = normed.new_zeros(batch, width) if last is None else last.to(dtype)
    both = torch.cat([before[:, None], normed], dim=1)
    previous = both[:, :-1]
    if starts is not None:
        previous = torch.where(starts[:, None], 0.0, previous)
    change = previous - normed
    mixtures = (torch.addcmul(normed, change, share).to(out_dtype) for share in shares.to(dtype))
    if lengths is None:
        return *mixtures, both[:, length]
    return *mixtures, both[torch.arange(batch, device=x.device), lengths]
