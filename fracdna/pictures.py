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
    marks: Mapping[float, str] | None = None,
) -> None:
    """Perplexity curves over a doubling axis.

    Args:
        path: of the PNG.
        lines: curves; references are thin and dashed.
        xlabel: under the axis.
        title: above it.
        marks: places on the axis that get a vertical line and a word.
    """
    figure, axes = new_axes(xlabel, "perplexity", title)
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
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(figure, path)
