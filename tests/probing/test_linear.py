"""Counted features, the regression and its choices."""

import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array, issparse
from sklearn.linear_model import LogisticRegression

from fracdna.probing.counted_features import gc_and_length, kmer_counts
from fracdna.probing.linear import Division, fit_path
from fracdna_prep.vocabulary import DNA


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_kmers_are_counted_within_rows_and_without_n(random_letters, k):
    """As a search through each text finds them; a row shorter than k has none."""
    texts = ["A", random_letters(50, 0), "ACGNNACGT" * 3, random_letters(7, 1), "GG"]
    counts = kmer_counts([DNA.encode(text) for text in texts], k)
    assert issparse(counts) == (k == 5)
    counts = counts.toarray() if issparse(counts) else counts
    words = ["".join(word) for word in itertools.product("ACGT", repeat=k)]
    for row, text in zip(counts, texts, strict=True):
        windows = [text[start : start + k] for start in range(len(text) - k + 1)]
        assert row.tolist() == [windows.count(word) for word in words]


def test_parts_of_a_large_set_are_counted_as_one(random_letters, monkeypatch):
    sequences = [DNA.encode(random_letters(30, seed)) for seed in range(7)]
    whole = kmer_counts(sequences, 3)
    monkeypatch.setattr("fracdna.probing.counted_features._BASES_AT_ONCE", 50)
    assert np.array_equal(kmer_counts(sequences, 3), whole)


def test_gc_is_a_share_of_known_bases():
    features = gc_and_length([DNA.encode(text) for text in ("GCNN", "ACGT", "NNN")])
    assert features.tolist() == [[1.0, 4.0], [0.5, 4.0], [0.5, 3.0]]


@pytest.fixture
def problem():
    """120 rows of 4 features, 2 of which say something of 3 classes; the last is constant."""
    random = np.random.default_rng(0)
    labels = np.arange(120) % 3
    x = random.normal(size=(120, 5))
    x[:, 0] += labels
    x[:, 1] *= 100
    x[:, 4] = 7
    return x, labels


def division(labels, seed=0, dev=()):
    return Division.drawn(labels, np.arange(80), np.array(dev, dtype=int), seed)


def test_a_seed_holds_out_another_tenth_of_the_training_rows(problem):
    """Class by class; with dev rows the tenth is left out all the same, and dev chooses."""
    _, labels = problem
    one, two, again = (division(labels, seed) for seed in (0, 1, 0))
    assert len(one.validation) == 8
    assert sorted([*one.fitted, *one.validation]) == list(range(80))
    assert np.bincount(labels[one.validation]).min() >= 2
    assert np.array_equal(one.validation, again.validation)
    assert not np.array_equal(one.validation, two.validation)
    with_dev = division(labels, 0, range(80, 100))
    assert np.array_equal(with_dev.fitted, one.fitted)
    assert with_dev.validation.tolist() == list(range(80, 100))


def test_the_penalty_is_the_one_that_the_documentation_defines(problem):
    """The gradient of mean loss + strength / 2 |w|^2 is 0 at what is predicted."""
    x, labels = problem
    parts, strength = division(labels), 0.03
    test = np.arange(80, 120)
    fit = fit_path(x, labels, parts, test, (strength,))
    mean, deviation = x[parts.fitted].mean(0), x[parts.fitted].std(0)
    z = (x - mean) / np.where(deviation > 0, deviation, 1)
    # the weights of the classes from what is predicted, up to what all classes share
    logits = np.log(fit.probabilities) - np.log(fit.probabilities).mean(1, keepdims=True)
    design = np.c_[z[test], np.ones(len(test))]
    weights, *_ = np.linalg.lstsq(design, logits, rcond=None)
    p = np.exp(np.c_[z[parts.fitted], np.ones(len(parts.fitted))] @ weights)
    p /= p.sum(1, keepdims=True)
    error = p - np.eye(3)[labels[parts.fitted]]
    gradient = z[parts.fitted].T @ error / len(parts.fitted) + strength * weights[:-1]
    assert np.abs(gradient).max() < 1e-3
    assert np.abs(strength * weights[:-1]).max() > 1e-2


def test_the_strength_with_the_least_validation_nll_is_taken(problem):
    """And the order in which strengths are given changes nothing that matters."""
    x, labels = problem
    grid = (1e-4, 1e-2, 1.0, 100.0)
    fit, back = (
        fit_path(x, labels, division(labels), np.arange(80, 120), g) for g in (grid, grid[::-1])
    )
    assert fit.best == int(np.argmin(fit.nll))
    assert fit.converged
    assert len(set(np.round(fit.nll, 6))) == len(grid)
    np.testing.assert_allclose(fit.nll, back.nll[::-1], rtol=1e-12)
    np.testing.assert_allclose(fit.probabilities, back.probabilities, rtol=1e-12)


def test_sparse_and_dense_features_give_the_same_predictions():
    """Taking the mean off changes nothing, because the intercept is free."""
    random = np.random.default_rng(0)
    x, labels = random.poisson(0.7, size=(100, 12)).astype(float), np.arange(100) % 2
    x[:, 0] += 2 * labels
    dense, sparse = (
        fit_path(form(x), labels, division(labels), np.arange(80, 100), (1e-3, 1e-1))
        for form in (np.asarray, csr_array)
    )
    assert dense.best == sparse.best
    np.testing.assert_allclose(dense.probabilities, sparse.probabilities, atol=2e-3)


def test_rows_of_the_test_change_nothing_that_is_learned(problem):
    """Neither scaling nor choice looks at them."""
    x, labels = problem
    grid = (1e-3, 1e-1, 10.0)
    fit = fit_path(x, labels, division(labels), np.arange(80, 120), grid)
    changed, others = x.copy(), labels.copy()
    changed[81:] *= 50
    others[81:] = 0
    again = fit_path(changed, others, division(labels), np.arange(80, 120), grid)
    assert np.array_equal(fit.nll, again.nll)
    assert np.array_equal(fit.probabilities[0], again.probabilities[0])


def test_two_classes_are_those_of_the_binary_regression(problem):
    x, labels = problem
    labels = (labels > 0).astype(int)
    parts = division(labels)
    fit = fit_path(x, labels, parts, np.arange(80, 120), (0.1,))
    z = (x - x[parts.fitted].mean(0)) / np.maximum(x[parts.fitted].std(0), 1e-12)
    model = LogisticRegression(C=1 / (0.1 * 72), tol=1e-8).fit(
        z[parts.fitted], labels[parts.fitted]
    )
    np.testing.assert_allclose(fit.probabilities, model.predict_proba(z[80:]), atol=1e-3)
