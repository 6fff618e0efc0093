"""The position before each position: what RWKV mixes into its inputs."""

import torch
from torch import Tensor

from fracdna.mixers.positions import at_end


def token_shift(
    x: Tensor, last: Tensor | None, positions: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What stands before each position of its own sequence; zeros before the first.

    Args:
        x: (batch, length, width).
        last: (batch, width), what stands before x; None: nothing, and rows may hold several packed
            sequences.
        positions: (length,) or (batch, length), counted from 0 in each sequence.
        lengths: (batch,) valid positions of right-padded rows; None: all.

    Returns:
        (batch, length, width), and the last valid position of each row, (batch, width).
    """
    before = x.new_zeros(x.shape[0], x.shape[2]) if last is None else last
    previous = torch.cat([before[:, None].to(x.dtype), x], dim=1)[:, :-1]
    if last is None:
        previous = torch.where((positions > 0)[:, None], previous, 0.0)
    return previous, at_end(before, x, lengths)
