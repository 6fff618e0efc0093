"""Running sums over the gates of a FRAC layer, in memory that does not grow with what is read."""

import math

import numpy as np
import torch
from torch import Tensor

from fracdna.benchmarks.spectrum import settings
from fracdna.mixers.frac import Frac

REPEATS, UNIQUE = "repeats", "unique"
GROUPS = (REPEATS, UNIQUE)
NO_GROUP = -1  # BOS, N and whatever else is no base
QUANTITIES = ("delta", "alpha", "lam", "log10_u")
LOGARITHMIC = ("delta", "lam")  # their bins are equal steps of the decimal logarithm
BINS = 2048


def bin_bounds(mixer: Frac) -> np.ndarray:
    """(quantities, 2) first and last edge of the bins, on the axis of the bins."""
    ranges = mixer.routing
    delta, lam = (np.log10(ranges[name]) for name in ("delta_range", "lam_range"))
    alpha = np.array(ranges["alpha_range"] if mixer.has_alpha else (1.0, 1.0))
    fastest, slowest = (np.divide.outer(lam, alpha).ravel() + edge for edge in (delta[1], delta[0]))
    return np.array([delta, alpha, lam, (slowest.min(), fastest.max())])


class LagPairs:
    """Which positions of a window an impulse response is taken at.

    Args:
        length: positions of a window, at least 4.
        targets: evenly spaced positions at which the memory is read.
        device: of the layers.

    Attributes:
        lags: (lags,) int64, 0, 1, 2, 3, 4, 6, 8, 11, 16, ..., half of the window: two a doubling.
        positions: (places,) int64 on the CPU, ascending, all that are needed.
        pairs: for each lag the places of reads, and of the writes so many positions before.
    """

    def __init__(self, length: int, targets: int, device: torch.device) -> None:
        farthest = length // 2
        steps = 2.0 ** (np.arange(2 * math.floor(math.log2(farthest)) + 1) / 2)
        self.lags = np.unique(np.concatenate([[0, farthest], steps.round().astype(np.int64)]))
        reads = np.unique(np.linspace(0, length - 1, min(targets, length)).round().astype(np.int64))
        ends = [reads[reads >= lag] for lag in self.lags]
        starts = [read - lag for read, lag in zip(ends, self.lags, strict=True)]
        self.positions = np.unique(np.concatenate(starts + ends))
        self.pairs = [
            tuple(torch.from_numpy(np.searchsorted(self.positions, x)).to(device) for x in pair)
            for pair in zip(ends, starts, strict=True)
        ]

    def within(self, start: int, stop: int) -> Tensor:
        """Positions of a segment that are needed, counted from its start."""
        first, last = np.searchsorted(self.positions, (start, stop))
        return torch.from_numpy(self.positions[first:last] - start)


