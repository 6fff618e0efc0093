"""What the terminal says about models and gains."""

import pytest

from fracdna.evaluation.figures import _label
from fracdna.evaluation.plan import TILING
from fracdna.evaluation.tables import GainRow, Row
from fracdna.evaluation.terminal import _verdict, _worth


def verdict(**perplexities):
    """Of a network beside counts of orders 0, 2 and 12, the best of them 2, at two lengths."""
    table = {"uniform": (4.0, 4.0), "markov-0": (3.9, 3.9), "markov-1": (3.8, 3.8),
             "markov-2": (3.7, 3.7), "markov-12": (4.2, 4.2)} | perplexities  # fmt: skip
    rows = [
        Row(model, TILING, "forward", "all", "all", length, 9, 0, 0, value, None, None, value)
        for model, values in table.items()
        for length, value in zip((64, 256), values, strict=True)
    ]
    return _verdict(rows, "m", "markov-2")


@pytest.mark.parametrize(
    ("perplexities", "words"),
    [
        ((4.1, 4.1), "m is worse than a blind guess (4.0) at every length: train it longer"),
        ((3.95, 3.95), "m is above markov-2 at every length: a table of counts"),
        ((3.85, 3.75), "m is below markov-0 at every length, but above markov-2 at every length"),
        ((3.75, 3.75), "m is below markov-1 at every length, but above markov-2 at every length"),
        ((4.1, 3.75), "m is above markov-2 at every length: a table of counts predicts these bases "
         "better; train it longer or on more bases; worse than a blind guess (4.0) at 1 of 2"),
        ((4.1, 3.6), "m is below markov-2 at 1 of 2 lengths only; worse than a blind guess"),
        ((3.6, 3.6), "m is below markov-2 at every length: it has learned more than counts give"),
    ],
)  # fmt: skip
def test_a_verdict_names_orders_below_the_best_at_all_lengths(perplexities, words):
    """Never with an order above the best one, which has learned its training bases by heart."""
    said = verdict(m=perplexities, **{f"markov-{n}": (3.8 + n / 10,) * 2 for n in range(3, 12)})
    assert said.startswith(words)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.001, 0.002, "carrying helps"),
        (-0.002, -0.001, "carrying hurts"),
        (-0.00001, 0.00002, "no difference seen"),
        (None, None, "no interval, it takes two regions"),
    ],
)
def test_a_gain_is_judged_by_its_interval(low, high, words):
    assert _worth(GainRow("m", 64, 128, 255, 9, 1.3, 1.3, 0.0, low, high)) == words


def test_counts_are_named_in_good_english():
    assert _label("markov-1", "markov-2") == "counts, 1 base back"
    assert _label("markov-2", "markov-2") == "counts, 2 bases back (the best)"
