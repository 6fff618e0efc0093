"""Evaluations of several calls in one table: sums of every region, kept in a small Parquet file.

Differences between networks are paired by region, so networks that were evaluated on different days
are compared as if it had been in one call, provided that they were scored on the same bases.
"""

import contextlib
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from length_study.plan import Study

from fracdna.evaluation.plan import TILING
from fracdna.evaluation.statistics import Mean, mean_nll
from fracdna.evaluation.tables import COUNT_MODEL, GainRow
from fracdna.evaluation.tally import FORWARD
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file

ALL = ("all", "all")
# what is taken from the result.json of an evaluation
TAKEN = (
    "models", "regions", "scored", "genome", "split", "best_count_model", "precision", "device",
    "torch", "batch_bases",
)  # fmt: skip
CARRIED_COLUMNS = ("span", "regions", *GainRow._fields)
SCHEMA = pa.schema({
    "model": pa.string(), "curve": pa.string(), "part": pa.string(), "group": pa.string(),
    "length": pa.int64(), "region": pa.int64(), "nll_nats": pa.float64(), "tokens": pa.int64(),
})  # fmt: skip


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
        """Nats per base less another's on the same bases, with the paired interval."""
        return mean_nll(self.nats - other.nats, self.tokens)


class Evaluations:
    """What is known of networks on the test bases.

    Args:
        folder: holds samples.parquet, carried.csv and networks.json, all of which may be missing.
        study: that the networks belong to.

    Raises:
        InputError: a file is missing or damaged beside another that is there.
    """

    def __init__(self, folder: Path, study: Study) -> None:
        self.folder, self.study = folder, study
        self.cells: dict[Key, Cell] = {}
        self.carried: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {"bases": {}, "models": {}}
        if (folder / "networks.json").exists():
            with _readable(f"{folder} holds no evaluations of a study"):
                self.facts = json.loads((folder / "networks.json").read_text())
                if not isinstance(self.facts, dict) or self.facts.keys() != {"bases", "models"}:
                    raise ValueError("networks.json lacks bases and models")
                self.cells = _read_cells(folder / "samples.parquet")
                self.carried = _read_csv(folder / "carried.csv", CARRIED_COLUMNS)

    def add(self, evaluation: Path, *, carried: bool = False, replace: bool = False) -> None:
        """Take over an output folder of `fracdna evaluate`, in place of what is known of its cells.

        Args:
            evaluation: the folder.
            carried: take the carried curve alone, of regions wider than those of the study.
            replace: forget what is known of a network of the same name with other weights.

        Raises:
            InputError: no complete evaluation, of other bases than what is known, of a network that
                the study has not, or of another one by the same name; nats that are no numbers.
        """
        result = _result(evaluation)
        with _readable(f"{evaluation} is damaged, copy it again or give its command again"):
            cells = {} if carried else _read_cells(evaluation / "samples.parquet")
            gains = _read_csv(evaluation / "gains.csv", GainRow._fields)
        width = result["regions"]["width"]
        if not carried and width != self.study.content["width"]:
            raise InputError(
                f"{evaluation} scored regions of {width:,} bases, the study has regions of "
                f"{self.study.content['width']:,}: add --carried takes its carried curve alone"
            )
        self._add_bases(evaluation, result)
        for name, model in result["models"].items():
            self._add_facts(evaluation, name, model, result, replace)
        self._add_cells(evaluation, cells, result)
        names = set(result["models"])
        self.carried = [
            row for row in self.carried if int(row["span"]) != width or row["model"] not in names
        ]
        more = {"span": width, "regions": result["regions"]["count"]}
        self.carried += [more | row for row in gains]

    def _add_bases(self, evaluation: Path, result: Mapping[str, Any]) -> None:
        """Which bases were scored; the same as before wherever there was a before."""
        about = {name: result[name] for name in ("genome", "split", "regions", "scored")}
        known = self.facts["bases"].setdefault(str(result["regions"]["width"]), about)
        there, here = _coordinates(known["scored"]), _coordinates(about["scored"])
        same = known["genome"] == about["genome"] and all(
            there.get(cell, bases) == bases for cell, bases in here.items()
        )
        if not same or known["regions"]["manifest"] != about["regions"]["manifest"]:
            raise InputError(
                f"{evaluation} scored other bases than the study: evaluate with the same prepared "
                "folder, split, lengths, regions and target"
            )
        known["scored"] += [cell for cell in about["scored"] if _place(cell) not in there]

    def _add_facts(
        self,
        evaluation: Path,
        name: str,
        model: Mapping[str, Any],
        result: Mapping[str, Any],
        replace: bool,
    ) -> None:
        """What a network is and how it was evaluated."""
        try:
            self.study.split(name)
        except InputError as error:
            raise InputError(f"{evaluation}: {error} with names=") from error
        known = self.facts["models"].get(name)
        if known and known["weights"] != model["weights"]:
            if not replace:
                raise InputError(
                    f"{name} in {evaluation} has other weights than in {self.folder}: call a run "
                    f"of another seed {name.partition('@')[0]}@SEED with names=, or give --replace "
                    f"to forget what is known of {name}"
                )
            self._forget(name)
        mine = self.facts["models"].setdefault(name, {})
        mine |= {key: value for key, value in model.items() if key != "checkpoint"}
        mine |= {key: result[key] for key in ("precision", "device", "torch", "batch_bases")}

    def _forget(self, name: str) -> None:
        """Leave out all that is known of a network."""
        del self.facts["models"][name]
        self.cells = {key: cell for key, cell in self.cells.items() if key.model != name}
        self.carried = [row for row in self.carried if row["model"] != name]

    def _add_cells(
        self, evaluation: Path, cells: Mapping[Key, Cell], result: Mapping[str, Any]
    ) -> None:
        """Cells that the study shows, which are of the same bases for all models."""
        scored = {key[1:]: cell.tokens for key, cell in self.cells.items()}
        for key, cell in cells.items():
            if not self._shows(key, result["best_count_model"]):
                continue
            if not np.array_equal(scored.setdefault(key[1:], cell.tokens), cell.tokens):
                raise InputError(
                    f"{evaluation} scored other bases as {key.part} {key.group} than the study: "
                    "give the same classes="
                )
            self.cells[key] = cell

    def _shows(self, key: Key, best_counts: str | None) -> bool:
        """Whether a cell is kept: all bases, and classes of networks and of the best counts."""
        if (key.part, key.group) == ALL:
            return True
        of_class = key.curve == TILING and key.length in self.study.content["lengths_of_classes"]
        return of_class and (key.model == best_counts or not key.model.startswith(COUNT_MODEL))

    def write(self) -> None:
        """Replace the files; the one that is read first is the last."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.folder / "samples.parquet") as path:
            _write_cells(path, self.cells)
        with atomic_file(self.folder / "carried.csv") as path, path.open("w", newline="") as file:
            writer = csv.DictWriter(file, CARRIED_COLUMNS)
            writer.writeheader()
            writer.writerows(self.carried)
        with atomic_file(self.folder / "networks.json") as path:
            path.write_text(json.dumps(self.facts, indent=1) + "\n")

    @property
    def networks(self) -> list[str]:
        """Networks that were evaluated, in the order of the study, as NETWORK or NETWORK@SEED."""
        return sorted(self.facts["models"], key=self.study.place)

    @property
    def count_models(self) -> list[str]:
        """Tables of counts by their order."""
        names = {key.model for key in self.cells if key.model.startswith(COUNT_MODEL)}
        return sorted(names, key=lambda name: int(name.removeprefix(COUNT_MODEL)))

    @property
    def best_counts(self) -> str | None:
        """The table of counts with the lowest nats at the longest length."""
        length = max(self.lengths(TILING), default=0)
        found = {name: self.cell(name, length) for name in self.count_models}
        nats = {name: cell.mean.value for name, cell in found.items() if cell}
        return min(nats, key=lambda name: nats[name], default=None)

    def lengths(self, curve: str) -> list[int]:
        """At which there are figures."""
        return sorted({key.length for key in self.cells if key.curve == curve})

    def cell(
        self, model: str, length: int, curve: str = TILING, of: tuple[str, str] = ALL
    ) -> Cell | None:
        """Of all bases, or of a class and its side; None where the model was not evaluated so."""
        return self.cells.get(Key(model, curve, *of, length))

    def difference(self, model: str, other: str, length: int) -> Mean | None:
        """Nats per base of a model less another's; None where one of them was not evaluated."""
        mine, others = self.cell(model, length), self.cell(other, length)
        return mine.minus(others) if mine and others else None

    def groups(self, length: int) -> dict[tuple[str, str], int]:
        """Classes and sides that there are figures of, with their bases."""
        return {
            (key.part, key.group): int(cell.tokens.sum())
            for key, cell in self.cells.items()
            if key.curve == TILING and key.length == length
        }


