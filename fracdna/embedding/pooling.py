"""One vector from the states of a region, also when they come piece by piece."""

import torch
from torch import Tensor


class Pool:
    """A running sum over the positions that a pooling counts.

    Args:
        pooling: a name of options.POOLINGS.
        lengths: (batch,) bases of each row.
        flipped: (batch,) bool, rows that are read from the end of the forward strand.
    """

    def __init__(self, pooling: str, lengths: Tensor, flipped: Tensor) -> None:
        self._lengths = lengths
        self._position = _position(pooling, lengths, flipped)
        self._sum: Tensor | float = 0.0

    def add(self, states: Tensor, start: int) -> None:
        """Take in the states of positions from `start` on.

        Args:
            states: (batch, length, d_model), in the order of reading, pads on the right.
            start: position of the first of them, counted from 0 behind BOS.
        """
        positions = start + torch.arange(states.shape[1], device=states.device)
        if self._position is None:
            counted = positions < self._lengths[:, None]
        else:
            counted = positions == self._position[:, None]
        # a pad may hold anything, NaN too, so it is replaced rather than multiplied by zero; sums
        # in float64 do not depend on how a region is cut
        kept = torch.where(counted[..., None], states, 0.0)
        self._sum = self._sum + kept.sum(1, dtype=torch.float64)

    def result(self) -> Tensor:
        """(batch, d_model) float64, after all positions were added."""
        return self._sum / self._lengths[:, None] if self._position is None else self._sum


def _position(pooling: str, lengths: Tensor, flipped: Tensor) -> Tensor | None:
    """The one position that counts in each row, in the order of reading; None: all of them."""
    if pooling == "mean":
        return None
    if pooling == "last":
        return lengths - 1
    centre = lengths // 2
    return torch.where(flipped, lengths - 1 - centre, centre)
