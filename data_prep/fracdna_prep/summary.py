"""What a preparation read, dropped and why: as plain values for JSON, and as text."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fracdna_prep.genome import GenomeStore
from fracdna_prep.rows import Rows
from fracdna_prep.store_layout import CODED_LETTERS
from fracdna_prep.tables import WindowTable
from fracdna_prep.window_plan import Coverage, coverage_of

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
class IntervalSummary:
    """The input intervals.

    Attributes:
        source: the BED file; None where whole contigs or blocks were taken.
        split_rule: how they were split.
        rows: how many.
        by_status: rows by what became of them.
        rows_by_split: usable rows.
        bases_by_split: bases of the usable rows as given.
        first_problems: the first rows that are not "ok", with their coordinates.
        names: the matching report; "" without a BED.
    """

    source: str | None
    split_rule: str
    rows: int
    by_status: dict[str, int]
    rows_by_split: dict[str, int]
    bases_by_split: dict[str, int]
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
        first_rows: the windows of the first rows.
        rows_without_windows: rows that have no readable window.
        bases: of the usable rows, each base once.
        unused_bases: those in no readable window.
        first_unused: the first such stretches, as region strings.
        shared_bases: bases in windows of two splits; above 0 only by allow_split_overlap.
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
    first_rows: list[str]
    rows_without_windows: int
    bases: int
    unused_bases: int
    first_unused: list[str]
    shared_bases: int


@dataclass(frozen=True)
class PreparationSummary:
    """Everything a preparation has to tell; `row_problems` above 0 means exit status 1."""

    output: str
    genome: GenomeSummary
    intervals: IntervalSummary
    windows: list[WindowSummary]
    row_problems: int
    options: dict[str, object]

    def plain(self) -> dict[str, object]:
        """Values that JSON holds."""
        return asdict(self)

    def describe(self) -> str:
        """The summary as text."""
        lines = _describe_genome(self.genome) + _describe_intervals(self.intervals)
        for windows in self.windows:
            lines += _describe_windows(windows)
        lines.append(f"rows with problems: {self.row_problems}")
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


def summarise_intervals(rows: Rows, source: str | None) -> IntervalSummary:
    """Counts the rows by status and split."""
    statuses = rows.statuses()
    bases: Counter[str] = Counter()
    good = np.flatnonzero(rows.usable).tolist()
    for row in good:
        bases[rows.splits[row]] += int(rows.ends[row] - rows.starts[row])
    problems = [
        f"row {row}: {rows.contigs[row]} {rows.starts[row]}-{rows.ends[row]} (contig of "
        f"{rows.contig_lengths[row]} bases): {status}"
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
        first_problems=problems[:_SHOWN],
        names=rows.report.describe() if rows.report else "",
    )


def summarise_windows(
    table: WindowTable, rows: Rows, file_name: str, shared_bases: int
) -> WindowSummary:
    """Counts the windows of one table by status, split and row."""
    usable = table.usable()
    coverage = coverage_of(table, rows)
    per_row = coverage.per_row
    spread = (int(per_row.min()), float(np.median(per_row)), int(per_row.max()))
    return WindowSummary(
        length=table.length,
        table=file_name,
        content_hash=table.content_hash,
        windows=len(table),
        by_status=dict(Counter(table.status.tolist())),
        usable_by_split=dict(Counter(table.split[usable].tolist())),
        n_fraction=_mean(table.n_fraction[usable]),
        masked_fraction=_mean(table.masked_fraction[usable]),
        windows_per_row=spread,
        first_rows=_first_rows(table, rows, coverage),
        rows_without_windows=int((per_row == 0).sum()),
        bases=coverage.bases,
        unused_bases=coverage.bases - coverage.covered,
        first_unused=list(coverage.first_unused),
        shared_bases=shared_bases,
    )


def count_row_problems(rows: Rows, tables: list[WindowTable]) -> int:
    """Rows that are dropped or clipped, or have no readable window in one of the tables."""
    problem = np.array([status != "ok" for status in rows.statuses()])
    for table in tables:
        problem |= np.bincount(table.row[table.usable()], minlength=len(rows)) == 0
    return int(problem.sum())


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def _first_rows(table: WindowTable, rows: Rows, coverage: Coverage) -> list[str]:
    shown = []
    usable = table.usable()
    for row in range(min(len(rows), _SHOWN)):
        low, high = np.searchsorted(table.row[usable], [row, row + 1])
        windows = usable[low:high]
        text = f"row {row}: {rows.contigs[row]} {rows.starts[row]}-{rows.ends[row]}: "
        text += f"{coverage.per_row[row]} window(s)"
        if len(windows):
            text += f" from {table.start[windows].min()} to {table.end[windows].max()}"
        shown.append(text)
    return shown


def _describe_genome(genome: GenomeSummary) -> list[str]:
    lines = [
        f"genome: {genome.contigs} contig(s), {genome.bases:,} bases, {genome.n:,} N, "
        f"{genome.soft_masked:,} soft-masked",
        *(
            f"  {source['name']}, {source['bytes']:,} bytes, {source['compression']}, "
            f"sha256 {source['sha256']}"
            for source in genome.sources
        ),
        f"  content {genome.checksum}",
    ]
    for name, counts in list(genome.other_letters.items())[:_SHOWN]:
        letters = ", ".join(f"{letter} {count:,}" for letter, count in counts.items())
        lines.append(f"  {name}: letters read as N: {letters}")
    return lines


def _describe_intervals(intervals: IntervalSummary) -> list[str]:
    source = intervals.source or "the genome's contigs"
    lines = [f"intervals: {intervals.rows} row(s) of {source}, split by {intervals.split_rule}"]
    lines += [f"  {line}" for line in intervals.names.splitlines()]
    lines.append(f"  {_counts(intervals.by_status)}")
    for split, count in intervals.rows_by_split.items():
        lines.append(f"  {split}: {count:,} row(s), {intervals.bases_by_split[split]:,} bases")
    if intervals.split_rule == "none":
        lines.append("  no split: split=chromosome or split=blocks makes one")
    return lines + [f"  {problem}" for problem in intervals.first_problems]


def _describe_windows(windows: WindowSummary) -> list[str]:
    least, median, greatest = windows.windows_per_row
    share = windows.unused_bases / windows.bases if windows.bases else 0.0
    lines = [
        f"windows of {windows.length:,}: {windows.windows:,} ({_counts(windows.by_status)})",
        f"  usable: {_counts(windows.usable_by_split) or 'none'}",
        f"  N {windows.n_fraction:.4f}, soft-masked {windows.masked_fraction:.4f} on average",
        f"  per row: at least {least:,}, median {median:g}, at most {greatest:,}",
        f"  covered {windows.bases - windows.unused_bases:,} of {windows.bases:,} bases, unused "
        f"{windows.unused_bases:,} ({share:.2%})",
    ]
    if windows.first_unused:
        lines.append(f"  unused first: {', '.join(windows.first_unused)}")
    if windows.shared_bases:
        lines.append(f"  ACCEPTED: {windows.shared_bases:,} bases in windows of two splits")
    lines += [f"  {text}" for text in windows.first_rows]
    return [*lines, f"  {windows.table}, content {windows.content_hash}"]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
