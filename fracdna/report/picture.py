"""Charts of the report as PNG."""

import warnings
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis as MatplotlibAxis
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter

from fracdna.pictures import new_axes, save
from fracdna.report.axes import Axis, shortened
from fracdna.report.charts import Chart, Curve
from fracdna.report.palette import colour

MOST_TICKS = 10
MOST_NAMES = 40
LONGEST_TITLE = 90  # letters
LONGEST_NAME = 40  # letters of a name in a legend


def draw_chart(path: Path, chart: Chart) -> None:
    """Write a chart as PNG."""
    figure, axes = new_axes(_plain(chart.x.label), _plain(chart.y.label), _plain(chart.title))
    names = chart.names()
    lines = {curve.name: _draw_curve(axes, curve, chart) for curve in chart.curves}
    x_span, y_span = chart.spans()
    axes.set_xscale(**_scale(chart.x))
    axes.set_yscale(**_scale(chart.y))
    _mark(axes.xaxis, chart.x, x_span)
    _mark(axes.yaxis, chart.y, y_span)
    axes.set(xlim=x_span, ylim=y_span)
    for place, word in chart.marks.items():
        axes.axvline(place, color="0.55", lw=0.9, ls=":")
        _annotate(axes, word, (place, 0), ("data", "axes fraction"), (3, 3))
    for level, word in chart.seen_levels().items():
        axes.axhline(level, color="0.55", lw=0.9, ls=":")
        _annotate(axes, word, (0, level), ("axes fraction", "data"), (3, 2))
    axes.legend(
        [lines[name] for name in names],
        # matplotlib leaves out what begins with an underscore
        [f" {_plain(name, LONGEST_NAME)}" for name in names],
        frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5),
    )  # fmt: skip
    with warnings.catch_warnings():
        # a letter that its font has not is drawn as a box: the page shows the name itself
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        save(figure, path)


def _draw_curve(axes: Axes, curve: Curve, chart: Chart) -> Line2D:
    """One curve with its band, or with whiskers where x has names."""
    named, style = chart.x.scale == "names", {"color": colour(curve.colour)}
    x = [place + chart.shift(curve) for place in curve.x]
    if curve.dashed:
        (line,) = axes.plot(x, curve.y, lw=1.1, ls="" if named else "--", **style)
        if named:
            line.set(marker="o", markerfacecolor="none", markersize=4)
        return line
    if curve.low is not None and named:
        axes.vlines(x, curve.low, curve.high, lw=1.2, **style)
    elif curve.low is not None:
        axes.fill_between(x, curve.low, curve.high, alpha=0.14, lw=0, **style)
    marked = {"marker": "o", "ms": 3.5} if named or curve.dots else {}
    (line,) = axes.plot(x, curve.y, lw=1.6, ls="" if named else "-", **marked, **style)
    return line


def _scale(axis: Axis) -> dict[str, Any]:
    """Arguments that give an axis its scale."""
    if axis.scale.startswith("log"):
        return {"value": "log", "base": 2 if axis.scale == "log2" else 10}
    return {"value": "linear"}


def _mark(drawn: MatplotlibAxis, axis: Axis, span: tuple[float, float]) -> None:
    """Numbers or names where the page has them."""
    ticks = axis.ticks(span, MOST_NAMES if axis.scale == "names" else MOST_TICKS)
    drawn.set_major_locator(FixedLocator(ticks))
    drawn.set_minor_locator(FixedLocator([]))
    drawn.set_major_formatter(FuncFormatter(lambda value, _: _plain(axis.marked(value))))
    if axis.scale == "names":
        drawn.set_tick_params(labelrotation=40, labelsize=8)
        for label in drawn.get_ticklabels():
            label.set_horizontalalignment("right")


def _annotate(
    axes: Axes, word: str, place: tuple[float, float], units: tuple[str, str], away: tuple[int, int]
) -> None:
    """A small word at a line."""
    axes.annotate(
        _plain(word), place, xycoords=units, xytext=away, textcoords="offset points",
        fontsize=7, color="0.4",
    )  # fmt: skip


def _plain(text: str, longest: int = LONGEST_TITLE) -> str:
    """Text that is not taken for mathematics, and not so long that nothing else has room."""
    return shortened(text, longest).replace("$", r"\$")
