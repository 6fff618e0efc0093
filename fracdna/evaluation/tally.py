"""Sums over scored bases, whatever model their nats are of: one place, in float64."""

import hashlib
from dataclasses import dataclass

import numpy as np

from fracdna.evaluation.classes import BaseClasses
from fracdna.evaluation.regions import Regions
from fracdna.outcomes import NotFinite
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA

FORWARD, REVERSE, AVERAGE = "forward", "reverse", "average"
_IS_BASE = np.zeros(256, dtype=bool)
_IS_BASE[list(DNA.bases)] = True


@dataclass
class Sums:
    """What a model made of the counted bases of every region, by group.

    Attributes:
        nats: (regions, groups) float64.
        nats_acgt: (regions, groups) float64, with the softmax over A, C, G and T alone.
        tokens: (regions, groups) int64 counted bases.
    """

    nats: np.ndarray
    nats_acgt: np.ndarray
    tokens: np.ndarray

    def __add__(self, other: "Sums") -> "Sums":
        """Both together, region by region."""
        return Sums(
            self.nats + other.nats, self.nats_acgt + other.nats_acgt, self.tokens + other.tokens
        )


@dataclass
class Cell:
    """One model, windows of one length on one strand.

    Attributes:
        bases: of all bases that were read, by the groups of BaseClasses.
        target: of the last bases of every region, by the same groups.
        contexts: of all bases that were read, by position in the region: bucket 0 is its first
            base, bucket b those with 2^(b-1) to 2^b - 1 bases before them.
        n_skipped: N that were read and not counted.
        pad_skipped: PAD likewise.
        scored: SHA-256 over coordinates and counted positions, equal at every length.
        target_scored: the same of the last bases.
    """

    bases: Sums
    target: Sums
    contexts: Sums
    n_skipped: int
    pad_skipped: int
    scored: str
    target_scored: str


@dataclass(frozen=True)
class Reading:
    """What is read of every region, and how.

    Attributes:
        store: the genome.
        classes: the regions, and how their bases are divided.
        length: bases of a window; divides `span`.
        span: bases that are read: the region, or its last ones alone.
        target: how many last bases are summed apart.
        strand: forward, or reverse: the reverse complement of the region, from its own start.
    """

    store: GenomeStore
    classes: BaseClasses
    length: int
    span: int
    target: int
    strand: str = FORWARD

    @property
    def regions(self) -> Regions:
        """What is scored."""
        return self.classes.regions

    @property
    def total(self) -> int:
        """Bases of one pass over everything."""
        return len(self.regions.intervals) * self.span

    def last(self, region: int, bases: int) -> Interval:
        """The last bases of a region in the direction of reading."""
        whole = self.regions.intervals[region]
        if self.strand == REVERSE:
            return Interval(whole.chromosome, whole.start, whole.start + bases, "-")
        return Interval(whole.chromosome, whole.end - bases, whole.end)

    def ids(self, region: int) -> np.ndarray:
        """(span,) uint8 ids of the part that is read, on its strand."""
        return self.store.fetch(self.last(region, self.span))

    def labels(self, region: int) -> np.ndarray:
        """(span,) int32 labels of its bases, in the order in which they are read, writable."""
        labels = self.classes.labels(region)
        return (labels[::-1] if self.strand == REVERSE else labels)[-self.span :]


def position_buckets(length: int) -> np.ndarray:
    """Bucket of each position by the bases before it: 0 has none, b at least 2^(b-1).

    Returns:
        (length,) int64.
    """
    edges = 2 ** np.arange(int(length - 1).bit_length())  # 1, 2, 4, ..
    return np.searchsorted(edges, np.arange(length), side="right")


