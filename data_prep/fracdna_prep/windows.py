"""Windows of one length L on intervals of any width, also where a contig ends.

Policies: "shift" moves a window inside its contig, "pad" fills what is missing, "drop" gives the
window up. A contig shorter than L cannot take a shifted window, so that one is padded.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval

POLICIES = ("shift", "pad", "drop")
STATUSES = (
    "ok",
    "shifted",
    "padded",
    "dropped: leaves the contig",
    "dropped: outside the contig",
    "dropped: empty interval",
    "dropped: inverted interval",
    "dropped: too many N",
    "dropped: not inside one split",
)
OK, SHIFTED, PADDED, LEAVES, OUTSIDE, EMPTY, INVERTED, TOO_MANY_N, NO_SPLIT = range(len(STATUSES))
READABLE = (OK, SHIFTED, PADDED)


@dataclass(frozen=True, slots=True)
class Window:
    """One window of L bases.

    Attributes:
        interval: the part on the contig; of a dropped window, what was asked for.
        status: one of STATUSES.
        shift: bases it was moved to the right (left when negative).
        pad_left: positions missing before the interval, on the forward strand.
        pad_right: positions missing behind it; pads and width sum up to L.
    """

    interval: Interval
    status: str
    shift: int = 0
    pad_left: int = 0
    pad_right: int = 0

    @property
    def readable(self) -> bool:
        """Whether there is something to read."""
        return not self.status.startswith("dropped")

    def index_of(self, position: int) -> int:
        """Where a position of the contig stands in the window, on the forward strand."""
        return position - self.interval.start + self.pad_left


@dataclass(frozen=True)
class WindowArrays:
    """Many windows as (W,) int64 columns; `row` is the interval each one was made from.

    `status` holds positions in STATUSES. The other columns are those of Window.
    """

    row: np.ndarray
    start: np.ndarray
    end: np.ndarray
    status: np.ndarray
    shift: np.ndarray
    pad_left: np.ndarray
    pad_right: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    @property
    def readable(self) -> np.ndarray:
        """(W,) bool: windows that hold something to read."""
        return self.status <= PADDED

    def take(self, order: np.ndarray) -> Self:
        """The windows at some indices."""
        return type(self)(**{name: column[order] for name, column in vars(self).items()})

    def window(self, index: int, contig: str, strand: str = "+") -> Window:
        """One of them."""
        return Window(
            Interval(contig, int(self.start[index]), int(self.end[index]), strand),
            STATUSES[self.status[index]],
            int(self.shift[index]),
            int(self.pad_left[index]),
            int(self.pad_right[index]),
        )


def place(interval: Interval, length: int, contig_length: int, *, policy: str = "shift") -> Window:
    """One window for one interval: widened evenly when shorter, its centre bases when longer.

    Args:
        interval: may leave the contig on either side.
        length: of the window, L.
        contig_length: bases of the contig.
        policy: what happens where the window leaves the contig.

    Raises:
        InputError: an unknown policy or a length below 1.
    """
    placed = place_many(*_as_arrays(interval, contig_length), length, policy=policy)
    return placed.window(0, interval.chromosome, interval.strand)


def tile(
    interval: Interval, length: int, contig_length: int, *, policy: str = "shift"
) -> list[Window]:
    """Consecutive windows over one interval; an interval shorter than L is placed.

    The last partial window is moved back inside the interval ("shift"), padded on the right
    ("pad") or left out ("drop").

    Raises:
        InputError: an unknown policy or a length below 1.
    """
    tiles = tile_many(*_as_arrays(interval, contig_length), length, policy=policy)
    return [tiles.window(i, interval.chromosome, interval.strand) for i in range(len(tiles))]


def with_flanks(interval: Interval, left: int, right: int) -> Interval:
    """An interval with bases added on both sides of the forward strand; may leave its contig."""
    return replace(interval, start=interval.start - left, end=interval.end + right)


def place_many(
    starts: np.ndarray,
    ends: np.ndarray,
    contig_lengths: np.ndarray,
    length: int,
    *,
    policy: str = "shift",
) -> WindowArrays:
    """`place` for (R,) int64 intervals at once: one window a row, also for unusable rows."""
    _check(length, policy)
    extra = length - (ends - starts)
    wanted = starts - np.where(extra >= 0, extra // 2, -(-extra // 2))
    # In a contig shorter than L the bounds swap, and every start between them covers it whole.
    room = contig_lengths - length
    first = wanted
    if policy == "shift":
        first = np.clip(wanted, np.minimum(room, 0), np.maximum(room, 0))
    start, end = np.maximum(first, 0), np.minimum(first + length, contig_lengths)
    fits = end - start == length
    misfit = LEAVES if policy == "drop" else PADDED
    status = np.where(fits, np.where(first == wanted, OK, SHIFTED), misfit)
    status = np.where(end <= start, OUTSIDE, status)
    unusable = row_problems(starts, ends, contig_lengths)
    windows = WindowArrays(
        row=np.arange(len(starts)),
        start=start,
        end=end,
        status=np.where(unusable != OK, unusable, status),
        shift=first - wanted,
        pad_left=start - first,
        pad_right=first + length - end,
    )
    return _as_asked(windows, starts, ends)


def tile_many(
    starts: np.ndarray,
    ends: np.ndarray,
    contig_lengths: np.ndarray,
    length: int,
    *,
    policy: str = "shift",
) -> WindowArrays:
    """`tile` for (R,) int64 intervals at once, in their order; at least one window a row."""
    _check(length, policy)
    first, last = np.maximum(starts, 0), np.minimum(ends, contig_lengths)
    short = last - first < length
    # A row that reaches past its contig keeps its own centre, unless it is wider than a window.
    wide = ends - starts > length
    placed = place_many(
        np.where(wide, first, starts)[short],
        np.where(wide, last, ends)[short],
        contig_lengths[short],
        length,
        policy=policy,
    )
    placed = replace(placed, row=np.flatnonzero(short))
    tiles = _full_tiles(first[~short], last[~short], length, policy)
    tiles = replace(tiles, row=np.flatnonzero(~short)[tiles.row])
    return merged(placed, tiles)


def dropped(rows: np.ndarray, starts: np.ndarray, ends: np.ndarray, status: int) -> WindowArrays:
    """One unreadable window for each of some rows, at the coordinates asked for."""
    none = np.zeros_like(rows)
    return WindowArrays(rows, starts, ends, np.full_like(rows, status), none, none, none)


def merged(one: WindowArrays, other: WindowArrays) -> WindowArrays:
    """All windows of two sets, ordered by row; windows of one row keep their order."""
    both = WindowArrays(
        **{name: np.concatenate([column, vars(other)[name]]) for name, column in vars(one).items()}
    )
    return both.take(np.argsort(both.row, kind="stable"))


def row_problems(starts: np.ndarray, ends: np.ndarray, contig_lengths: np.ndarray) -> np.ndarray:
    """(R,) statuses of rows that no policy can help; OK for all others."""
    outside = (starts >= contig_lengths) | (ends <= 0)
    status = np.where(outside, OUTSIDE, OK)
    status = np.where(ends == starts, EMPTY, status)
    return np.where(ends < starts, INVERTED, status)


def _full_tiles(first: np.ndarray, last: np.ndarray, length: int, policy: str) -> WindowArrays:
    """Tiles of intervals that lie inside their contig and hold at least one window."""
    counts = (last - first) // length
    if policy != "drop":
        counts = -(-(last - first) // length)
    row = np.repeat(np.arange(len(first)), counts)
    index = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = first[row] + index * length
    over = np.maximum(start + length - last[row], 0)
    none = np.zeros_like(over)
    moved, padded = (over, none) if policy == "shift" else (none, over)
    return WindowArrays(
        row=row,
        start=start - moved,
        end=start - moved + length - padded,
        status=np.where(over > 0, SHIFTED if policy == "shift" else PADDED, OK),
        shift=-moved,
        pad_left=none,
        pad_right=padded,
    )


def _as_asked(windows: WindowArrays, starts: np.ndarray, ends: np.ndarray) -> WindowArrays:
    """Gives dropped windows the coordinates of their rows, and no shift or padding."""
    kept = windows.readable
    return replace(
        windows,
        start=np.where(kept, windows.start, starts),
        end=np.where(kept, windows.end, ends),
        shift=np.where(kept, windows.shift, 0),
        pad_left=np.where(kept, windows.pad_left, 0),
        pad_right=np.where(kept, windows.pad_right, 0),
    )


def _as_arrays(interval: Interval, contig_length: int) -> tuple[np.ndarray, ...]:
    values = (interval.start, interval.end, contig_length)
    return tuple(np.array([value], dtype=np.int64) for value in values)


def _check(length: int, policy: str) -> None:
    if length < 1:
        raise InputError(f"the window length must be at least 1, got {length}")
    if policy not in POLICIES:
        raise InputError(f"policy {policy!r} is unknown: choose one of {', '.join(POLICIES)}")
