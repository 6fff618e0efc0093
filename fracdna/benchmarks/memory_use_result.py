"""How the memories of FRAC layers were used, as figures of heads and groups of bases.

Words, for a head and the bases of a group, "all", "repeats" (in lower case) or "unique":
  time scale   of a mode: tau / mean(u), as it is the mean that survives a product of decays; its
               half-life is ln 2 times that.
  read scale   exp of the mean log time scale, weighted with the mean read weights of the modes.
  response     h(n), what a base reads of that written n positions before, on average:
               sum_m read_m(t) exp(-(u_{t-n+1} + .. + u_t)/tau_m) write_m(t-n), with the gain.
  half lag     the lag by which half of h(0) + h(1) + .. is reached, up to half a window.
  slope        of log h over log n by least squares, between SLOPE_RANGE.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from fracdna.benchmarks.memory_use_tally import (
    BINS,
    GROUPS,
    LOGARITHMIC,
    QUANTITIES,
    LayerTally,
    bin_bounds,
)
from fracdna.mixers.frac import Frac
from fracdna.outcomes import NotFinite

ALL = "all"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SLOPE_RANGE = (100, 10_000)  # lags
SHOWN_BINS = 256  # of a histogram in results


class Distribution(NamedTuple):
    """Values of one quantity.

    Attributes:
        mean: exact.
        sd: standard deviation, exact.
        quantiles: at QUANTILES, as exact as a bin is narrow.
        first_edge: of the histogram; the decimal logarithm for delta and lam.
        bin_width: likewise.
        counts: values in each bin, from the first to the last bin that has any.
    """

    mean: float
    sd: float
    quantiles: tuple[float, ...]
    first_edge: float
    bin_width: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class HeadUse:
    """One head, or all heads of a layer together, on the bases of one group.

    Attributes:
        layer: from 1.
        head: from 1; "all": the mean over heads.
        group: "all", "repeats" or "unique".
        bases: that were read.
        delta: step.
        alpha: fractional order, 1 where it is fixed or there is none.
        lam: relaxation strength.
        log10_u: decimal logarithm of the clock.
        read: (modes,) mean read weights.
        write: (modes,) mean write weights, without their gain.
        written: (modes,) the same, with it.
        time_scales: (modes,) positions.
        read_scale: positions.
        response: (lags,) None where there was no base to read at.
        slope: None where fewer than three lags have a response above 0.
        half_lag: None without a response at lag 0.
    """

    layer: int
    head: int | str
    group: str
    bases: int
    delta: Distribution
    alpha: Distribution
    lam: Distribution
    log10_u: Distribution
    read: tuple[float, ...]
    write: tuple[float, ...]
    written: tuple[float, ...]
    time_scales: tuple[float, ...]
    read_scale: float
    response: tuple[float | None, ...]
    slope: float | None
    half_lag: int | None

    @property
    def half_lives(self) -> tuple[float, ...]:
        """(modes,) positions until half is left."""
        return tuple(math.log(2) * scale for scale in self.time_scales)


@dataclass(frozen=True)
class MemoryUse:
    """What was measured.

    Attributes:
        length: bases of a window.
        windows: how many were read.
        lags: of the responses.
        uses: layer by layer; in each, every group that has bases, all heads first.
    """

    length: int
    windows: int
    lags: tuple[int, ...]
    uses: tuple[HeadUse, ...]

    @property
    def slope_range(self) -> tuple[int, int]:
        """Lags that slopes are of: those of SLOPE_RANGE that were measured."""
        return SLOPE_RANGE[0], min(SLOPE_RANGE[1], self.lags[-1])

    def to_rows(self) -> list[dict[str, Any]]:
        """A flat row for each of `uses`, without histograms and responses; all have equal keys."""
        return [_flat(use) for use in self.uses]

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        uses = []
        for use in self.uses:
            distributions = {name: getattr(use, name)._asdict() for name in QUANTITIES}
            uses.append(asdict(use) | distributions | {"half_lives": use.half_lives})
        about = {"quantiles": QUANTILES, "slope_range": self.slope_range}
        return asdict(self) | about | {"uses": uses}


def layer_uses(layer: int, mixer: Frac, tally: LayerTally, lags: np.ndarray) -> Iterator[HeadUse]:
    """All heads together and each head, in each group that has bases."""
    sums = {name: x.cpu().numpy() for name, x in tally.sums().items()}
    if not np.isfinite(sums["mean"]).all():
        raise NotFinite(f"layer {layer}: its gates hold NaN or infinity; use another checkpoint")
    bounds = bin_bounds(mixer)
    groups = {ALL: list(range(len(GROUPS)))} | {name: [n] for n, name in enumerate(GROUPS)}
    heads = {ALL: list(range(mixer.num_heads))} | {n + 1: [n] for n in range(mixer.num_heads)}
    for group, members in groups.items():
        if not sums["bases"][members].sum():
            continue
        for head, places in heads.items():
            mine = {name: x[members] for name, x in sums.items()}
            yield _use(layer, head, group, places, mine, bounds, lags)


def _use(
    layer: int,
    head: int | str,
    group: str,
    heads: list[int],
    sums: dict[str, np.ndarray],
    bounds: np.ndarray,
    lags: np.ndarray,
) -> HeadUse:
    """Some heads in some groups: sums have the groups first."""
    bases = int(sums["bases"].sum())
    over_modes = {
        name: sums[name][:, heads].sum((0, 1)) / (bases * len(heads))
        for name in ("rates", "read", "write", "written")
    }
    time_scales = 1 / over_modes.pop("rates")
    read = over_modes["read"]
    pairs = sums["pairs"].sum(0)
    summed = sums["response"][..., heads].mean(-1).sum(0)
    response = np.divide(summed, pairs, out=np.full(len(lags), np.nan), where=pairs > 0)
    return HeadUse(
        layer,
        head,
        group,
        bases,
        *(_distribution(sums, heads, place, bounds[place]) for place in range(len(QUANTITIES))),
        **{name: tuple(x.tolist()) for name, x in over_modes.items()},
        time_scales=tuple(time_scales.tolist()),
        read_scale=float(np.exp(read @ np.log(time_scales) / read.sum())),
        response=tuple(None if np.isnan(x) else float(x) for x in response),
        slope=fitted_slope(lags, response),
        half_lag=half_lag(lags, response),
    )


def _distribution(
    sums: dict[str, np.ndarray], heads: list[int], place: int, bounds: np.ndarray
) -> Distribution:
    """A quantity over several groups and heads: moments merged, histograms added."""
    mean, squares, lowest, highest, histogram = (
        sums[name][:, heads, place]
        for name in ("mean", "squares", "lowest", "highest", "histogram")
    )
    weights = np.repeat(sums["bases"][:, None], len(heads), axis=1)
    total = weights.sum()
    middle = (weights * mean).sum() / total
    variance = (squares.sum() + (weights * (mean - middle) ** 2).sum()) / total
    counts = histogram.sum((0, 1))
    edges = np.linspace(*bounds, BINS + 1)
    quantiles = np.interp(np.array(QUANTILES) * total, np.append(0, counts.cumsum()), edges)
    if QUANTITIES[place] in LOGARITHMIC:
        quantiles = 10**quantiles
    shown = counts.reshape(SHOWN_BINS, -1).sum(1)
    filled = np.flatnonzero(shown)
    width = (bounds[1] - bounds[0]) / SHOWN_BINS
    return Distribution(
        float(middle),
        float(np.sqrt(variance)),
        # within a bin a quantile is a guess, but it lies among the values
        tuple(quantiles.clip(lowest.min(), highest.max()).tolist()),
        float(bounds[0] + filled[0] * width),
        float(width),
        tuple(shown[filled[0] : filled[-1] + 1].tolist()),
    )


def fitted_slope(lags: np.ndarray, response: np.ndarray) -> float | None:
    """Of log response over log lag in SLOPE_RANGE; None where fewer than three lags are there."""
    low, high = SLOPE_RANGE
    chosen = (lags >= low) & (lags <= high) & (response > 0)
    if chosen.sum() < 3:
        return None
    return float(np.polyfit(np.log(lags[chosen]), np.log(response[chosen]), 1)[0])


def half_lag(lags: np.ndarray, response: np.ndarray) -> int | None:
    """The lag by which half of the response is reached; between measured lags it is a power law."""
    known = (lags > 0) & (response > 0)
    if not response[0] > 0 or not known.any():
        return None
    every = np.arange(1, lags[known].max() + 1)
    between = np.interp(np.log(every), np.log(lags[known]), np.log(response[known]))
    reached = np.append(response[0], np.exp(between)).cumsum()
    return int(np.searchsorted(reached, reached[-1] / 2))


def _flat(use: HeadUse) -> dict[str, Any]:
    """A row of the table."""
    row = {name: getattr(use, name) for name in ("layer", "head", "group", "bases")}
    for name in QUANTITIES:
        values = getattr(use, name)
        row |= {f"{name}_mean": values.mean, f"{name}_sd": values.sd}
        marks = zip(QUANTILES, values.quantiles, strict=True)
        row |= {f"{name}_q{100 * share:02.0f}": value for share, value in marks}
    row |= {name: getattr(use, name) for name in ("read_scale", "half_lag", "slope")}
    by_mode = {"time_scale": "time_scales", "half_life": "half_lives"}
    for name in ("time_scale", "half_life", "read", "write", "written"):
        values = getattr(use, by_mode.get(name, name))
        row |= {f"{name}_{mode}": value for mode, value in enumerate(values, start=1)}
    return row
