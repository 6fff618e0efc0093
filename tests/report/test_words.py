from fracdna.report.axes import Axis, length_axis
from fracdna.report.charts import Chart, Curve
from fracdna.report.svg import NARROW, drawing
from fracdna.report.words import Word, Words


def test_words_give_way_to_those_before_them():
    """The first choice that is free, away from what is drawn, and none where all are taken."""
    words = Words(200, 50, [(150, 35)])
    right, left = Word("abc", 140, 38), Word("abc", 60, 38, "end")
    assert words.place([right, left]) == left
    assert words.place([left, right]) == right
    assert words.place([left, right]) is None


def test_words_stay_within_the_drawing():
    assert Words(100, 40, []).place([Word("abc", 90, 20), Word("abc", 90, 20, "end")]).x == 90
    assert Words(100, 40, []).place([Word("abc", 10, 8), Word("a" * 99, 0, 30)]) is None


def test_words_of_a_single_point_stand_apart():
    """Level, mark and name of a curve at the same point do not cover one another."""
    curves = [
        Curve("frac", [1024], [4.06], [4.05], [4.07], colour="c0"),
        Curve("counts, 2 bases back", [1024], [4.0], dashed=True, dots=False, labelled=True),
    ]
    chart = Chart(
        "k", "t", "", length_axis("x"), Axis("y"), curves, {1024: "trained on 1K"},
        {4.0: "uniform guess"},
    )  # fmt: skip
    plot = drawing(chart, NARROW).find("svg")
    boxes = []
    for text in plot.iter("text"):
        width, x, y = 6 * len(text.text), float(text.get("x")), float(text.get("y"))
        share = {"tick": 0, "tick middle": 0.5, "tick end": 1}[text.get("class")]
        boxes.append((x - share * width, x + (1 - share) * width, y - 9, y))
    assert len(boxes) >= 2
    for place, (left, right, top, bottom) in enumerate(boxes):
        assert left >= 0
        assert right <= float(plot.get("width"))
        for a, b, c, d in boxes[:place]:
            assert right <= a or b <= left or bottom <= c or d <= top
