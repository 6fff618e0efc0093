"""All regressions of a probe, several at once, each kept when it is finished."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import joblib
import numpy as np
import sklearn
from scipy.sparse import csr_array

from fracdna.probing.kept import Kept
from fracdna.probing.labelled import LabelledSet
from fracdna.probing.linear import Division, Fit, fit_path
from fracdna.probing.rows import DEV, TEST, TRAIN
from fracdna_prep.progress import progress_bar


class Features(NamedTuple):
    """What a regression reads of all rows, and what that depends on, in plain values."""

    values: np.ndarray | csr_array
    about: dict[str, Any]


class _Task(NamedTuple):
    """One regression to be fitted."""

    name: str
    seed: int
    about: dict[str, Any]


def fit_all(
    features: Mapping[str, Features],
    data: LabelledSet,
    *,
    seeds: Sequence[int],
    strengths: tuple[float, ...],
    kept: Kept,
    jobs: int | None,
    progress: bool,
) -> dict[str, list[Fit]]:
    """The best regression of every seed on all kinds of features.

    Args:
        features: by name.
        data: the set; rows of features are its rows.
        seeds: of the divisions.
        strengths: of the penalty.
        kept: finished fits.
        jobs: fits at the same time; None: one on each core.
        progress: show fits done.

    Returns:
        Fits by name, in the order of the seeds.
    """
    digest, found, missing = data.digest(), {}, []
    for name, (_, about) in features.items():
        for seed in seeds:
            full = {
                "regression": about, "labels": digest, "seed": seed, "l2": list(strengths),
                "sklearn": sklearn.__version__,
            }  # fmt: skip
            content = kept.read(full)
            if content is None:
                missing.append(_Task(name, seed, full))
            else:
                found[name, seed] = _fit(content)
    with progress_bar(len(missing), "regressions", progress, unit="fit") as bar:
        for task, fit in _fitted(missing, features, data, strengths, jobs or joblib.cpu_count()):
            kept.write(task.about, vars(fit))
            found[task.name, task.seed] = fit
            bar.update()
    return {name: [found[name, seed] for seed in seeds] for name in features}


def _fitted(
    tasks: Sequence[_Task],
    features: Mapping[str, Features],
    data: LabelledSet,
    strengths: tuple[float, ...],
    jobs: int,
) -> Iterator[tuple[_Task, Fit]]:
    """Tasks as they are finished."""
    train, dev, test = (data.where(split) for split in (TRAIN, DEV, TEST))

    calls = (
        joblib.delayed(_fit_numbered)(
            number,
            features[task.name].values,
            data.labels,
            Division.drawn(data.labels, train, dev, task.seed),
            test,
            strengths,
        )
        for number, task in enumerate(tasks)
    )
    # processes share cores: each computes with as many threads as are left for it
    run = joblib.Parallel(n_jobs=min(jobs, max(len(tasks), 1)), return_as="generator_unordered")
    for number, fit in run(calls):
        yield tasks[number], fit


def _fit_numbered(
    number: int,
    values: np.ndarray | csr_array,
    labels: np.ndarray,
    division: Division,
    test: np.ndarray,
    strengths: tuple[float, ...],
) -> tuple[int, Fit]:
    """A fit and which one it is: the order in which they end is not that of the tasks."""
    return number, fit_path(values, labels, division, test, strengths)


def _fit(content: Mapping[str, np.ndarray]) -> Fit:
    """A fit as it was kept."""
    return Fit(
        content["probabilities"], content["nll"], int(content["best"]), bool(content["converged"])
    )
