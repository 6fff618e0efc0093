"""Charts of the report as PNG."""

import warnings
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis as MatplotlibAxis
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter

from fracdna.pictures import (
    PLAIN,
    draw_band,
    draw_marks,
    legend_beside,
    new_axes,
    save,
    shortened,
)
from fracdna.report.axes import Axis
from fracdna.report.charts import Chart, Curve
from fracdna.report.palette import colour

MOST_TICKS = 10
MOST_NAMES = 40
LONGEST_LEVEL = 40  # letters of the word at a level


def draw_chart(path: Path, chart: Chart) -> None:
    """Write a chart as PNG."""
    figure, axes = new_axes(chart.x.label, chart.y.label, chart.title)
    lines = {curve.name: _draw_curve(axes, curve, chart) for curve in chart.curves}
    x_span, y_span = chart.spans()
    axes.set_xscale(**_scale(chart.x))
    axes.set_yscale(**_scale(chart.y))
    _mark(axes.xaxis, chart.x, chart.x_ticks(_most_ticks(chart.x)))
    _mark(axes.yaxis, chart.y, chart.y.ticks(y_span, MOST_TICKS))
    axes.set(xlim=x_span, ylim=y_span)
    if chart.marks:
        draw_marks(axes, chart.marks, x_span)
    for level, word in chart.seen_levels().items():
        axes.axhline(level, color="0.55", lw=0.9, ls=":")
        axes.annotate(
            shortened(word, LONGEST_LEVEL), (0, level), xycoords=("axes fraction", "data"),
            xytext=(3, 2), textcoords="offset points", fontsize=7, color="0.4", **PLAIN,
        )  # fmt: skip
    legend_beside(axes, {name: lines[name] for name in chart.names()})
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
        if named or len(x) == 1:
            line.set(marker="o", markerfacecolor="none", markersize=4)
        return line
    if curve.low is not None and named:
        axes.vlines(x, curve.low, curve.high, lw=1.2, **style)
    elif curve.low is not None:
        draw_band(axes, x, curve.low, curve.high, **style)
    marked = {"marker": "o", "ms": 3.5} if named or curve.dots else {}
    (line,) = axes.plot(x, curve.y, lw=1.6, ls="" if named else "-", **marked, **style)
    return line


def _scale(axis: Axis) -> dict[str, Any]:
    """Arguments that give an axis its scale."""
    if axis.scale.startswith("log"):
        return {"value": "log", "base": 2 if axis.scale == "log2" else 10}
    return {"value": "linear"}


def _most_ticks(axis: Axis) -> int:
    """How many numbers or names fit below."""
    return MOST_NAMES if axis.scale == "names" else MOST_TICKS


def _mark(drawn: MatplotlibAxis, axis: Axis, ticks: list[float]) -> None:
    """Numbers or names where the page has them."""
    drawn.set_major_locator(FixedLocator(ticks))
    drawn.set_minor_locator(FixedLocator([]))
    drawn.set_major_formatter(FuncFormatter(lambda value, _: _plain(axis.marked(value))))
    if axis.scale == "names":
        drawn.set_tick_params(labelrotation=40, labelsize=8)
        for label in drawn.get_ticklabels():
            label.set_horizontalalignment("right")


def _plain(text: str) -> str:
    """Text that is not taken for mathematics."""
    return text.replace("$", r"\$")
