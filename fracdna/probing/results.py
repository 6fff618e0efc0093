"""What a probe leaves behind: tables, samples and the words for the terminal."""

import contextlib
import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fracdna.probing.labelled import STATUSES, LabelledSet
from fracdna.probing.leakage import Leakage
from fracdna.probing.metrics import METRICS, Measured
from fracdna.probing.networks import BASELINE, NETWORK
from fracdna.probing.options import LINEAR
from fracdna.probing.rows import DEV, TEST, TRAIN
from fracdna_prep.files import atomic_file
from fracdna_prep.wording import counted, with_rest

# files of a probe's folder; the first says that the others are whole
WRITTEN = (
    "result.json", "table.csv", "differences.csv", "samples.parquet", "duplicates.csv",
    "dropped.csv", "metrics.png", "roc.png",
)  # fmt: skip
MAJORITY, GC_LENGTH, KMERS = "majority", "GC and length", "k-mers"
_SHOWN = 10


@dataclass(frozen=True)
class Entry:
    """One line of the table.

    Attributes:
        name: of the model.
        kind: "baseline", "untrained" or "network".
        seeds: of its fits; None: nothing was drawn.
        probabilities: (seeds, test rows, classes).
        choices: what was chosen on validation, in plain values.
        measured: its metrics on the test rows.
    """

    name: str
    kind: str
    seeds: tuple[int | None, ...]
    probabilities: np.ndarray
    choices: dict[str, Any]
    measured: Measured


class TableRow(NamedTuple):
    """One metric of one model: a bar of the picture."""

    model: str
    kind: str
    method: str
    metric: str
    value: float
    low: float
    high: float
    seed_deviation: float
    seeds: int
    ties: float
    train_rows: int
    dev_rows: int
    test_rows: int
    test_rows_repeated: int
    repeats_removed: int


class DifferenceRow(NamedTuple):
    """One metric of a network minus that of another model on the same rows."""

    model: str
    other: str
    metric: str
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Report:
    """Everything that is written of a probe.

    Attributes:
        data: the set as it was used.
        leakage: as it was found, before anything was removed.
        found: the set in which it was found.
        removed: training and dev rows that were left out for it.
        entries: baselines, untrained networks, networks.
        method: linear or finetune.
    """

    data: LabelledSet
    leakage: Leakage
    found: LabelledSet
    removed: int
    entries: Sequence[Entry]
    method: str

    def table(self) -> list[TableRow]:
        """A row for each model and metric."""
        facts = [len(self.data.where(split)) for split in (TRAIN, DEV, TEST)]
        facts += [self.leakage.counts(self.found)["test_rows_repeated"], self.removed]
        rows = []
        for entry in self.entries:
            method = LINEAR if entry.kind == BASELINE else self.method
            for metric in METRICS:
                numbers = *entry.measured.row(metric), len(entry.seeds), entry.measured.ties
                rows.append(TableRow(entry.name, entry.kind, method, metric, *numbers, *facts))
        return rows

    def differences(self) -> list[DifferenceRow]:
        """Each network against all models before it in the table, and the networks among them."""
        return [
            DifferenceRow(one.name, other.name, m, *one.measured.difference(other.measured, m))
            for number, one in enumerate(self.entries)
            if one.kind == NETWORK
            for other in self.entries[:number]
            for m in METRICS
        ]

    def write(self, output: Path) -> None:
        """All tables, the samples, and what was left out or repeats."""
        _write_csv(output / "table.csv", TableRow._fields, self.table())
        _write_csv(output / "differences.csv", DifferenceRow._fields, self.differences())
        rows = self.found.rows
        labels = [self.found.classes[label] for label in self.found.labels]
        _write_csv(
            output / "duplicates.csv",
            ("test_row", "test_label", "split", "row", "label", "kind"),
            [
                (
                    rows[p.test].place, labels[p.test], self.found.splits[p.other],
                    rows[p.other].place, labels[p.other], p.kind,
                )
                for p in self.leakage.pairs
            ],
        )  # fmt: skip
        dropped = [(r.place, r.split or "", r.label, status) for r, status in self.data.dropped]
        _write_csv(output / "dropped.csv", ("row", "split", "label", "status"), dropped)
        self._write_samples(output / "samples.parquet")

    def _write_samples(self, path: Path) -> None:
        """A row for each model, seed and test row; a row group for each model and seed."""
        test, classes = self.data.where(TEST), self.data.classes
        rows = [self.data.rows[n] for n in test]
        same = {
            "row": pa.array([row.place for row in rows], pa.string()),
            "region": pa.array([row.interval and str(row.interval) for row in rows], pa.string()),
            "label": pa.array([classes[n] for n in self.data.labels[test]], pa.string()),
        }
        writer = None
        with contextlib.ExitStack() as stack:
            temporary = stack.enter_context(atomic_file(path))
            for entry in self.entries:
                for seed, probabilities in zip(entry.seeds, entry.probabilities, strict=True):
                    predicted = [classes[n] for n in probabilities.argmax(axis=1)]
                    flat = pa.array(probabilities.ravel())
                    table = pa.table(
                        {
                            "model": pa.repeat(entry.name, len(test)),
                            "seed": pa.repeat(pa.scalar(seed, pa.int64()), len(test)),
                            **same,
                            "predicted": pa.array(predicted, pa.string()),
                            "probabilities": pa.FixedSizeListArray.from_arrays(flat, len(classes)),
                        },
                        metadata={"classes": json.dumps(classes)},
                    )
                    writer = writer or stack.enter_context(
                        pq.ParquetWriter(temporary, table.schema)
                    )
                    writer.write_table(table)

    def result(self) -> dict[str, Any]:
        """What result.json says of the set and the models."""
        return {
            "classes": list(self.data.classes),
            "rows": self.data.counts(),
            "divided_by": self.data.divided,
            "left_out": self.data.statuses(),
            "bases": self.data.bases,
            "unknown_bases": self.data.unknown_bases,
            "set_sha256": self.data.digest(),
            "leakage": self.leakage.counts(self.found),
            "repeats_removed": self.removed,
            "models": {
                entry.name: {"kind": entry.kind, "ties": entry.measured.ties, **entry.choices}
                for entry in self.entries
            },
            "table": [_plain(row) for row in self.table()],
            "differences": [_plain(row) for row in self.differences()],
        }


