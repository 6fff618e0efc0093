"""What a preparation read, dropped and why: as plain values for JSON, and as text."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fracdna_prep.blocks import BlockPlan
from fracdna_prep.genome import GenomeStore
from fracdna_prep.rows import Rows
from fracdna_prep.store_layout import CODED_LETTERS
from fracdna_prep.tables import read_metadata
from fracdna_prep.tally import Tally
from fracdna_prep.verification import Verification
from fracdna_prep.wording import counted, with_rest

_SHOWN = 10


@dataclass(frozen=True)
class GenomeSummary:
    """The genome store.

    Attributes:
        store: its folder, relative to the output where it lies inside.
        checksum: of its content.
        sources: name, size, hash and packing of each file.
        contigs: how many.
        bases: of all contigs.
        n: how many of them are N, other ambiguous letters included.
        soft_masked: how many are in lower case.
        other_letters: counts of letters other than A, C, G, T, N by contig.
    """

    store: str
    checksum: str
    sources: list[dict[str, object]]
    contigs: int
    bases: int
    n: int
    soft_masked: int
    other_letters: dict[str, dict[str, int]]


@dataclass(frozen=True)
class BlockSummary:
    """The split by blocks.

    Attributes:
        block_size: bases, as used.
        guard: bases between two splits, as used.
        left_out: bases that the guards keep from every split.
        requested: split to the share of the blocks asked for.
        obtained: split to its share of the genome's bases; the rest is left out.
    """

    block_size: int
    guard: int
    left_out: int
    requested: dict[str, float]
    obtained: dict[str, float]


@dataclass(frozen=True)
class IntervalSummary:
    """The input intervals.

    Attributes:
        source: the BED file; None where whole contigs or blocks were taken.
        split_rule: how they were split.
        rows: how many.
        by_status: rows by what became of them.
        rows_by_split: usable rows.
        bases_by_split: bases of the usable rows as given.
        shared_bases: bases in rows of two splits; above 0 only by allow_split_overlap.
        blocks: how split=blocks cut the genome; None under other rules.
        first_problems: the first rows that are not "ok", with their coordinates.
        names: the matching report; "" without a BED.
    """

    source: str | None
    split_rule: str
    rows: int
    by_status: dict[str, int]
    rows_by_split: dict[str, int]
    bases_by_split: dict[str, int]
    shared_bases: int
    blocks: BlockSummary | None
    first_problems: list[str]
    names: str


@dataclass(frozen=True)
class WindowSummary:
    """The windows of one length.

    Attributes:
        length: L.
        table: file name of the table.
        content_hash: of the table.
        windows: how many, dropped ones included.
        by_status: windows by what became of them.
        usable_by_split: readable windows.
        n_fraction: mean over the readable windows.
        masked_fraction: likewise.
        windows_per_row: least, median and greatest number of readable windows of a row.
        rows: how many rows there are.
        first_rows: the windows of the first ones.
        rows_without_windows: rows that have no readable window.
        bases: of the usable rows, each base once.
        unused_bases: those in no readable window.
        unused_stretches: how many stretches they make.
        first_unused: the first of these, as region strings.
        shared_bases: bases in windows of two splits; above 0 only by allow_split_overlap.
        earlier: whether an earlier run with equal options made it, and this one did not ask for it.
    """

    length: int
    table: str
    content_hash: str
    windows: int
    by_status: dict[str, int]
    usable_by_split: dict[str, int]
    n_fraction: float
    masked_fraction: float
    windows_per_row: tuple[int, float, int]
    rows: int
    first_rows: list[str]
    rows_without_windows: int
    bases: int
    unused_bases: int
    unused_stretches: int
    first_unused: list[str]
    shared_bases: int
    earlier: bool


@dataclass(frozen=True)
class PreparationSummary:
    """Everything a preparation has to tell.

    Attributes:
        output: the folder.
        genome: its store.
        verification: what verify=true found; None without it.
        intervals: the rows.
        windows: all tables in the folder, those asked for now first.
        removed: file names of tables of other options, which this run removed.
        row_problems: rows that are dropped or clipped, or lack a window of a length asked for.
        options: as given.
    """

    output: str
    genome: GenomeSummary
    verification: Verification | None
    intervals: IntervalSummary
    windows: list[WindowSummary]
    removed: list[str]
    row_problems: int
    options: dict[str, object]

    @property
    def has_problems(self) -> bool:
        """Whether rows had problems, or pyfaidx could not read what it was to verify."""
        unread = self.verification is not None and bool(self.verification.unreadable)
        return self.row_problems > 0 or unread

    def plain(self) -> dict[str, object]:
        """Values that JSON holds."""
        return asdict(self)

    def describe(self) -> str:
        """The summary as text."""
        lines = _describe_genome(self.genome)
        if self.verification:
            lines += _describe_verification(self.verification, self.genome)
        lines += _describe_intervals(self.intervals)
        for windows in self.windows:
            lines += _describe_earlier(windows) if windows.earlier else _describe_windows(windows)
        lines += [f"removed {name}, made with other options" for name in self.removed]
        lines.append(f"rows with problems: {self.row_problems:,}")
        lines.append(f"written to {self.output}")
        return "\n".join(lines)


def summarise_genome(store: GenomeStore, output: Path) -> GenomeSummary:
    """Counts what the store recorded when it was built."""
    contigs = store.record.contigs
    others = {
        contig.name: {k: n for k, n in contig.counts.items() if k not in CODED_LETTERS}
        for contig in contigs
    }
    inside = store.directory.is_relative_to(output)
    return GenomeSummary(
        store=str(store.directory.relative_to(output) if inside else store.directory),
        checksum=store.checksum,
        sources=[asdict(source) for source in store.record.sources],
        contigs=len(contigs),
        bases=store.record.length,
        n=sum(n for contig in contigs for k, n in contig.counts.items() if k not in "ACGT"),
        soft_masked=sum(contig.soft_masked for contig in contigs),
        other_letters={name: counts for name, counts in others.items() if counts},
    )


def summarise_intervals(rows: Rows, source: str | None, shared_bases: int) -> IntervalSummary:
    """Counts the rows by status and split."""
    statuses = rows.statuses()
    bases: Counter[str] = Counter()
    good = np.flatnonzero(rows.usable).tolist()
    for row in good:
        bases[rows.splits[row]] += int(rows.ends[row] - rows.starts[row])
    problems = [
        f"{_place(rows, row)} (contig of {rows.contig_lengths[row]:,} bases): {status}"
        for row, status in enumerate(statuses)
        if status != "ok"
    ]
    return IntervalSummary(
        source=source,
        split_rule=rows.rule,
        rows=len(rows),
        by_status=dict(Counter(statuses)),
        rows_by_split=dict(Counter(rows.splits[row] for row in good)),
        bases_by_split=dict(bases),
        shared_bases=shared_bases,
        blocks=_summarise_blocks(rows.blocks) if rows.blocks else None,
        first_problems=problems[:_SHOWN],
        names=rows.report.describe() if rows.report else "",
    )


def summarise_windows(path: Path, tally: Tally, rows: Rows, *, earlier: bool) -> WindowSummary:
    """What is told of one window table."""
    metadata, coverage, per_row = read_metadata(path), tally.coverage, tally.per_row
    return WindowSummary(
        length=metadata["length"],
        table=path.name,
        content_hash=metadata["content_hash"],
        windows=tally.windows,
        by_status=tally.by_status,
        usable_by_split=tally.usable_by_split,
        n_fraction=tally.n_fraction,
        masked_fraction=tally.masked_fraction,
        windows_per_row=(int(per_row.min()), float(np.median(per_row)), int(per_row.max())),
        rows=len(rows),
        first_rows=_first_rows(tally, rows),
        rows_without_windows=int((per_row == 0).sum()),
        bases=coverage.bases,
        unused_bases=coverage.bases - coverage.covered,
        unused_stretches=coverage.unused_stretches,
        first_unused=list(coverage.first_unused),
        shared_bases=int(metadata["split_overlap_bases"]),
        earlier=earlier,
    )


def count_row_problems(rows: Rows, tallies: Iterable[Tally]) -> int:
    """Rows that are dropped or clipped, or have no readable window in one of the tables."""
    problem = np.array([status != "ok" for status in rows.statuses()])
    for tally in tallies:
        problem |= tally.per_row == 0
    return int(problem.sum())


def _summarise_blocks(blocks: BlockPlan) -> BlockSummary:
    return BlockSummary(
        block_size=blocks.block_size,
        guard=blocks.guard,
        left_out=blocks.left_out,
        requested=blocks.requested,
        obtained={split: n / blocks.bases for split, n in blocks.bases_by_split.items()},
    )


def _place(rows: Rows, row: int) -> str:
    return f"row {row:,}: {rows.contigs[row]} {rows.starts[row]:,}-{rows.ends[row]:,}"


def _first_rows(tally: Tally, rows: Rows) -> list[str]:
    shown = []
    for row, (start, end) in enumerate(tally.extents):
        windows = int(tally.per_row[row])
        text = f"{_place(rows, row)}: {counted(windows, 'window')}"
        shown.append(f"{text} from {start:,} to {end:,}" if windows else text)
    return shown


def _describe_genome(genome: GenomeSummary) -> list[str]:
    lines = [
        f"genome: {counted(genome.contigs, 'contig')}, {counted(genome.bases, 'base')}, "
        f"{genome.n:,} N, {genome.soft_masked:,} soft-masked",
        *(
            f"  {source['name']}, {counted(source['bytes'], 'byte')}, {source['compression']}, "
            f"sha256 {source['sha256']}"
            for source in genome.sources
        ),
        f"  content {genome.checksum}",
    ]
    others = [
        f"{name}: letters read as N: {_counts(counts)}"
        for name, counts in list(genome.other_letters.items())[:_SHOWN]
    ]
    return lines + _indented(with_rest(others, len(genome.other_letters)))


def _describe_verification(verification: Verification, genome: GenomeSummary) -> list[str]:
    lines = [
        f"NOT VERIFIED: {name}: pyfaidx reads neither GenBank nor EMBL"
        for name in verification.not_covered
    ]
    lines += [f"NOT VERIFIED: {reason}" for reason in verification.unreadable]
    read = f"{verification.contigs:,} of {counted(genome.contigs, 'contig')}"
    return [
        f"verified: pyfaidx reads {read}, {counted(verification.bases, 'base')}, as the store has "
        f"them; checksums of store and sources agree ({verification.seconds:.1f} s)",
        *_indented(lines),
    ]


def _describe_intervals(intervals: IntervalSummary) -> list[str]:
    source = intervals.source or "the genome's contigs"
    lines = intervals.names.splitlines()
    if intervals.blocks:
        lines += _describe_blocks(intervals.blocks)
    lines.append(_counts(intervals.by_status))
    for split, count in intervals.rows_by_split.items():
        bases = counted(intervals.bases_by_split[split], "base")
        lines.append(f"{split}: {counted(count, 'row')}, {bases}")
    if intervals.shared_bases:
        lines.append(f"ACCEPTED: {counted(intervals.shared_bases, 'base')} in rows of two splits")
    if intervals.split_rule == "none":
        lines.append("no split: split=chromosome or split=blocks makes one")
    problems = intervals.rows - intervals.by_status.get("ok", 0)
    lines += with_rest(intervals.first_problems, problems)
    head = f"intervals: {counted(intervals.rows, 'row')} of {source}, split by"
    return [f"{head} {intervals.split_rule}", *_indented(lines)]


def _describe_blocks(blocks: BlockSummary) -> list[str]:
    shares = ", ".join(
        f"{split} {share:.1%} ({blocks.requested[split]:.1%})"
        for split, share in blocks.obtained.items()
    )
    return [
        f"blocks of {counted(blocks.block_size, 'base')}, guards of "
        f"{counted(blocks.guard, 'base')}, which leave out {counted(blocks.left_out, 'base')}",
        f"share of the genome's bases (requested share of the blocks): {shares}",
    ]


def _describe_windows(windows: WindowSummary) -> list[str]:
    least, median, greatest = windows.windows_per_row
    share = windows.unused_bases / windows.bases if windows.bases else 0.0
    lines = [
        f"usable: {_counts(windows.usable_by_split) or 'none'}",
        f"N {windows.n_fraction:.4f}, soft-masked {windows.masked_fraction:.4f} on average",
        f"per row: at least {least:,}, median {f'{median:,.1f}'.removesuffix('.0')}, at most "
        f"{greatest:,}",
        f"covered {windows.bases - windows.unused_bases:,} of {counted(windows.bases, 'base')}, "
        f"unused {windows.unused_bases:,} ({share:.2%})",
    ]
    if windows.first_unused:
        unused = with_rest(windows.first_unused, windows.unused_stretches)
        lines.append(f"unused first: {', '.join(unused)}")
    if windows.shared_bases:
        lines.append(f"ACCEPTED: {counted(windows.shared_bases, 'base')} in windows of two splits")
    lines += with_rest(windows.first_rows, windows.rows)
    lines.append(f"{windows.table}, content {windows.content_hash}")
    return [
        f"windows of {windows.length:,}: {windows.windows:,} ({_counts(windows.by_status)})",
        *_indented(lines),
    ]


def _describe_earlier(windows: WindowSummary) -> list[str]:
    return [
        f"also there, made earlier: {windows.table}, {counted(windows.windows, 'window')} of "
        f"{windows.length:,}"
    ]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
