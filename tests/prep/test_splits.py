from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracdna_prep.bed import read_bed
from fracdna_prep.blocks import split_blocks
from fracdna_prep.coverage import count_uncovered, uncovered, union
from fracdna_prep.errors import InputError
from fracdna_prep.splits import (
    SPLITS,
    SplitRegion,
    canonical_split,
    check_overlap,
    find_overlaps,
    regions_of_rows,
    splits_by_chromosome,
    splits_of_bed,
)

BLOCKS = {"block_size": 100, "guard": 10, "validation_fraction": 0.1, "test_fraction": 0.2}


def test_synonyms_of_splits_have_one_name():
    """Tables say train, valid and test whatever the input says."""
    names = ["TRAIN", "training", "Validation", "val", "dev", "valid", "test", "none"]
    expected = ["train", "train", "valid", "valid", "valid", "valid", "test", "none"]
    assert [canonical_split(name) for name in names] == expected
    with pytest.raises(InputError, match="'trian'"):
        canonical_split("trian")


def test_a_bed_column_must_name_a_split_in_every_row(tmp_path):
    """Case 12: never an empty split; file, line and value are named."""
    path = tmp_path / "s.bed"
    path.write_text("c\t0\t5\ttrain\nc\t5\t9\tval\n")
    assert splits_of_bed(read_bed(path)) == ["train", "valid"]
    path.write_text("c\t0\t5\ttrain\nc\t5\t9\n")
    with pytest.raises(InputError, match=r"s\.bed:2: the fourth column is ''"):
        splits_of_bed(read_bed(path))


def test_chromosome_lists_give_each_contig_one_split():
    """What is listed nowhere trains."""
    contigs = ["chr1", "chr2", "chr3", "chr4"]
    assert splits_by_chromosome(contigs, ["chr2"], ["chr4"]) == {
        "chr1": "train", "chr2": "valid", "chr3": "train", "chr4": "test",
    }  # fmt: skip
    for validation, test, words in [
        ([], [], "needs validation_chromosomes"),
        (["chr9"], [], "'chr9', but the genome has chr1"),
        (["chr1"], ["chr1"], "'chr1' twice"),
    ]:
        with pytest.raises(InputError, match=words):
            splits_by_chromosome(contigs, validation, test)


def test_blocks_are_drawn_from_the_seed():
    """The same seed gives the same regions, another seed others."""
    contigs = {"a": 2_000, "b": 950}
    one, same = (split_blocks(contigs, seed=1, **BLOCKS) for _ in range(2))
    assert one == same
    assert one != split_blocks(contigs, seed=2, **BLOCKS)


def test_the_draw_of_blocks_never_changes():
    """Pinned: a table made years ago can be made again."""
    regions = split_blocks({"a": 1_000}, seed=2222, **BLOCKS)
    assert [(r.start, r.end, r.split) for r in regions] == PINNED


PINNED = [
    (0, 190, "train"),
    (200, 300, "test"),
    (310, 490, "train"),
    (500, 600, "test"),
    (610, 700, "valid"),
    (710, 1_000, "train"),
]


@given(
    lengths=st.lists(st.integers(0, 1_500), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    guard=st.integers(0, 99),
)
def test_blocks_keep_their_shares_and_gaps(lengths, seed, guard):
    """Regions of different splits are at least a guard apart, and shares are those asked for."""
    contigs = {f"c{i}": length for i, length in enumerate(lengths)}
    blocks = sum(max(1, (length + 50) // 100) for length in lengths if length)
    options = {**BLOCKS, "guard": guard, "seed": seed}
    if max(1, round(0.1 * blocks)) + max(1, round(0.2 * blocks)) >= blocks:
        with pytest.raises(InputError, match="too few"):
            split_blocks(contigs, **options)
        return
    regions = split_blocks(contigs, **options)
    for left, right in pairwise(regions):
        if left.contig == right.contig:
            assert right.start - left.end >= (guard if left.split != right.split else 0)
    for region in regions:
        assert 0 <= region.start < region.end <= contigs[region.contig]
    assert {region.split for region in regions} <= set(SPLITS)


def test_guards_are_taken_from_training():
    """Held-out blocks keep their size beside training."""
    regions = split_blocks({"a": 3_000}, seed=5, **BLOCKS)
    lone = [
        region
        for before, region, after in zip(regions, regions[1:], regions[2:], strict=False)
        if region.split != "train" and before.split == after.split == "train"
    ]
    assert lone
    assert all(region.start % 100 == 0 and region.end % 100 == 0 for region in lone)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"guard": 100}, "block_size above guard"),
        ({"block_size": 0}, "block_size above guard"),
        ({"test_fraction": 0.9}, "between 0 and 1"),
        ({"validation_fraction": -0.1}, "between 0 and 1"),
        ({"validation_fraction": 0, "test_fraction": 0}, "between 0 and 1"),
        ({"block_size": 1_000}, "too few"),
    ],
)
def test_impossible_blocks_are_refused(changed, words):
    """Before anything is read."""
    with pytest.raises(InputError, match=words):
        split_blocks({"a": 1_000}, seed=1, **{**BLOCKS, **changed})


