"""Intervals by resampling regions, never tokens: neighbouring bases are not independent."""

import numpy as np

RESAMPLES = 1000


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
    count = len(tokens)
    drawn = np.random.default_rng(seed).multinomial(
        count, np.full(count, 1 / count), size=resamples
    )  # (resamples, regions): how often each region is drawn
    return (nats @ drawn.T) / (tokens @ drawn.T)


def interval_95(samples: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of bootstrap samples."""
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(low), float(high)
