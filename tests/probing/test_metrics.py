"""Metrics against scikit-learn, ties, resampling."""

import numpy as np
import pytest
from sklearn import metrics as reference

from fracdna.probing.metrics import METRICS, measure, weighted_metrics


def drawn(classes, rows=60, seed=0):
    """Labels and probabilities with many ties."""
    random = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), random.integers(classes, size=rows - classes)])
    scores = random.integers(1, 5, size=(rows, classes)) + 2 * np.eye(classes)[labels]
    return labels, scores / scores.sum(axis=1, keepdims=True)


def by_scikit_learn(labels, p):
    """The same numbers by the library that people compare with."""
    predicted = p.argmax(axis=1)
    if p.shape[1] == 2:
        areas = (
            reference.roc_auc_score(labels, p[:, 1]),
            reference.average_precision_score(labels, p[:, 1]),
        )
        f1 = reference.f1_score(labels, predicted)
    else:
        one = np.eye(p.shape[1])[labels]
        areas = (
            reference.roc_auc_score(labels, p, multi_class="ovr"),
            reference.average_precision_score(one, p, average="macro"),
        )
        f1 = reference.f1_score(labels, predicted, average="macro")
    mcc = reference.matthews_corrcoef(labels, predicted)
    return [mcc, *areas, reference.accuracy_score(labels, predicted), f1]


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_they_are_those_of_scikit_learn(classes):
    labels, p = drawn(classes)
    ours = weighted_metrics(labels, p, np.ones((len(labels), 1)))[:, 0]
    np.testing.assert_allclose(ours, by_scikit_learn(labels, p), rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_weight_is_a_number_of_copies(classes):
    """What resampling rests on: weights give what repeated rows give."""
    labels, p = drawn(classes)
    copies = np.random.default_rng(1).integers(0, 4, size=len(labels))
    weighted = weighted_metrics(labels, p, copies[:, None].astype(float))[:, 0]
    repeated = by_scikit_learn(np.repeat(labels, copies), np.repeat(p, copies, axis=0))
    np.testing.assert_allclose(weighted, repeated, rtol=1e-12)


def test_no_choice_at_all():
    """Equal probabilities: the lowest class is predicted, all rows are ties, areas are half."""
    labels = np.array([0, 1, 1, 1])
    measured = measure(labels, np.full((1, 4, 2), 0.5))
    assert measured.ties == 4
    assert measured.by_seed[0].tolist() == [0.0, 0.5, 0.75, 0.25, 0.0]


def test_a_class_without_rows_is_left_out_of_the_areas():
    labels, p = drawn(3)
    labels[labels == 2] = 1
    value = weighted_metrics(labels, p, np.ones((len(labels), 1)))[METRICS.index("auroc"), 0]
    expected = np.mean([reference.roc_auc_score(labels == c, p[:, c]) for c in (0, 1)])
    assert value == pytest.approx(expected, rel=1e-12)
    alone = weighted_metrics(np.ones(3, dtype=int), p[:3, :2], np.ones((3, 1)))[:, 0]
    assert np.isnan(alone[1:3]).all()


def test_intervals_of_pairs_are_narrower_than_their_parts():
    """Two models on the same rows share the resamples: what both find hard does not count."""
    labels, p = drawn(2, rows=200)
    better = 0.98 * p + 0.02 * np.eye(2)[labels]
    one, other = measure(labels, better[None]), measure(labels, p[None])
    value, low, high = one.row("auroc")[:3]
    difference, least, most = one.difference(other, "auroc")
    assert low < value < high
    assert least <= difference <= most
    # apart, the interval would be wider by the square root of 2
    assert most - least < high - low
    assert one.difference(one, "mcc") == (0.0, 0.0, 0.0)


def test_seeds_are_averaged():
    labels, p = drawn(2)
    _, q = drawn(2, seed=3)
    both = measure(labels, np.stack([p, q]))
    value, *_, deviation = both.row("accuracy")
    alone = [measure(labels, x[None]).row("accuracy")[0] for x in (p, q)]
    assert value == pytest.approx(np.mean(alone))
    assert deviation == pytest.approx(np.std(alone, ddof=1))