def test_rows_belong_to_the_region_that_holds_them():
    """A row that crosses a border or lies in a gap belongs to none."""
    regions = [SplitRegion("a", 100, 200, "test"), SplitRegion("a", 0, 90, "train")]
    starts, ends = np.array([0, 85, 92, 100, 150, 0]), np.array([90, 95, 95, 200, 201, 5])
    found = regions_of_rows(regions, ["a"] * 5 + ["b"], starts, ends)
    assert found == ["train", None, None, "test", None, None]


def test_the_overlap_of_two_splits_is_named():
    """Case 20: windows 0-1,500 and 750-2,250 share 750 bases; both are named."""
    rows = (["c", "c"], np.array([0, 750]), np.array([1_500, 2_250]), ["train", "test"])
    with pytest.raises(InputError) as refusal:
        check_overlap(*rows)
    message = str(refusal.value)
    assert "train and test share 750 bases" in message
    assert "c:0-1500 (train) and c:750-2250 (test)" in message
    assert "allow_split_overlap" in message
    assert "after widening and shifting" in message
    assert check_overlap(*rows, allow=True) == 750


def test_overlapping_rows_are_not_blamed_on_widening():
    """Rows that overlap as given are called rows, and those not named are counted."""
    starts = np.array([0, 10, 20, 30, 40, 0])
    rows = (["c"] * 6, starts, np.array([5, 15, 25, 35, 45, 50]), ["train"] * 5 + ["test"])
    with pytest.raises(InputError, match="rows of different splits overlap") as refusal:
        check_overlap(*rows, kind="row")
    assert "train and test share 25 bases" in str(refusal.value)
    assert "... and 2 more rows of train" in str(refusal.value)
    assert "widening" not in str(refusal.value)


WINDOWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(1, 15),
              st.sampled_from([*SPLITS, "none"])),
    max_size=25,
)  # fmt: skip


@given(WINDOWS)
def test_shared_bases_equal_those_of_sets(windows):
    """Against sets of single bases: the number, and that each named pair really overlaps."""
    contigs = [window[0] for window in windows]
    starts = np.array([window[1] for window in windows], dtype=np.int64)
    ends = starts + np.array([window[2] for window in windows], dtype=np.int64)
    splits = [window[3] for window in windows]
    bases = {split: set() for split in (*SPLITS, "none")}
    for contig, start, end, split in zip(contigs, starts, ends, splits, strict=True):
        bases[split] |= {(contig, int(i)) for i in range(start, end)}
    found = {overlap.splits: overlap for overlap in find_overlaps(contigs, starts, ends, splits)}
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        shared = len(bases[one] & bases[other])
        assert (found[one, other].bases if (one, other) in found else 0) == shared
    for overlap in found.values():
        assert overlap.pairs
        for i, j in overlap.pairs:
            assert (splits[i], splits[j]) == overlap.splits
            assert contigs[i] == contigs[j]
            assert max(starts[i], starts[j]) < min(ends[i], ends[j])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=9),
       st.integers(0, 30), st.integers(1, 40))  # fmt: skip
def test_uncovered_stretches_are_the_rest(covers, start, width):
    """What is covered and what is not make up the interval."""
    starts = np.array([c[0] for c in covers], dtype=np.int64)
    ends = starts + np.array([c[1] for c in covers], dtype=np.int64)
    gaps = list(uncovered(np.array([start]), np.array([start + width]), union(starts, ends)))
    number = count_uncovered(np.array([start]), np.array([start + width]), union(starts, ends))
    assert number == len(gaps)
    found = [base for _, low, high in gaps for base in range(low, high)]
    covered = {int(i) for a, b in zip(starts, ends, strict=True) for i in range(a, b)}
    assert found == [i for i in range(start, start + width) if i not in covered]
