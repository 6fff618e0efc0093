"""Sequences that are both learned from and tested on, as they are or from the other strand."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from fracdna.evaluation.regions import merged
from fracdna.probing.labelled import LabelledSet
from fracdna.probing.rows import DEV, TEST, TRAIN
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA

EXACT, REVERSED = "exact", "reverse_complement"


@dataclass(frozen=True)
class Duplicate:
    """A test row, and the first row of another split that holds the same sequence.

    Attributes:
        test: position of the test row in the set.
        other: position of the training or dev row.
        kind: EXACT or REVERSED; a sequence that is its own reverse complement is EXACT.
    """

    test: int
    other: int
    kind: str


@dataclass(frozen=True)
class Leakage:
    """What is shared between splits.

    Attributes:
        pairs: every test row that repeats in train or dev, once for each split and kind.
        repeated: training and dev rows that hold the sequence of a test row.
        within: rows that repeat an earlier one of their own split, by split, either strand.
        overlapping: test intervals that share a base with one of train or dev; None for letters.
    """

    pairs: list[Duplicate]
    repeated: np.ndarray
    within: dict[str, int]
    overlapping: int | None

    def counts(self, data: LabelledSet) -> dict[str, int | None]:
        """Test rows that repeat elsewhere, by split and kind, and what else there is to know."""
        found: dict[str, int | None] = {}
        for split in (TRAIN, DEV):
            for kind in (EXACT, REVERSED):
                found[f"test_rows_in_{split}_{kind}"] = sum(
                    data.splits[pair.other] == split and pair.kind == kind for pair in self.pairs
                )
        found["test_rows_repeated"] = len({pair.test for pair in self.pairs})
        found["test_rows_repeated_with_another_label"] = len(
            {p.test for p in self.pairs if data.labels[p.test] != data.labels[p.other]}
        )
        found |= {f"repeats_within_{split}": number for split, number in self.within.items()}
        found["test_intervals_overlapping_others"] = self.overlapping
        return found


def find_leakage(data: LabelledSet) -> Leakage:
    """Compare the splits of a set."""
    seen: dict[str, dict[bytes, list[int]]] = {split: defaultdict(list) for split in (TRAIN, DEV)}
    first: dict[str, set[bytes]] = defaultdict(set)
    within = dict.fromkeys((TRAIN, DEV, TEST), 0)
    other_strand = [DNA.reverse_complement(ids).tobytes() for ids in data.sequences]
    for number, ids in enumerate(data.sequences):
        split, letters = data.splits[number], ids.tobytes()
        either = min(letters, other_strand[number])
        within[split] += either in first[split]
        first[split].add(either)
        if split in seen:
            seen[split][letters].append(number)
    pairs, repeated = [], set()
    for test in data.where(TEST):
        letters = data.sequences[test].tobytes()
        kinds = (
            {letters: EXACT}
            if letters == other_strand[test]
            else {letters: EXACT, other_strand[test]: REVERSED}
        )
        for rows in seen.values():
            for text, kind in kinds.items():
                found = rows.get(text, [])
                pairs += [Duplicate(int(test), found[0], kind)] if found else []
                repeated.update(found)
    return Leakage(pairs, np.array(sorted(repeated), dtype=np.int64), within, _overlapping(data))


def _overlapping(data: LabelledSet) -> int | None:
    """Test intervals that share a base with another split's, on either strand."""
    if not len(data) or data.rows[0].interval is None:
        return None
    intervals = [row.interval for row in data.rows]
    others: dict[str, list[Interval]] = defaultdict(list)
    tested = data.splits == TEST
    for interval in merged([intervals[n] for n in np.flatnonzero(~tested)]):
        others[interval.chromosome].append(interval)
    bounds = {
        name: (np.array([i.start for i in found]), np.array([i.end for i in found]))
        for name, found in others.items()
    }
    count = 0
    for number in np.flatnonzero(tested):
        interval = intervals[number]
        if interval.chromosome in bounds:
            starts, ends = bounds[interval.chromosome]
            # they are sorted and apart: the first that ends behind its start is the only candidate
            place = int(np.searchsorted(ends, interval.start, side="right"))
            count += place < len(starts) and bool(starts[place] < interval.end)
    return count
