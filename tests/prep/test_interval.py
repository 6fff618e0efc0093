import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval

NAMES = st.sampled_from(["chr1", "1", "HLA*01:01", "chr6_GL000250v2_alt", "a-b:3-4", "gi|5|ref|"])
INTERVALS = st.builds(
    lambda name, start, width, strand: Interval(name, start, start + width, strand),
    NAMES,
    st.integers(0, 10**10),
    st.integers(1, 10**6),
    st.sampled_from("+-"),
)


@given(INTERVALS)
def test_region_strings_round_trip(interval):
    """str and parse are inverse, also for names with colons and dashes."""
    assert Interval.parse(str(interval)) == interval


def test_regions_count_from_one_and_include_the_end():
    """The door converts: chr1:1,000-2,000 is 999 to 2000 inside."""
    assert Interval.parse("chr1:1,000-2,000") == Interval("chr1", 999, 2000)
    assert Interval.parse("chr1:5-5").width == 1
    assert str(Interval("chr1", 999, 2000)) == "chr1:1000-2000"


def test_contig_names_with_colons_are_read_from_the_right():
    """HLA*01:01:1-50 is contig HLA*01:01."""
    assert Interval.parse("HLA*01:01:1-50") == Interval("HLA*01:01", 0, 50)


@pytest.mark.parametrize("text", ["c:1-9:-", "c:1-9(-)"])
def test_a_region_may_name_its_strand(text):
    """Both ways to write a strand are read; an argument gives the strand of a bare region."""
    assert Interval.parse(text) == Interval("c", 0, 9, "-")
    assert Interval.parse("c:1-9", strand="-").strand == "-"
    assert Interval.parse("c:1-9:+", strand="-").strand == "+"


@pytest.mark.parametrize(
    "text",
    [
        "chr1",
        "chr1:5",
        ":1-5",
        "c:0-5",
        "c:9-5",
        "c:-5-9",
        "c:,-5",
        "",
        pytest.param("c:1-" + "9" * 5000, id="5000 digits"),
    ],
)
def test_what_is_no_region_is_refused(text):
    """The message shows the text."""
    with pytest.raises(InputError, match="region"):
        Interval.parse(text)


@given(INTERVALS, st.integers(0, 10**6))
def test_resizing_there_and_back_changes_nothing(interval, extra):
    """The odd base is added and taken on the same side."""
    wide = interval.resize(interval.width + extra)
    assert wide.width == interval.width + extra
    assert wide.resize(interval.width) == interval


def test_the_odd_base_goes_to_the_right():
    """Widening by one adds behind the end, narrowing by one takes from there."""
    assert Interval("c", 10, 20).resize(11) == Interval("c", 10, 21)
    assert Interval("c", 10, 20).resize(13) == Interval("c", 9, 22)
    assert Interval("c", 10, 20).resize(9) == Interval("c", 10, 19)
    with pytest.raises(InputError, match="-1"):
        Interval("c", 10, 20).resize(-1)


def test_shift_keeps_width_and_strand():
    """Moving changes both ends alike."""
    assert Interval("c", 5, 8, "-").shift(-7) == Interval("c", -2, 1, "-")


def test_intervals_are_immutable_and_travel():
    """Frozen, hashable and picklable; a strand is + or -."""
    interval = Interval("c", 1, 2, "-")
    assert pickle.loads(pickle.dumps(interval)) == interval
    assert len({interval, Interval("c", 1, 2, "-")}) == 1
    with pytest.raises(AttributeError):
        interval.start = 5
    with pytest.raises(InputError, match=r"'\.'"):
        Interval("c", 1, 2, ".")
