"""long_convolution over whole sequences by fast Fourier transforms, block by block.

A block of positions is transformed together with the L - 1 positions before it. The transform is as
long as both together, so what wraps around falls on outputs that nobody reads.

B rows   T length   D channels   L taps   N sequences   S positions of a block
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.fft import irfft, rfft

from fracdna_kernels.forms import accumulator
from fracdna_kernels.shapes import sequence_of

BLOCK = 1 << 15  # positions, or three filters where that is more; bounds the memory of spectra
LEAST_BLOCK = 64  # positions, of packed rows: short filters must not make many small transforms


def long_convolution_chunk(
    x: Tensor,
    taps: Tensor,
    skip: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Products of spectra; see long_convolution for shapes."""
    B, T, D = x.shape
    L = taps.shape[1]
    dtype = accumulator(x)
    if initial_state is None:
        sequences = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
        initial_state = x.new_zeros(sequences, D, L - 1)
    x, taps, initial_state = x.to(dtype), taps.to(dtype), initial_state.to(dtype)
    if not x.numel() or not initial_state.shape[0]:
        return torch.zeros_like(x), initial_state.clone()
    if cu_seqlens is None:
        known = torch.cat([initial_state, x.mT], dim=-1)  # (B, D, L - 1 + T)
        y, final = _Convolve.apply(known, taps).mT, known[..., T:]
        return y if skip is None else y + skip.to(dtype) * x, final
    return _packed(x[0], taps, skip, initial_state, cu_seqlens)


class _Convolve(torch.autograd.Function):
    """(rows, D, L - 1 + T) and (D, L) to (rows, D, T): every position that has L - 1 before it.

    Spectra are formed anew in the backward pass, in which conjugate ones turn the sums around:
    each input collects the later outputs that it went into, each tap all pairs that it joined.
    """

    @staticmethod
    def forward(ctx: Any, known: Tensor, taps: Tensor) -> Tensor:
        ctx.save_for_backward(known, taps)
        L = taps.shape[1]
        size, pieces = _blocks(known, L)
        response = rfft(taps, size)
        y = [
            irfft(rfft(known[..., start : end + L - 1], size) * response, size)[
                ..., L - 1 : L - 1 + end - start
            ]
            for start, end in pieces
        ]
        return torch.cat(y, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        known, taps = ctx.saved_tensors
        L = taps.shape[1]
        size, pieces = _blocks(known, L)
        response = rfft(taps, size).conj()
        dknown = torch.zeros_like(known)
        dresponse = torch.zeros_like(response)
        for start, end in pieces:
            block = slice(start, end + L - 1)
            # an output stands where its own input does, behind L - 1 earlier ones
            outgoing = rfft(torch.nn.functional.pad(dy[..., start:end], (L - 1, 0)), size)
            dknown[..., block] += irfft(outgoing * response, size)[..., : end + L - 1 - start]
            dresponse += (outgoing * rfft(known[..., block], size).conj()).sum(0)
        return dknown, irfft(dresponse, size)[..., :L]


def _blocks(known: Tensor, taps: int) -> tuple[int, list[tuple[int, int]]]:
    """Length of the transforms, and first and last position (exclusive) of every block."""
    length = known.shape[-1] - taps + 1
    block = min(length, max(BLOCK, 3 * taps))
    starts = range(0, length, block)
    return _fast_length(block + taps - 1), [(s, min(s + block, length)) for s in starts]


def _fast_length(least: int) -> int:
    """The smallest even number from `least` on without a prime factor above 5."""
    size = least + least % 2
    while True:
        rest = size
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return size
        size += 2


def _packed(
    x: Tensor, taps: Tensor, skip: Tensor | None, initial_state: Tensor, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor]:
    """Blocks that never cross a border; sizes follow from shapes, with no host transfer.

    Args:
        x: (T, D), the packed row.
        taps: (D, L).
        skip: (D,) or None.
        initial_state: (N, D, L - 1).
        cu_seqlens: (N + 1,).
    """
    (T, D), L = x.shape, taps.shape[1]
    bounds = cu_seqlens.long()
    count = bounds.shape[0] - 1
    sequence = sequence_of(cu_seqlens, T)
    valid = (sequence < count)[:, None]
    # left out before anything is multiplied: 0 times infinity is no number
    x = torch.where(valid, x, 0.0)
    # one pool of rows to gather from: all positions, each sequence's earlier inputs, and nothing
    pool = torch.cat([x, initial_state.mT.reshape(-1, D), x.new_zeros(1, D)])

    S = min(T, max(L, LEAST_BLOCK))
    blocks = (bounds.diff() + S - 1) // S  # (N,)
    first = blocks.cumsum(0) - blocks
    number = torch.arange((T + S - 1) // S + count, device=x.device)  # no fewer than are filled
    owner = torch.searchsorted(blocks.cumsum(0), number, right=True).clamp(max=count - 1)
    window = (number - first[owner])[:, None] * S + torch.arange(1 - L, S, device=x.device)
    known = pool[_source(window, owner[:, None], bounds, T, L - 1)].mT  # (blocks, D, L - 1 + S)
    y = _Convolve.apply(known, taps).mT.reshape(-1, D)  # (blocks * S, D)

    safe = sequence.clamp(max=count - 1)
    slot = first[safe] * S + torch.arange(T, device=x.device) - bounds[safe]
    y = y[torch.where(valid[:, 0], slot, 0)]
    y = y if skip is None else y + skip.to(y.dtype) * x
    lags = torch.arange(1 - L, 0, device=x.device)
    sequences = torch.arange(count, device=x.device)[:, None]
    tail = _source(bounds.diff()[:, None] + lags, sequences, bounds, T, L - 1)
    return torch.where(valid, y, 0.0)[None], pool[tail].mT


def _source(position: Tensor, owner: Tensor, bounds: Tensor, length: int, tail: int) -> Tensor:
    """Row of the pool that holds a position, counted from the start of the sequence it belongs to.

    Negative positions lie in the sequence's state, those past its end in the row of nothing.
    """
    before = length + (owner + 1) * tail + position
    row = torch.where(position >= 0, bounds[owner] + position, before)
    nothing = length + (bounds.shape[0] - 1) * tail
    return torch.where(position < bounds.diff()[owner], row, nothing)
