"""What is read of a genome or of given sequences, and which part of it counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA


class Ids(Protocol):
    """A sequence of token ids that may be read in parts: an array, or something on a disk."""

    def __len__(self) -> int:
        """Number of ids."""

    def __getitem__(self, part: slice, /) -> np.ndarray:
        """The ids of a part."""


@dataclass(frozen=True, slots=True)
class ReverseComplement:
    """The other strand of a sequence, read in parts from its own start."""

    ids: Ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice, /) -> np.ndarray:
        first, last, _ = part.indices(len(self))
        return DNA.reverse_complement(self.ids[len(self) - last : len(self) - first])


@dataclass(frozen=True, slots=True)
class Read:
    """One row: a region between its flanks, in the order of reading.

    Models read in one direction, so the flank behind the region changes nothing and is not read.

    Attributes:
        ids: the flanks and the region.
        first: position of the region's first base in them.
        stop: position behind its last base; bases to be read.
        flipped: read from the end of the forward strand.
    """

    ids: Ids
    first: int
    stop: int
    flipped: bool = False

    @classmethod
    def whole(cls, ids: Ids, flipped: bool = False) -> Self:
        """A sequence without flanks."""
        return cls(ids, 0, len(ids), flipped)

    @property
    def bases(self) -> int:
        """Bases of the region."""
        return self.stop - self.first

    def on_other_strand(self) -> "Read":
        """The same region, read from its other end."""
        length = len(self.ids)
        first, stop = length - self.stop, length - self.first
        return Read(ReverseComplement(self.ids), first, stop, not self.flipped)

    def by_strand(self, strand: str) -> list["Read"]:
        """The reads that a strand option asks for: one, or both: this one first."""
        forward = [self] if strand != "reverse" else []
        return forward + ([self.on_other_strand()] if strand != "forward" else [])

    def positions(self, strand: str) -> int:
        """Bases that all passes over it read."""
        return sum(read.stop for read in self.by_strand(strand))


def whole_reads(sequences: Sequence[Ids], flipped: np.ndarray | None = None) -> list[Read]:
    """Sequences without flanks, each a row.

    Raises:
        InputError: an empty sequence.
    """
    for number, ids in enumerate(sequences):
        if not len(ids):
            raise InputError(f"sequence {number} is empty: give at least one base")
    flips = [False] * len(sequences) if flipped is None else [bool(flip) for flip in flipped]
    return [Read.whole(ids, flip) for ids, flip in zip(sequences, flips, strict=True)]
