"""What becomes of rows: classes, splits, statuses, draws."""

import numpy as np
import pytest
from labelled_rows import intervals, texts

from fracdna.probing.labelled import SplitRules, assemble, draw
from fracdna.probing.rows import Row
from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval

BALANCED = [("ACGT", label, "train") for label in "0101"] + [
    ("GGG", label, "test") for label in "01"
]


def checked(rows, rules=None):
    data = assemble(rows, None, rules or SplitRules())
    data.check()
    return data


def test_unusable_rows_have_a_status_and_the_others_go_on():
    """Letters that are none, no letters, no class; N is counted, lower case is upper case."""
    rows = [("AC-T", "0", "train"), ("", "0", "test"), ("ACG", "", "test"), ("aNrT", "1", "test")]
    data = checked(texts(*BALANCED, *rows))
    assert [(row.place, status) for row, status in data.dropped] == [
        ("set:6", "not_dna"),
        ("set:7", "no_sequence"),
        ("set:8", "no_label"),
    ]
    assert len(data) == 7
    assert data.unknown_bases == 2


def test_classes_are_in_the_order_of_numbers():
    """10 comes after 9; text in its own order."""
    rows = [
        ("ACG", label, split) for label in ("10", "9", "10", "9") for split in ("train", "test")
    ]
    assert checked(texts(*rows)).classes == ("9", "10")
    rows = [("ACG", label, split) for label in ("b", "A", "b", "A") for split in ("train", "test")]
    assert checked(texts(*rows)).classes == ("A", "b")


REFUSED = {
    "one class": ([("A", "0", "train"), ("C", "0", "train"), ("A", "0", "test")], "of the class 0"),
    "no training": ([("A", "0", "test")], "no row is left for train"),
    "no test": (BALANCED[:4], "no row is left for test: 4 train"),
    "all unusable": ([("!", "0", "train")], r"left out: 1 not_dna \(the first is set:0\)"),
    "class in test alone": ([*BALANCED, ("A", "2", "test")], "test has the class 2"),
    "class in dev alone": ([*BALANCED, ("A", "2", "dev")], "dev has the class 2"),
    "one row": ([*BALANCED, ("A", "2", "train")], "one training row alone is of the class 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_nothing_can_be_learned_from_is_refused(case):
    rows, words = REFUSED[case]
    with pytest.raises(InputError, match=words):
        checked(texts(*rows))


def test_measurements_are_refused():
    """Nearly as many labels as rows are no classes."""
    rows = [("A", f"{n // 2}.5", "train") for n in range(3000)] + [("A", "0.5", "test")]
    with pytest.raises(InputError, match="1,500 classes in 3,000 training rows"):
        checked(texts(*rows))


def test_a_split_that_some_rows_lack_is_refused():
    with pytest.raises(InputError, match="set:1 has no split"):
        assemble(texts(("A", "0", "train"), ("A", "0", None)), None, SplitRules())


def test_without_any_split_a_share_is_drawn_for_the_test():
    """Class by class, by seed; every row once."""
    rows = texts(*[("ACGT", "0" if n < 80 else "1", None) for n in range(100)])
    data = [checked(rows, SplitRules(test_share=0.3, seed=seed)) for seed in (0, 0, 1)]
    assert data[0].counts()["test"] == {"0": 24, "1": 6}
    assert np.array_equal(data[0].splits, data[1].splits)
    assert not np.array_equal(data[0].splits, data[2].splits)


def test_most_training_rows_are_drawn_class_by_class_and_the_test_stays():
    rows = [("ACGT", "0" if n < 60 else "1", "train") for n in range(80)] + [("A", "0", "test")] * 5
    data = checked(texts(*rows)).shortened(20, seed=0)
    assert data.counts() == {
        "train": {"0": 15, "1": 5},
        "dev": {"0": 0, "1": 0},
        "test": {"0": 5, "1": 0},
    }
    assert data.shortened(20, seed=0) is data


@pytest.mark.parametrize("count", [1, 7, 10, 19, 20])
def test_a_draw_has_as_many_rows_as_asked_for(count):
    """No class is off its share by a row or more."""
    labels = np.repeat([0, 1, 2], [11, 6, 3])
    drawn = draw(labels, count, np.random.default_rng(0))
    assert len(set(drawn)) == count
    assert np.all(
        np.abs(np.bincount(labels[drawn], minlength=3) - count * np.array([11, 6, 3]) / 20) < 1
    )


def test_regions_divide_intervals_by_position(store):
    """Inside, across a border, elsewhere; borders are 1-based and closed as in region strings."""
    rows = intervals(("chr1", 0), ("chr1", 70), ("chr1", 71), ("chr1", 100), ("chr2", 5))
    rules = SplitRules(test_regions=["chr1:101-4000"])
    data = assemble(rows, store, rules)
    assert data.splits.tolist() == ["train", "train", "test", "train"]
    assert [(row.place, status) for row, status in data.dropped] == [("set:2", "border")]
    rules = SplitRules(test_regions=["chr1:101-4000"], train_regions=["chr2"])
    data = assemble(rows, store, rules)
    assert data.splits.tolist() == ["test", "train"]
    assert [status for _, status in data.dropped] == ["elsewhere", "elsewhere", "border"]


def test_intervals_that_cannot_be_cut_have_a_status(store):
    rows = intervals(("chr1", 3980), ("chr1", -5), ("chr1", 10))
    rows.append(Row("set:3", "a", None, interval=Interval("chr1", 90, 80)))
    rows.append(Row("set:4", "a", None, interval=Interval("chr1", 90, 90)))
    data = assemble(rows, store, SplitRules())
    assert [status for _, status in data.dropped] == [
        "outside",
        "outside",
        "inverted",
        "no_sequence",
    ]


def test_contigs_that_the_genome_lacks(store):
    """Refused with the remedy, renamed, or left out on request."""
    rows = intervals(("1", 0), ("1", 40), ("7", 0))
    with pytest.raises(InputError, match=r"rename=chr_prefix(?s:.*)missing_contigs=skip"):
        assemble(rows, store, SplitRules())
    data = assemble(rows, store, SplitRules(rename="chr_prefix", missing_contigs="skip"))
    assert len(data) == 2
    assert [status for _, status in data.dropped] == ["no_contig"]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"test_regions": ["chr9"]}, "no contig of the genome"),
        ({"test_regions": ["chr9:1-5"]}, "chr9"),
        ({"dev_regions": ["chr1"]}, "go with test_regions="),
    ],
)
def test_regions_that_lead_nowhere_are_refused(store, rules, words):
    with pytest.raises(InputError, match=words):
        assemble(intervals(("chr1", 0)), store, SplitRules(**rules))


def test_regions_do_not_divide_letters():
    with pytest.raises(InputError, match="letters have no place"):
        assemble(texts(*BALANCED), None, SplitRules(test_regions=["chr1"]))
