"""The heavy-tailed probe as a benchmark: its variants, oracles, and what is told beside them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fracdna.benchmarks.heavy_tail import HeavyTail
from fracdna.benchmarks.heavy_tail_oracles import oracle_kernels, oracle_scores
from fracdna.benchmarks.heavy_tail_test import MOST_EVENTS, Span, StreamTest
from fracdna.benchmarks.probe_tables import ORACLE, Columns, Row, accuracy_row, variant_words
from fracdna_prep.errors import InputError

TITLE = "Heavy-tailed probe: the sign of a power-law sum of events"
CHANCE = 0.5
TERCILES = ("accuracy_smallest_scores", "accuracy_middle_scores", "accuracy_largest_scores")
OF_TASK = ("length", "events", "event_rate", "event_count", "min_margin", "first_dense")


def variants(options: Mapping[str, Any]) -> list[StreamTest]:
    """A test for every exponent and kind of labels.

    Raises:
        InputError: options that make no sense together.
    """
    lengths = tuple(sorted(set(options["lengths"])))
    if options["events"] == "count" and lengths[0] < options["event_count"]:
        raise InputError(
            f"task.lengths has {lengths[0]}, which is too short for "
            f"task.event_count={options['event_count']} events"
        )
    common = {name: options[name] for name in OF_TASK}
    return [
        StreamTest(HeavyTail(gamma, labels, **common), lengths, options["streams"])
        for gamma in options["gammas"]
        for labels in options["labels"]
    ]


def recipe_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Steps of the optimizer, and how the learning rate moves."""
    return {"steps": options["steps"]}


def details(columns: Columns) -> dict[str, float]:
    """Accuracy by tercile of the size of the score."""
    order = np.abs(columns["score"]).argsort()
    parts = np.array_split(columns["correct"][order], len(TERCILES))
    return {
        name: float(part.mean()) for name, part in zip(TERCILES, parts, strict=True) if len(part)
    }


def references(test: StreamTest, device: torch.device) -> tuple[list[Row], dict[str, int]]:
    """Oracles on the streams of a test.

    Returns:
        Their rows, and how many scores have no label, by length.
    """
    found: dict[tuple[str, int], list[np.ndarray]] = {}
    unlabelled: Counter[str] = Counter()
    for span, scores, guesses in _guesses(test, device):
        clear = scores.abs() >= test.least(span, device)
        for place, length in enumerate(span.scored):
            kept = clear[:, place]
            unlabelled[str(length)] += int((~kept).sum())
            for name, guess in guesses.items():
                right = torch.where(guess == 0, 0.5, ((guess > 0) == (scores > 0)).double())
                columns = torch.stack([right, scores])[:, kept, place]
                found.setdefault((name, length), []).append(columns.cpu().numpy())
    rows = []
    for (name, length), parts in found.items():
        correct, score = np.concatenate(parts, axis=1)
        shared = {"kind": ORACLE, "name": name, "variant": variant_words(test)}
        columns = {"correct": correct, "score": score}
        rows.append(accuracy_row(shared | {"part": "", "length": length}, columns, details))
    return rows, dict(unlabelled)


def _guesses(
    test: StreamTest, device: torch.device
) -> Iterator[tuple[Span, Tensor, dict[str, Tensor]]]:
    """Streams, several at a time: true scores and those of the oracles, (n, scored) each."""
    kernels = oracle_kernels(test.task, test.lengths)
    for span in test.spans():
        chosen = [test.lengths.index(t) for t in span.scored]
        of_span = {name: kernel[chosen] for name, kernel in kernels.items()}
        batch = max(1, MOST_EVENTS // span.length)
        for first in range(0, test.streams, batch):
            numbers = range(first, min(first + batch, test.streams))
            signs, scores = test.streams_of(span, numbers, device)
            yield span, scores, oracle_scores(signs, of_span, span.scored)
