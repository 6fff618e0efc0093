"""What a window table holds, counted a row group at a time."""

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from fracdna_prep.coverage import count_uncovered, covered_bases, uncovered, union
from fracdna_prep.rows import Rows
from fracdna_prep.tables import Texts, read_windows
from fracdna_prep.windows import READABLE, STATUSES

_SHOWN = 10
_COLUMNS = ("row", "start", "end", "split", "status", "n_fraction", "masked_fraction")
_READABLE_TEXTS = tuple(STATUSES[status] for status in READABLE)


@dataclass(frozen=True)
class Coverage:
    """What the readable windows of one table make of the usable rows.

    Attributes:
        bases: of all usable rows together, each base once.
        covered: of these, the bases in at least one readable window.
        unused_stretches: how many stretches of the rows no window covers.
        first_unused: the first of them, as region strings.
    """

    bases: int
    covered: int
    unused_stretches: int
    first_unused: tuple[str, ...]


@dataclass(frozen=True)
class Tally:
    """Counts of one window table.

    Attributes:
        windows: how many, dropped ones included.
        by_status: windows by what became of them.
        usable_by_split: readable windows.
        n_fraction: mean over the readable windows.
        masked_fraction: likewise.
        per_row: (R,) readable windows of each row.
        extents: least start and greatest end of the readable windows of the first rows; (0, 0)
            without any.
        coverage: of the rows.
    """

    windows: int
    by_status: dict[str, int]
    usable_by_split: dict[str, int]
    n_fraction: float
    masked_fraction: float
    per_row: np.ndarray
    extents: tuple[tuple[int, int], ...]
    coverage: Coverage


def tally_windows(path: Path | str, rows: Rows) -> Tally:
    """Counts the windows of one table.

    Raises:
        InputError: the table is missing or damaged.
    """
    statuses: Counter[str] = Counter()
    splits: Counter[str] = Counter()
    per_row = np.zeros(len(rows), dtype=np.int64)
    sums = np.zeros(2)
    covered = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    extents: dict[int, tuple[int, int]] = {}
    for batch in read_windows(path, _COLUMNS):
        statuses += _counts(batch["status"])
        used = np.flatnonzero(_is_readable(batch["status"]))
        row, start, end = (batch[name][used] for name in ("row", "start", "end"))
        splits += _counts(Texts(batch["split"].codes[used], batch["split"].words))
        per_row += np.bincount(row, minlength=len(rows))
        sums += [batch["n_fraction"][used].sum(), batch["masked_fraction"][used].sum()]
        shift = rows.offsets[row]
        covered = union(
            np.concatenate([covered[0], start + shift]), np.concatenate([covered[1], end + shift])
        )
        _extend(extents, row, start, end)
    usable = int(per_row.sum())
    means = sums / max(usable, 1)
    return Tally(
        windows=sum(statuses.values()),
        by_status=dict(statuses),
        usable_by_split=dict(splits),
        n_fraction=float(means[0]),
        masked_fraction=float(means[1]),
        per_row=per_row,
        extents=tuple(extents.get(row, (0, 0)) for row in range(min(len(rows), _SHOWN))),
        coverage=_coverage(covered, rows),
    )


def _counts(texts: Texts) -> Counter[str]:
    counts = np.bincount(texts.codes, minlength=len(texts.words)).tolist()
    return Counter({text: n for text, n in zip(texts.words, counts, strict=True) if n})


def _is_readable(statuses: Texts) -> np.ndarray:
    return np.isin(statuses.words, _READABLE_TEXTS)[statuses.codes]


def _extend(
    extents: dict[int, tuple[int, int]], row: np.ndarray, start: np.ndarray, end: np.ndarray
) -> None:
    """Widens the extents of the first rows by windows in the order of their rows."""
    for index in range(_SHOWN):
        low, high = np.searchsorted(row, [index, index + 1])
        if low < high:
            found = int(start[low:high].min()), int(end[low:high].max())
            first, last = extents.get(index, found)
            extents[index] = min(first, found[0]), max(last, found[1])


def _coverage(covered: tuple[np.ndarray, np.ndarray], rows: Rows) -> Coverage:
    """Compares what windows cover, on one line, with the usable rows."""
    good = np.flatnonzero(rows.usable)
    offsets = rows.offsets[good]
    starts, ends = (bounds[good] + offsets for bounds in rows.clipped())
    asked = union(starts, ends)
    bases, found = int((asked[1] - asked[0]).sum()), int(covered_bases(covered, *asked).sum())
    if found == bases:
        return Coverage(bases, found, 0, ())
    first_unused = tuple(
        f"{rows.contigs[good[index]]}:{start - offsets[index] + 1:,}-{end - offsets[index]:,}"
        for index, start, end in islice(uncovered(starts, ends, covered), _SHOWN)
    )
    return Coverage(bases, found, count_uncovered(starts, ends, covered), first_unused)
