"""Streams of the heavy-tailed test, and what a trained model answers at lengths along them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fracdna.benchmarks.examples import Examples, nll_at
from fracdna.benchmarks.heavy_tail import (
    NEGATIVE,
    POSITIVE,
    RATE,
    HeavyTail,
    answers,
    ids_of,
    sums_at,
)
from fracdna.benchmarks.stream_reading import Reading, StreamReader
from fracdna.data.objectives import IGNORED
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite

Columns = dict[str, np.ndarray]
MOST_EVENTS = 1 << 25  # positions of streams that are made together


class Span(NamedTuple):
    """Streams of one length, and the lengths at which they are scored on the way."""

    length: int
    scored: tuple[int, ...]


@dataclass(frozen=True)
class StreamTest:
    """What is tested.

    Attributes:
        task: events and scores.
        lengths: rising; with a rate of events all are places along the same streams, with a count
            each has streams of its own.
        streams: how many.
        seed: of the test.
    """

    task: HeavyTail
    lengths: tuple[int, ...]
    streams: int
    seed: int = 1

    @property
    def variant(self) -> dict[str, Any]:
        """See ModelTest."""
        return {"gamma": self.task.gamma, "labels": self.task.labels}

    @property
    def positions(self) -> int:
        """See ModelTest."""
        return self.streams * sum(span.length for span in self.spans())

    def spans(self, reaches: Callable[[int], bool] = lambda _: True) -> list[Span]:
        """Streams to be read, of no more than the lengths that a network reaches."""
        lengths = tuple(t for t in self.lengths if reaches(t))
        if self.task.events == RATE and lengths:
            return [Span(lengths[-1], lengths)]
        return [Span(t, (t,)) for t in lengths]

    def streams_of(
        self, span: Span, numbers: Sequence[int], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Events (n, length) and scores (n, scored), float64."""
        signs = self.task.test_signs(torch.tensor(numbers, device=device), span.length, self.seed)
        exact = self.task.kernel(span.length, device)[None]
        return signs, sums_at(signs, exact, span.scored)[..., 0]

    def least(self, span: Span, device: torch.device) -> Tensor:
        """(scored,) smallest scores that have a label."""
        places = torch.tensor(span.scored, device=device) - 1
        return self.task.margins(places, span.length)

    def run(
        self,
        model: LanguageModel,
        reading: Reading,
        done: Mapping[str, set[int]],
        advance: Callable[[int], object],
    ) -> Iterator[Columns]:
        """Rows of streams, several streams at a time.

        Scores without a label have no row.

        Args:
            model: the network, in evaluation mode.
            reading: how streams are read.
            done: see ModelTest.
            advance: told of positions that were read.

        Raises:
            NotFinite: an answer is NaN or infinite; names the stream.
        """
        device = next(model.parameters()).device
        reader = StreamReader(model.backbone, reading, advance)
        for span in self.spans(reader.reaches):
            left = [n for n in range(self.streams) if n not in done.get(str(span.length), ())]
            batch = min(reader.batch(span.length), max(1, MOST_EVENTS // span.length))
            for first in range(0, len(left), batch):
                numbers = left[first : first + batch]
                signs, scores = self.streams_of(span, numbers, device)
                places = [t - 1 for t in span.scored]
                hidden = reader.hidden_at(ids_of(signs), places)
                clear = scores.abs() >= self.least(span, device)
                yield _rows(model, hidden, scores, clear, span, numbers)


@torch.inference_mode()
def _rows(
    model: LanguageModel,
    hidden: Tensor,
    scores: Tensor,
    clear: Tensor,
    span: Span,
    numbers: Sequence[int],
) -> Columns:
    """One row per stream and scored length; a tie between the labels is worth a half."""
    targets = torch.where(clear, answers(scores), IGNORED)
    places = torch.arange(len(span.scored), device=scores.device).expand(len(numbers), -1)
    nll, logits = nll_at(model, hidden, Examples(targets, places, targets))
    wrong = ~logits.isfinite().all(-1).all(-1)
    if wrong.any():
        stream = numbers[int(wrong.nonzero()[0])]
        raise NotFinite(f"the answer to stream {stream} of the test is NaN or infinite", stream)
    lead = logits[..., POSITIVE] - logits[..., NEGATIVE]
    correct = torch.where(lead == 0, 0.5, ((lead > 0) == (scores > 0)).float())
    columns = {
        "index": torch.tensor(numbers)[:, None].expand(-1, len(span.scored)),
        "length": torch.tensor(span.scored).expand(len(numbers), -1),
        "score": scores,
        "correct": correct,
        "tied": (lead == 0).double(),
        "nll_nats": nll.double(),
    }
    kept = clear.cpu()
    rows = {name: values.cpu()[kept].numpy() for name, values in columns.items()}
    return rows | {"set": np.full(len(rows["index"]), str(span.length))}
