"""From rows to window tables: planned and checked without a base, then filled from the store."""

from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from fracdna_prep.coverage import (
    count_uncovered,
    covered_bases,
    on_one_line,
    uncovered,
    union,
)
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.options import PrepareOptions
from fracdna_prep.rows import Rows
from fracdna_prep.splits import check_overlap
from fracdna_prep.tables import WindowTable
from fracdna_prep.windows import (
    STATUSES,
    TOO_MANY_N,
    WindowArrays,
    dropped,
    merged,
    tile_many,
)

_SHOWN = 10


@dataclass(frozen=True)
class WindowPlan:
    """The windows of one length before their bases are known.

    Attributes:
        length: of a window.
        windows: coordinates and status.
        shared_bases: bases that belong to windows of two splits; above 0 only where allowed.
    """

    length: int
    windows: WindowArrays
    shared_bases: int


@dataclass(frozen=True)
class Coverage:
    """What the readable windows of one table make of the usable rows.

    Attributes:
        bases: of all usable rows together, each base once.
        covered: of these, the bases in at least one readable window.
        unused_stretches: how many stretches of the rows no window covers.
        first_unused: the first of them, as region strings.
        per_row: (R,) readable windows of each row.
    """

    bases: int
    covered: int
    unused_stretches: int
    first_unused: tuple[str, ...]
    per_row: np.ndarray


def check_rows(rows: Rows, *, allow: bool) -> int:
    """The hard check of the rows themselves, which evaluation and count models read.

    Returns:
        bases that belong to rows of two splits; above 0 only where allowed.

    Raises:
        InputError: there are some and that is not allowed.
    """
    good = np.flatnonzero(rows.usable)
    starts, ends = (bounds[good] for bounds in rows.clipped())
    contigs, splits = _array(rows.contigs)[good], _array(rows.splits)[good]
    return check_overlap(contigs, starts, ends, splits, kind="row", allow=allow)


def plan_windows(rows: Rows, length: int, options: PrepareOptions) -> WindowPlan:
    """Tiles all rows and checks that no base belongs to two splits.

    Raises:
        InputError: windows of two splits share bases and that is not allowed.
    """
    good, bad = np.flatnonzero(rows.usable), np.flatnonzero(~rows.usable)
    tiles = tile_many(
        rows.starts[good], rows.ends[good], rows.contig_lengths[good], length,
        policy=options.policy,
    )  # fmt: skip
    windows = replace(tiles, row=good[tiles.row])
    for status in np.unique(rows.problems[bad]):
        these = bad[rows.problems[bad] == status]
        windows = merged(windows, dropped(these, rows.starts[these], rows.ends[these], status))
    readable = windows.take(np.flatnonzero(windows.readable))
    try:
        shared = check_overlap(
            _of_rows(rows.contigs, readable), readable.start, readable.end,
            _of_rows(rows.splits, readable), allow=options.allow_split_overlap,
        )  # fmt: skip
    except InputError as error:
        raise InputError(f"length={length}: {error}") from None
    return WindowPlan(length, windows, shared)


def fill_table(
    plan: WindowPlan,
    rows: Rows,
    store: GenomeStore,
    max_n_fraction: float,
    metadata: dict[str, Any],
) -> WindowTable:
    """Counts N and soft-masked bases, and drops windows with too many N."""
    windows = plan.windows
    contigs = _of_rows(rows.contigs, windows)
    n_count, masked = _count(windows, contigs, store)
    width = windows.end - windows.start
    too_many = windows.readable & (n_count > max_n_fraction * width)
    status = np.where(too_many, TOO_MANY_N, windows.status)
    with np.errstate(invalid="ignore", divide="ignore"):
        fractions = n_count / width, masked / width
    columns = {**vars(windows), "status": np.array(STATUSES, dtype=object)[status]}
    return WindowTable(
        **columns,
        contig=contigs,
        strand=_of_rows(rows.strands, windows),
        split=_of_rows(rows.splits, windows),
        n_fraction=fractions[0],
        masked_fraction=fractions[1],
        metadata=metadata,
    )


def coverage_of(table: WindowTable, rows: Rows) -> Coverage:
    """Which bases of the usable rows the readable windows of a table cover."""
    read = table.usable()
    good = np.flatnonzero(rows.usable)
    starts, ends = (bounds[good] for bounds in rows.clipped())
    contigs = np.concatenate([_array(rows.contigs)[good], table.contig[read]])
    line_starts, line_ends = on_one_line(
        contigs,
        np.concatenate([starts, table.start[read]]),
        np.concatenate([ends, table.end[read]]),
    )
    asked = union(line_starts[: len(good)], line_ends[: len(good)])
    covered = union(line_starts[len(good) :], line_ends[len(good) :])
    bases, found = int((asked[1] - asked[0]).sum()), int(covered_bases(covered, *asked).sum())
    offsets = line_starts[: len(good)] - starts
    gaps = (line_starts[: len(good)], line_ends[: len(good)], covered)
    first_unused = tuple(
        f"{contigs[index]}:{start - offsets[index] + 1:,}-{end - offsets[index]:,}"
        for index, start, end in islice(uncovered(*gaps) if found < bases else (), _SHOWN)
    )
    stretches = count_uncovered(*gaps) if found < bases else 0
    per_row = np.bincount(table.row[read], minlength=len(rows))
    return Coverage(bases, found, stretches, first_unused, per_row)


def _of_rows(texts: list[str], windows: WindowArrays) -> np.ndarray:
    return _array(texts)[windows.row]


def _array(texts: list[str]) -> np.ndarray:
    return np.array(texts, dtype=object)


def _count(
    windows: WindowArrays, contigs: np.ndarray, store: GenomeStore
) -> tuple[np.ndarray, np.ndarray]:
    """N and soft-masked bases of each window, NaN where it does not lie on its contig."""
    counts = np.full((2, len(windows)), np.nan)
    lengths = store.contigs
    codes, names = _codes(contigs)
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    for name, low, high in zip(names, bounds, bounds[1:], strict=False):
        here = order[low:high]
        start, end = windows.start[here], windows.end[here]
        here = here[(start >= 0) & (start < end) & (end <= lengths[name])]
        counts[:, here] = store.count_n_and_masked(name, windows.start[here], windows.end[here])
    return counts[0], counts[1]


def _codes(texts: np.ndarray) -> tuple[np.ndarray, list[str]]:
    positions: dict[str, int] = {}
    codes = [positions.setdefault(text, len(positions)) for text in texts]
    return np.array(codes, dtype=np.int64), list(positions)
