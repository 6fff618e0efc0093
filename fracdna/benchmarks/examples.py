"""What a synthetic task hands to training: sequences, and what is asked at which places."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fracdna.evaluation.likelihood import token_nll
from fracdna.model.heads import LanguageModel


class Examples(NamedTuple):
    """Sequences of one length.

    Attributes:
        ids: (n, length) int64.
        places: (n, labels) int64, positions from 0 at which something is asked.
        targets: (n, labels) int64, the answers; IGNORED where there is none.
    """

    ids: Tensor
    places: Tensor
    targets: Tensor


class ExampleSource(Protocol):
    """A synthetic task as training sees it."""

    name: str
    vocabulary_rows: int
    length: int

    def examples(self, split: str, seed: int, numbers: Tensor) -> Examples:
        """Samples by their numbers, on the device of these.

        Args:
            split: train, valid or test.
            seed: of the split.
            numbers: (n,) int64.
        """


def nll_at(model: LanguageModel, hidden: Tensor, examples: Examples) -> tuple[Tensor, Tensor]:
    """Nats of every answer; no other position meets the head.

    Args:
        model: the network.
        hidden: (n, length, d_model) of its backbone.
        examples: of n sequences.

    Returns:
        Nats (n, labels), 0 where nothing is asked, and logits (n, labels, rows) in float32.
    """
    index = examples.places[..., None].expand(-1, -1, hidden.shape[-1])
    logits = model.logits(hidden.gather(1, index)).float()
    return token_nll(logits, examples.targets), logits


def numbers_from(first: int, count: int, device: torch.device) -> Tensor:
    """(count,) int64 numbers of consecutive samples."""
    return torch.arange(first, first + count, device=device)
