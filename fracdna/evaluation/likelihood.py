"""The one likelihood of the project: nats summed, tokens counted, divided once."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics import Metric

from fracdna.data.objectives import IGNORED
from fracdna_prep.vocabulary import DNA


def token_nll(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats of every target under the softmax over all rows of the head.

    Args:
        logits: (batch, length, rows) of any float dtype; the softmax runs in float32 at least.
        targets: (batch, length) int64, IGNORED where nothing is predicted.

    Returns:
        (batch, length), 0 at ignored targets.
    """
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    nll = cross_entropy(
        exact.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return nll.view_as(targets)


def base_nll(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats of every target, over all rows of the head and over the four bases alone.

    Args:
        logits: (batch, length, rows), as in token_nll.
        targets: (batch, length) int64 ids of A, C, G or T, IGNORED where nothing is predicted.

    Returns:
        (2, batch, length), 0 at ignored targets: first over all rows, then with the softmax
        renormalised over A, C, G and T.
    """
    first, last = min(DNA.bases), max(DNA.bases)
    among_bases = torch.where(targets == IGNORED, IGNORED, targets - first)
    return torch.stack(
        [token_nll(logits, targets), token_nll(logits[..., first : last + 1], among_bases)]
    )


class TokenLikelihood(Metric):
    """Token-weighted negative log-likelihood over all updates and devices.

    Two sums are kept: nll_nats (float64) and tokens (int64). Means of batch means weigh batches,
    not tokens, and differ from this by as much as architectures differ from each other.
    """

    full_state_update = False
    higher_is_better = False
    is_differentiable = False
    nll_nats: Tensor
    tokens: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("nll_nats", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Add targets (batch, length) with what was predicted for them.

        Args:
            predictions: logits (batch, length, rows), or the nats (batch, length) that token_nll
                made of them.
            targets: (batch, length) int64.
        """
        known = predictions.ndim == targets.ndim
        nll = predictions if known else token_nll(predictions, targets)
        self.nll_nats += nll.detach().double().sum()
        self.tokens += (targets != IGNORED).sum()

    def compute(self) -> Tensor:
        """Nats per counted token, float64; NaN when nothing was counted."""
        return self.nll_nats / self.tokens

    def totals(self) -> tuple[float, int]:
        """Nats and counted tokens over all devices."""
        with self.sync_context():
            return float(self.nll_nats), int(self.tokens)


def perplexity(nll_nats: float) -> float:
    """exp of the nats per token; infinite where that leaves the floats."""
    try:
        return math.exp(nll_nats)
    except OverflowError:
        return math.inf


def bits_per_base(nll_nats: float) -> float:
    """Nats per base in bits."""
    return nll_nats / math.log(2)
