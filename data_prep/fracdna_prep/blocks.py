"""Splitting a genome by blocks: sizes chosen for it, blocks drawn by seed, gaps between splits."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from fracdna_prep.errors import InputError
from fracdna_prep.splits import SPLITS, SplitRegion
from fracdna_prep.wording import counted

LARGEST_BLOCK = 1_048_576
_BLOCKS_OF_A_GENOME = 40
_WINDOWS_OF_A_BLOCK = 4


@dataclass(frozen=True)
class BlockRequest:
    """What is asked of split=blocks.

    Attributes:
        longest: the longest window length, in bases.
        validation_fraction: share of the blocks, at least one block when above 0.
        test_fraction: likewise.
        seed: of the draw.
        block_size: bases; None chooses by the genome and the longest window length.
        guard: bases between two splits; None takes the longest window length.
    """

    longest: int
    validation_fraction: float
    test_fraction: float
    seed: int
    block_size: int | None = None
    guard: int | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The share asked for of each split."""
        held_out = self.validation_fraction + self.test_fraction
        shares = (1 - held_out, self.validation_fraction, self.test_fraction)
        return dict(zip(SPLITS, shares, strict=True))


@dataclass(frozen=True)
class BlockPlan:
    """A genome split by blocks.

    Attributes:
        regions: of the splits, in the order of the genome.
        block_size: bases, as used.
        guard: bases between two splits, as used.
        bases: of the genome.
        requested: split to the share of the blocks asked for.
    """

    regions: tuple[SplitRegion, ...]
    block_size: int
    guard: int
    bases: int
    requested: dict[str, float]

    @property
    def bases_by_split(self) -> dict[str, int]:
        """Bases of each split that was asked for."""
        found: Counter[str] = Counter()
        for region in self.regions:
            found[region.split] += region.end - region.start
        return {split: found[split] for split, share in self.requested.items() if share}

    @property
    def left_out(self) -> int:
        """Bases that the guards keep from every split."""
        return self.bases - sum(self.bases_by_split.values())


def plan_blocks(contigs: Mapping[str, int], request: BlockRequest) -> BlockPlan:
    """Chooses what the request leaves open, and splits the genome.

    A block holds a fortieth of the genome, but at least four of the longest windows and at most
    about a million bases. Blocks never span two contigs: a contig shorter than a block is one
    block, and needs no guard, because nothing beside it belongs to another split. What is left
    of a contig behind its last full block is a block too, or part of the last one when it is
    shorter than half a block.

    Raises:
        InputError: a split would be left without a base; names sizes that would work.
    """
    _check_fractions(request.validation_fraction, request.test_fraction)
    block_size, guard = _sizes(contigs, request)
    try:
        return _plan(contigs, request, block_size, guard)
    except InputError as error:
        raise InputError(f"{error}: {_remedy(contigs, request)}") from None


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
    _check_fractions(validation_fraction, test_fraction)
    if block_size < 1 or not 0 <= guard < block_size:
        raise InputError(
            f"split=blocks needs block_size above guard, got block_size={block_size} and "
            f"guard={guard}"
        )
    blocks = [
        (name, start) for name, length in contigs.items() for start in _starts(length, block_size)
    ]
    valid, test = (
        max(1, round(fraction * len(blocks))) if fraction else 0
        for fraction in (validation_fraction, test_fraction)
    )
    if valid + test >= len(blocks):
        raise InputError(
            f"split=blocks cuts the genome into {counted(len(blocks), 'block')} of "
            f"{block_size:,} bases, too few for training, validation and test"
        )
    ranked = sorted(
        blocks, key=lambda b: hashlib.sha256(f"{seed}\t{b[0]}\t{b[1]}".encode()).digest()
    )
    drawn = dict.fromkeys(ranked[:valid], "valid")
    drawn |= dict.fromkeys(ranked[valid : valid + test], "test")
    regions = []
    for name, length in contigs.items():
        runs = _runs(name, length, block_size, drawn)
        regions += _with_gaps(runs, guard)
    return regions


