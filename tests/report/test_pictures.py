"""PNGs: everything that is drawn lies within the picture, and words do not cover one another."""

import warnings

import pytest

from fracdna import pictures
from fracdna.pictures import Line, draw_lines, draw_points, position_unit
from fracdna.report.axes import Axis, length_axis
from fracdna.report.charts import Chart, Curve
from fracdna.report.picture import draw_chart

LONG = "a model with a long name, trained on all that there is, $twice$ over"
MARKS = {length: f"trained on {length}" for length in (512, 1024, 2048, 65536)}


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draw something, warnings being errors: the figure, once laid out."""

    def draw(function, *arguments, **options):
        figures = []
        save = pictures.save
        keep = lambda figure, path: figures.append(figure) or save(figure, path)  # noqa: E731
        monkeypatch.setattr("fracdna.pictures.save", keep)
        monkeypatch.setattr("fracdna.report.picture.save", keep)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function(tmp_path / "picture.png", *arguments, **options)
        assert (tmp_path / "picture.png").stat().st_size > 1000
        figures[0].draw_without_rendering()  # at its own resolution, not that of the file
        return figures[0]

    return draw


def boxes(figure):
    """Where each text of a figure is, in pixels of it, by the text."""
    (axes,) = figure.axes
    texts = [*figure.texts, *axes.texts, *axes.get_legend().get_texts(), axes.xaxis.label]
    texts += [figure._suptitle, axes.yaxis.label, axes.yaxis.offsetText]
    return {text.get_text(): text.get_window_extent() for text in texts if text.get_text()}


def assert_all_within(figure):
    """No text is cut, and none covers another."""
    found = list(boxes(figure).values())
    for place, box in enumerate(found):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in found[:place])


@pytest.mark.parametrize("scale", [1, 1e-5])
def test_long_titles_names_and_distant_marks_fit(drawn, scale):
    """Whatever the scale: no power of ten stands in the way."""
    curves = [
        Line(LONG, [512, 1024, 2048], [scale * y for y in (3, 4, 5)]),
        Line("_other", [512, 1024, 2048], [scale * y for y in (3, 3, 3)], reference=True),
    ]
    title = "The last 1,024 bases of each region, read with more and more before"
    figure = drawn(draw_lines, curves, xlabel="window length (bases)", title=title, marks=MARKS)
    assert_all_within(figure)
    texts = boxes(figure)
    assert title in texts
    assert "_other" in texts
    assert {text for text in texts if "trained on" in text and len(text) < 20} == {
        "trained on 512",
        "trained on 1024",
        "trained on 2048",
    }


def test_a_chart_of_the_report_fits(drawn):
    """One point, long names, a mark far outside: no warning, one tick, nothing cut."""
    curves = [
        Curve(LONG, [1024], [4.2], [4.1], [4.3], colour="c0"),
        Curve("counts", [1024], [4.05], dashed=True, dots=False),
    ]
    chart = Chart("k", LONG, "", length_axis("x"), Axis("y"), curves, {1 << 20: "far"}, {4.1: LONG})
    figure = drawn(draw_chart, chart)
    assert_all_within(figure)
    assert "far" not in boxes(figure)
    assert list(figure.axes[0].get_xticks()) == [1024]
    reference = next(line for line in figure.axes[0].lines if line.get_linestyle() == "--")
    assert reference.get_marker() == "o"


def test_many_names_make_a_higher_picture(drawn):
    lines = [Line(f"model {n}", [1, 2], [n, n]) for n in range(40)]
    assert_all_within(drawn(draw_lines, lines, xlabel="x", title="t"))


def test_points_of_one_model_lie_on_their_rows(drawn):
    """Of several models they stand side by side around it."""

    def rows(*models):
        points = {model: {"exons": (4.0, 3.9, 4.1), LONG: (4.1, None, None)} for model in models}
        figure = drawn(draw_points, points, xlabel="perplexity", title="t")
        return [list(bars.lines[0].get_ydata()) for bars in figure.axes[0].containers]

    assert rows("one") == [[0, 1]]
    (above, below) = rows("one", "two")
    assert above[0] < 0 < below[0]
    assert above[0] == -below[0]


@pytest.mark.parametrize(
    ("longest", "unit"),
    [(240_000_000, "Mb"), (1_000_000, "Mb"), (20_000, "kb"), (900, "bases")],
)
def test_positions_have_the_unit_of_their_contig(longest, unit):
    size, name = position_unit(longest)
    assert name == unit
    assert 1 <= longest / size < 1000
