"""Who belongs to training, validation and test, and the proof that no base belongs to two."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from fracdna_prep.bed import BedTable
from fracdna_prep.coverage import covered_bases, on_one_line, union
from fracdna_prep.errors import InputError

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
        pairs: the first pairs of windows, as indices into the arrays that were checked.
    """

    splits: tuple[str, str]
    bases: int
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
            f"{', '.join(contigs[:10])}"
        )
    for name in (*validation, *test):
        if name not in contigs:
            raise InputError(
                f"split=chromosome names {name!r}, but the genome has {', '.join(contigs[:10])}"
            )
        if (*validation, *test).count(name) > 1:
            raise InputError(f"split=chromosome lists {name!r} twice: give it one split")
    listed = dict.fromkeys(validation, "valid") | dict.fromkeys(test, "test")
    return {name: listed.get(name, "train") for name in contigs}


def split_blocks(
    contigs: Mapping[str, int],
    *,
    block_size: int,
    guard: int,
    validation_fraction: float,
    test_fraction: float,
    seed: int,
) -> list[SplitRegion]:
    """Cuts a genome in blocks, draws those of validation and test, and leaves gaps between.

    Neighbouring blocks of one split are joined. Where the split changes, `guard` bases belong to
    nobody; training gives them up where it can. The draw ranks hashes of (seed, contig, block),
    so it is the same on any machine and with any version of a random generator.

    Args:
        contigs: name to length.
        block_size: bases.
        guard: bases between two splits.
        validation_fraction: share of the blocks, at least one block when above 0.
        test_fraction: likewise.
        seed: of the draw.

    Raises:
        InputError: sizes that leave nothing, or too few blocks for the splits asked for.
    """
    _check_blocks(block_size, guard, validation_fraction, test_fraction)
    blocks = [
        (name, start) for name, length in contigs.items() for start in range(0, length, block_size)
    ]
    ranked = sorted(
        blocks, key=lambda b: hashlib.sha256(f"{seed}\t{b[0]}\t{b[1]}".encode()).digest()
    )
    valid, test = (
        max(1, round(fraction * len(blocks))) if fraction else 0
        for fraction in (validation_fraction, test_fraction)
    )
    if valid + test >= len(blocks):
        raise InputError(
            f"{len(blocks)} blocks of {block_size:,} bases are too few for training, validation "
            "and test: choose a smaller block_size"
        )
    drawn = dict.fromkeys(ranked[:valid], "valid")
    drawn |= dict.fromkeys(ranked[valid : valid + test], "test")
    regions = []
    for name, length in contigs.items():
        runs = _runs(name, length, block_size, drawn)
        regions += _with_gaps(runs, guard)
    return regions


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
            pairs = _first_pairs(starts, ends, members[one], members[other], covered)
            overlaps.append(Overlap((one, other), bases, pairs))
    return overlaps


def check_overlap(
    contigs: Sequence[str],
    starts: np.ndarray,
    ends: np.ndarray,
    splits: Sequence[str],
    *,
    allow: bool = False,
) -> int:
    """The hard check after all widening, shifting and tiling.

    Args:
        contigs: (W,) names.
        starts: (W,) not negative.
        ends: (W,) behind the starts.
        splits: (W,) names.
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
    raise InputError(
        "windows of different splits overlap after widening and shifting.\n"
        + "\n".join(lines)
        + "\nLeave a gap of at least one window between the splits, shorten length, or set "
        "allow_split_overlap=true to accept it"
    )


def _is_split(name: str) -> bool:
    lower = name.strip().lower()
    return lower in SPLITS or lower in _SYNONYMS


def _check_blocks(
    block_size: int, guard: int, validation_fraction: float, test_fraction: float
) -> None:
    if block_size < 1 or not 0 <= guard < block_size:
        raise InputError(
            f"split=blocks needs block_size above guard, got block_size={block_size} and "
            f"guard={guard}"
        )
    fractions = (validation_fraction, test_fraction)
    if min(fractions) < 0 or not 0 < sum(fractions) < 1:
        raise InputError(
            "split=blocks needs fractions of at least 0 whose sum is between 0 and 1, got "
            f"validation_fraction={validation_fraction} and test_fraction={test_fraction}"
        )


def _runs(
    name: str, length: int, block_size: int, drawn: Mapping[tuple[str, int], str]
) -> list[SplitRegion]:
    """The blocks of one contig, neighbours of one split joined."""
    runs: list[SplitRegion] = []
    for start in range(0, length, block_size):
        split, end = drawn.get((name, start), "train"), min(start + block_size, length)
        if runs and runs[-1].split == split:
            start = runs.pop().start
        runs.append(SplitRegion(name, start, end, split))
    return runs


def _with_gaps(runs: list[SplitRegion], guard: int) -> list[SplitRegion]:
    bounds = [[run.start, run.end] for run in runs]
    for index, (left, right) in enumerate(pairwise(runs)):
        if left.split == "train" and right.split != "train":
            bounds[index][1] -= guard
        else:
            bounds[index + 1][0] += guard
    return [
        SplitRegion(run.contig, start, end, run.split)
        for run, (start, end) in zip(runs, bounds, strict=True)
        if start < end
    ]


def _first_pairs(
    starts: np.ndarray,
    ends: np.ndarray,
    one: np.ndarray,
    other: np.ndarray,
    covered: tuple[np.ndarray, np.ndarray],
) -> tuple[tuple[int, int], ...]:
    """The first windows of one split that meet the other, each with the first that it meets."""
    meets = covered_bases(covered, starts[one], ends[one]) > 0
    offenders = one[meets][np.argsort(starts[one][meets], kind="stable")][:_NAMED_PAIRS]
    partners = other[np.argsort(starts[other], kind="stable")]
    pairs = []
    for window in offenders:
        met = (starts[partners] < ends[window]) & (ends[partners] > starts[window])
        pairs.append((int(window), int(partners[np.argmax(met)])))
    return tuple(pairs)
