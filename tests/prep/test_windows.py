import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval
from fracdna_prep.windows import POLICIES, Window, place, tile, tile_many, with_flanks


def test_a_window_inside_its_contig_is_taken_as_it_is():
    """Widened evenly when short, the centre when long; the odd base on the right."""
    assert place(Interval("c", 40, 50, "-"), 20, 100) == Window(Interval("c", 35, 55, "-"), "ok")
    assert place(Interval("c", 40, 51), 20, 100).interval == Interval("c", 36, 56)
    assert place(Interval("c", 0, 100), 20, 100).interval == Interval("c", 40, 60)


@pytest.mark.parametrize(
    ("policy", "window"),
    [
        ("shift", Window(Interval("c", 0, 1_000), "shifted", shift=200)),
        ("pad", Window(Interval("c", 0, 800), "padded", pad_left=200)),
        ("drop", Window(Interval("c", -200, 800), "dropped: leaves the contig")),
    ],
)
def test_flanks_before_the_contig(policy, window):
    """Case 15: row 0-600 with flanks of 200, L 1,000: shifted, 200 PAD on the left, or dropped."""
    row = with_flanks(Interval("c", 0, 600), 200, 200)
    assert place(row, 1_000, 5_000, policy=policy) == window
    assert tile(row, 1_000, 5_000, policy=policy) == [window]


@pytest.mark.parametrize(
    ("policy", "window"),
    [
        ("shift", Window(Interval("c", 0, 1_000), "shifted", shift=50)),
        ("pad", Window(Interval("c", 0, 950), "padded", pad_left=50)),
        ("drop", Window(Interval("c", -50, 950), "dropped: leaves the contig")),
    ],
)
def test_a_negative_start_of_a_row_that_is_long_enough(policy, window):
    """Case 15: -50 to 950 given to the API, L 1,000; also where no widening is needed."""
    row = Interval("c", -50, 950)
    assert place(row, 1_000, 5_000, policy=policy) == window
    assert tile(row, 1_000, 5_000, policy=policy) == [window]


def test_a_row_past_the_end_gets_its_status():
    """Case 16: 16,571 to 16,581 on a contig of 16,571 bases."""
    for policy in POLICIES:
        window = place(Interval("MT", 16_571, 16_581), 1_000, 16_571, policy=policy)
        assert window == Window(Interval("MT", 16_571, 16_581), "dropped: outside the contig")
        assert not window.readable


def test_a_variant_near_the_end_keeps_its_place_in_the_window():
    """Case 17: 10 bases from the end, L 1,000: a full window, marked shifted, index inside it."""
    middle = place(Interval("c", 5_000, 5_001), 1_000, 10_000)
    last = place(Interval("c", 9_990, 9_991), 1_000, 10_000)
    assert (middle.status, middle.index_of(5_000)) == ("ok", 499)
    assert (last.status, last.interval) == ("shifted", Interval("c", 9_000, 10_000))
    assert last.index_of(9_990) == 990
    padded = place(Interval("c", 2, 3), 1_000, 10_000, policy="pad")
    assert padded.index_of(2) == 499


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("shift", [(0, 1_000, 0, 0), (1_000, 2_000, 0, 0), (1_500, 2_500, -500, 0)]),
        ("pad", [(0, 1_000, 0, 0), (1_000, 2_000, 0, 0), (2_000, 2_500, 0, 500)]),
        ("drop", [(0, 1_000, 0, 0), (1_000, 2_000, 0, 0)]),
    ],
)
def test_the_tail_of_a_contig(policy, expected):
    """Case 18: contig 2,500, L 1,000: moved inside, padded by 500, or left out."""
    windows = tile(Interval("c", 0, 2_500), 1_000, 2_500, policy=policy)
    found = [(w.interval.start, w.interval.end, w.shift, w.pad_right) for w in windows]
    assert found == expected
    assert all(w.readable for w in windows)


