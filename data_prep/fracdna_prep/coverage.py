"""Which bases a set of intervals covers, on arrays of coordinates."""

from collections.abc import Iterator

import numpy as np


def on_one_line(
    contigs: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates with the contigs laid end to end, so that no two of them can touch."""
    positions = {name: index for index, name in enumerate(dict.fromkeys(contigs))}
    codes = np.array([positions[name] for name in contigs], dtype=np.int64)
    reach = np.zeros(len(positions) + 1, dtype=np.int64)
    np.maximum.at(reach, codes + 1, ends)
    offsets = np.cumsum(reach)[codes]
    return starts + offsets, ends + offsets


def union(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Disjoint sorted intervals that cover the same bases."""
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.concatenate([[True], starts[1:] > reach[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return starts[opens], reach[closes]


def covered_bases(
    covered: tuple[np.ndarray, np.ndarray], starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """How many bases of each interval lie in a union of disjoint sorted intervals."""
    first, last = covered
    before = np.concatenate([[0], np.cumsum(last - first)])

    def below(points: np.ndarray) -> np.ndarray:
        opened = np.searchsorted(first, points, side="right")
        beyond = last[opened - 1] - points if len(first) else np.zeros_like(points)
        return before[opened] - np.where(opened > 0, np.maximum(beyond, 0), 0)

    return below(ends) - below(starts)


def uncovered(
    starts: np.ndarray, ends: np.ndarray, covered: tuple[np.ndarray, np.ndarray]
) -> Iterator[tuple[int, int, int]]:
    """The stretches of intervals that a union of disjoint sorted intervals leaves open.

    Yields:
        index of the interval, then the bounds of the stretch, in the order of the intervals.
    """
    first, last = covered
    for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        position = start
        low = int(np.searchsorted(last, start, side="right"))
        high = int(np.searchsorted(first, end, side="left"))
        for opened, closed in zip(first[low:high].tolist(), last[low:high].tolist(), strict=True):
            if opened > position:
                yield index, position, opened
            position = closed
        if position < end:
            yield index, position, end


def count_uncovered(
    starts: np.ndarray, ends: np.ndarray, covered: tuple[np.ndarray, np.ndarray]
) -> int:
    """How many stretches `uncovered` yields for intervals that hold a base each."""
    first, last = covered
    low = np.searchsorted(last, starts, side="right")
    high = np.searchsorted(first, ends, side="left")
    met = low < high
    # n stretches that do not touch leave n + 1 gaps, less those at an end that is covered.
    at_start, at_end = np.zeros_like(met), np.zeros_like(met)
    at_start[met] = first[low[met]] <= starts[met]
    at_end[met] = last[high[met] - 1] >= ends[met]
    return int((high - low + 1 - at_start - at_end).sum())
