"""Who belongs to training, validation and test, and the proof that no base belongs to two."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fracdna_prep.bed import BedTable
from fracdna_prep.coverage import covered_bases, on_one_line, union
from fracdna_prep.errors import InputError
from fracdna_prep.wording import counted, listed

SPLITS = ("train", "valid", "test")
NO_SPLIT = "none"
_SYNONYMS = {
    "training": "train",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "testing": "test",
}
_NAMED_PAIRS = 3
# What is wrong, and what helps, when rows or the windows made from them overlap.
_OVERLAP_TEXTS = {
    "row": (
        "rows of different splits overlap.",
        "Give the shared bases to one split only, or set allow_split_overlap=true to accept it",
    ),
    "window": (
        "windows of different splits overlap after widening and shifting.",
        "Leave a gap of at least one window between the splits, shorten length, or set "
        "allow_split_overlap=true to accept it",
    ),
}


@dataclass(frozen=True)
class SplitRegion:
    """A stretch of a contig that belongs to one split; 0-based, half-open."""

    contig: str
    start: int
    end: int
    split: str


@dataclass(frozen=True)
class Overlap:
    """What two splits share.

    Attributes:
        splits: their names.
        bases: how many bases belong to windows of both.
        meeting: how many windows of the first meet one of the second.
        pairs: the first pairs of windows, as indices into the arrays that were checked.
    """

    splits: tuple[str, str]
    bases: int
    meeting: int
    pairs: tuple[tuple[int, int], ...]


def canonical_split(name: str) -> str:
    """The name used in tables: train, valid, test or none; synonyms and capitals are accepted.

    Raises:
        InputError: no name of a split.
    """
    lower = name.strip().lower()
    split = _SYNONYMS.get(lower, lower)
    if split not in (*SPLITS, NO_SPLIT):
        raise InputError(f"{name!r} is no split: use train, valid or test")
    return split


def splits_of_bed(bed: BedTable) -> list[str]:
    """The split of each row, from the fourth column.

    Raises:
        InputError: a row whose fourth column is no split; names file, line and value.
    """
    splits = []
    for row, name in enumerate(bed.names):
        if not _is_split(name):
            raise InputError(
                f"{bed.place_of(row)}: the fourth column is {name!r}, expected train, valid or "
                "test: correct it, or choose split=chromosome, split=blocks or split=none"
            )
        splits.append(canonical_split(name))
    return splits


def has_split_column(bed: BedTable) -> bool:
    """Whether any row's fourth column is the name of a split."""
    return any(_is_split(name) for name in bed.names)


def splits_by_chromosome(
    contigs: Iterable[str], validation: Sequence[str], test: Sequence[str]
) -> dict[str, str]:
    """The split of each contig: those listed, and train for all others.

    Raises:
        InputError: nothing listed, a name that the genome lacks, or one listed twice.
    """
    contigs = list(contigs)
    if not validation and not test:
        raise InputError(
            "split=chromosome needs validation_chromosomes or test_chromosomes; the genome has "
            f"{listed(contigs)}"
        )
    for name in (*validation, *test):
        if name not in contigs:
            raise InputError(
                f"split=chromosome names {name!r}, but the genome has {listed(contigs)}"
            )
        if (*validation, *test).count(name) > 1:
            raise InputError(f"split=chromosome lists {name!r} twice: give it one split")
    held_out = dict.fromkeys(validation, "valid") | dict.fromkeys(test, "test")
    return {name: held_out.get(name, "train") for name in contigs}


