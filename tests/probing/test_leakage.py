"""Test rows that were seen in training."""

from labelled_rows import texts

from fracdna.probing.labelled import SplitRules, assemble
from fracdna.probing.leakage import Duplicate, find_leakage
from fracdna.probing.readers import Columns, read_set
from fracdna.probing.rows import Row
from fracdna_prep.interval import Interval


def test_exact_and_reversed_repeats_are_found_and_can_be_removed():
    """Once for each split and kind; a palindrome is exact; all its copies are removed."""
    data = assemble(
        texts(
            ("AACC", "0", "train"),
            ("AACC", "1", "train"),
            ("ACGT", "0", "train"),
            ("GGTT", "1", "dev"),
            ("TTTT", "1", "train"),
            ("AACC", "0", "test"),
            ("ACGT", "1", "test"),
            ("aacc", "0", "test"),
            ("CCCC", "1", "test"),
        ),
        None,
        SplitRules(),
    )
    leakage = find_leakage(data)
    assert leakage.pairs == [
        Duplicate(5, 0, "exact"),
        Duplicate(5, 3, "reverse_complement"),
        Duplicate(6, 2, "exact"),
        Duplicate(7, 0, "exact"),
        Duplicate(7, 3, "reverse_complement"),
    ]
    assert leakage.counts(data) == {
        "test_rows_in_train_exact": 3,
        "test_rows_in_train_reverse_complement": 0,
        "test_rows_in_dev_exact": 0,
        "test_rows_in_dev_reverse_complement": 2,
        "test_rows_repeated": 3,
        "test_rows_repeated_with_another_label": 3,
        "repeats_within_train": 1,
        "repeats_within_dev": 0,
        "repeats_within_test": 1,
        "test_intervals_overlapping_others": None,
    }
    left = data.without(leakage.repeated)
    assert [row.sequence for row in left.rows if row.split != "test"] == ["TTTT"]
    assert find_leakage(left).pairs == []


def test_overlapping_intervals_are_counted(store):
    """One shared base is enough, touching is not; strands do not matter."""
    starts = {"train": (100, 500), "dev": (800,), "test": (129, 130, 471, 470, 829, 3000)}
    rows = [
        Row("set", "a", split, interval=Interval("chr1", start, start + 30, "-"))
        for split, places in starts.items()
        for start in places
    ]
    data = assemble(rows, store, SplitRules())
    assert find_leakage(data).counts(data)["test_intervals_overlapping_others"] == 3


def test_real_repeats(shared_data):
    """The six repeats that the specification counts in GUE's TATA promoters."""
    raw = read_set(str(shared_data / "tasks_GUE" / "prom_prom_300_tata"), Columns())
    data = assemble(raw.rows, None, SplitRules())
    assert find_leakage(data).counts(data)["test_rows_in_train_exact"] == 6
