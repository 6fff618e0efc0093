"""Two labelled interval sets of a genome: promoters and CpG islands, each beside background."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fracdna.probing.labelled import region_of
from fracdna_prep.bed import BedTable
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.names import resolve_names
from fracdna_prep.vocabulary import DNA

UPSTREAM, DOWNSTREAM = 250, 50  # bases of a promoter before its start and from it on
BACKGROUND = "background"
_TRIES = 1000


@dataclass(frozen=True)
class Example:
    """A row of a labelled BED."""

    interval: Interval
    label: str
    split: str


class Part:
    """A region of one split, with what may not be drawn from it.

    Args:
        store: the genome.
        region: on the forward strand.
        split: train or test.
    """

    def __init__(self, store: GenomeStore, region: Interval, split: str) -> None:
        self.region, self.split = region, split
        ids = store.fetch(region)
        _, c, g, _ = DNA.bases
        self._gc = np.concatenate([[0], np.cumsum((ids == c) | (ids == g))])
        self._taken = ids == DNA.n

    def holds(self, interval: Interval) -> bool:
        """Whether an interval lies in the region."""
        inside = self.region.start <= interval.start and interval.end <= self.region.end
        return interval.chromosome == self.region.chromosome and inside

    def is_free(self, interval: Interval) -> bool:
        """Whether no base of it is N or taken."""
        return not self._taken[self._slice(interval)].any()

    def take(self, interval: Interval) -> None:
        """Nothing else is drawn from its bases; what lies outside of the region is cut off."""
        if interval.chromosome == self.region.chromosome:
            self._taken[self._slice(interval)] = True

    def gc(self, interval: Interval) -> int:
        """Its G and C."""
        part = self._slice(interval)
        return int(self._gc[part.stop] - self._gc[part.start])

    def tiles(self, width: int, offset: int) -> Iterator[Interval]:
        """Free intervals of one width, side by side."""
        for start in range(self.region.start + offset, self.region.end - width + 1, width):
            tile = Interval(self.region.chromosome, start, start + width)
            if self.is_free(tile):
                yield tile

    def draw(self, width: int, random: np.random.Generator) -> Interval:
        """A free interval, and its bases are taken.

        Raises:
            InputError: none was found.
        """
        for _ in range(_TRIES):
            start = int(random.integers(self.region.start, self.region.end - width + 1))
            drawn = Interval(self.region.chromosome, start, start + width)
            if self.is_free(drawn):
                self.take(drawn)
                return drawn
        raise InputError(f"{self.region}: no {width:,} free bases were found in {_TRIES:,} draws")

    def _slice(self, interval: Interval) -> slice:
        start, end = self.region.start, self.region.end
        clipped = np.clip([interval.start, interval.end], start, end) - start
        return slice(int(clipped[0]), int(clipped[1]))


def read_parts(
    store: GenomeStore, train: Sequence[str], test: Sequence[str], rename: str
) -> list[Part]:
    """The regions that are trained on and tested on.

    Args:
        store: the genome.
        train: contigs or region strings.
        test: likewise.
        rename: of their contigs.

    Raises:
        InputError: one that is not on the genome, or two that share a base.
    """
    parts = []
    for split, texts in (("train", train), ("test", test)):
        for text in texts:
            region = region_of(text, store.contigs, rename)
            end = min(region.end, store.contigs[region.chromosome])
            parts.append(Part(store, Interval(region.chromosome, region.start, end), split))
    ordered = sorted((part.region.chromosome, part.region.start, part.region.end) for part in parts)
    for (contig, _, end), (other, start, _) in pairwise(ordered):
        if contig == other and start < end:
            raise InputError(f"two regions share bases of {contig} from {start + 1:,} on")
    return parts


def promoters(
    parts: Sequence[Part], starts: BedTable, rename: str, contigs: Sequence[str], seed: int
) -> list[Example]:
    """300 bases around each transcription start, and as many with as much GC elsewhere.

    A promoter reaches from 250 bases before the start to 49 behind it, on the strand of the
    transcript. Of those that overlap on either strand the first is kept. Background is tiles of the
    same region that touch no promoter, kept or not, each with the count of G and C nearest to its
    promoter's, and on the same strand.
    """
    placed = [_promoter(i) for i in _on_genome(starts, rename, contigs)]
    found = []
    for number, part in enumerate(parts):
        random = np.random.default_rng([seed, number])
        kept, end = [], -1
        for interval in sorted(filter(part.holds, placed), key=lambda i: (i.start, i.strand)):
            if interval.start >= end and part.is_free(interval):
                kept.append(interval)
                end = interval.end
        for interval in placed:
            part.take(interval)
        width = UPSTREAM + DOWNSTREAM
        tiles = part.tiles(width, int(random.integers(width)))
        background = _nearest_gc(part, kept, tiles, random)
        found += [Example(interval, "promoter", part.split) for interval in kept]
        found += [Example(interval, BACKGROUND, part.split) for interval in background]
    return found


def islands(
    parts: Sequence[Part], rows: BedTable, rename: str, contigs: Sequence[str], seed: int
) -> list[Example]:
    """CpG islands, and for each an interval of its length elsewhere in its region."""
    placed = list(_on_genome(rows, rename, contigs))
    found = []
    for number, part in enumerate(parts):
        random = np.random.default_rng([seed, number])
        kept = [i for i in placed if part.holds(i) and part.is_free(i)]
        for interval in placed:
            part.take(interval)
        found += [Example(interval, "island", part.split) for interval in kept]
        found += [Example(part.draw(i.width, random), BACKGROUND, part.split) for i in kept]
    return found


def write_labelled_bed(path: Path, examples: Sequence[Example]) -> None:
    """Contig, start, end, class, 0, strand, split: what `fracdna probe` reads."""
    order = sorted(
        examples, key=lambda e: (e.interval.chromosome, e.interval.start, e.interval.strand)
    )
    with atomic_file(path) as temporary, temporary.open("w") as file:
        for example in order:
            place = example.interval
            fields = (place.chromosome, place.start, place.end, example.label, 0, place.strand)
            file.write("\t".join(map(str, [*fields, example.split])) + "\n")


def facts(parts: Sequence[Part], examples: Sequence[Example]) -> dict[str, Any]:
    """Rows, bases and share of GC by split and class."""
    groups = defaultdict(list)
    for example in examples:
        groups[f"{example.split} {example.label}"].append(example.interval)
    return {
        group: {
            "rows": len(intervals),
            "bases": sum(i.width for i in intervals),
            "gc": sum(_gc(parts, i) for i in intervals) / sum(i.width for i in intervals),
        }
        for group, intervals in groups.items()
    }


def _gc(parts: Sequence[Part], interval: Interval) -> int:
    """G and C of an interval in one of the parts."""
    return next(part for part in parts if part.holds(interval)).gc(interval)


def _on_genome(rows: BedTable, rename: str, contigs: Sequence[str]) -> Iterator[Interval]:
    """Rows on contigs that the genome has, under its names."""
    names = resolve_names(rows.contigs, contigs, rename)
    if not names:
        raise InputError(
            f"{rows.path}: none of its contigs is in the genome: give --rename chr_prefix or a file"
        )
    for interval in rows.intervals():
        if interval.chromosome in names:
            name = names[interval.chromosome]
            yield Interval(name, interval.start, interval.end, interval.strand)


def _promoter(start: Interval) -> Interval:
    """The bases around a transcription start, which is the first base of its interval."""
    if start.strand == "-":
        first = start.end - 1 + UPSTREAM
        return Interval(start.chromosome, first + 1 - UPSTREAM - DOWNSTREAM, first + 1, "-")
    first = start.start - UPSTREAM
    return Interval(start.chromosome, first, first + UPSTREAM + DOWNSTREAM)


def _nearest_gc(
    part: Part,
    wanted: Sequence[Interval],
    tiles: Iterator[Interval],
    random: np.random.Generator,
) -> list[Interval]:
    """A tile for each interval, none twice, as near in GC as there still is one."""
    by_gc = defaultdict(list)
    for tile in tiles:
        by_gc[part.gc(tile)].append(tile)
    for candidates in by_gc.values():
        random.shuffle(candidates)
    found = []
    for number in random.permutation(len(wanted)):
        interval, count = wanted[number], part.gc(wanted[number])
        nearest = min(
            (gc for gc in by_gc if by_gc[gc]), key=lambda gc: abs(gc - count), default=None
        )
        if nearest is None:
            raise InputError(f"{part.region}: fewer free tiles than promoters: widen the region")
        tile = by_gc[nearest].pop()
        found.append(Interval(tile.chromosome, tile.start, tile.end, interval.strand))
    return found
