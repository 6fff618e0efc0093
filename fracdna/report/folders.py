"""What the folders of a report hold: training runs and evaluations, also unfinished ones."""

import csv
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fracdna.report.elements import printable
from fracdna.training.curve import CurvePoint, read_curve
from fracdna_prep.errors import InputError

Row = dict[str, Any]
TRAINING = ("metrics.csv", "config.yaml")  # either is enough
EVALUATION = ("result.json", "table.csv", "regions.parquet")
TEXTS = frozenset({"model", "minus", "curve", "strand", "part", "group", "contig"})
TABLES = ("table", "positions", "gains", "differences", "streams")
NEEDED = {
    "table": ("model", "length", "bases", "nll_nats", "perplexity"),
    "positions": ("model", "context_from", "bases", "perplexity"),
    "gains": ("model", "context_from", "bases", "gain_nats"),
    "differences": ("model", "minus", "length", "nll_nats"),
    "streams": ("model", "contig", "start", "end", "bases"),
}
# of values of result.json
KINDS = {
    "config": dict, "models": dict, "regions": dict, "classes": dict, "genome": str,
    "without_gains": list,
}  # fmt: skip
# what older files, which have not these columns, are about
DEFAULTS = {"curve": "tiling", "strand": "forward", "part": "all", "group": "all"}


@dataclass(frozen=True)
class TrainingRun:
    """A folder that `fracdna train` writes.

    Attributes:
        name: in the page.
        folder: where it is.
        points: rows of its curve.
        config: its resolved configuration; empty where it is not there.
        summary: empty until the run is complete.
    """

    name: str
    folder: Path
    points: Sequence[CurvePoint]
    config: dict[str, Any]
    summary: dict[str, Any]

    @property
    def status(self) -> str:
        """Whether it has come to its end."""
        step = self.points[-1].step if self.points else 0
        if self.summary.get("complete"):
            return f"complete, {self.summary.get('steps', step):,} steps"
        planned = self.config.get("steps")
        of = "" if planned is None else f" of {planned:,}"
        return f"running or interrupted at step {step:,}{of}"

    @property
    def checkpoint(self) -> Path:
        """Its best weights."""
        return self.folder / "checkpoints" / "best.ckpt"

    def setting(self, *path: str) -> Any:
        """A value of its configuration, None where there is none."""
        value: Any = self.config
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value


@dataclass(frozen=True)
class Evaluation:
    """A folder that `fracdna evaluate` writes.

    Attributes:
        name: in the page.
        folder: where it is.
        result: content of result.json; empty until the evaluation is complete.
    """

    name: str
    folder: Path
    result: dict[str, Any]

    @property
    def status(self) -> str:
        """Whether it has come to its end."""
        if self.result.get("complete"):
            return "complete"
        return f"running or interrupted with {len(list(self.folder.glob('cells/*')))} parts done"

    @cached_property
    def tables(self) -> dict[str, list[Row]]:
        """Rows of its CSV files by their names; none of a file that is not there.

        Raises:
            InputError: a file that is no such table.
        """
        return {name: _read_table(self.folder, name, self.result) for name in TABLES}

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """Facts about its networks."""
        return self.result.get("models", {})


Opened = TrainingRun | Evaluation


def headline_strand(rows: Sequence[Row]) -> str:
    """The strand of rows of table.csv that stands for all: the same bases are on either."""
    strands = [row["strand"] for row in rows]
    return "forward" if "forward" in strands or not strands else strands[0]


