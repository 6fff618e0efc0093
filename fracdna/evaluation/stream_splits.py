"""How many bases of a streamed contig models have been trained on."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fracdna_prep.coverage import union
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.splits import SPLITS

TRAIN, NO_SPLIT = "train", "none"


def bases_by_split(
    store: GenomeStore, contig: str, intervals: Mapping[str, Sequence[Interval]]
) -> dict[str, int]:
    """Bases of a contig other than N in each split, and in none.

    Args:
        store: the genome.
        contig: its name.
        intervals: of each split; those of "none" are in no split.
    """
    mine = {
        split: [i for i in intervals.get(split, ()) if i.chromosome == contig] for split in SPLITS
    }
    found = {split: _known(store, contig, places) for split, places in mine.items()}
    somewhere = _known(store, contig, [place for places in mine.values() for place in places])
    whole = _known(store, contig, [Interval(contig, 0, store.contigs[contig])])
    return found | {NO_SPLIT: whole - somewhere}


def pooled(splits: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Those of several contigs together."""
    counts = list(splits)
    return {split: sum(one[split] for one in counts) for split in (*SPLITS, NO_SPLIT)}


def split_line(splits: Mapping[str, int]) -> str:
    """The splits that hold bases, with a word where models have seen them."""
    words = {split: f"in split {split}" for split in SPLITS} | {NO_SPLIT: "in no split"}
    words[TRAIN] += " (seen in training by models of this prepared folder)"
    parts = [f"{splits[split]:,} {words[split]}" for split in words if splits[split]]
    return f"  of these {', '.join(parts)}"


def _known(store: GenomeStore, contig: str, places: Sequence[Interval]) -> int:
    """Bases other than N under intervals of a contig, each once."""
    starts, ends = (np.array([getattr(i, side) for i in places], int) for side in ("start", "end"))
    starts, ends = union(starts, ends)
    n, _ = store.count_n_and_masked(contig, starts, ends)
    return int((ends - starts - n).sum())
