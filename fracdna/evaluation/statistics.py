"""Intervals by resampling regions, never tokens: neighbouring bases are not independent."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

RESAMPLES = 1000


class Mean(NamedTuple):
    """Nats per token, and the middle 95 % where there are regions to resample."""

    value: float
    low: float | None
    high: float | None


def mean_nll(nats: np.ndarray, tokens: np.ndarray) -> Mean:
    """Nats per token with a 95 % interval by resampling the regions that hold tokens.

    One region alone says nothing about the spread and has no interval. For two models on the same
    regions, the difference of their nats gives the paired difference.

    Args:
        nats: (regions,) sums of each region.
        tokens: (regions,) counted tokens of each region, some above 0.
    """
    value = float(nats.sum() / tokens.sum())
    counted = tokens > 0
    if np.count_nonzero(counted) < 2:
        return Mean(value, None, None)
    return Mean(value, *interval_95(resampled_nll(nats[counted], tokens[counted])))


def resampled_nll(
    nats: np.ndarray, tokens: np.ndarray, *, seed: int = 0, resamples: int = RESAMPLES
) -> np.ndarray:
    """Nats per token of bootstrap samples of the regions.

    Args:
        nats: (regions,) or (models, regions), sums of each region.
        tokens: (regions,) counted tokens of each region.
        resamples: how many bootstrap samples.
        seed: of the resampling; models scored on the same regions share the samples.

    Returns:
        (resamples,) or (models, resamples).
    """
    drawn = draws(len(tokens), seed, resamples)
    return (nats @ drawn) / (tokens @ drawn)


@lru_cache(maxsize=8)
def draws(count: int, seed: int = 0, resamples: int = RESAMPLES) -> np.ndarray:
    """(regions, resamples) float64: how often each region is drawn."""
    random = np.random.default_rng(seed)
    drawn = random.multinomial(count, np.full(count, 1 / count), size=resamples)
    return np.ascontiguousarray(drawn.T, dtype=np.float64)


def interval_95(samples: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of bootstrap samples."""
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(low), float(high)
