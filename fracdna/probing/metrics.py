"""How good predicted probabilities are, with intervals by resampling test rows."""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from fracdna.evaluation.statistics import draws, interval_95

METRICS = ("mcc", "auroc", "auprc", "accuracy", "f1")
_RESAMPLES_AT_ONCE = 64


class Measured(NamedTuple):
    """Metrics of one model: the mean of its seeds.

    Attributes:
        by_seed: (seeds, metrics).
        resampled: (metrics, resamples), the mean of the seeds in every sample of the test rows;
            two models on the same rows share the samples.
        ties: rows whose highest probability several classes have, the mean of the seeds.
    """

    by_seed: np.ndarray
    resampled: np.ndarray
    ties: float

    def row(self, metric: str) -> tuple[float, float, float, float]:
        """Value, bounds of the 95 % interval, and standard deviation over the seeds."""
        number = METRICS.index(metric)
        values = self.by_seed[:, number]
        spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        return float(values.mean()), *_interval(self.resampled[number]), spread

    def difference(self, other: "Measured", metric: str) -> tuple[float, float, float]:
        """This model minus another one on the same rows, and the bounds of its 95 % interval."""
        number = METRICS.index(metric)
        value = self.by_seed[:, number].mean() - other.by_seed[:, number].mean()
        return float(value), *_interval(self.resampled[number] - other.resampled[number])


def measure(labels: np.ndarray, probabilities: np.ndarray) -> Measured:
    """All metrics of one model.

    Args:
        labels: (rows,) classes.
        probabilities: (seeds, rows, classes).
    """
    weights = draws(len(labels))
    exact = np.ones((len(labels), 1))
    by_seed = np.stack([weighted_metrics(labels, p, exact)[:, 0] for p in probabilities])
    resampled = np.mean([weighted_metrics(labels, p, weights) for p in probabilities], axis=0)
    highest = probabilities.max(axis=2, keepdims=True)
    ties = np.sum((probabilities == highest).sum(axis=2) > 1, axis=1)
    return Measured(by_seed, resampled, float(ties.mean()))


def weighted_metrics(
    labels: np.ndarray, probabilities: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """The metrics of one prediction, once for each set of weights of the rows.

    MCC is that of several classes (R_K), 0 where it is undefined. Of two classes, AUROC, AUPRC and
    F1 are of the second one; of more, the mean over the classes, each against the rest. AUROC
    counts a tie as half, AUPRC is average precision with tied rows taken together. Where several
    classes have the highest probability, the lowest of them is what is predicted.

    Args:
        labels: (rows,) classes.
        probabilities: (rows, classes).
        weights: (rows, sets) how often each row counts.

    Returns:
        (metrics, sets) float64; NaN for areas without rows of the class, or of any other.
    """
    classes = probabilities.shape[1]
    one_against_rest = range(1, 2) if classes == 2 else range(classes)
    confusion = _confusion(labels, probabilities.argmax(axis=1), weights, classes)
    with np.errstate(invalid="ignore", divide="ignore"):
        areas = [_areas(labels == c, probabilities[:, c], weights) for c in one_against_rest]
        f1 = [_f1(confusion, c) for c in one_against_rest]
    # a class that a sample lacks says nothing about the others
    auroc, auprc = (_mean_of_known(np.stack(found)) for found in zip(*areas, strict=True))
    accuracy = np.trace(confusion) / confusion.sum(axis=(0, 1))
    return np.stack([_mcc(confusion), auroc, auprc, accuracy, np.mean(f1, axis=0)])


def _confusion(
    labels: np.ndarray, predicted: np.ndarray, weights: np.ndarray, classes: int
) -> np.ndarray:
    """(classes, classes, sets): weights by true and predicted class."""
    rows = np.arange(len(labels))
    cells = csr_array(
        (np.ones(len(rows)), (labels * classes + predicted, rows)),
        shape=(classes * classes, len(rows)),
    )
    return (cells @ weights).reshape(classes, classes, -1)


def _mcc(confusion: np.ndarray) -> np.ndarray:
    """Gorodkin 2004, Comparing two K-category assignments by a K-category correlation."""
    true, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    total = true.sum(axis=0)
    covariance = np.trace(confusion) * total - (true * predicted).sum(axis=0)
    spread = (total**2 - (true**2).sum(axis=0)) * (total**2 - (predicted**2).sum(axis=0))
    return np.divide(covariance, np.sqrt(spread), out=np.zeros_like(total), where=spread > 0)


def _f1(confusion: np.ndarray, number: int) -> np.ndarray:
    """Harmonic mean of precision and recall of one class; 0 where nothing is of it or called it."""
    both = confusion[number].sum(axis=0) + confusion[:, number].sum(axis=0)
    found = 2 * confusion[number, number]
    return np.divide(found, both, out=np.zeros_like(both), where=both > 0)


def _areas(
    positive: np.ndarray, scores: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """AUROC and AUPRC of one class against the rest, each (sets,)."""
    order = np.argsort(-scores, kind="stable")
    # the last row of each run of equal scores
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    positive = positive[order, None]
    auroc, auprc = np.empty((2, weights.shape[1]))
    for first in range(0, weights.shape[1], _RESAMPLES_AT_ONCE):
        part = slice(first, first + _RESAMPLES_AT_ONCE)
        called = weights[order, part].cumsum(axis=0)[ends]
        true = (weights[order, part] * positive).cumsum(axis=0)[ends]
        more_true = np.diff(true, axis=0, prepend=0)
        more_false = np.diff(called - true, axis=0, prepend=0)
        positives, negatives = true[-1], called[-1] - true[-1]
        half = true - more_true / 2
        auroc[part] = (more_false * half).sum(axis=0) / (positives * negatives)
        precision = np.divide(true, called, out=np.zeros_like(true), where=called > 0)
        auprc[part] = (more_true * precision).sum(axis=0) / positives
        auprc[part][negatives == 0] = np.nan
    return auroc, auprc


def _mean_of_known(values: np.ndarray) -> np.ndarray:
    """Means over the first axis of what is not NaN; NaN where nothing is known."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)


def _interval(samples: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the samples in which the metric is known."""
    known = samples[~np.isnan(samples)]
    return interval_95(known) if len(known) else (np.nan, np.nan)
