"""What sequences are without any network: length, share of GC, counts of k-mers."""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array, csr_array

from fracdna_prep.vocabulary import DNA

LARGEST_K = 6
_DENSE_TO = 4  # 256 columns: beyond that most counts of a short sequence are 0
_BASES_AT_ONCE = 1 << 22


def gc_and_length(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """(rows, 2) float64: share of G and C among A, C, G and T, 0.5 without any; positions."""
    _, c, g, _ = DNA.bases
    features = np.empty((len(sequences), 2))
    for row, ids in zip(features, sequences, strict=True):
        gc, bases = np.isin(ids, (c, g)).sum(), np.isin(ids, DNA.bases).sum()
        row[:] = gc / bases if bases else 0.5, len(ids)
    return features


def kmer_counts(sequences: Sequence[np.ndarray], k: int) -> np.ndarray | csr_array:
    """(rows, 4^k) float64: how often each k-mer occurs, on the strand that is given.

    Those that hold N are not counted. Columns are in the order of the alphabet. Sparse where most
    of it is 0.
    """
    parts, first = [], 0
    while first < len(sequences):
        stop, bases = first, 0
        while stop < len(sequences) and (stop == first or bases < _BASES_AT_ONCE):
            bases += len(sequences[stop])
            stop += 1
        parts.append(_counted(sequences[first:stop], k))
        first = stop
    counts = csr_array(_stacked(parts))
    return counts.toarray() if k <= _DENSE_TO else counts


def _stacked(parts: Sequence[csr_array]) -> csr_array:
    """Rows of all parts."""
    from scipy.sparse import vstack

    return vstack(parts, format="csr")


def _counted(sequences: Sequence[np.ndarray], k: int) -> csr_array:
    """Counts of some sequences, by one pass over all of their bases."""
    lengths = np.array([len(ids) for ids in sequences])
    code_of_id = np.full(DNA.size, -1, dtype=np.int64)
    code_of_id[list(DNA.bases)] = range(4)
    codes = code_of_id[np.concatenate(sequences)]
    row = np.repeat(np.arange(len(sequences)), lengths)
    windows = max(len(codes) - k + 1, 0)
    number, whole = np.zeros(windows, dtype=np.int64), np.ones(windows, dtype=bool)
    for offset in range(k):
        base = codes[offset : offset + windows]
        number = 4 * number + base
        whole &= base >= 0
    # a window that ends in another row than it begins in is of none
    whole &= row[:windows] == row[k - 1 : k - 1 + windows]
    entries = np.ones(int(whole.sum())), (row[:windows][whole], number[whole])
    return coo_array(entries, shape=(len(sequences), 4**k)).tocsr()
