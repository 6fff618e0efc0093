"""Everything that is compared on one set: baselines, untrained networks, networks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fracdna.probing.counted_features import gc_and_length, kmer_counts
from fracdna.probing.job import Job
from fracdna.probing.kept import Kept
from fracdna.probing.linear import Fit
from fracdna.probing.metrics import measure
from fracdna.probing.networks import BASELINE, NETWORK, UNTRAINED, compute_vectors
from fracdna.probing.options import FINETUNE, LINEAR
from fracdna.probing.regressions import Features, fit_all
from fracdna.probing.results import GC_LENGTH, KMERS, MAJORITY, Entry
from fracdna.probing.rows import TEST, TRAIN


def compare(job: Job) -> list[Entry]:
    """Lines of the table: what needs no network, then untrained networks, then the trained."""
    features: dict[str, Features] = {}
    facts: dict[str, dict[str, Any]] = {}
    if job.options.method == LINEAR:
        for network in job.networks:
            values, about, seconds = compute_vectors(
                network, job.data, job.options.embedding, job.device, job.output / "vectors",
                progress=job.progress,
            )  # fmt: skip
            features[network.name] = Features(values, about)
            facts[network.name] = {"seconds_of_vectors": seconds}
    if job.options.baselines:
        features |= _counted(job)
    fits = fit_all(
        features, job.data, seeds=job.options.seeds, strengths=job.options.l2,
        kept=Kept(job.output / "fits"), jobs=job.jobs, progress=job.progress,
    )  # fmt: skip
    found = {
        name: (_probabilities(fits[name]), _choices(job, fits[name]) | about)
        for name, about in facts.items()
    }
    if job.options.method == FINETUNE:
        # Lightning takes seconds to load, which a linear probe need not wait for
        from fracdna.probing.finetune import fine_tune

        found = fine_tune(job)
    entries = _baselines(job, fits) if job.options.baselines else []
    for kind in (UNTRAINED, NETWORK):
        for network in job.networks:
            if network.kind == kind:
                entries.append(_entry(job, network.name, kind, *found[network.name]))
    return entries


def _counted(job: Job) -> dict[str, Features]:
    """Features that need no network."""
    sequences = job.data.sequences
    found = {GC_LENGTH: Features(gc_and_length(sequences), {"counted": GC_LENGTH})}
    for k in range(1, job.options.max_k + 1):
        found[_kmers(k)] = Features(kmer_counts(sequences, k), {"counted": _kmers(k)})
    return found


def _kmers(k: int) -> str:
    """The name of the counts of one length."""
    return f"{k}-mers"


def _baselines(job: Job, fits: dict[str, list[Fit]]) -> list[Entry]:
    """Majority, GC and length, and each seed's best k."""
    best, ks = [], []
    by_k = {k: fits[_kmers(k)] for k in range(1, job.options.max_k + 1)}
    for seed in range(len(job.options.seeds)):
        # of equal ones the shortest
        k = min(by_k, key=lambda k: by_k[k][seed].nll.min())
        ks.append(k)
        best.append(by_k[k][seed])
    validation = {str(k): [float(fit.nll.min()) for fit in found] for k, found in by_k.items()}
    choices = {"k": ks, "validation_nll_by_k": validation}
    plain = fits[GC_LENGTH]
    return [
        _majority(job),
        _entry(job, GC_LENGTH, BASELINE, _probabilities(plain), _choices(job, plain)),
        _entry(job, KMERS, BASELINE, _probabilities(best), _choices(job, best) | choices),
    ]


def _majority(job: Job) -> Entry:
    """Every row gets the shares that the classes have in training."""
    data = job.data
    members = np.bincount(data.labels[data.where(TRAIN)], minlength=len(data.classes))
    shape = 1, len(data.where(TEST)), len(members)
    probabilities = np.broadcast_to(members / members.sum(), shape)
    return _entry(job, MAJORITY, BASELINE, probabilities, {}, (None,))


def _entry(
    job: Job,
    name: str,
    kind: str,
    probabilities: np.ndarray,
    choices: dict[str, Any],
    seeds: tuple[int | None, ...] | None = None,
) -> Entry:
    """The line of one model with its metrics; without `seeds` they are those of the job."""
    measured = measure(job.data.labels[job.data.where(TEST)], probabilities)
    return Entry(name, kind, seeds or job.options.seeds, probabilities, choices, measured)


def _probabilities(fits: Sequence[Fit]) -> np.ndarray:
    """(seeds, test rows, classes)."""
    return np.stack([fit.probabilities for fit in fits])


def _choices(job: Job, fits: Sequence[Fit]) -> dict[str, Any]:
    """What validation chose for each seed."""
    strengths = job.options.l2
    ends = min(strengths), max(strengths)
    l2 = [strengths[fit.best] for fit in fits]
    return {
        "l2": l2,
        "l2_at_the_end_of_its_range": sum(value in ends for value in l2),
        "validation_nll": [fit.nll.tolist() for fit in fits],
        "converged": all(fit.converged for fit in fits),
    }
