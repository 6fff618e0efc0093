"""Which bases an evaluation scores: the same at every length."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fracdna_prep.coverage import union
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.windows import tile


@dataclass(frozen=True)
class Regions:
    """Equally long regions of a genome, and what was left out on the way to them.

    Attributes:
        intervals: on the forward strand, each `width` bases.
        width: bases of a region; every evaluated length divides it.
        found: tiles of that width in the split.
        with_n: tiles dropped for bases other than A, C, G and T.
        unused: bases of the split in no tile.
    """

    intervals: tuple[Interval, ...]
    width: int
    found: int
    with_n: int
    unused: int

    @property
    def manifest_hash(self) -> str:
        """SHA-256 of the coordinates in order."""
        text = "\n".join(f"{i.chromosome}\t{i.start}\t{i.end}" for i in self.intervals)
        return hashlib.sha256(text.encode()).hexdigest()

    def write(self, path: Path) -> None:
        """The manifest as Parquet: region, contig, start, end."""
        columns = {
            "region": range(len(self.intervals)),
            "contig": [i.chromosome for i in self.intervals],
            "start": [i.start for i in self.intervals],
            "end": [i.end for i in self.intervals],
        }
        with atomic_file(path) as temporary:
            pq.write_table(pa.table(columns), temporary)


def check_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """Ascending lengths, each dividing the longest.

    Raises:
        InputError: none, one below 1, or one that does not divide the longest.
    """
    ordered = tuple(sorted(set(lengths)))
    if not ordered or ordered[0] < 1:
        raise InputError(f"lengths={list(lengths)}: give one or more lengths of at least 1 base")
    odd = [length for length in ordered if ordered[-1] % length]
    if odd:
        raise InputError(
            f"lengths={list(lengths)}: {odd[0]} does not divide {ordered[-1]}, so both could not "
            "score the same bases; use powers of two"
        )
    return ordered


def merged(intervals: Sequence[Interval]) -> list[Interval]:
    """The same bases on the forward strand, each in one interval only, sorted within contigs."""
    bases: list[Interval] = []
    for contig in dict.fromkeys(interval.chromosome for interval in intervals):
        mine = [(i.start, i.end) for i in intervals if i.chromosome == contig]
        starts, ends = union(*np.array(mine, dtype=np.int64).T)
        bases += [Interval(contig, int(s), int(e)) for s, e in zip(starts, ends, strict=True)]
    return bases


def choose_regions(
    store: GenomeStore,
    intervals: Sequence[Interval],
    width: int,
    *,
    count: int,
    max_n_fraction: float = 0.0,
) -> Regions:
    """Tile the intervals, drop tiles with too many N, keep evenly spaced ones.

    Args:
        store: the genome.
        intervals: of one split.
        width: bases of a region.
        count: regions to keep at most.
        max_n_fraction: share of bases other than A, C, G, T that a region may have.

    Raises:
        InputError: no region is left; the message says how long intervals are.
    """
    tiles = [
        window.interval
        for interval in intervals
        if interval.width >= width
        for window in tile(interval, width, store.contigs[interval.chromosome], policy="drop")
        if window.readable
    ]
    fractions = _n_fractions(store, tiles)
    clean = [t for t, n in zip(tiles, fractions, strict=True) if n <= max_n_fraction]
    if not clean:
        longest = max((interval.width for interval in intervals), default=0)
        raise InputError(
            f"no region of {width:,} bases without N: the longest interval of this split has "
            f"{longest:,} bases and {len(tiles)} such tiles were dropped for N; use shorter "
            "lengths=, another split= or a larger max_n_fraction="
        )
    if min(fractions) == 1:
        raise InputError(
            f"no base of this split is known: its {len(tiles)} tiles of {width:,} bases hold "
            "nothing but N; use another split="
        )
    chosen = np.linspace(0, len(clean) - 1, min(count, len(clean))).round().astype(int)
    return Regions(
        intervals=tuple(Interval(t.chromosome, t.start, t.end) for t in np.take(clean, chosen)),
        width=width,
        found=len(tiles),
        with_n=len(tiles) - len(clean),
        unused=sum(i.width for i in intervals) - width * len(tiles),
    )


def _n_fractions(store: GenomeStore, tiles: Sequence[Interval]) -> np.ndarray:
    """Share of N in each tile; a contig is read once for all of its tiles."""
    fractions = np.zeros(len(tiles))
    contigs = np.array([tile.chromosome for tile in tiles], dtype=object)
    for contig in dict.fromkeys(contigs):
        mine = np.flatnonzero(contigs == contig)
        starts, ends = np.array([(tiles[i].start, tiles[i].end) for i in mine]).T
        n, _ = store.count_n_and_masked(contig, starts, ends)
        fractions[mine] = n / (ends - starts)
    return fractions
