"""The regions to embed: from a BED, a FASTA or region strings to intervals inside their contigs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fracdna.embedding.reads import Read
from fracdna_prep.bed import read_bed
from fracdna_prep.compression import open_unpacked
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.names import require_names
from fracdna_prep.option_checks import check_whole_number
from fracdna_prep.records import is_annotated
from fracdna_prep.vocabulary import DNA
from fracdna_prep.windows import OK, STATUSES, row_problems

_COUNTED_AT_ONCE = 1 << 20
_DROPPED = "dropped"
_CLIPPED = "clipped"


@dataclass(frozen=True)
class AskedRegions:
    """Regions as the input has them.

    Attributes:
        intervals: in the order of the input.
        names: None where a region has none.
        places: where each one stands, for messages.
    """

    intervals: list[Interval]
    names: list[str | None]
    places: Sequence[str]


@dataclass(frozen=True)
class Regions:
    """Regions on a genome, one row each, in the order of the input.

    Attributes:
        intervals: what counts, named as in the genome and clipped to its contig; of a dropped
            region, what was asked for.
        names: None where a region has none.
        statuses: "ok", "clipped left a right b", or "dropped: " and why; "shifted by a" and "flanks
            cut" where flanks met the end of the contig.
        windows: each interval between its flanks.
    """

    intervals: list[Interval]
    names: list[str | None]
    statuses: list[str]
    windows: list[Interval]

    def __len__(self) -> int:
        return len(self.intervals)

    @cached_property
    def usable(self) -> np.ndarray:
        """(K,) int64: rows that can be read, ascending."""
        kept = [row for row, text in enumerate(self.statuses) if not text.startswith(_DROPPED)]
        return np.array(kept, dtype=np.int64)

    @property
    def problems(self) -> list[int]:
        """Rows that are dropped or clipped; a region between other flanks is whole."""
        bad = _DROPPED, _CLIPPED
        return [row for row, status in enumerate(self.statuses) if status.startswith(bad)]

    def reads(self, store: GenomeStore) -> list[Read]:
        """What is read of every usable row, in their order; bases are fetched when they are due."""
        return [_read(store, self.intervals[row], self.windows[row]) for row in self.usable]

    @property
    def bases(self) -> int:
        """Bases of all usable rows."""
        return sum(self.intervals[row].width for row in self.usable)

    def n_fraction(self, row: int, store: GenomeStore) -> float | None:
        """Share of N among the bases of a row; None where it is dropped."""
        if self.statuses[row].startswith(_DROPPED):
            return None
        region, count = self.intervals[row], 0
        for start in range(region.start, region.end, _COUNTED_AT_ONCE):
            end = min(start + _COUNTED_AT_ONCE, region.end)
            count += np.count_nonzero(store.fetch(replace(region, start=start, end=end)) == DNA.n)
        return count / region.width


@dataclass(frozen=True, slots=True)
class RegionIds:
    """The ids of a region on its own strand, read from the genome in parts when they are needed."""

    store: GenomeStore
    region: Interval

    def __len__(self) -> int:
        return self.region.width

    def __getitem__(self, part: slice, /) -> np.ndarray:
        first, last, _ = part.indices(len(self))
        if self.region.strand == "-":
            start, end = self.region.end - last, self.region.end - first
        else:
            start, end = self.region.start + first, self.region.start + last
        return self.store.fetch(replace(self.region, start=start, end=end))


def is_sequence_file(path: Path) -> bool:
    """Whether a file holds sequences rather than intervals, told by its first letter.

    Raises:
        InputError: the file cannot be read.
    """
    if is_annotated(path):
        return True
    with open_unpacked(path) as file:
        return next((line for line in file if line.strip()), b"").startswith((b">", b";"))


def read_regions(regions: str | Path | Sequence[str]) -> AskedRegions:
    """Reads a BED file, or one or several region strings such as chr1:1-2000, 1-based and closed.

    Raises:
        InputError: neither a file nor a region, or a BED that cannot be read; names file and line.
    """
    if isinstance(regions, str | Path) and Path(regions).is_file():
        return _read_bed(Path(regions))
    texts = [str(regions)] if isinstance(regions, str | Path) else [str(text) for text in regions]
    if not texts:
        raise InputError("regions is an empty list: name a BED, a FASTA or region strings")
    intervals = [_parse(text) for text in texts]
    return AskedRegions(intervals, [None] * len(texts), [f"region {text}" for text in texts])


def whole_records(store: GenomeStore) -> AskedRegions:
    """Every contig of a store as a region of its own, on the forward strand."""
    names = list(store.contigs)
    intervals = [Interval(name, 0, length) for name, length in store.contigs.items()]
    return AskedRegions(intervals, [*names], [f"record {name}" for name in names])


def place_regions(
    asked: AskedRegions | Iterable[Interval],
    contigs: Mapping[str, int],
    rename: str = "none",
    flank: int = 0,
) -> Regions:
    """Names regions as the genome does, clips them to their contigs and adds their flanks.

    A window of region and flanks that leaves its contig moves inside, so that it keeps its width.

    Args:
        asked: the regions.
        contigs: lengths by name.
        rename: "none", "chr_prefix" or a two-column file, see names.resolve_names.
        flank: bases on both sides that are read as context.

    Raises:
        InputError: a contig that the genome lacks and `rename` does not explain, or a flank that is
            no number of bases.
    """
    check_whole_number("flank", flank, 0)
    if not isinstance(asked, AskedRegions):
        intervals = list(asked)
        asked = AskedRegions(intervals, [None] * len(intervals), [f"region {i}" for i in intervals])
    names = [region.chromosome for region in asked.intervals]
    mapping = require_names(names, asked.places, contigs, rename)
    named = [replace(region, chromosome=mapping[region.chromosome]) for region in asked.intervals]
    starts, ends, lengths = np.array(
        [(region.start, region.end, contigs[region.chromosome]) for region in named],
        dtype=np.int64,
    ).reshape(-1, 3).T  # fmt: skip
    problems = row_problems(starts, ends, lengths)
    placed = [
        _place(region, int(length), flank) if problem == OK else (region, region, STATUSES[problem])
        for region, length, problem in zip(named, lengths, problems, strict=True)
    ]
    return Regions(
        intervals=[region for region, _, _ in placed],
        names=asked.names,
        statuses=[status for _, _, status in placed],
        windows=[window for _, window, _ in placed],
    )


def _read_bed(path: Path) -> AskedRegions:
    bed = read_bed(path)
    names = [None if name in ("", ".") else name for name in bed.names]
    return AskedRegions(
        list(bed.intervals()), names, [bed.place_of(row) for row in range(len(bed))]
    )


def _parse(text: str) -> Interval:
    try:
        return Interval.parse(text)
    except InputError as error:
        if ":" in text:
            raise
        what = "that is a folder" if Path(text).is_dir() else "there is no such file"
        raise InputError(f"regions={text}: {what}, and {error}") from None


def _place(region: Interval, contig_length: int, flank: int) -> tuple[Interval, Interval, str]:
    """A region inside its contig, its window, and what was done to them on the forward strand."""
    inside, notes = _clipped(region, contig_length)
    if not flank:
        return inside, inside, ", ".join(notes) or STATUSES[OK]
    width = min(inside.width + 2 * flank, contig_length)
    start = min(max(0, inside.start - flank), contig_length - width)
    window = replace(inside, start=start, end=start + width)
    if width < inside.width + 2 * flank:
        notes.append("flanks cut")
    elif start != inside.start - flank:
        notes.append(f"shifted by {start - inside.start + flank}")
    return inside, window, ", ".join(notes) or STATUSES[OK]


def _clipped(region: Interval, contig_length: int) -> tuple[Interval, list[str]]:
    """A region inside its contig, and what was cut off."""
    left, right = max(0, -region.start), max(0, region.end - contig_length)
    cuts = [f"{side} {cut}" for side, cut in (("left", left), ("right", right)) if cut]
    inside = replace(region, start=region.start + left, end=region.end - right)
    return inside, [f"{_CLIPPED} {' '.join(cuts)}"] if cuts else []


def _read(store: GenomeStore, region: Interval, window: Interval) -> Read:
    """A region between its flanks on its own strand."""
    backwards = region.strand == "-"
    first = window.end - region.end if backwards else region.start - window.start
    return Read(RegionIds(store, window), first, first + region.width, backwards)
