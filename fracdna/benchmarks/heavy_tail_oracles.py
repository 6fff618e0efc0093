"""What ideal memories of simple kinds reach in the heavy-tailed probe, on the streams of the test.

Each knows every event and weighs it by its lag; what differs is the weights.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from fracdna.benchmarks.heavy_tail import HeavyTail, sums_at

COUNTER, CUT, FITTED, BEST, BANK = (
    "counter", "exact, cut at training length", "one exponential, fitted at training length",
    "one exponential, best at each length", "16 exponentials, fitted on training lags",
)  # fmt: skip
ORACLES = (COUNTER, CUT, FITTED, BEST, BANK)
BANK_MODES, BANK_SLOWEST = 16, 131_072.0
SLOWEST, SCALES = 1e7, 400  # of the time scales that are tried


def oracle_kernels(task: HeavyTail, lengths: Sequence[int]) -> dict[str, Tensor]:
    """Weights of the lags 1, 2, ... up to the longest length, float64.

    Args:
        task: exponent and training length.
        lengths: at which scores are compared.

    Returns:
        (lengths, longest) by name: those of the memory to be used at each length.
    """
    longest = max(lengths)
    exact = task.kernel(longest)
    cut = exact.clone()
    cut[task.length :] = 0.0
    best = torch.stack([_exponential(longest, _best_scale(exact[:t])) for t in lengths])
    everywhere = {
        COUNTER: torch.ones_like(exact),
        CUT: cut,
        FITTED: _exponential(longest, _best_scale(task.kernel(task.length))),
        BANK: _fitted_bank(task, longest),
    }
    kernels = {name: kernel.expand(len(lengths), -1) for name, kernel in everywhere.items()}
    return {name: (kernels | {BEST: best})[name] for name in ORACLES}


def oracle_scores(
    signs: Tensor, kernels: Mapping[str, Tensor], lengths: Sequence[int]
) -> dict[str, Tensor]:
    """Each oracle's score of streams: (n, stream) events to (n, lengths) by name."""
    span = signs.shape[1]
    found = [
        sums_at(signs, torch.stack([k[i, :span] for k in kernels.values()]).to(signs.device), [t])
        for i, t in enumerate(lengths)
    ]
    scores = torch.cat(found, dim=1)
    return {name: scores[..., number] for number, name in enumerate(kernels)}


def accuracy_limit(weights: Tensor, exact: Tensor) -> float:
    """Accuracy of an estimator for many events: 1/2 + asin(rho)/pi, rho the cosine of its weights.

    Args:
        weights: (lags,) of the estimator.
        exact: (lags,) true ones.
    """
    cosine = torch.nn.functional.cosine_similarity(weights, exact, dim=0)
    return 0.5 + math.asin(min(float(cosine), 1.0)) / math.pi


def _best_scale(exact: Tensor) -> float:
    """The time scale whose exponential has the largest cosine with the exact weights."""
    scales = torch.logspace(0, math.log10(SLOWEST), SCALES, dtype=torch.float64).tolist()
    return max(scales, key=lambda scale: accuracy_limit(_exponential(len(exact), scale), exact))


def _exponential(length: int, scale: float) -> Tensor:
    """(length,) float64: exp(-lag / scale)."""
    return torch.exp(-torch.arange(1, length + 1, dtype=torch.float64) / scale)


def _fitted_bank(task: HeavyTail, longest: int) -> Tensor:
    """Geometric time scales whose coefficients, none negative, fit the lags of training.

    Free coefficients fit those lags better and are far off beyond them.
    """
    scales = np.geomspace(1.0, BANK_SLOWEST, BANK_MODES)
    lags = np.arange(1, longest + 1)
    coefficients, _ = nnls(
        np.exp(-lags[: task.length, None] / scales), task.kernel(task.length).numpy()
    )
    total = torch.zeros(longest, dtype=torch.float64)
    for scale, coefficient in zip(scales, coefficients, strict=True):
        if coefficient > 0:
            total += coefficient * _exponential(longest, scale)
    return total
