"""Pictures for people: one look for all of them, written without a display."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from fracdna_prep.files import atomic_file

# letters in a line of a picture's title, below its axis, and in its legend
TITLE_LINE, LABEL_LINE, NAME_LINE = 76, 66, 32
LONGEST_TITLE, LONGEST_NAME = 2 * TITLE_LINE, 2 * NAME_LINE
LINE_HEIGHT = 0.19  # of a legend, in inches
WORD_SHARE = 0.2  # of an axis, that the word at a marked place needs
PLAIN = {"parse_math": False}  # names may hold a dollar sign
UNITS = ((1_000_000, "Mb"), (1_000, "kb"))


class Line(NamedTuple):
    """One curve: points, and an interval around each where there is one."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    reference: bool = False


def new_axes(xlabel: str, ylabel: str, title: str) -> tuple[Figure, Axes]:
    """An empty picture with a quiet grid."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.add_subplot()
    # above the whole figure: beside a legend the plot may be narrower than its title
    figure.suptitle(fill(shortened(title, LONGEST_TITLE), TITLE_LINE), fontsize=12, **PLAIN)
    axes.set_xlabel("\n".join(fill(line, LABEL_LINE) for line in xlabel.split("\n")), **PLAIN)
    axes.set_ylabel(ylabel, **PLAIN)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write a PNG so that no reader meets half of it."""
    with atomic_file(path) as temporary:
        figure.savefig(temporary, dpi=150)


def bases(value: float) -> str:
    """A length as people say it: 1K, 64K, 1M."""
    for size, letter in ((1 << 20, "M"), (1 << 10, "K")):
        if value >= size and value % size == 0:
            return f"{value // size:.0f}{letter}"
    return f"{value:g}"


def shortened(text: str, most: int) -> str:
    """A text of at most so many letters: its beginning and its end."""
    if len(text) <= most:
        return text
    end = most // 2
    return f"{text[: most - end - 1]}…{text[-end:]}"


def position_unit(longest: float) -> tuple[int, str]:
    """Bases in the unit in which positions of a contig of so many bases are told, and its name."""
    return next((unit for unit in UNITS if longest >= unit[0]), (1, "bases"))


def draw_band(
    axes: Axes, x: Sequence[float], low: Sequence[float], high: Sequence[float], color: str
) -> None:
    """Intervals around a curve: an area, or a bar where the curve is a single point."""
    if len(x) == 1:
        axes.vlines(x, low, high, color=color, lw=1.2)
    else:
        axes.fill_between(x, low, high, color=color, alpha=0.13, lw=0)


def draw_marks(axes: Axes, marks: Mapping[float, str], span: tuple[float, float]) -> None:
    """Lines at places of a doubling axis with words above them; none outside of the span."""
    low, high = map(math.log2, span)
    right_end, row = -WORD_SHARE, 0
    for place in sorted(place for place in marks if span[0] <= place <= span[1]):
        share = (math.log2(place) - low) / (high - low or 1)
        row = row + 1 if share - right_end < WORD_SHARE else 0
        right_end = share
        axes.axvline(place, color="0.55", lw=0.9, ls=":")
        axes.annotate(
            marks[place], (place, 1), xycoords=("data", "axes fraction"), xytext=(0, 2 + 9 * row),
            textcoords="offset points", ha="center", fontsize=7, color="0.4", **PLAIN,
        )  # fmt: skip


def legend_beside(axes: Axes, drawn: Mapping[str, Any]) -> None:
    """Names and what was drawn of each on the right, clear of all data; long names are wrapped."""
    names = list(map(_in_lines, drawn))
    place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    # matplotlib leaves out what begins with an underscore: the names are set afterwards
    legend = axes.legend(list(drawn.values()), [" "] * len(names), frameon=False, **place)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=name, fontsize=8, **PLAIN)
    lines = sum(name.count("\n") + 1 for name in names)
    figure = axes.get_figure()
    figure.set_figheight(max(figure.get_figheight(), 0.8 + LINE_HEIGHT * lines))


def draw_lines(
    path: Path,
    lines: Sequence[Line],
    *,
    xlabel: str,
    title: str,
    ylabel: str = "perplexity",
    marks: Mapping[float, str] | None = None,
) -> None:
    """Curves over a doubling axis.

    Args:
        path: of the PNG.
        lines: curves; references are thin and dashed.
        xlabel: under the axis.
        title: above it.
        ylabel: beside the other axis.
        marks: places that get a vertical line and a word, where the curves reach so far.
    """
    figure, axes = new_axes(xlabel, ylabel, title)
    ticks = sorted({x for line in lines for x in line.x})
    drawn = {}
    for line in lines:
        style = {"lw": 1.1, "ls": "--"} if line.reference else {"lw": 1.8, "marker": "o", "ms": 4}
        if line.reference and len(line.x) == 1:
            style |= {"marker": "o", "ms": 4, "mfc": "none"}
        (drawn[line.name],) = axes.plot(line.x, line.y, **style)
        if line.low is not None and not line.reference:
            draw_band(axes, line.x, line.low, line.high, drawn[line.name].get_color())
    # a power of ten above the axis would run into the words of marks
    axes.ticklabel_format(axis="y", style="plain", useOffset=False)
    axes.set_xscale("log", base=2)
    if ticks:
        draw_marks(axes, marks or {}, (ticks[0], ticks[-1]))
    axes.xaxis.set_major_locator(FixedLocator(ticks[:: max(len(ticks) // 12, 1)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bases(value)))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    if lines:
        legend_beside(axes, drawn)
    save(figure, path)


def draw_points(
    path: Path,
    points: Mapping[str, Mapping[str, tuple[float, float | None, float | None]]],
    *,
    xlabel: str,
    title: str,
) -> None:
    """Values of several names, one row a name, with their intervals.

    Args:
        path: of the PNG.
        points: by series, by name: value, and the bounds of its interval where there is one.
        xlabel: under the axis.
        title: above it.
    """
    figure, axes = new_axes(xlabel, "", title)
    names = list(dict.fromkeys(name for values in points.values() for name in values))
    figure.set_figheight(1.6 + 0.3 * len(names))
    drawn = {}
    for place, (series, values) in enumerate(points.items()):
        # beside each other within a row, so that bars do not hide one another
        shift = 0.5 * ((place + 0.5) / len(points) - 0.5)
        y = [names.index(name) + shift for name in values]
        x, low, high = zip(*values.values(), strict=True)
        reach = [
            [0.0 if end is None else abs(end - value) for value, end in zip(x, ends, strict=True)]
            for ends in (low, high)
        ]
        drawn[series] = axes.errorbar(x, y, xerr=reach, fmt="o", ms=4, lw=1.2)
    axes.set_yticks(range(len(names)), list(map(_in_lines, names)), **PLAIN)
    axes.set_ylim(len(names) - 0.5, -0.5)
    legend_beside(axes, drawn)
    save(figure, path)


def _in_lines(name: str) -> str:
    """A name in at most a few short lines."""
    return fill(shortened(name, LONGEST_NAME), NAME_LINE)
