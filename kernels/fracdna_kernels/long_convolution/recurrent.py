"""long_convolution for decoding: one sum over the past costs less than its transform."""

import torch
from torch import Tensor

from fracdna_kernels.forms import accumulator


def long_convolution_recurrent(
    x: Tensor,
    taps: Tensor,
    skip: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """One sequence per row, position by position; see long_convolution for shapes.

    Raises:
        ValueError: packed sequences, which a decoder never holds.
    """
    if cu_seqlens is not None:
        raise ValueError("form='recurrent' takes one sequence per row; use 'chunk' for packed rows")
    B, T, D = x.shape
    L = taps.shape[1]
    dtype = accumulator(x)
    if initial_state is None:
        initial_state = x.new_zeros(B, D, L - 1)
    x, oldest_first = x.to(dtype), taps.to(dtype).flip(1)
    known = torch.cat([initial_state.to(dtype), x.mT], dim=-1)  # (B, D, L - 1 + T)
    outputs = [(known[..., t : t + L] * oldest_first).sum(-1) for t in range(T)]
    y = torch.stack(outputs, dim=1) if outputs else torch.zeros_like(x)
    return y if skip is None else y + skip.to(dtype) * x, known[..., T:]