def test_a_contig_shorter_than_the_window():
    """Three bases: padded under shift and pad, dropped under drop; all bases are in the window."""
    for policy in ("shift", "pad"):
        window = place(Interval("c", 0, 3), 8, 3, policy=policy)
        assert (window.interval, window.status) == (Interval("c", 0, 3), "padded")
        assert window.pad_left + window.pad_right == 5
    assert place(Interval("c", 0, 3), 8, 3, policy="drop").status == "dropped: leaves the contig"
    assert place(Interval("c", 2, 3), 8, 3).interval == Interval("c", 0, 3)


@pytest.mark.parametrize(("start", "end", "what"), [(9, 9, "empty"), (9, 4, "inverted")])
def test_rows_without_bases_get_their_status(start, end, what):
    """Case 13: nothing is made up for a row that holds nothing."""
    for make in (place, lambda *a: tile(*a)[0]):
        window = make(Interval("c", start, end), 8, 30)
        assert window == Window(Interval("c", start, end), f"dropped: {what} interval")


def test_wrong_choices_are_refused():
    """The message lists the policies, or shows the length."""
    with pytest.raises(InputError, match="shift, pad, drop"):
        place(Interval("c", 0, 5), 5, 5, policy="wrap")
    with pytest.raises(InputError, match="got 0"):
        tile(Interval("c", 0, 5), 0, 5)


ROWS = st.tuples(st.integers(-30, 60), st.integers(0, 60), st.integers(1, 50), st.integers(1, 25))


@given(ROWS, st.sampled_from(POLICIES))
def test_windows_have_their_length_and_lie_on_the_contig(row, policy):
    """Bases and padding add up to L, and no readable window leaves the contig."""
    start, width, contig_length, length = row
    interval = Interval("c", start, start + width)
    for window in [place(interval, length, contig_length, policy=policy),
                   *tile(interval, length, contig_length, policy=policy)]:  # fmt: skip
        if not window.readable:
            assert (window.shift, window.pad_left, window.pad_right) == (0, 0, 0)
            continue
        found = window.interval
        assert 0 <= found.start < found.end <= contig_length
        assert found.width + window.pad_left + window.pad_right == length
        assert min(window.pad_left, window.pad_right) >= 0
        if policy == "shift" and contig_length >= length:
            assert found.width == length
        if policy != "shift":
            assert window.shift == 0
        if window.status == "ok":
            assert (window.shift, found.width) == (0, length)


@given(ROWS, st.sampled_from(("shift", "pad")))
def test_tiles_cover_their_row_and_nothing_else(row, policy):
    """No base of a long row is lost, and no window leaves it."""
    start, width, contig_length, length = row
    interval = Interval("c", start, start + width)
    first, last = max(start, 0), min(start + width, contig_length)
    if last - first < length:
        return
    covered = set()
    for window in tile(interval, length, contig_length, policy=policy):
        assert first <= window.interval.start < window.interval.end <= last
        covered |= set(range(window.interval.start, window.interval.end))
    assert covered == set(range(first, last))


@given(st.lists(ROWS, max_size=8), st.sampled_from(POLICIES), st.integers(1, 25))
def test_many_rows_at_once_equal_one_at_a_time(rows, policy, length):
    """The vectorised form keeps the order of rows and of their windows."""
    starts, widths, contigs = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(3))
    together = tile_many(starts, starts + widths, contigs, length, policy=policy)
    single = [
        (index, window)
        for index, (start, width, contig) in enumerate(zip(starts, widths, contigs, strict=True))
        for window in tile(Interval("c", int(start), int(start + width)), length, int(contig),
                           policy=policy)
    ]  # fmt: skip
    assert [(int(together.row[i]), together.window(i, "c")) for i in range(len(together))] == single


def test_a_whole_human_genome_is_tiled_in_seconds():
    """3.1 billion bases at 1,024: three million windows."""
    lengths = np.full(24, 3_100_000_000 // 24)
    began = time.perf_counter()
    windows = tile_many(np.zeros_like(lengths), lengths, lengths, 1_024)
    assert time.perf_counter() - began < 20
    assert len(windows) == 24 * (-(-int(lengths[0]) // 1_024))