class LayerTally:
    """Sums over what one layer does with the bases of all windows.

    Args:
        mixer: the layer.
        lags: of the impulse response.

    Attributes:
        bases: (groups,) int64.
        mean: (groups, heads, quantities) float64, of QUANTITIES.
        squares: the same, summed squared distances from the mean.
        lowest: the same, smallest values.
        highest: the same, largest values.
        histogram: (groups, heads, quantities, BINS) int64.
        rates: (groups, heads, modes) float64, sums of u/tau.
        read: the same, sums of read weights.
        write: the same, sums of write weights without their gain.
        written: the same, with it.
        response: (groups of the reading base, lags, heads) float64, sums of
            sum_m read_m(t) decay_m(t - n .. t) write_m(t - n).
        pairs: (groups, lags) int64, how many were summed.
    """

    def __init__(self, mixer: Frac, lags: LagPairs) -> None:
        self._mixer, self._lags = mixer, lags
        device = mixer.log_tau.device
        bounds = torch.from_numpy(bin_bounds(mixer)).to(device)
        self._first_edge, self._width = bounds[:, 0], bounds.diff(dim=1)[:, 0]
        groups, heads, modes = len(GROUPS), mixer.num_heads, mixer.num_modes
        double = {"dtype": torch.float64, "device": device}
        whole = {"dtype": torch.int64, "device": device}
        moments = groups, heads, len(QUANTITIES)
        self.bases = torch.zeros(groups, **whole)
        self.mean, self.squares = torch.zeros(moments, **double), torch.zeros(moments, **double)
        self.lowest = torch.full(moments, math.inf, **double)
        self.highest = -self.lowest
        self.histogram = torch.zeros(*moments, BINS, **whole)
        self.rates, self.read, self.write, self.written = (
            torch.zeros(groups, heads, modes, **double) for _ in range(4)
        )
        self.response = torch.zeros(groups, len(lags.lags), heads, **double)
        self.pairs = torch.zeros(groups, len(lags.lags), **whole)
        self._age: Tensor | float = 0.0
        self._kept: list[tuple[Tensor, ...]] = []

    def sums(self) -> dict[str, Tensor]:
        """All attributes."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def add(
        self, dynamics: Tensor, gates: tuple[Tensor, Tensor, Tensor], group: Tensor, start: int
    ) -> None:
        """The next positions of a batch of windows.

        Args:
            dynamics: (batch, length, 2 or 3 times heads), given to Frac.gates.
            gates: what it returned.
            group: (batch, length) int64, numbers in GROUPS or NO_GROUP.
            start: where in the windows they begin.
        """
        mixer = self._mixer
        decay, read, written = gates
        found = settings(mixer, dynamics)
        # of every mode where modes decay by themselves, else the clock that all of them share
        clock = -decay if mixer.by_mode else decay[..., None]
        log10_u = found.log10_clock() if mixer.by_mode else decay.log10()
        rates = clock if mixer.by_mode else clock * torch.exp(-mixer.log_tau)
        gain = -torch.expm1(-rates)
        if mixer.routing["gain"] == "zoh":
            gain = gain * mixer.log_tau.exp()
        values = torch.stack([*found, log10_u], dim=-1)
        sums = {"rates": rates, "read": read, "write": written / gain, "written": written}
        for number in range(len(GROUPS)):
            chosen = group == number
            if chosen.any():
                self._add_moments(number, values[chosen])
                for name, parts in sums.items():
                    getattr(self, name)[number] += parts[chosen].sum(0, dtype=torch.float64)
        age = clock.double().cumsum(1) + self._age
        self._age = age[:, -1:]
        needed = self._lags.within(start, start + group.shape[1]).to(group.device)
        self._kept.append(tuple(x[:, needed] for x in (group, age, read, written)))

    def _add_moments(self, number: int, values: Tensor) -> None:
        """Values (bases, heads, quantities) of a group: moments are merged, so that none cancel."""
        count = len(values)
        exact = values.double()
        mean = exact.mean(0)
        total = self.bases[number] + count
        away = mean - self.mean[number]
        self.squares[number] += (exact - mean).square().sum(0)
        self.squares[number] += away.square() * self.bases[number] * count / total
        self.mean[number] += away * count / total
        self.bases[number] = total
        self.lowest[number] = torch.minimum(self.lowest[number], exact.amin(0))
        self.highest[number] = torch.maximum(self.highest[number], exact.amax(0))
        self.histogram[number] += self._bin_counts(exact)

    def _bin_counts(self, values: Tensor) -> Tensor:
        """(heads, quantities, BINS) of values (bases, heads, quantities) float64."""
        logarithmic = torch.tensor([q in LOGARITHMIC for q in QUANTITIES], device=values.device)
        places = torch.where(logarithmic, values.log10(), values) - self._first_edge
        # a quantity with a single possible value has bins without a width: all is in the first;
        # so is NaN, which is refused by the means
        bins = (places / self._width * BINS).nan_to_num(0.0).clamp(0, BINS - 1).long()
        shape = values.shape[1:]
        rows = torch.arange(shape.numel(), device=values.device).view(shape)
        counts = torch.bincount((rows * BINS + bins).flatten(), minlength=shape.numel() * BINS)
        return counts.view(*shape, BINS)

    def end_windows(self) -> None:
        """The windows are read to their end: their responses are added, the clock starts anew."""
        group, age, read, written = (
            torch.cat(parts, dim=1) for parts in zip(*self._kept, strict=True)
        )
        time_scale = 1.0 if self._mixer.by_mode else self._mixer.log_tau.double().exp()
        for lag, (ends, starts) in enumerate(self._lags.pairs):
            left = torch.exp(-(age[:, ends] - age[:, starts]) / time_scale)
            response = (left * read[:, ends].double() * written[:, starts].double()).sum(-1)
            reader = torch.where(group[:, starts] == NO_GROUP, NO_GROUP, group[:, ends])
            for number in range(len(GROUPS)):
                chosen = reader == number
                self.response[number, lag] += response[chosen].sum(0)
                self.pairs[number, lag] += chosen.sum()
        self._age, self._kept = 0.0, []
