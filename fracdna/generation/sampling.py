"""Drawing letters: Gumbel noise that belongs to a sequence, and the choice it makes."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Noise:
    """Standard Gumbel numbers for the sequences of a batch, position after position.

    Argmax of logits plus such noise draws from their softmax. Every sequence has a counter-based
    stream of its own, so what it draws depends neither on the others nor on the device.

    Args:
        seed: of all sequences.
        rows: (prompt, sample) of each sequence, whole numbers below 2^32.
        choices: numbers per position.
    """

    def __init__(self, seed: int, rows: Sequence[tuple[int, int]], choices: int) -> None:
        keys = (np.array([seed, prompt << 32 | sample], dtype=np.uint64) for prompt, sample in rows)
        self._streams = [np.random.Philox(key=key) for key in keys]
        self._choices = choices

    def next(self, positions: int) -> np.ndarray:
        """(positions, rows, choices) float32; the next ones at every call."""
        bits = np.stack(
            [stream.random_raw(positions * self._choices) for stream in self._streams], axis=0
        )
        # the middle of one of 2^52 equal parts, which float64 holds exactly: neither 0 nor 1
        uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        gumbel = -np.log(-np.log(uniform)).astype(np.float32)
        return gumbel.reshape(len(bits), positions, self._choices).swapaxes(0, 1)


def choose(
    logits: Tensor, noise: Tensor | None, temperature: float, top_k: int | None, top_p: float
) -> Tensor:
    """The chosen column of every row, without a host transfer.

    Args:
        logits: (rows, choices) float32.
        noise: (rows, choices) from Noise; not looked at when temperature is 0.
        temperature: see GenerationOptions, also for top_k and top_p.
        top_k: None: all.
        top_p: 1: all.

    Returns:
        (rows,) int64.
    """
    if temperature == 0 or noise is None:
        return logits.argmax(-1)
    # the greatest becomes 0 first, so that no temperature makes it infinite
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    if top_k is None and top_p == 1:
        return (logits + noise).argmax(-1)
    ranked, column = logits.sort(dim=-1, descending=True, stable=True)
    probability = ranked.softmax(-1)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    few = rank < (logits.shape[-1] if top_k is None else top_k)
    # probability is renormalised over the k; the first letter that reaches top_p still counts
    probability = torch.where(few, probability, 0.0)
    probability = probability / probability.sum(-1, keepdim=True)
    kept = few & (probability.cumsum(-1) - probability < top_p)
    scores = torch.where(kept, ranked + noise.gather(-1, column), -torch.inf)
    return column.gather(-1, scores.argmax(-1, keepdim=True))[:, 0]
