"""Counting N and soft-masked bases of many intervals of a genome store."""

from pathlib import Path

import numpy as np

from fracdna_prep.store_layout import N_CODE, SOFT_MASKED, ContigRecord

_BLOCK = 1 << 18
_WORD = 64


def count_n_and_masked(
    path: Path, contig: ContigRecord, starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Counts N and soft-masked bases of intervals; memory grows with their number only.

    Blocks in which no interval lies are passed over. The file is read rather than mapped: a map
    of a whole genome would count towards the memory of the process.

    Args:
        path: the bases file of a store.
        contig: where the contig lies in it.
        starts: (K,) inside the contig, in any order.
        ends: (K,) not before the starts.

    Returns:
        (2, K) int64: N, then soft-masked bases.
    """
    points, where = np.unique(np.concatenate([starts, ends]), return_inverse=True)
    totals = np.zeros((2, len(points)), dtype=np.int64)
    before = np.zeros(2, dtype=np.int64)
    with path.open("rb") as file:
        for start in _blocks_needed(starts, ends, contig.length) * _BLOCK:
            end = min(int(start) + _BLOCK, contig.length)
            file.seek(contig.offset + int(start))
            block = np.frombuffer(file.read(end - int(start)), dtype=np.uint8)
            # A point where two blocks meet is counted in both, and alike.
            low, high = np.searchsorted(points, start), np.searchsorted(points, end, side="right")
            is_n = (block & ~np.uint8(SOFT_MASKED)) == N_CODE
            for row, flags in enumerate((is_n, block >= SOFT_MASKED)):
                inside, whole = _counts_before(flags, points[low:high] - start)
                totals[row, low:high] = before[row] + inside
                before[row] += whole
    counts = totals[:, where]
    return counts[:, len(starts) :] - counts[:, : len(starts)]


def _blocks_needed(starts: np.ndarray, ends: np.ndarray, length: int) -> np.ndarray:
    """Indices of the blocks that hold a base of an interval."""
    change = np.zeros(length // _BLOCK + 2, dtype=np.int64)
    filled = ends > starts
    np.add.at(change, starts[filled] // _BLOCK, 1)
    np.add.at(change, (ends[filled] - 1) // _BLOCK + 1, -1)
    return np.flatnonzero(np.cumsum(change))


def _counts_before(flags: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, int]:
    """How many of up to _BLOCK flags are set before each of some places, and in all."""
    bits = np.zeros(_BLOCK // 8 + 8, dtype=np.uint8)
    packed = np.packbits(flags, bitorder="little")
    bits[: len(packed)] = packed
    words = bits.view("<u8")
    # Sums over words of 64 flags, then the rest bit by bit: a sum over single flags takes ten
    # times as long.
    sums = np.concatenate([[0], np.cumsum(np.bitwise_count(words), dtype=np.int64)])
    index, rest = places // _WORD, (places % _WORD).astype(np.uint64)
    partial = words[index] & ((np.uint64(1) << rest) - np.uint64(1))
    return sums[index] + np.bitwise_count(partial), int(sums[-1])