def _plain(row: TableRow | DifferenceRow) -> dict[str, Any]:
    """Values by column; null for what is unknown, which JSON has no number for."""
    values = row._asdict()
    unknown = [name for name, value in values.items() if isinstance(value, float) and isnan(value)]
    return values | dict.fromkeys(unknown)


def _write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table with a header."""
    with atomic_file(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)


def about_set(data: LabelledSet, found: LabelledSet, removed: int) -> list[str]:
    """What is used of a set, and every kind of row that was left out with its first rows.

    Args:
        data: as it is used.
        found: before rows were removed and drawn.
        removed: rows that were left out because a test row repeats them.
    """
    counts = data.counts()
    lines = [
        f"{counted(len(data), 'row')} of {len(data.classes)} classes "
        f"({', '.join(data.classes[:_SHOWN])}), {data.bases:,} bases, divided by {data.divided}"
    ]
    lines += [
        f"  {split:<6}{sum(of.values()):>9,}: "
        + ", ".join(f"{name} {number:,}" for name, number in list(of.items())[:_SHOWN])
        for split, of in counts.items()
        if sum(of.values())
    ]
    drawn_from = len(found) - removed
    if len(data) < drawn_from:
        lines.append(f"  of {counted(drawn_from, 'row')}: max_train= drew the training rows")
    if not sum(counts[DEV].values()):
        lines.append("  dev    none: a tenth of the training rows chooses, another for each seed")
    if data.unknown_bases:
        lines.append(f"  {data.unknown_bases:,} bases are N or another letter that is not one base")
    for status, number in data.statuses().items():
        lines.append(f"  {counted(number, 'row')} left out, {status}: {STATUSES[status]}")
        places = [row.place for row, one in data.dropped if one == status]
        lines += [f"    {line}" for line in with_rest(places[:_SHOWN], len(places))]
    return lines


def about_leakage(leakage: Leakage, found: LabelledSet, removed: int) -> list[str]:
    """Which test rows were seen in training, and what to do about it."""
    counts = leakage.counts(found)
    repeated, total = counts["test_rows_repeated"], len(found.where(TEST))
    if not repeated:
        lines = ["no test row repeats in train or dev, on either strand"]
    else:
        parts = ", ".join(
            f"{counts[f'test_rows_in_{split}_{kind}']:,} in {split} {words}"
            for split in (TRAIN, DEV)
            for kind, words in (("exact", "as they are"), ("reverse_complement", "reversed"))
        )
        remedy = f"{removed:,} rows removed" if removed else "dedup=true removes them there"
        lines = [f"{repeated:,} of {total:,} test rows repeat in train or dev ({parts}): {remedy}"]
    if counts["test_intervals_overlapping_others"]:
        lines.append(
            f"{counts['test_intervals_overlapping_others']:,} test intervals share bases with "
            "intervals of train or dev"
        )
    return lines


def terminal_table(report: Report) -> str:
    """Models and metrics side by side, and paired differences in MCC; all else is in the files."""
    width = max(len(entry.name) for entry in report.entries) + 2
    head = f"{'':<{width}}{'MCC':>24}{'AUROC':>9}{'AUPRC':>9}{'accuracy':>10}{'F1':>8}"
    lines = [head]
    for entry in report.entries:
        mcc, *others = (entry.measured.row(metric) for metric in METRICS)
        interval = f"[{mcc[1]:.3f}, {mcc[2]:.3f}]"
        numbers = f"{mcc[0]:>8.3f} {interval:<16}" + "".join(
            f"{row[0]:>{size}.3f}" for row, size in zip(others, (8, 9, 10, 8), strict=True)
        )
        notes = f"  {entry.measured.ties:,.0f} ties" if entry.measured.ties else ""
        notes += "" if entry.choices.get("converged", True) else "  a fit has not converged"
        lines.append(f"{entry.name:<{width}}{numbers}{notes}")
    lines += [
        f"{row.model} - {row.other}: MCC {row.difference:+.3f} [{row.low:+.3f}, {row.high:+.3f}]"
        for row in report.differences()
        if row.metric == "mcc" and row.other not in (MAJORITY, GC_LENGTH)
    ]
    return "\n".join(lines)
