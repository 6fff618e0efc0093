"""short_convolution for decoding: the window slides over state and input."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from fracdna_kernels.forms import accumulator


def short_convolution_recurrent(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    """One sequence per row, W products per position; see short_convolution for shapes.

    Raises:
        ValueError: packed sequences, which a decoder never holds.
    """
    if cu_seqlens is not None:
        raise ValueError("form='recurrent' takes one sequence per row; use 'chunk' for packed rows")
    B, T, D = x.shape
    W = weight.shape[1]
    dtype = accumulator(x)
    if initial_state is None:
        initial_state = x.new_zeros(B, D, W - 1)
    window = torch.cat([initial_state.to(dtype).mT, x.to(dtype)], dim=1)  # (B, W - 1 + T, D)
    y = sum(window[:, w : w + T] * weight[:, w].to(dtype) for w in range(W))
    if bias is not None:
        y = y + bias.to(dtype)
    return silu(y) if activation == "silu" else y, window[:, T:].mT
