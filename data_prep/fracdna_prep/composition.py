from pathlib import Path

import numpy as np

from fracdna_prep.store_layout import N_CODE, SOFT_MASKED, ContigRecord

_BLOCK = 1 << 20


def prefix_counts(path: Path, contig: ContigRecord, points: np.ndarray) -> np.ndarray:
    """Counts N and soft-masked bases from the first of some positions to each of them.

    The file is read in blocks rather than mapped: a map of a whole genome would count towards the
    memory of the process.

    Args:
        path: the bases file of a store.
        contig: where the contig lies in it.
        points: (P,) sorted positions from 0 to the contig's length.

    Returns:
        (2, P) int64: N, then soft-masked bases between points[0] and each point.
    """
    counts = np.zeros((2, len(points)), dtype=np.int64)
    if not len(points):
        return counts
    first, last = int(points[0]), int(points[-1])
    before = np.zeros(2, dtype=np.int64)
    sums = np.zeros(_BLOCK + 1, dtype=np.int64)
    with path.open("rb") as file:
        file.seek(contig.offset + first)
        for start in range(first, last, _BLOCK):
            end = min(start + _BLOCK, last)
            block = np.frombuffer(file.read(end - start), dtype=np.uint8)
            here = slice(
                np.searchsorted(points, start, side="right"),
                np.searchsorted(points, end, side="right"),
            )
            is_n = (block & ~np.uint8(SOFT_MASKED)) == N_CODE
            for row, flags in enumerate((is_n, block >= SOFT_MASKED)):
                np.cumsum(flags, out=sums[1 : end - start + 1])
                counts[row, here] = before[row] + sums[points[here] - start]
                before[row] += sums[end - start]
    return counts
