"""Logistic regression on frozen features; strength of its penalty chosen inside training data.

Nothing here needs PyTorch: processes that fit start quickly.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from fracdna.probing.labelled import draw

VALIDATION_SHARE = 0.1
_MOST_ITERATIONS = 2000


@dataclass(frozen=True)
class Division:
    """Which rows a seed fits, and which choose between its fits.

    Attributes:
        fitted: positions of training rows.
        validation: positions of rows that none of the fits has seen.
    """

    fitted: np.ndarray
    validation: np.ndarray

    @classmethod
    def drawn(cls, labels: np.ndarray, train: np.ndarray, dev: np.ndarray, seed: int) -> "Division":
        """Nine tenths of the training rows, class by class; the others validate, or the dev rows.

        The seed draws the tenth that is not fitted, whether or not there are dev rows: that is all
        it changes.

        Args:
            labels: (rows,) classes of all rows, each class at least twice in training.
            train: positions of training rows.
            dev: positions of the set's own rows to choose with; may be none.
            seed: of the draw.
        """
        count = max(round(VALIDATION_SHARE * len(train)), 1)
        held = train[draw(labels[train], count, np.random.default_rng(seed))]
        fitted = np.setdiff1d(train, held)
        return cls(fitted, dev if len(dev) else held)


@dataclass(frozen=True)
class Fit:
    """The best of the fits of one seed.

    Attributes:
        probabilities: (test rows, classes) float64.
        nll: (strengths,) nats per validation row.
        best: position of the strength with the least; of equal ones the strongest.
        converged: whether every fit ended before its last iteration.
    """

    probabilities: np.ndarray
    nll: np.ndarray
    best: int
    converged: bool


def fit_path(
    features: np.ndarray | csr_array,
    labels: np.ndarray,
    division: Division,
    test: np.ndarray,
    strengths: tuple[float, ...],
) -> Fit:
    """Fit every strength on the same rows and keep what the best of them says of the test rows.

    The least of: mean over rows of -log p(class) + strength / 2 times the sum of squared weights
    of standardised features; the intercepts are free. Features are divided by their standard
    deviation over the fitted rows, and their mean is taken off where they are dense: with a free
    intercept that moves no prediction.

    Args:
        features: (rows, features) of all rows.
        labels: (rows,) classes 0, 1, ...
        division: rows to fit and to validate.
        test: positions of test rows.
        strengths: of the penalty.
    """
    scale = StandardScaler(with_mean=not issparse(features))
    x = scale.fit_transform(features[division.fitted].astype(np.float64))
    y, classes = labels[division.fitted], np.arange(labels.max() + 1)
    validation = scale.transform(features[division.validation].astype(np.float64))
    tested = scale.transform(features[test].astype(np.float64))
    order = np.argsort(strengths)[::-1]  # from stiff to free: each fit begins where the last ended
    model = LogisticRegression(max_iter=_MOST_ITERATIONS, warm_start=True)
    nll, best, converged = np.empty(len(strengths)), None, True
    for number in order:
        model.C = 1.0 / (strengths[number] * len(y))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(x, y)
        converged &= bool(np.all(model.n_iter_ < _MOST_ITERATIONS))
        nll[number] = log_loss(
            labels[division.validation], model.predict_proba(validation), labels=classes
        )
        if best is None or nll[number] < nll[best]:
            best, probabilities = int(number), model.predict_proba(tested)
    return Fit(probabilities, nll, best, converged)
