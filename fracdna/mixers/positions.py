"""Where each position of a batch stands in its own sequence, and where that ends."""

import torch
from torch import Tensor

from fracdna_kernels.shapes import sequence_of


def sequence_positions(
    x: Tensor, count: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> Tensor:
    """Positions counted from 0 at the start of each sequence.

    Args:
        x: (batch, length, ...), of which only the size and the device are used.
        count: (batch,) positions that each row has seen before x; None: none.
        cu_seqlens: (sequences + 1,) bounds of packed sequences, which start afresh.

    Returns:
        (length,), or (batch, length) with a count. Outside the bounds the values mean nothing.
    """
    positions = torch.arange(x.shape[1], device=x.device)
    if count is not None:
        return count[:, None] + positions
    if cu_seqlens is None:
        return positions
    return positions - cu_seqlens.long()[sequence_of(cu_seqlens, x.shape[1])]


def at_end(before: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    """What stands at the true end of each row.

    Args:
        before: (batch, ...), what stood there before x, for rows without valid positions.
        x: (batch, length, ...).
        lengths: (batch,) valid positions of right-padded rows; None: all.

    Returns:
        (batch, ...) in the dtype of before.
    """
    if lengths is None:
        return x[:, -1].to(before.dtype) if x.shape[1] else before
    both = torch.cat([before[:, None], x.to(before.dtype)], dim=1)
    return both[torch.arange(x.shape[0], device=x.device), lengths]