def _result(evaluation: Path) -> dict[str, Any]:
    """What an evaluation says of itself."""
    path = evaluation / "result.json"
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"{evaluation} holds no complete evaluation ({error}): name an output folder of "
            "`fracdna evaluate`"
        ) from error
    complete = isinstance(result, dict) and result.get("complete")
    if not complete or not all(name in result for name in TAKEN):
        raise InputError(
            f"{evaluation} holds no complete evaluation of regions: give its command again"
        )
    return result


@contextlib.contextmanager
def _readable(otherwise: str) -> Iterator[None]:
    """Turns what damaged files raise into a refusal."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{otherwise}: {error}") from error


def _place(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an entry of `scored` is about."""
    return cell["curve"], cell["strand"], cell["length"]


def _coordinates(scored: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], str]:
    """Hash of the scored bases by curve, strand and length."""
    return {_place(cell): cell["coordinates"] for cell in scored}


def _read_csv(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of text.

    Raises:
        OSError: no such file.
        ValueError: it lacks columns, or its end.
    """
    text = path.read_text()
    rows = csv.DictReader(text.splitlines())
    if not text.endswith("\n") or not set(columns) <= set(rows.fieldnames or ()):
        raise ValueError(f"{path.name} is not whole")
    return list(rows)


def _read_cells(path: Path) -> dict[Key, Cell]:
    """Cells of the forward strand from samples.parquet, of an evaluation or of the study.

    Raises:
        OSError: no such file.
        ValueError: no such table, or nats that are no numbers.
        KeyError: it lacks columns.
    """
    table = pq.read_table(path)
    if "strand" in table.column_names:
        table = table.filter(pc.equal(table["strand"], FORWARD))
    columns = [table[name].to_pylist() for name in Key._fields]
    nats, tokens = (table[name].to_numpy() for name in ("nll_nats", "tokens"))
    if not np.isfinite(nats).all():
        raise ValueError(f"{path.name} has nats that are no numbers")
    rows: dict[Key, list[int]] = {}
    for row, key in enumerate(map(Key, *columns)):
        rows.setdefault(key, []).append(row)
    return {key: Cell(nats[places], tokens[places]) for key, places in rows.items()}


def _write_cells(path: Path, cells: Mapping[Key, Cell]) -> None:
    """One row a region, in the order of the cells."""
    rows = [
        [*key, region, nats, tokens]
        for key, cell in cells.items()
        for region, (nats, tokens) in enumerate(zip(cell.nats, cell.tokens, strict=True))
    ]
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    pq.write_table(pa.table(arrays, SCHEMA), path, compression="zstd")