def regions_of_rows(
    regions: Sequence[SplitRegion], contigs: Sequence[str], starts: np.ndarray, ends: np.ndarray
) -> list[str | None]:
    """The split of the region that holds each row entirely; None where no region does."""
    by_contig: dict[str, list[SplitRegion]] = {}
    for region in sorted(regions, key=lambda region: (region.contig, region.start)):
        by_contig.setdefault(region.contig, []).append(region)
    starts_of = {name: [r.start for r in listed] for name, listed in by_contig.items()}
    splits: list[str | None] = []
    for contig, start, end in zip(contigs, starts, ends, strict=True):
        index = int(np.searchsorted(starts_of.get(contig, []), start, side="right")) - 1
        region = by_contig[contig][index] if index >= 0 else None
        splits.append(region.split if region is not None and end <= region.end else None)
    return splits


def find_overlaps(
    contigs: Sequence[str], starts: np.ndarray, ends: np.ndarray, splits: Sequence[str]
) -> list[Overlap]:
    """Bases that belong to windows of two splits.

    Args:
        contigs: (W,) names.
        starts: (W,) not negative.
        ends: (W,) behind the starts.
        splits: (W,) names; windows of no split take no part.

    Returns:
        one entry for each pair of splits that shares bases.
    """
    starts, ends = on_one_line(np.asarray(contigs, dtype=object), starts, ends)
    splits = np.asarray(splits, dtype=object)
    members = {split: np.flatnonzero(splits == split) for split in SPLITS}
    overlaps = []
    for one, other in combinations(SPLITS, 2):
        covered = union(starts[members[other]], ends[members[other]])
        bases = int(covered_bases(covered, *union(starts[members[one]], ends[members[one]])).sum())
        if bases:
            meets = covered_bases(covered, starts[members[one]], ends[members[one]]) > 0
            offenders = members[one][meets]
            pairs = _first_pairs(starts, ends, offenders, members[other])
            overlaps.append(Overlap((one, other), bases, len(offenders), pairs))
    return overlaps


def check_overlap(
    contigs: Sequence[str],
    starts: np.ndarray,
    ends: np.ndarray,
    splits: Sequence[str],
    *,
    kind: str = "window",
    allow: bool = False,
) -> int:
    """The hard check, of the rows and again after all widening, shifting and tiling.

    Args:
        contigs: (W,) names.
        starts: (W,) not negative.
        ends: (W,) behind the starts.
        splits: (W,) names.
        kind: what is checked, for the message: "row" or "window".
        allow: return the number instead of refusing; the caller records it.

    Returns:
        the number of bases that belong to windows of two splits.

    Raises:
        InputError: there are some and `allow` is false; names the first pairs and the number.
    """
    overlaps = find_overlaps(contigs, starts, ends, splits)
    shared = sum(overlap.bases for overlap in overlaps)
    if allow or not shared:
        return shared
    lines = []
    for overlap in overlaps:
        lines.append(f"{overlap.splits[0]} and {overlap.splits[1]} share {overlap.bases:,} bases:")
        for pair in overlap.pairs:
            one, other = (f"{contigs[i]}:{starts[i]}-{ends[i]} ({splits[i]})" for i in pair)
            lines.append(f"  {one} and {other}, 0-based")
        if rest := overlap.meeting - len(overlap.pairs):
            lines.append(f"  ... and {counted(rest, f'more {kind}')} of {overlap.splits[0]}")
    what, remedy = _OVERLAP_TEXTS[kind]
    raise InputError("\n".join([what, *lines, remedy]))


def _is_split(name: str) -> bool:
    lower = name.strip().lower()
    return lower in SPLITS or lower in _SYNONYMS


def _first_pairs(
    starts: np.ndarray,
    ends: np.ndarray,
    offenders: np.ndarray,
    other: np.ndarray,
) -> tuple[tuple[int, int], ...]:
    """The first of some windows that meet others, each with the first that it meets."""
    offenders = offenders[np.argsort(starts[offenders], kind="stable")][:_NAMED_PAIRS]
    partners = other[np.argsort(starts[other], kind="stable")]
    pairs = []
    for window in offenders:
        met = (starts[partners] < ends[window]) & (ends[partners] > starts[window])
        pairs.append((int(window), int(partners[np.argmax(met)])))
    return tuple(pairs)
