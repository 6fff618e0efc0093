"""The heavy-tailed probe: signed events, and the sign of their power-law sum.

At position t, counted from 1, the score is the sum over events j <= t of e_j (t-j+1)^(-gamma), with
e_j = +1 or -1; what is asked is its sign. The weights fall so slowly that old events matter as much
as the memory keeps of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fracdna.benchmarks.examples import Examples
from fracdna.benchmarks.sample_random import random_bits, sample_seeds, uniform
from fracdna.data.objectives import IGNORED
from fracdna_prep.errors import InputError

# rows of the embedding: what is read, and answers, which never are; the rest is spare
BLANK, PLUS, MINUS, NEGATIVE, POSITIVE = range(5)
ROWS = 8
TIE = 1e-9  # scores nearer to 0 have no sign: their terms have cancelled
RATE, COUNT = "rate", "count"
FINAL, DENSE = "final", "dense"
DRAWS = 1000  # of one sample, until its score has a label


@dataclass(frozen=True)
class HeavyTail:
    """The task with one exponent and one kind of training labels.

    Attributes:
        gamma: exponent of the weights.
        labels: "final": one at the end of a training sequence; "dense": at all positions from
            first_dense on.
        length: of training sequences.
        events: "rate": every position holds an event with probability event_rate; "count": every
            sequence holds event_count of them.
        event_rate: see events.
        event_count: see events.
        min_margin: smallest score that has a label, in standard deviations of the scores there.
        first_dense: position, from 1.

    Raises:
        InputError: options that make no sense together.
    """

    gamma: float
    labels: str
    length: int
    events: str = RATE
    event_rate: float = 0.05
    event_count: int = 26
    min_margin: float = 0.0
    first_dense: int = 32

    name = "heavy_tail"
    vocabulary_rows = ROWS

    def __post_init__(self) -> None:
        for option, value, known in (
            ("task.labels", self.labels, (FINAL, DENSE)),
            ("task.events", self.events, (RATE, COUNT)),
        ):
            if value not in known:
                raise InputError(f"{option}={value}: choose {' or '.join(known)}")
        if self.events == COUNT and self.event_count > self.length:
            raise InputError(
                f"task.event_count={self.event_count} is more than the {self.length} positions of "
                "a training sequence"
            )
        if self.labels == DENSE and self.first_dense > self.length:
            raise InputError(
                f"task.first_dense={self.first_dense} lies beyond task.length={self.length}"
            )

    def signs(self, seeds: Tensor, length: int) -> Tensor:
        """Events of sequences: (n, length) float64 of -1, 0 and 1."""
        bits = random_bits(seeds, length)
        if self.events == RATE:
            event = uniform(bits) < self.event_rate
        else:
            chosen = bits.topk(self.event_count, dim=1).indices
            event = torch.zeros_like(bits, dtype=torch.bool).scatter_(1, chosen, True)
        # the lowest bit decides about nothing else
        return torch.where(event, 1.0 - 2.0 * (bits & 1), 0.0).double()

    def kernel(self, length: int, device: torch.device | None = None) -> Tensor:
        """(length,) float64: weights of the lags 1, 2, ..."""
        lags = torch.arange(1, length + 1, device=device, dtype=torch.float64)
        return lags.pow(-self.gamma)

    def scores(self, signs: Tensor) -> Tensor:
        """Power-law sums at all positions, by FFT: (n, length) float64 to the same."""
        length = signs.shape[1]
        size = 2 * length  # nothing wraps around
        weights = torch.fft.rfft(self.kernel(length, signs.device), size)
        return torch.fft.irfft(torch.fft.rfft(signs, size) * weights, size)[:, :length]

    def margins(self, places: Tensor, length: int) -> Tensor:
        """(places,) float64: smallest scores that have a label, at positions from 0."""
        density = self.event_rate if self.events == RATE else self.event_count / length
        variance = density * self.kernel(length, places.device).square().cumsum(0)
        return (self.min_margin * variance[places].sqrt()).clamp(min=TIE)

    def examples(self, split: str, seed: int, numbers: Tensor) -> Examples:
        """Training sequences with their labels; see ExampleSource.

        With final labels, samples whose score has none are drawn anew, from the generator of the
        next attempt; with dense labels such positions are ignored.
        """
        signs = self._drawn(split, seed, numbers, 0)
        if self.labels == DENSE:
            first = self.first_dense - 1
            places = torch.arange(first, self.length, device=numbers.device)
            scores = self.scores(signs)[:, places]
            clear = scores.abs() >= self.margins(places, self.length)
        else:
            places = torch.tensor([self.length - 1], device=numbers.device)
            signs, scores = self._redrawn(split, seed, numbers, signs, places)
            clear = torch.ones_like(scores, dtype=torch.bool)
        targets = torch.where(clear, answers(scores), IGNORED)
        return Examples(ids_of(signs), places.expand(len(numbers), -1).contiguous(), targets)

    def test_signs(self, numbers: Tensor, length: int, seed: int) -> Tensor:
        """Events of test streams, (n, length) as signs gives them."""
        # with a count the events of a stream depend on its length: none is a part of another
        split = "test" if self.events == RATE else f"test of {length}"
        return self.signs(sample_seeds(f"{self.name} {split} {seed}", numbers), length)

    def _drawn(self, split: str, seed: int, numbers: Tensor, attempt: int) -> Tensor:
        """Events of training sequences."""
        again = f" attempt {attempt}" if attempt else ""
        return self.signs(sample_seeds(f"{self.name} {split} {seed}{again}", numbers), self.length)

    def _redrawn(
        self, split: str, seed: int, numbers: Tensor, signs: Tensor, places: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Events and scores (n, 1) at the end, all of which have a label."""
        weights = self.kernel(self.length, signs.device).flip(0)[:, None]
        least = self.margins(places, self.length)
        for attempt in range(1, DRAWS):
            scores = signs @ weights
            unclear = (scores.abs() < least).flatten().nonzero().flatten()
            if not len(unclear):
                return signs, scores
            signs = signs.index_copy(
                0, unclear, self._drawn(split, seed, numbers[unclear], attempt)
            )
        raise InputError(
            f"task.min_margin={self.min_margin}: no score as large as that in {DRAWS} draws of a "
            "sequence; choose a smaller one"
        )


def answers(scores: Tensor) -> Tensor:
    """Ids of labels: the sign of scores."""
    return torch.where(scores > 0, POSITIVE, NEGATIVE)


def ids_of(signs: Tensor) -> Tensor:
    """Ids of what is read: (n, length) events to int64."""
    return torch.where(signs > 0, PLUS, torch.where(signs < 0, MINUS, BLANK))


def sums_at(signs: Tensor, kernels: Tensor, lengths: Sequence[int]) -> Tensor:
    """Weighted sums of the events before and at some positions, for several kernels.

    Args:
        signs: (n, stream) float64.
        kernels: (k, stream) float64, weights of the lags 1, 2, ...
        lengths: positions, counted from 1.

    Returns:
        (n, lengths, k) float64.
    """
    return torch.stack([signs[:, :t] @ kernels[:, :t].flip(1).T for t in lengths], dim=1)
