"""The input intervals of a preparation: named as in the genome, split, and judged."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fracdna_prep.bed import BedTable
from fracdna_prep.blocks import BlockPlan, BlockRequest, plan_blocks
from fracdna_prep.names import NameReport, match_names, require_names
from fracdna_prep.options import PrepareOptions
from fracdna_prep.splits import (
    NO_SPLIT,
    has_split_column,
    regions_of_rows,
    splits_by_chromosome,
    splits_of_bed,
)
from fracdna_prep.windows import NO_SPLIT as OUTSIDE_SPLITS
from fracdna_prep.windows import OK, STATUSES, row_problems

CLIPPED = "clipped to its contig"


@dataclass(frozen=True)
class Rows:
    """Input intervals, one a row, in the order of the input.

    Attributes:
        contigs: names as in the genome.
        starts: (R,) int64, as in the input.
        ends: (R,) int64, as in the input.
        contig_lengths: (R,) int64.
        strands: "+" or "-".
        names: "" where the input has none.
        splits: train, valid, test or none.
        problems: (R,) positions in windows.STATUSES; OK for usable rows.
        rule: the split rule that was applied.
        report: how the input's names matched; None without a BED.
        blocks: how split=blocks cut the genome; None under other rules.
    """

    contigs: list[str]
    starts: np.ndarray
    ends: np.ndarray
    contig_lengths: np.ndarray
    strands: list[str]
    names: list[str]
    splits: list[str]
    problems: np.ndarray
    rule: str
    report: NameReport | None
    blocks: BlockPlan | None

    def __len__(self) -> int:
        return len(self.contigs)

    @property
    def usable(self) -> np.ndarray:
        """(R,) bool: rows that windows are made from."""
        return self.problems == OK

    @cached_property
    def offsets(self) -> np.ndarray:
        """(R,) where the contig of each row begins when all contigs lie end to end."""
        begins: dict[str, int] = {}
        total = 0
        for name, length in zip(self.contigs, self.contig_lengths.tolist(), strict=True):
            if name not in begins:
                begins[name] = total
                # one more, so that no two contigs touch
                total += length + 1
        return np.array([begins[name] for name in self.contigs], dtype=np.int64)

    def clipped(self) -> tuple[np.ndarray, np.ndarray]:
        """Starts and ends, (R,) each, no further than the contig reaches."""
        return np.maximum(self.starts, 0), np.minimum(self.ends, self.contig_lengths)

    def statuses(self) -> list[str]:
        """What the table of intervals says about each row."""
        clipped = self.usable & ((self.starts < 0) | (self.ends > self.contig_lengths))
        return [
            CLIPPED if cut else STATUSES[problem]
            for cut, problem in zip(clipped.tolist(), self.problems.tolist(), strict=True)
        ]


def read_rows(options: PrepareOptions, contigs: Mapping[str, int], bed: BedTable | None) -> Rows:
    """The rows to prepare, from the BED or from the genome itself.

    Args:
        options: what is asked for.
        contigs: of the genome, name to length.
        bed: the input intervals; None without any.

    Raises:
        InputError: names that the genome lacks, or a split that cannot be made.
    """
    if bed is None:
        return _rows_of_genome(options, contigs)
    names, report = _names_in_genome(bed, contigs, options.rename)
    rule = options.split
    if rule == "auto":
        rule = "bed" if has_split_column(bed) else "none"
    lengths = np.array([contigs[name] for name in names], dtype=np.int64)
    problems = row_problems(bed.starts, bed.ends, lengths)
    blocks = plan_blocks(contigs, _block_request(options)) if rule == "blocks" else None
    splits = _splits(options, rule, bed, names, contigs, blocks)
    undecided = np.array([split is None for split in splits])
    return Rows(
        contigs=names,
        starts=bed.starts,
        ends=bed.ends,
        contig_lengths=lengths,
        strands=["-" if strand == "-" else "+" for strand in bed.strands],
        names=bed.names,
        splits=[split or NO_SPLIT for split in splits],
        problems=np.where((problems == OK) & undecided, OUTSIDE_SPLITS, problems),
        rule=rule,
        report=report,
        blocks=blocks,
    )


def _rows_of_genome(options: PrepareOptions, contigs: Mapping[str, int]) -> Rows:
    """Whole contigs, or the blocks of a split."""
    rule = "none" if options.split == "auto" else options.split
    whole = [(name, 0, length) for name, length in contigs.items() if length]
    blocks = plan_blocks(contigs, _block_request(options)) if rule == "blocks" else None
    if blocks:
        placed = [(region.contig, region.start, region.end) for region in blocks.regions]
        splits = [region.split for region in blocks.regions]
    else:
        placed, splits = whole, [NO_SPLIT] * len(whole)
    if rule == "chromosome":
        split_of = _by_chromosome(options, contigs)
        splits = [split_of[name] for name, _, _ in whole]
    names = [name for name, _, _ in placed]
    starts, ends = (np.array([row[i] for row in placed], dtype=np.int64) for i in (1, 2))
    lengths = np.array([contigs[name] for name in names], dtype=np.int64)
    return Rows(
        contigs=names,
        starts=starts,
        ends=ends,
        contig_lengths=lengths,
        strands=["+"] * len(names),
        names=[""] * len(names),
        splits=splits,
        problems=row_problems(starts, ends, lengths),
        rule=rule,
        report=None,
        blocks=blocks,
    )


def _names_in_genome(
    bed: BedTable, contigs: Iterable[str], rename: str
) -> tuple[list[str], NameReport]:
    places = [bed.place_of(row) for row in range(len(bed))]
    mapping = require_names(bed.contigs, places, contigs, rename)
    return [mapping[name] for name in bed.contigs], match_names(bed.contigs, contigs, rename)


def _splits(
    options: PrepareOptions,
    rule: str,
    bed: BedTable,
    names: list[str],
    contigs: Mapping[str, int],
    blocks: BlockPlan | None,
) -> list[str | None]:
    if rule == "bed":
        return list(splits_of_bed(bed))
    if rule == "chromosome":
        split_of = _by_chromosome(options, contigs)
        return [split_of[name] for name in names]
    if blocks:
        return regions_of_rows(blocks.regions, names, bed.starts, bed.ends)
    return [NO_SPLIT] * len(bed)


def _by_chromosome(options: PrepareOptions, contigs: Mapping[str, int]) -> dict[str, str]:
    return splits_by_chromosome(
        contigs, options.names("validation_chromosomes"), options.names("test_chromosomes")
    )


def _block_request(options: PrepareOptions) -> BlockRequest:
    return BlockRequest(
        longest=max(options.lengths),
        validation_fraction=options.validation_fraction,
        test_fraction=options.test_fraction,
        seed=options.seed,
        block_size=options.block_size,
        guard=options.guard,
    )
