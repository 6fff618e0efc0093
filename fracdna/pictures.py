"""Pictures for people: one look for all of them, written without a display."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from fracdna_prep.files import atomic_file


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
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
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
        marks: places on the axis that get a vertical line and a word.
    """
    figure, axes = new_axes(xlabel, ylabel, title)
    ticks = sorted({x for line in lines for x in line.x})
    for line in lines:
        style = {"lw": 1.1, "ls": "--"} if line.reference else {"lw": 1.8, "marker": "o", "ms": 4}
        (drawn,) = axes.plot(line.x, line.y, label=line.name, **style)
        if line.low is not None and not line.reference:
            axes.fill_between(
                line.x, line.low, line.high, color=drawn.get_color(), alpha=0.12, lw=0
            )
    for place, word in (marks or {}).items():
        axes.axvline(place, color="0.55", lw=0.9, ls=":")
        at = {"xytext": (3, 3), "textcoords": "offset points", "fontsize": 7, "color": "0.4"}
        axes.annotate(word, (place, 0), xycoords=("data", "axes fraction"), **at)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks[:: max(len(ticks) // 12, 1)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bases(value)))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    if lines:
        _legend_beside(axes)
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
    for place, (series, values) in enumerate(points.items()):
        # beside each other within a row, so that bars do not hide one another
        shift = 0.5 * ((place + 0.5) / len(points) - 0.5)
        y = [names.index(name) + shift for name in values]
        x, low, high = zip(*values.values(), strict=True)
        reach = [
            [0.0 if end is None else abs(end - value) for value, end in zip(x, ends, strict=True)]
            for ends in (low, high)
        ]
        axes.errorbar(x, y, xerr=reach, fmt="o", ms=4, lw=1.2, label=series)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    _legend_beside(axes)
    save(figure, path)


def _legend_beside(axes: Axes) -> None:
    """Names of the series on the right, clear of all data."""
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
