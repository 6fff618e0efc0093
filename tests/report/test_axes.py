import itertools

import pytest

from fracdna.pictures import shortened
from fracdna.report.axes import Axis, length_axis, short
from fracdna.report.charts import Chart, Curve
from fracdna.report.svg import NARROW, WIDE, Frame


@pytest.mark.parametrize(
    ("low", "high"), [(3.38, 4.01), (0, 1), (-0.1, 0.07), (1e-5, 4e-3), (0, 9e8)]
)
@pytest.mark.parametrize("most", [4, 7, 12])
def test_ticks_are_round_few_and_within(low, high, most):
    """Even steps of 1, 2 or 5 times a power of ten, inside the span, at least two of them."""
    ticks = Axis("y").ticks((low, high), most)
    assert 2 <= len(ticks) <= most + 1
    assert low <= ticks[0] + 1e-12
    assert ticks[-1] <= high + 1e-12
    steps = {f"{b - a:.3g}" for a, b in itertools.pairwise(ticks)}
    assert len(steps) == 1
    assert f"{float(steps.pop()):e}"[0] in "125"


def test_lengths_are_powers_of_two_by_name():
    """1K to 1M, all where there is room, evenly thinned where not."""
    axis = length_axis("length")
    lengths = [2**n for n in range(10, 21)]
    span = axis.span(lengths)
    assert axis.ticks(span, 12) == lengths
    assert axis.ticks(span, 6) == lengths[::2]
    assert [axis.written(x) for x in (1024, 65536, 2**20, 1500)] == ["1K", "64K", "1M", "1500"]


def test_decades_and_what_is_less_than_one():
    """Powers of ten; a span that holds only one of them gets round numbers."""
    axis = Axis("tau", "log10")
    assert axis.ticks((0.3, 2e5), 9) == [1, 10, 100, 1e3, 1e4, 1e5]
    assert axis.ticks((2.8, 3.7), 6) == pytest.approx([2.8, 3.0, 3.2, 3.4, 3.6])


@pytest.mark.parametrize("scale", ["linear", "log2", "log10"])
def test_one_value_has_room_around_it(scale):
    low, high = Axis("x", scale).span([3.0])
    assert low < 3 < high


@pytest.mark.parametrize(
    ("value", "text"), [(1_638_400, "1.638M"), (80_000, "80k"), (12.5, "12.5")]
)
def test_large_numbers_are_short(value, text):
    assert short(value) == text


def test_long_names_keep_their_ends():
    assert shortened("exons of everything, outside", 18) == "exons of…, outside"
    assert shortened("exons, inside", 18) == "exons, inside"


@pytest.mark.parametrize("layout", [WIDE, NARROW])
def test_points_stand_within_the_plot_in_order(layout):
    """x from left to right, evenly where lengths double; a higher value stands higher."""
    curve = Curve("a", [1024, 2048, 4096], [3.9, 3.8, 3.7], [3.8, 3.7, 3.6], [4.0, 3.9, 3.8])
    frame = Frame(Chart("k", "t", "", length_axis("x"), Axis("y"), [curve]), layout)
    x, y = zip(*frame.points(curve.x, curve.y), strict=True)
    assert 0 < x[0] < x[1] < x[2] < frame.width
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)
    assert 0 < y[0] < y[1] < y[2] < frame.height
    assert frame.y(4.0) > 0  # the band too


def test_things_at_one_name_stand_side_by_side():
    """In the order of the legend, centred on the name."""
    curves = [Curve(name, [0], [1.0]) for name in "abc"]
    chart = Chart("k", "t", "", Axis("class", "names", names=("in",)), Axis("y"), curves)
    shifts = [chart.shift(curve) for curve in curves]
    assert shifts == sorted(shifts)
    assert shifts[1] == 0
    assert shifts[0] == -shifts[2] < 0


def test_points_at_one_place_have_its_tick():
    """And no other; where there are several, powers of two."""

    def ticks(*x):
        curves = [Curve("a", x, [3.9] * len(x)), Curve("b", x[:1], [3.8])]
        return Chart("k", "t", "", length_axis("x"), Axis("y"), curves).x_ticks(9)

    assert ticks(1000) == [1000]
    assert ticks(1024, 4096) == [1024, 2048, 4096]


def test_marks_out_of_sight_are_told_below():
    curve = Curve("a", [512, 1024], [3.9, 3.8])
    marks = {1024: "trained on 1K", 4096: "trained on 4K"}
    chart = Chart("k", "t", "Note.", length_axis("x"), Axis("y"), [curve], marks)
    assert chart.seen_marks() == {1024: "trained on 1K"}
    assert chart.caption() == "Note. Outside this range: trained on 4K."
