"""Vectors from the states of regions, also when these come piece by piece."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fracdna.embedding.reads import Read


class Pool:
    """Running sums over the positions that a pooling counts.

    Args:
        pooling: a name of options.POOLINGS.
        reads: the rows.
        device: of the states.
    """

    def __init__(self, pooling: str, reads: Sequence[Read], device: torch.device) -> None:
        self._first = torch.tensor([read.first for read in reads], device=device)
        self._stop = torch.tensor([read.stop for read in reads], device=device)
        flipped = torch.tensor([read.flipped for read in reads], device=device)
        self._position = _position(pooling, self._first, self._stop, flipped)
        self._sums: dict[int, Tensor] = {}

    def add(self, layers: Sequence[Tensor], start: int) -> None:
        """Take in the states of positions from `start` on.

        Args:
            layers: each (batch, length, d_model), in the order of reading, pads on the right.
            start: position of the first of them, counted from 0 behind BOS.
        """
        positions = start + torch.arange(layers[0].shape[1], device=layers[0].device)
        if self._position is None:
            counted = (positions >= self._first[:, None]) & (positions < self._stop[:, None])
        else:
            counted = positions == self._position[:, None]
        for number, states in enumerate(layers):
            # a pad may hold anything, NaN too, so it is replaced rather than multiplied by zero;
            # sums in float64 do not depend on how a region is cut
            kept = torch.where(counted[..., None], states, 0.0).sum(1, dtype=torch.float64)
            self._sums[number] = self._sums[number] + kept if number in self._sums else kept

    def vectors(self) -> Tensor:
        """(batch, layers, d_model) float64, after all positions were added; carries gradients."""
        sums = torch.stack([self._sums[number] for number in sorted(self._sums)], dim=1)
        if self._position is None:
            sums = sums / (self._stop - self._first)[:, None, None]
        return sums

    def result(self) -> np.ndarray:
        """The vectors in an array."""
        return self.vectors().cpu().numpy()


class PerBase:
    """Every base's states, put where they belong on the forward strand.

    Args:
        reads: the rows.
        targets: of each row (bases, layers, d_model) float32, or such a half of it, to be filled.
        second: the targets hold the other strand already: the mean of both is kept.
    """

    def __init__(
        self, reads: Sequence[Read], targets: Sequence[np.ndarray], *, second: bool
    ) -> None:
        self._reads, self._targets, self._second = reads, targets, second

    def add(self, layers: Sequence[Tensor], start: int) -> None:
        """Take in the states of positions from `start` on, as Pool.add does."""
        for number, states in enumerate(layers):
            found = states.float().cpu().numpy()
            for row, (read, target) in enumerate(zip(self._reads, self._targets, strict=True)):
                first, stop = max(start, read.first), min(start + found.shape[1], read.stop)
                if first >= stop:
                    continue
                piece = found[row, first - start : stop - start]
                place = slice(first - read.first, stop - read.first)
                if read.flipped:
                    piece = piece[::-1]
                    place = slice(read.stop - stop, read.stop - first)
                kept = target[place, number]
                kept[:] = (kept + piece) / 2 if self._second else piece


def _position(pooling: str, first: Tensor, stop: Tensor, flipped: Tensor) -> Tensor | None:
    """The one position that counts in each row, in the order of reading; None: all of them."""
    if pooling == "mean":
        return None
    if pooling == "last":
        return stop - 1
    centre = (stop - first) // 2
    return torch.where(flipped, stop - 1 - centre, first + centre)
