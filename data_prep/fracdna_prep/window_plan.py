"""From rows to window tables, a batch of rows at a time: checked without a base, then filled."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from fracdna_prep.coverage import covered_bases, union
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.options import PrepareOptions
from fracdna_prep.rows import Rows
from fracdna_prep.splits import SPLITS, check_overlap
from fracdna_prep.tables import Texts
from fracdna_prep.window_files import Batch
from fracdna_prep.windows import (
    STATUSES,
    TOO_MANY_N,
    WindowArrays,
    dropped,
    merged,
    tile_many,
)

# Windows that are held at once, about 50 MB; a single row may make more.
_BATCH = 1 << 18
Stretches = tuple[np.ndarray, np.ndarray]


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


def check_windows(rows: Rows, length: int, options: PrepareOptions) -> int:
    """The hard check after all widening, shifting and tiling.

    Returns:
        bases that belong to windows of two splits; above 0 only where allowed.

    Raises:
        InputError: there are some and that is not allowed.
    """
    nothing = np.empty(0, dtype=np.int64)
    covered = dict.fromkeys(SPLITS, (nothing, nothing))
    for split, _, starts, ends in _by_split(rows, length, options.policy):
        before = covered[split]
        covered[split] = union(
            np.concatenate([before[0], starts]), np.concatenate([before[1], ends])
        )
    pairs = combinations(covered.values(), 2)
    shared = sum(int(covered_bases(other, *one).sum()) for one, other in pairs)
    if shared and not options.allow_split_overlap:
        _refuse_overlap(rows, length, options.policy, covered)
    return shared


def tile_rows(rows: Rows, length: int, policy: str) -> Iterator[WindowArrays]:
    """The windows of all rows in their order, in batches of whole rows; `row` counts all rows."""
    starts, ends = rows.clipped()
    expected = np.cumsum(np.maximum(-(-(ends - starts) // length), 1))
    first = 0
    while first < len(rows):
        before = int(expected[first - 1]) if first else 0
        last = max(int(np.searchsorted(expected, before + _BATCH, side="right")), first + 1)
        yield _tile(rows, first, last, length, policy)
        first = last


def window_batches(
    rows: Rows, length: int, store: GenomeStore, options: PrepareOptions
) -> Iterator[Batch]:
    """The columns of one table: N and soft-masked bases counted, windows of too many N dropped."""
    contigs, strands, splits = map(_coded, (rows.contigs, rows.strands, rows.splits))
    for windows in tile_rows(rows, length, options.policy):
        n_count, masked = _count(windows, contigs, store)
        width = windows.end - windows.start
        too_many = windows.readable & (n_count > options.max_n_fraction * width)
        with np.errstate(invalid="ignore", divide="ignore"):
            fractions = n_count / width, masked / width
        yield {
            **vars(windows),
            "status": Texts(np.where(too_many, TOO_MANY_N, windows.status), STATUSES),
            "contig": Texts(contigs.codes[windows.row], contigs.words),
            "strand": Texts(strands.codes[windows.row], strands.words),
            "split": Texts(splits.codes[windows.row], splits.words),
            "n_fraction": fractions[0],
            "masked_fraction": fractions[1],
        }


def _tile(rows: Rows, first: int, last: int, length: int, policy: str) -> WindowArrays:
    """The windows of the rows from `first` to before `last`."""
    here = slice(first, last)
    usable, problems = rows.usable[here], rows.problems[here]
    good, bad = np.flatnonzero(usable) + first, np.flatnonzero(~usable) + first
    tiles = tile_many(
        rows.starts[good], rows.ends[good], rows.contig_lengths[good], length, policy=policy
    )
    windows = replace(tiles, row=good[tiles.row])
    for status in np.unique(problems[~usable]):
        these = bad[problems[~usable] == status]
        windows = merged(windows, dropped(these, rows.starts[these], rows.ends[these], status))
    return windows


def _by_split(
    rows: Rows, length: int, policy: str
) -> Iterator[tuple[str, WindowArrays, np.ndarray, np.ndarray]]:
    """The readable windows of each batch and split, and their bounds on the line of all contigs."""
    splits, offsets = _array(rows.splits), rows.offsets
    for windows in tile_rows(rows, length, policy):
        for split in SPLITS:
            mine = windows.take(windows.readable & (splits[windows.row] == split))
            shift = offsets[mine.row]
            yield split, mine, mine.start + shift, mine.end + shift


def _refuse_overlap(rows: Rows, length: int, policy: str, covered: dict[str, Stretches]) -> None:
    """Names the windows that share bases with those of another split."""
    found = []
    for split, windows, starts, ends in _by_split(rows, length, policy):
        shares = np.zeros(len(windows), dtype=bool)
        for other in covered.keys() - {split}:
            shares |= covered_bases(covered[other], starts, ends) > 0
        found.append(windows.take(shares))
    row, start, end = (
        np.concatenate([getattr(windows, name) for windows in found])
        for name in ("row", "start", "end")
    )
    order = np.argsort(row, kind="stable")
    row, start, end = row[order], start[order], end[order]
    try:
        check_overlap(_array(rows.contigs)[row], start, end, _array(rows.splits)[row])
    except InputError as error:
        raise InputError(f"length={length}: {error}") from None


def _array(texts: Sequence[str]) -> np.ndarray:
    return np.array(texts, dtype=object)


def _coded(texts: Sequence[str]) -> Texts:
    positions: dict[str, int] = {}
    codes = [positions.setdefault(text, len(positions)) for text in texts]
    return Texts(np.array(codes, dtype=np.int64), list(positions))


def _count(
    windows: WindowArrays, contigs: Texts, store: GenomeStore
) -> tuple[np.ndarray, np.ndarray]:
    """N and soft-masked bases of each window, NaN where it does not lie on its contig."""
    counts = np.full((2, len(windows)), np.nan)
    lengths = store.contigs
    codes = contigs.codes[windows.row]
    order = np.argsort(codes, kind="stable")
    present, bounds = np.unique(codes[order], return_index=True)
    for code, low, high in zip(present, bounds, [*bounds[1:], len(order)], strict=True):
        name, here = contigs.words[code], order[low:high]
        start, end = windows.start[here], windows.end[here]
        here = here[(start >= 0) & (start < end) & (end <= lengths[name])]
        counts[:, here] = store.count_n_and_masked(name, windows.start[here], windows.end[here])
    return counts[0], counts[1]
