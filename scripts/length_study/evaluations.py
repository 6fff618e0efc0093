"""Evaluations of several calls in one table: sums of every region, kept in a small Parquet file.

Differences between networks are paired by region, so networks that were evaluated on different days
are compared as if it had been in one call, provided that they were scored on the same bases.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fracdna.evaluation.statistics import Mean, mean_nll
from fracdna_prep.files import atomic_file

TILING, FIXED, FORWARD = "tiling", "fixed", "forward"
ALL = ("all", "all")
COUNT_MODEL = "markov-"


class Key(NamedTuple):
    """Which bases of which model."""

    model: str
    curve: str
    part: str
    group: str
    length: int


class Cell(NamedTuple):
    """All regions of one key, in their order."""

    nats: np.ndarray
    tokens: np.ndarray

    @property
    def mean(self) -> Mean:
        """Nats per base with its interval."""
        return mean_nll(self.nats, self.tokens)

    def minus(self, other: "Cell") -> Mean:
        """Nats per base less than another's on the same bases, with the paired interval.

        Raises:
            ValueError: they are not the same bases.
        """
        if not np.array_equal(self.tokens, other.tokens):
            raise ValueError("two networks were scored on different bases")
        return mean_nll(self.nats - other.nats, self.tokens)


class Evaluations:
    """What is known of networks on the test bases.

    Args:
        folder: holds samples.parquet, carried.csv and networks.json, all of which may be missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells: dict[Key, Cell] = {}
        self.carried: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {"bases": {}, "models": {}}
        if (folder / "networks.json").exists():
            self.facts = json.loads((folder / "networks.json").read_text())
            self.cells = _read_cells(folder / "samples.parquet")
            self.carried = _read_csv(folder / "carried.csv")

    def add(self, evaluation: Path, lengths_of_classes: Sequence[int], *, carried: bool) -> None:
        """Take over an output folder of `fracdna evaluate`, in place of what its models had.

        Args:
            evaluation: the folder.
            lengths_of_classes: classes of bases are kept at these lengths alone.
            carried: take the carried curve alone, of regions longer than those of the study.

        Raises:
            ValueError: another evaluation of this kind scored other regions, or a network of the
                same name has other weights.
        """
        result = json.loads((evaluation / "result.json").read_text())
        width = result["regions"]["width"]
        about = {name: result[name] for name in ("genome", "split", "regions", "scored")}
        known = self.facts["bases"].setdefault(str(width), about)
        if known["regions"]["manifest"] != about["regions"]["manifest"]:
            raise ValueError(f"{evaluation} scored other regions than the study")
        for name, model in result["models"].items():
            self._add_facts(evaluation, name, model, result)
        if not carried:
            cells = _read_cells(evaluation / "samples.parquet")
            self._add_cells(cells, lengths_of_classes, result["best_count_model"])
        names = set(result["models"])
        self.carried = [
            row for row in self.carried if int(row["span"]) != width or row["model"] not in names
        ]
        more = {"span": width, "regions": result["regions"]["count"]}
        self.carried += [more | row for row in _read_csv(evaluation / "gains.csv")]

    def _add_facts(
        self, evaluation: Path, name: str, model: Mapping[str, Any], result: Mapping[str, Any]
    ) -> None:
        """What a network is and how it was evaluated."""
        mine = self.facts["models"].setdefault(name, {"weights": model["weights"]})
        if mine["weights"] != model["weights"]:
            raise ValueError(f"{name} in {evaluation} has other weights than in the study")
        mine |= {key: value for key, value in model.items() if key != "checkpoint"}
        mine |= {key: result[key] for key in ("precision", "device", "torch", "batch_bases")}

    def _add_cells(
        self, cells: Mapping[Key, Cell], lengths_of_classes: Sequence[int], best: str | None
    ) -> None:
        """Cells that the study shows."""
        models = {key.model for key in cells}
        self.cells = {key: cell for key, cell in self.cells.items() if key.model not in models}
        for key, cell in cells.items():
            of_all = (key.part, key.group) == ALL
            of_class = key.curve == TILING and key.length in lengths_of_classes
            other_counts = key.model.startswith(COUNT_MODEL) and key.model != best
            if (of_all or of_class) and not (other_counts and not of_all):
                self.cells[key] = cell

    def write(self) -> None:
        """Replace the files; the one that is read first is the last."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.folder / "samples.parquet") as path:
            _write_cells(path, self.cells)
        with atomic_file(self.folder / "carried.csv") as path, path.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.carried[0] if self.carried else [])
            writer.writeheader()
            writer.writerows(self.carried)
        with atomic_file(self.folder / "networks.json") as path:
            path.write_text(json.dumps(self.facts, indent=1) + "\n")

    def networks(self, order: Iterable[str]) -> list[str]:
        """Networks that were evaluated, in an order; those that it lacks after it."""
        ranked = {name: place for place, name in enumerate(order)}
        known = {key.model for key in self.cells if not key.model.startswith(COUNT_MODEL)}
        return sorted(known, key=lambda name: (ranked.get(name, len(ranked)), name))

    @property
    def count_model(self) -> str | None:
        """The table of counts with the lowest nats at the longest length."""
        length = max(self.lengths(TILING), default=0)
        nats = {
            key.model: cell.mean.value
            for key, cell in self.cells.items()
            if key.model.startswith(COUNT_MODEL) and key[1:] == (TILING, *ALL, length)
        }
        return min(nats, key=lambda name: nats[name], default=None)

    def lengths(self, curve: str) -> list[int]:
        """At which there are figures."""
        return sorted({key.length for key in self.cells if key.curve == curve})

    def cell(self, model: str, length: int, curve: str = TILING, of: tuple[str, str] = ALL) -> Cell:
        """Of all bases, or of a class and its side."""
        return self.cells[Key(model, curve, *of, length)]


def _read_csv(path: Path) -> list[dict[str, Any]]:
    """Rows of text."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _read_cells(path: Path) -> dict[Key, Cell]:
    """Cells of the forward strand from samples.parquet, of an evaluation or of the study."""
    table = pq.read_table(path)
    if "strand" in table.column_names:
        table = table.filter(pa.compute.equal(table["strand"], FORWARD))
    columns = [table[name].to_pylist() for name in Key._fields]
    nats, tokens = (table[name].to_numpy() for name in ("nll_nats", "tokens"))
    rows: dict[Key, list[int]] = {}
    for row, key in enumerate(map(Key, *columns)):
        rows.setdefault(key, []).append(row)
    return {key: Cell(nats[places], tokens[places]) for key, places in rows.items()}


def _write_cells(path: Path, cells: Mapping[Key, Cell]) -> None:
    """One row a region, in the order of the cells."""
    repeats = [len(cell.tokens) for cell in cells.values()]
    columns: dict[str, Any] = {
        name: np.repeat([getattr(key, name) for key in cells], repeats) for name in Key._fields
    }
    columns["region"] = np.concatenate([np.arange(count) for count in repeats])
    columns["nll_nats"] = np.concatenate([cell.nats for cell in cells.values()])
    columns["tokens"] = np.concatenate([cell.tokens for cell in cells.values()])
    pq.write_table(pa.table(columns), path, compression="zstd")
