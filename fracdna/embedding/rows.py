"""Rows of results and where each keeps its vectors in one array."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np

from fracdna.embedding.options import EmbeddingOptions
from fracdna.embedding.reads import Read
from fracdna.embedding.regions import Regions
from fracdna.embedding.states import Embedder
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna_prep.genome import GenomeStore


@dataclass(frozen=True)
class Rows:
    """Rows of a result, some of which may have nothing to be read.

    Attributes:
        reads: what is read.
        usable: (reads,) the row of each of them, ascending.
        count: rows of the result.
        options: layers, pooling, strand and limits.
    """

    reads: Sequence[Read]
    usable: np.ndarray
    count: int
    options: EmbeddingOptions

    @classmethod
    def of_reads(cls, reads: Sequence[Read], options: EmbeddingOptions) -> Self:
        """A row for every read."""
        return cls(reads, np.arange(len(reads)), len(reads), options)

    @classmethod
    def of_regions(cls, regions: Regions, store: GenomeStore, options: EmbeddingOptions) -> Self:
        """A row for every region, dropped ones included."""
        return cls(regions.reads(store), regions.usable, len(regions), options)

    @cached_property
    def offsets(self) -> np.ndarray:
        """(count + 1,) int64: where the vectors of a row begin; the last is how many there are.

        A row has one vector with a pooling, else one for each base and none where it is dropped.
        """
        sizes = np.zeros(self.count, dtype=np.int64)
        if self.options.per_base:
            sizes[self.usable] = [read.bases for read in self.reads]
        else:
            sizes[:] = 1
        return np.concatenate([[0], np.cumsum(sizes)])

    @property
    def positions(self) -> int:
        """Bases that all passes read."""
        return sum(read.positions(self.options.strand) for read in self.reads)

    def shape(self, d_model: int) -> tuple[int, int, int]:
        """(vectors, layers, width) of all values; the width is d_model, or twice that."""
        return int(self.offsets[-1]), len(self.options.layers), self.options.width(d_model)

    def empty(self, d_model: int) -> np.ndarray:
        """Values of that shape, NaN float32."""
        return np.full(self.shape(d_model), np.nan, dtype=np.float32)

    def view_of(self, out: np.ndarray) -> np.ndarray:
        """A caller's array with the axis of layers, which it lacks for a single one."""
        return out[:, None] if isinstance(self.options.layer, int) else out

    def place(self, read: int) -> slice:
        """Where a read's vectors are in all values."""
        row = self.usable[read]
        return slice(self.offsets[row], self.offsets[row + 1])

    def not_finite(self, read: int) -> NotFinite:
        """What is raised for the first read whose vectors are no numbers."""
        row = int(self.usable[read])
        return NotFinite(f"sequence {row}: its vector holds NaN or infinity", row)

    def unpacked(self, values: np.ndarray) -> np.ndarray | list[np.ndarray]:
        """Values as callers get them: one array, or with pooling "none" one for each row."""
        found = values[:, 0] if isinstance(self.options.layer, int) else values
        if not self.options.per_base:
            return found
        return [found[first:stop] for first, stop in pairwise(self.offsets)]


def fill_rows(
    model: LanguageModel, rows: Rows, values: np.ndarray, advance: Callable[[int], Any]
) -> None:
    """All vectors of all rows.

    Args:
        model: on the device to be used.
        rows: what is read.
        values: (vectors, layers, width) float32, to be filled.
        advance: told the bases of every pass.

    Raises:
        InputError: an unusable option, or reads that are too long for the model.
        NotFinite: a vector holds NaN or infinity; names the first affected row.
    """
    embedder = Embedder(model, rows.options, advance)
    done = np.zeros(len(rows.reads), dtype=bool)
    for batch in embedder.plan(rows.reads):
        targets = [values[rows.place(read)] for read in batch]
        affected = embedder.fill_batch(rows.reads, batch, targets)
        if affected is not None:
            raise rows.not_finite(embedder.first_affected(rows.reads, done, affected))
        done[batch] = True
