"""short_convolution over whole sequences: W shifted products, packed bounds respected."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from fracdna_kernels.forms import accumulator
from fracdna_kernels.shapes import sequence_of
from fracdna_kernels.short_convolution.recurrent import short_convolution_recurrent


def short_convolution_chunk(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    """W products over all positions; see short_convolution for shapes."""
    if cu_seqlens is None:
        return short_convolution_recurrent(x, weight, bias, initial_state, None, activation)
    _, T, D = x.shape
    W = weight.shape[1]
    dtype = accumulator(x)
    bounds = cu_seqlens.long()
    count = bounds.shape[0] - 1
    if initial_state is None:
        initial_state = x.new_zeros(count, D, W - 1)
    sequence = sequence_of(cu_seqlens, T)
    valid = (sequence < count)[:, None]
    # one pool of rows to gather from: all positions, then each sequence's earlier inputs; what lies
    # outside the bounds is left out before it is multiplied, since 0 times infinity is no number
    inside = torch.where(valid, x[0].to(dtype), 0.0)
    pool = torch.cat([inside, initial_state.to(dtype).mT.reshape(-1, D)])
    owner = sequence.clamp(max=max(count - 1, 0))
    position = torch.arange(T, device=x.device)
    y = pool.new_zeros(T, D) if bias is None else bias.to(dtype).expand(T, D)
    if count:
        for w in range(W):
            source = _source(position - (W - 1 - w), owner, bounds, T, W - 1)
            y = y + pool[source] * weight[:, w].to(dtype)
    if activation == "silu":
        y = silu(y)
    lags = torch.arange(W - 1, device=x.device) - (W - 1)
    sequences = torch.arange(count, device=x.device)[:, None].expand(count, W - 1)
    tail = _source(bounds[1:, None] + lags, sequences, bounds, T, W - 1)  # (N, W - 1)
    return torch.where(valid, y, 0.0)[None], pool[tail].mT


def _source(position: Tensor, owner: Tensor, bounds: Tensor, length: int, tail: int) -> Tensor:
    """Row of the pool that holds a position of a sequence, in its state where it lies before it."""
    before = position - bounds[owner]
    return torch.where(before >= 0, position, length + owner * tail + tail + before)