class Tally:
    """Takes nats base by base in the order in which regions are read, and keeps their sums.

    Args:
        reading: what is read.
        rows: how many values come for each base.
    """

    def __init__(self, reading: Reading, rows: int) -> None:
        self.reading = reading
        self._membership = reading.classes.membership
        self._buckets = position_buckets(reading.regions.width)[-reading.span :].astype(np.int32)
        self._shape = len(self._membership), int(self._buckets[-1]) + 1
        self._tail = reading.span - min(reading.target, reading.span)
        count = len(reading.regions.intervals)
        groups = self._membership.shape[1]
        # of all bases and of the last ones: values, then counts
        self._nats = np.zeros((2, rows, count, groups))
        self._tokens = np.zeros((2, count, groups), dtype=np.int64)
        self._context_nats = np.zeros((rows, count, self._shape[1]))
        self._context_tokens = np.zeros((count, self._shape[1]), dtype=np.int64)
        self._skipped = {"n": 0, "pad": 0}
        self._digests = hashlib.sha256(), hashlib.sha256()
        self._region, self._offset = 0, 0
        # of the region that is open: where runs of bases of one label start, and the labels
        self._runs = self._run_labels = np.empty(0, dtype=np.int64)
        self._open = np.zeros((2, rows, self._shape[0] * self._shape[1] + 1))

    def add(self, nats: np.ndarray) -> None:
        """The next bases, of one region or of several.

        Args:
            nats: (rows, bases), anything where a base is not counted.

        Raises:
            NotFinite: the sum of a region is no number.
        """
        while nats.shape[1]:
            if self._offset == 0:
                self._begin()
            count = min(nats.shape[1], self.reading.span - self._offset)
            self._sum(nats[:, :count])
            self._offset += count
            nats = nats[:, count:]
            if self._offset == self.reading.span:
                self._end()

    def cell(self, row: int, acgt_row: int) -> Cell:
        """The sums of one row, with those of the row that is renormalised over the bases."""
        bases, target = (
            Sums(nats[row], nats[acgt_row], tokens)
            for nats, tokens in zip(self._nats, self._tokens, strict=True)
        )
        scored, target_scored = (digest.hexdigest() for digest in self._digests)
        return Cell(
            bases=bases,
            target=target,
            contexts=Sums(
                self._context_nats[row], self._context_nats[acgt_row], self._context_tokens
            ),
            n_skipped=self._skipped["n"],
            pad_skipped=self._skipped["pad"],
            scored=scored,
            target_scored=target_scored,
        )

    def _begin(self) -> None:
        """Label and count the bases of the region that comes now."""
        ids = self.reading.ids(self._region)
        counted = _IS_BASE[ids]
        labels = self.reading.labels(self._region)
        labels *= self._shape[1]
        labels += self._buckets
        labels[~counted] = self._open.shape[-1] - 1
        self._runs = np.append(0, np.flatnonzero(labels[1:] != labels[:-1]) + 1)
        self._run_labels = labels[self._runs]
        self._open[:] = 0
        pads = int(np.count_nonzero(ids == DNA.pad))
        self._skipped["pad"] += pads
        self._skipped["n"] += int(np.count_nonzero(~counted)) - pads
        for digest, first in zip(self._digests, (0, self._tail), strict=True):
            place = self.reading.last(self._region, len(ids) - first)
            digest.update(f"{place}\n".encode() + np.packbits(counted[first:]).tobytes())

    def _sum(self, nats: np.ndarray) -> None:
        """Add a stretch of one region by label, and what of it is among the last bases."""
        end = self._offset + nats.shape[1]
        for sums, first in zip(self._open, (0, self._tail), strict=True):
            start = max(first, self._offset)
            if start >= end:
                continue
            starts, labels = self._runs_of(start, end)
            # summed run by run: labels change rarely, and a run is added up in one sweep
            runs = np.add.reduceat(
                nats[:, start - self._offset :], starts - start, axis=1, dtype=np.float64
            )
            for row, values in zip(sums, runs, strict=True):
                row += np.bincount(labels, values, minlength=len(row))

    def _runs_of(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Starts and labels of the runs in a stretch of the region; the first may be cut."""
        low = np.searchsorted(self._runs, start, side="right") - 1
        high = np.searchsorted(self._runs, end)
        return self._runs[low:high].clip(min=start), self._run_labels[low:high]

    def _end(self) -> None:
        """Turn the sums of labels into those of groups and of positions."""
        region, span = self._region, self.reading.span
        for part, first in enumerate((0, self._tail)):
            starts, labels = self._runs_of(first, span)
            counts = np.zeros(self._open.shape[-1], dtype=np.int64)
            np.add.at(counts, labels, np.diff(starts, append=span))
            # what is not counted has the last label
            table = self._open[part, :, :-1].reshape(-1, *self._shape)
            counts = counts[:-1].reshape(self._shape)
            self._nats[part, :, region] = table.sum(2) @ self._membership
            self._tokens[part, region] = counts.sum(1) @ self._membership
            if part == 0:
                self._context_nats[:, region] = table.sum(1)
                self._context_tokens[region] = counts.sum(0)
        self._check_finite()
        self._region, self._offset = region + 1, 0

    def _check_finite(self) -> None:
        """Nats that are no number end the work."""
        found = self._nats[0, :, self._region, 0]
        if not np.isfinite(found).all():
            place = self.reading.regions.intervals[self._region]
            raise NotFinite(
                f"region {place} at length {self.reading.length}: the likelihood is "
                f"{found[~np.isfinite(found)][0]}; check the weights, or compute with "
                "precision=float32",
                self._region,
            )