def open_folders(folders: Sequence[str], names: Sequence[str] | None) -> list[Opened]:
    """Read what was named, in that order.

    Raises:
        InputError: no folder, one of neither kind, one named twice, or a file in it that cannot be
            read.
    """
    paths = [Path(folder) for folder in folders]
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path} is not a folder: name runs of `fracdna train` or `evaluate`")
    places = Counter(path.resolve() for path in paths)
    twice = [path for path in paths if places[path.resolve()] > 1]
    if twice:
        raise InputError(f"{twice[0]} is named twice: name every folder once")
    if names and (len(names) != len(paths) or len(set(names)) != len(names)):
        raise InputError(
            f"names={','.join(names)} must be {len(paths)} different names, one for each folder"
        )
    chosen = names or distinct_names(paths)
    return [_open(path, printable(name)) for path, name in zip(paths, chosen, strict=True)]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Names of folders, each with as many folders above it as tell it from the others."""
    parts = [path.resolve().parts for path in paths]
    names = [own[-1] for own in parts]
    for depth in range(2, max(map(len, parts), default=0) + 1):
        counts = Counter(names)
        names = [
            "/".join(own[-depth:]) if counts[name] > 1 else name
            for own, name in zip(parts, names, strict=True)
        ]
    return names


def _open(path: Path, name: str) -> Opened:
    """One folder, of the kind that its files tell."""
    if any((path / file).is_file() for file in EVALUATION):
        return Evaluation(name, path, _read_result(path / "result.json"))
    if any((path / file).is_file() for file in TRAINING):
        return TrainingRun(
            name, path, _read_points(path / "metrics.csv"), _read_config(path / "config.yaml"),
            _read_json(path / "summary.json"),
        )  # fmt: skip
    raise InputError(
        f"{path} is neither a training run (it has no {' or '.join(TRAINING)}) nor an evaluation "
        f"(no {', '.join(EVALUATION)}): name folders written by `fracdna train` or "
        "`fracdna evaluate`"
    )


def _read_points(path: Path) -> list[CurvePoint]:
    """Rows of a training curve, none where no step was made yet."""
    if not path.is_file():
        return []
    try:
        return read_curve(path)
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is not a training curve of fracdna: {error}") from error


def _read_config(path: Path) -> dict[str, Any]:
    """The configuration of a run."""
    if not path.is_file():
        return {}
    try:
        config = OmegaConf.to_container(OmegaConf.load(path))
    except (OmegaConfBaseException, YAMLError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a configuration in YAML: {error}") from error
    return config if isinstance(config, dict) else {}


def _read_json(path: Path) -> dict[str, Any]:
    """A mapping, empty where the file is not written yet."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is damaged, not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} does not hold a mapping: it was not written by fracdna")
    return content


def _read_result(path: Path) -> dict[str, Any]:
    """What an evaluation kept; values of other kinds than those that it writes are refused."""
    result = _read_json(path)
    for name, kind in KINDS.items():
        if not isinstance(result.get(name, kind()), kind):
            raise InputError(f"{path}: the value of {name!r} is damaged; evaluate again")
    for group in ("models", "classes"):
        facts = result.get(group, {})
        facts = facts.get("files", {}) if group == "classes" else facts
        if not isinstance(facts, dict) or not all(isinstance(x, dict) for x in facts.values()):
            raise InputError(f"{path}: the value of {group!r} is damaged; evaluate again")
    return result


def _read_table(folder: Path, name: str, result: dict[str, Any]) -> list[Row]:
    """Rows of one CSV file of an evaluation, in the columns of today."""
    path = folder / f"{name}.csv"
    if path.is_file():
        try:
            with path.open(newline="") as file:
                rows = [_parsed(row) for row in csv.DictReader(file)]
        except (ValueError, TypeError, csv.Error) as error:
            raise InputError(f"{path} cannot be read as a table: {error}") from error
    else:
        # earlier versions kept differences there alone
        rows = result.get(name, []) if name == "differences" else []
    for line, row in enumerate(rows, start=2):
        missing = [key for key in NEEDED[name] if row.get(key) is None]
        if missing:
            raise InputError(
                f"{path}, line {line}: no finite value of {', '.join(missing)}; evaluate again"
            )
    return [DEFAULTS | _renamed(row, name) for row in rows]


def _renamed(row: Row, table: str) -> Row:
    """A row of an earlier version, which kept the chromosome in a column of its own."""
    if table != "table" or "contig" not in row:
        return row
    contig = row["contig"]
    rest = {key: value for key, value in row.items() if key != "contig"}
    return rest | {"part": "all" if contig == "all" else "chromosome", "group": contig}


def _parsed(row: dict[str, str]) -> Row:
    """Cells as texts or numbers, None where they are empty."""
    return {key: printable(text) if key in TEXTS else _number(text) for key, text in row.items()}


def _number(text: str) -> int | float | None:
    """A cell of numbers; None where there is no finite one."""
    if text == "":
        return None
    try:
        return int(text)
    except ValueError:
        value = float(text)
        return value if math.isfinite(value) else None
