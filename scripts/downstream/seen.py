"""Which sequences of labelled sets stand in regions of a genome, letter by letter."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.progress import progress_bar
from fracdna_prep.vocabulary import DNA

KEY_BASES = 31  # of 2 bits each in 64
_CHUNK = 1 << 22
_TABLE_BITS = 26
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no two keys of 64 bits become one


def find_seen(
    store: GenomeStore, regions: Sequence[Interval], sequences: Sequence[np.ndarray]
) -> np.ndarray:
    """Whether each sequence, or its reverse complement, stands as a whole in one of the regions.

    Args:
        store: the genome.
        regions: on the forward strand.
        sequences: ids; one that has less than 31 bases, or N among its first 31 on both strands,
            is not found.

    Returns:
        (sequences,) bool.
    """
    wanted: dict[int, list[tuple[int, np.ndarray]]] = defaultdict(list)
    for number, ids in enumerate(sequences):
        for strand in (ids, DNA.reverse_complement(ids)):
            keys, known = _keys(strand[:KEY_BASES])
            if len(keys) and known[0]:
                wanted[int(keys[0])].append((number, strand))
    table = np.zeros(1 << _TABLE_BITS, dtype=bool)
    table[_places(np.array(list(wanted), dtype=np.uint64))] = True
    seen = np.zeros(len(sequences), dtype=bool)
    with progress_bar(sum(region.width for region in regions), "searching") as bar:
        for region in regions:
            ids = store.fetch(region)
            for start in range(0, len(ids), _CHUNK):
                keys, known = _keys(ids[start : start + _CHUNK + KEY_BASES - 1])
                for place in np.flatnonzero(known & table[_places(keys)]):
                    for number, strand in wanted.get(int(keys[place]), ()):
                        first = start + place
                        seen[number] |= np.array_equal(ids[first : first + len(strand)], strand)
                bar.update(min(_CHUNK, len(ids) - start))
    return seen


def _keys(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 31 bases from each position on as a number, and whether all of them are known."""
    code_of_id = np.full(DNA.size, 4, dtype=np.uint8)
    code_of_id[list(DNA.bases)] = range(4)
    codes = code_of_id[ids]
    count = len(ids) - KEY_BASES + 1
    if count <= 0:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=bool)
    unknown = np.concatenate([[0], np.cumsum(codes == 4)])
    known = unknown[KEY_BASES : KEY_BASES + count] == unknown[:count]
    # of 1, 2, 4, ... bases from each position on; 31 is the sum of these
    run, width = (codes & 3).astype(np.uint64), 1
    keys, offset = np.zeros(count, dtype=np.uint64), 0
    while offset < KEY_BASES:
        keys = (keys << np.uint64(2 * width)) | run[offset : offset + count]
        offset += width
        run = (run[: len(run) - width] << np.uint64(2 * width)) | run[width:]
        width *= 2
    return keys, known


def _places(keys: np.ndarray) -> np.ndarray:
    """Places of keys in a table that tells most others from them."""
    return (keys * _MIX) >> np.uint64(64 - _TABLE_BITS)
