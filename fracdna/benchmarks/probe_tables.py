"""Samples of runs to the tables of a synthetic benchmark."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fracdna.benchmarks.probe_run import FINE, ModelTest, Run
from fracdna.benchmarks.sweep import Results, best_rates, group_of
from fracdna.evaluation.statistics import interval_95, mean_nll, resampled_nll

Columns = Mapping[str, np.ndarray]
NETWORK, ORACLE = "network", "oracle"


class Panel(NamedTuple):
    """What is drawn together: one variant of the task, and one part of its test."""

    variant: str
    part: str

    @property
    def title(self) -> str:
        """In words."""
        return ", ".join(word for word in self if word)


class Row(NamedTuple):
    """One line of table.csv: a run, or an oracle, at one length."""

    kind: str
    name: str
    variant: str
    part: str
    learning_rate: float | None
    seed: int | None
    chosen: bool  # the learning rate that is best on validation
    length: int
    samples: int
    accuracy: float
    accuracy_low: float | None
    accuracy_high: float | None
    nll_nats: float | None
    tied: float | None
    parameters: int | None
    state_scalars: int | None
    details: Mapping[str, float]

    @property
    def panel(self) -> Panel:
        """Where it is drawn."""
        return Panel(self.variant, self.part)


class SummaryRow(NamedTuple):
    """One line of summary.csv: the seeds of a network at its best learning rate."""

    name: str
    variant: str
    part: str
    learning_rate: float
    length: int
    seeds: int
    accuracy: float
    lowest: float
    highest: float


class DifferenceRow(NamedTuple):
    """One line of differences.csv: a network against the first one on the same samples."""

    name: str
    against: str
    variant: str
    part: str
    length: int
    samples: int
    difference: float
    low: float | None
    high: float | None


def variant_words(test: ModelTest) -> str:
    """What tells a test from the others of its benchmark."""
    return " ".join(f"{name}={value}" for name, value in test.variant.items())


def network_rows(
    results: Results,
    samples: Mapping[Run, pa.Table],
    details: Callable[[Columns], Mapping[str, float]],
) -> list[Row]:
    """Accuracies of all runs that came to an end.

    Args:
        results: of the runs.
        samples: their rows.
        details: further numbers of the rows of one length.
    """
    best = best_rates(results)
    rows = []
    for run, result in results.items():
        if result["status"] != FINE:
            continue
        shared = {
            "kind": NETWORK,
            "name": run.network,
            "variant": variant_words(run.test),
            "learning_rate": run.recipe.rate,
            "seed": run.recipe.seed,
            "chosen": best[group_of(run)] == run.recipe.rate,
            "parameters": result["parameters"],
            "state_scalars": result["state_scalars"],
        }
        for part, length, columns in _by_length(samples[run]):
            rows.append(accuracy_row(shared | {"part": part, "length": length}, columns, details))
    return rows


def accuracy_row(
    shared: Mapping[str, Any],
    columns: Columns,
    details: Callable[[Columns], Mapping[str, float]],
) -> Row:
    """A line from the samples of one length."""
    correct = columns["correct"].astype(np.float64)
    accuracy = mean_nll(correct, np.ones(len(correct)))  # a mean over samples like any other
    means = {name: float(columns[name].mean()) for name in ("nll_nats", "tied") if name in columns}
    missing = dict.fromkeys(Row._fields) | {"chosen": False}
    found = {
        "samples": len(correct),
        "accuracy": accuracy.value,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "details": details(columns),
    }
    return Row(**missing | shared | found | means)


def summary_rows(rows: Sequence[Row]) -> list[SummaryRow]:
    """Mean and range over seeds, at the best learning rate of each network."""
    seeds: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row.kind == NETWORK and row.chosen:
            key = row.name, row.variant, row.part, row.learning_rate, row.length
            seeds.setdefault(key, []).append(row.accuracy)
    return [
        SummaryRow(*key, len(found), float(np.mean(found)), min(found), max(found))
        for key, found in seeds.items()
    ]


def difference_rows(results: Results, samples: Mapping[Run, pa.Table]) -> list[DifferenceRow]:
    """Each network minus the first, sample by sample, in the mean over seeds."""
    best, cells = best_rates(results), {}
    for run, result in results.items():
        if result["status"] == FINE and best[group_of(run)] == run.recipe.rate:
            for part, length, columns in _by_length(samples[run]):
                by_network = cells.setdefault((variant_words(run.test), part, length), {})
                by_network.setdefault(run.network, []).append(columns)
    rows = []
    for (variant, part, length), by_network in cells.items():
        first, *others = by_network
        for name in others:
            difference = _mean_correct(by_network[name]) - _mean_correct(by_network[first])
            ones = np.ones(len(difference))
            several = len(difference) > 1
            ends = interval_95(resampled_nll(difference, ones)) if several else (None, None)
            mean = float(difference.mean())
            rows.append(
                DifferenceRow(name, first, variant, part, length, len(difference), mean, *ends)
            )
    return rows


def _mean_correct(seeds: Sequence[Columns]) -> np.ndarray:
    """(samples,) share of seeds that were right, in the order of the samples."""
    return np.mean([columns["correct"][columns["index"].argsort()] for columns in seeds], axis=0)


def _by_length(table: pa.Table) -> Iterator[tuple[str, int, dict[str, np.ndarray]]]:
    """Samples of one part of the test and one length."""
    columns = {name: table[name].to_numpy() for name in table.column_names}
    part = columns.get("part", np.full(table.num_rows, ""))
    for name in dict.fromkeys(part):
        of_part = part == name
        for length in np.unique(columns["length"][of_part]):
            kept = of_part & (columns["length"] == length)
            yield str(name), int(length), {key: values[kept] for key, values in columns.items()}