def _sizes(contigs: Mapping[str, int], request: BlockRequest) -> tuple[int, int]:
    guard = request.longest if request.guard is None else request.guard
    if request.block_size is not None:
        return request.block_size, guard
    wanted = min(sum(contigs.values()) // _BLOCKS_OF_A_GENOME, LARGEST_BLOCK)
    return max(wanted, _WINDOWS_OF_A_BLOCK * max(request.longest, guard, 1)), guard


def _plan(
    contigs: Mapping[str, int], request: BlockRequest, block_size: int, guard: int
) -> BlockPlan:
    regions = split_blocks(
        contigs,
        block_size=block_size,
        guard=guard,
        validation_fraction=request.validation_fraction,
        test_fraction=request.test_fraction,
        seed=request.seed,
    )
    total = sum(contigs.values())
    plan = BlockPlan(tuple(regions), block_size, guard, total, request.shares)
    for split, bases in plan.bases_by_split.items():
        if not bases:
            raise InputError(
                f"split=blocks: blocks of {block_size:,} bases with guards of {guard:,} leave no "
                f"base for {split}"
            )
    return plan


def _remedy(contigs: Mapping[str, int], request: BlockRequest) -> str:
    """Sizes for the window lengths asked for, or else the longest length that can be split."""
    for block_size, guard in _smaller_sizes(contigs, request):
        if _works(contigs, request, block_size, guard):
            return f"block_size={block_size} guard={guard} would work"
    length = request.longest // 2
    while length:
        shorter = BlockRequest(
            length, request.validation_fraction, request.test_fraction, request.seed
        )
        block_size, guard = _sizes(contigs, shorter)
        if _works(contigs, shorter, block_size, guard):
            return f"length={length} would work, with block_size={block_size} guard={guard}"
        length //= 2
    return "this genome is too small for these fractions: choose split=none or split=chromosome"


def _smaller_sizes(contigs: Mapping[str, int], request: BlockRequest) -> Iterator[tuple[int, int]]:
    """Sizes that keep windows of two splits apart, the best first."""
    guard = request.longest
    chosen = BlockRequest(guard, request.validation_fraction, request.test_fraction, request.seed)
    yield _sizes(contigs, chosen)
    # Below three windows a block between two others has no room for one behind its guards.
    yield from ((windows * guard, guard) for windows in (4, 3))


def _works(contigs: Mapping[str, int], request: BlockRequest, block_size: int, guard: int) -> bool:
    """Whether every split gets bases, and training at least half of its share."""
    try:
        plan = _plan(contigs, request, block_size, guard)
    except InputError:
        return False
    return 2 * plan.bases_by_split["train"] >= request.shares["train"] * plan.bases


def _check_fractions(validation_fraction: float, test_fraction: float) -> None:
    fractions = (validation_fraction, test_fraction)
    if min(fractions) < 0 or not 0 < sum(fractions) < 1:
        raise InputError(
            "split=blocks needs fractions of at least 0 whose sum is between 0 and 1, got "
            f"validation_fraction={validation_fraction} and test_fraction={test_fraction}"
        )


def _starts(length: int, block_size: int) -> range:
    """Where the blocks of a contig begin; a short rest belongs to the block before it."""
    full, rest = divmod(length, block_size)
    count = full + (2 * rest >= block_size)
    return range(0, (max(1, count) if length else 0) * block_size, block_size)


def _runs(
    name: str, length: int, block_size: int, drawn: Mapping[tuple[str, int], str]
) -> list[SplitRegion]:
    """The blocks of one contig, neighbours of one split joined."""
    runs: list[SplitRegion] = []
    starts = _starts(length, block_size)
    for start, end in pairwise([*starts, length]):
        split = drawn.get((name, start), "train")
        if runs and runs[-1].split == split:
            runs[-1] = SplitRegion(name, runs[-1].start, end, split)
        else:
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
