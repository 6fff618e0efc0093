"""The picture of how the memories of FRAC layers are used."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fracdna.benchmarks.memory_use_result import ALL, QUANTILES, Distribution, HeadUse, MemoryUse
from fracdna.benchmarks.memory_use_tally import LOGARITHMIC, REPEATS, UNIQUE
from fracdna.pictures import LONGEST_TITLE, PLAIN, TITLE_LINE, bases, save, shortened
from fracdna.report.palette import colour

COLOURS = {REPEATS: colour("c1"), UNIQUE: colour("c0")}
HALF_WIDTH = 0.42  # of a layer's place
SHIFT = 0.2  # of the marks of a group from the middle of their layer
SMOOTHING = np.array([0.25, 0.5, 0.25])
SPAN = "0.83"
PANELS = {
    "alpha": "fractional order alpha",
    "lam": "relaxation strength lambda",
    "log10_u": "clock u, per base",
}
MOST_NAMED = 16  # layers that fit in a legend


def draw_memory_use(path: Path, use: MemoryUse, *, title: str) -> None:
    """Write memory_use_figure as a PNG."""
    save(memory_use_figure(use, title), path)


def memory_use_figure(use: MemoryUse, title: str) -> Figure:
    """Alpha, lambda and clock by layer, time scales by layer, and impulse responses.

    Args:
        use: what was measured.
        title: above the panels.
    """
    figure = Figure(figsize=(13.2, 7.8), layout="constrained")
    panels = figure.subplot_mosaic(
        [["alpha", "lam", "log10_u"], ["scales", "response", "response"]]
    )
    for axes in panels.values():
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for name, label in PANELS.items():
        _draw_violins(panels[name], use, name)
        panels[name].set_title(label, fontsize=10)
    _draw_time_scales(panels["scales"], use)
    layers = sorted({u.layer for u in use.uses})
    for name in (*PANELS, "scales"):
        panels[name].xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[name].set(xlabel="layer", xlim=(layers[0] - 0.6, layers[-1] + 0.6))
    _draw_responses(panels["response"], use)
    _draw_legend(figure, use)
    figure.suptitle(fill(shortened(title, LONGEST_TITLE), TITLE_LINE), fontsize=12, **PLAIN)
    return figure


def _shown_groups(use: MemoryUse) -> dict[str, tuple[int, int]]:
    """Groups to be drawn, and from where to where beside the middle of their layer."""
    found = [group for group in (REPEATS, UNIQUE) if any(u.group == group for u in use.uses)]
    return dict(zip(found, ((-1, 0), (0, 1)) if len(found) > 1 else ((-1, 1),), strict=True))


def _of_group(use: MemoryUse, group: str, *, heads: bool = False) -> list[HeadUse]:
    """Layers as a whole, or their heads."""
    return [u for u in use.uses if u.group == group and (u.head != ALL) == heads]


def _draw_violins(axes: Axes, use: MemoryUse, quantity: str) -> None:
    """Histograms of all bases and heads of each layer, a group on each side, and medians."""
    logarithmic = quantity in LOGARITHMIC or quantity == "log10_u"
    for group, sides in _shown_groups(use).items():
        for layer in _of_group(use, group):
            values: Distribution = getattr(layer, quantity)
            # an empty bin at both ends, so that the shape closes
            counts = np.convolve(np.pad(values.counts, 2), SMOOTHING, mode="valid")
            y = values.first_edge + values.bin_width * (np.arange(len(counts)) - 0.5)
            width = HALF_WIDTH * counts / counts.max()
            left, right = (layer.layer + side * width for side in sides)
            shape = 10**y if logarithmic else y
            axes.fill_betweenx(shape, left, right, color=COLOURS[group], alpha=0.75, lw=0)
            median = values.quantiles[QUANTILES.index(0.5)]
            ends = (layer.layer + HALF_WIDTH * side for side in sides)
            axes.hlines(10**median if quantity == "log10_u" else median, *ends, color="k", lw=1)
    if logarithmic:
        axes.set_yscale("log")
    if quantity == "lam":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_major_locator(LogLocator(base=2))
        axes.yaxis.set_minor_locator(NullLocator())


def _draw_time_scales(axes: Axes, use: MemoryUse) -> None:
    """What layers could remember, and how far back they and their heads look."""
    everything = _of_group(use, ALL, heads=True)
    layers = sorted({u.layer for u in everything})
    scales = [[s for u in everything if u.layer == n for s in u.time_scales] for n in layers]
    slowest, fastest = [max(s) for s in scales], [min(s) for s in scales]
    axes.vlines(layers, fastest, slowest, color=SPAN, lw=12, zorder=1)
    for group, sides in _shown_groups(use).items():
        for heads, size in ((True, 3), (False, 7)):
            found = [u for u in _of_group(use, group, heads=heads) if u.half_lag is not None]
            x, y = [u.layer + SHIFT * sum(sides) for u in found], [u.half_lag for u in found]
            axes.plot(x, y, "o", ms=size, color=COLOURS[group], mew=0, alpha=0.85)
    axes.axhline(use.length, color="0.55", lw=0.9, ls=":")
    axes.annotate(
        f"window {bases(use.length)}", (1, use.length), xycoords=("axes fraction", "data"),
        xytext=(0, 2), textcoords="offset points", ha="right", fontsize=7, color="0.4",
    )  # fmt: skip
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=-0.2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_title("time scales and half of the response (bases)", fontsize=10)


def _draw_legend(figure: Figure, use: MemoryUse) -> None:
    """What colours and marks mean, in a line below all panels."""
    drawn = {}
    for group in _shown_groups(use):
        count = next(u.bases for u in use.uses if u.group == group)
        drawn[f"{group}, {count:,} bases"] = Line2D([], [], color=COLOURS[group], lw=7)
    drawn["median"] = Line2D([], [], color="k", lw=1)
    drawn["time scales of all modes"] = Line2D([], [], color=SPAN, lw=7)
    for name, size in (("layer", 7), ("head", 3)):
        mark = Line2D([], [], color="0.35", marker="o", ls="", ms=size, mew=0)
        drawn[f"lag that halves the response of a {name}"] = mark
    place = {"loc": "outside lower center", "ncols": len(drawn), "frameon": False, "fontsize": 8}
    figure.legend(drawn.values(), drawn.keys(), **place)


def _draw_responses(axes: Axes, use: MemoryUse) -> None:
    """One line for each layer, relative to lag 0, with the slopes that the priors alone give."""
    layers = [u for u in _of_group(use, ALL) if u.half_lag is not None]
    colours = colormaps["viridis"].resampled(max(len(layers), 2))
    for place, layer in enumerate(layers):
        points = [
            (lag, value / layer.response[0])
            for lag, value in zip(use.lags, layer.response, strict=True)
            if lag and value
        ]
        x, y = zip(*points, strict=True)
        slope = "" if layer.slope is None else f": {layer.slope:.2f}"
        axes.plot(x, y, color=colours(place), lw=1.6, label=f"{layer.layer}{slope}")
    _draw_reference(axes, use.lags[-1], (-1.0, -2.0))
    axes.set(xscale="log", yscale="log", xlabel="lag n (bases)")
    low, high = use.slope_range
    if high > low:
        axes.axvspan(low, high, color="0.5", alpha=0.07, lw=0, zorder=0)
    axes.set_title("impulse response h(n) / h(0), mean over heads and all bases", fontsize=10)
    axes.legend(
        title=f"layer: slope\n{low:,} to {high:,}" if high > low else "layer",
        frameon=False, fontsize=8, title_fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5),
        ncols=-(-len(layers) // MOST_NAMED),
    )  # fmt: skip


def _draw_reference(axes: Axes, farthest: int, slopes: Sequence[float]) -> None:
    """Power laws through 1 at lag 1."""
    for slope in slopes:
        ends = np.array([1.0, farthest])
        axes.plot(ends, ends**slope, color="0.5", lw=1, ls=":")
        axes.annotate(
            f"$n^{{{slope:.0f}}}$", (farthest, farthest**slope), xytext=(2, 0),
            textcoords="offset points", fontsize=8, color="0.4", va="center",
        )  # fmt: skip
