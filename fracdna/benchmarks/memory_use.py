"""How the memories of trained FRAC layers are used on DNA: orders, clocks, time scales, responses.

Words, for a head and the bases of a group, "all", "repeats" (in lower case) or "unique":
  time scale      of a mode: tau / mean(u), the mean that survives a product of decays; its half-life
                  is ln 2 times that.
  read scale      exp of the mean log time scale, weighted with the mean read weights of the modes.
  response        h(n), how much of what was written n positions before a base is read at it: the mean
                  of sum_m read_m(t) exp(-(u_{t-n+1} + .. + u_t)/tau_m) write_m(t-n), gain included.
  half lag        the lag by which half of h(0) + h(1) + .. is reached, up to half a window.
  slope           of log h over log n by least squares, between SLOPE_RANGE.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fracdna.benchmarks.memory_use_tally import (
    BINS,
    GROUPS,
    LOGARITHMIC,
    NO_GROUP,
    QUANTITIES,
    LagPairs,
    LayerTally,
    bin_bounds,
)
from fracdna.data.objectives import next_base
from fracdna.embedding.states import evaluating
from fracdna.mixers.frac import Frac
from fracdna.model.carried import state_grows
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.progress import progress_bar
from fracdna_prep.vocabulary import DNA

ALL = "all"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SLOPE_RANGE = (100, 10_000)  # lags
TARGETS = 256  # bases of a window at which the response is taken
SHORTEST = 4
SHOWN_BINS = 256  # of a histogram in results

Gates = tuple[Tensor, Tensor, Tensor]


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


def measure_memory_use(
    model: LanguageModel,
    store: GenomeStore,
    regions: Sequence[Interval],
    *,
    batch_bases: int = 65_536,
    targets: int = TARGETS,
    progress: bool = True,
) -> MemoryUse:
    """Read regions as an evaluation does, each as one window after BOS, and watch FRAC's gates.

    A base counts at the position that reads it, so the last base of a window, which is only
    predicted, does not; neither do BOS and N.

    Args:
        model: on its device.
        store: the genome.
        regions: all of one width.
        batch_bases: most bases of one forward pass. Longer windows are read in segments that carry
            the state, unless that grows with what was read, as attention's does.
        targets: evenly spaced positions of each window at which the impulse response is taken.
        progress: show a bar.

    Raises:
        InputError: no FRAC layer, regions of several widths, too short, or of N alone, or a number
            that cannot be.
        NotFinite: a layer's gates hold NaN or infinity.
    """
    layers = frac_layers(model)
    width = _checked_width(regions, batch_bases, targets)
    device = model.backbone.embedding.weight.device
    lags = LagPairs(width, targets, device)
    tallies = {number: LayerTally(mixer, lags) for number, mixer in layers.items()}
    size = max(batch_bases // width, 1)
    with evaluating(model), progress_bar(width * len(regions), "memory use", progress) as bar:
        for first in range(0, len(regions), size):
            _read(model, store, regions[first : first + size], batch_bases, tallies, bar.update)
    uses = [
        use
        for number, mixer in layers.items()
        for use in _layer_uses(number, mixer, tallies[number], lags.lags)
    ]
    if not uses:
        raise InputError("the regions hold no A, C, G or T: choose others")
    return MemoryUse(width, len(regions), tuple(lags.lags.tolist()), tuple(uses))


def frac_layers(model: LanguageModel) -> dict[int, Frac]:
    """The FRAC layers of a model by their numbers, from 1.

    Raises:
        InputError: it has none.
    """
    mixers = {number: block.mixer for number, block in enumerate(model.backbone.blocks, start=1)}
    layers = {number: mixer for number, mixer in mixers.items() if isinstance(mixer, Frac)}
    if not layers:
        kinds = ", ".join(sorted({type(mixer).__name__ for mixer in mixers.values()}))
        raise InputError(
            f"this model has no FRAC layer, its mixers are {kinds}: give a checkpoint of mixer=frac"
        )
    return layers


def _checked_width(regions: Sequence[Interval], batch_bases: int, targets: int) -> int:
    """The width of all regions."""
    widths = {region.width for region in regions}
    if len(widths) != 1 or min(widths) < SHORTEST:
        raise InputError(
            f"regions of {sorted(widths)} bases: give one or more, all of one width of at least "
            f"{SHORTEST}"
        )
    for name, value in {"batch_bases": batch_bases, "targets": targets}.items():
        if value < 1:
            raise InputError(f"{name}={value} must be at least 1")
    return widths.pop()


@torch.inference_mode()
def _read(
    model: LanguageModel,
    store: GenomeStore,
    regions: Sequence[Interval],
    batch_bases: int,
    tallies: dict[int, LayerTally],
    advance: Callable[[int], Any],
) -> None:
    """One batch of windows, whole or in segments."""
    device = model.backbone.embedding.weight.device
    ids = np.stack([store.fetch(region) for region in regions])
    inputs, _ = next_base(torch.from_numpy(ids).to(device))
    masked = np.stack([store.soft_mask(region) for region in regions])
    groups = _groups(inputs, torch.from_numpy(masked).to(device))
    length = inputs.shape[1]
    in_segments = length > batch_bases and not state_grows(model)
    state = model.initial_state(len(ids)) if in_segments else None
    size = batch_bases if in_segments else length
    for start in range(0, length, size):
        segment, group = (x[:, start : start + size] for x in (inputs, groups))
        with _watched(model, tallies, group, start):
            if state is None:
                model.backbone(segment)
            else:
                _, state = model.backbone.step(segment, state)
        advance(segment.numel())
    for tally in tallies.values():
        tally.end_windows()


def _groups(inputs: Tensor, masked: Tensor) -> Tensor:
    """(batch, length) number in GROUPS of what each position reads.

    Args:
        inputs: (batch, length) ids, BOS and all bases but the last.
        masked: (batch, length) bool, where the bases are in lower case.
    """
    # unique, and repeats where masked; what reads BOS is no base anyway
    groups = torch.where(masked.roll(1, dims=1), 0, 1)
    known = (inputs >= min(DNA.bases)) & (inputs <= max(DNA.bases))
    return torch.where(known, groups, NO_GROUP)


@contextlib.contextmanager
def _watched(
    model: LanguageModel, tallies: dict[int, LayerTally], group: Tensor, start: int
) -> Iterator[None]:
    """Inside the block, tallies see what the gates of their layers are given and return."""
    mixers = {number: model.backbone.blocks[number - 1].mixer for number in tallies}
    for number, mixer in mixers.items():
        mixer.gates = partial(_tell, mixer.gates, tallies[number], group, start)
    try:
        yield
    finally:
        for mixer in mixers.values():
            del mixer.gates  # the method of its class shows again


def _tell(
    gates: Callable[[Tensor, Tensor], Gates],
    tally: LayerTally,
    group: Tensor,
    start: int,
    dynamics: Tensor,
    mixed: Tensor,
) -> Gates:
    """Frac.gates, with a witness."""
    result = gates(dynamics, mixed)
    tally.add(dynamics, result, group, start)
    return result


def _layer_uses(layer: int, mixer: Frac, tally: LayerTally, lags: np.ndarray) -> Iterator[HeadUse]:
    """All heads together and each head, in each group that has bases."""
    sums = {name: x.cpu().numpy() for name, x in vars(tally).items() if isinstance(x, Tensor)}
    if not np.isfinite(sums["mean"]).all():
        raise NotFinite(f"layer {layer}: its gates hold NaN or infinity; use another checkpoint")
    bounds = bin_bounds(mixer)
    groups = {ALL: list(range(len(GROUPS)))} | {name: [n] for n, name in enumerate(GROUPS)}
    heads = {ALL: list(range(mixer.num_heads))} | {n + 1: [n] for n in range(mixer.num_heads)}
    for group, members in groups.items():
        if not sums["bases"][members].sum():
            continue
        for head, places in heads.items():
            mine = {name: x[members] for name, x in sums.items() if name[0] != "_"}
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
        slope=_slope(lags, response),
        half_lag=_half_lag(lags, response),
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


def _slope(lags: np.ndarray, response: np.ndarray) -> float | None:
    """Of the logarithms, in SLOPE_RANGE."""
    low, high = SLOPE_RANGE
    chosen = (lags >= low) & (lags <= high) & (response > 0)
    if chosen.sum() < 3:
        return None
    return float(np.polyfit(np.log(lags[chosen]), np.log(response[chosen]), 1)[0])


def _half_lag(lags: np.ndarray, response: np.ndarray) -> int | None:
    """The median lag; between measured lags a response is a power law."""
    if not response[0] > 0:
        return None
    known = (lags > 0) & (response > 0)
    every = np.arange(1, lags[known].max(initial=0) + 1)
    between = (
        np.interp(np.log(every), np.log(lags[known]), np.log(response[known]))
        if known.any()
        else []
    )
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
