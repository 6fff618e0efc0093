"""What probes of several sets came to: joined tables, the tables of the page, and pictures."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_benchmark.report import Row, render

from fracdna.pictures import draw_points
from fracdna.probing.results import MAJORITY, DifferenceRow, TableRow
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file

TABLE, DIFFERENCES, SETS = "table.csv", "differences.csv", "sets.json"
# options that say where files lie, which is another place on every machine
_PLACES = ("checkpoint", "dataset", "genome", "output")
_WORDS = {"mcc": "MCC", "auroc": "AUROC", "accuracy": "accuracy"}


class Results:
    """Results by set, in files that grow set by set.

    Args:
        folder: of table.csv, differences.csv and sets.json.

    Raises:
        InputError: a file there that holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sets: dict[str, Any] = {}
        self.table: list[Row] = []
        self.differences: list[Row] = []
        if (folder / SETS).exists():
            try:
                self.sets = json.loads((folder / SETS).read_text())
                self.table = _read_csv(folder / TABLE)
                self.differences = _read_csv(folder / DIFFERENCES)
            except (OSError, ValueError, KeyError) as error:
                raise InputError(f"{folder} holds no results of probes: {error}") from error

    def add(self, probe: Path, about: dict[str, Any]) -> None:
        """Take over the folder of a finished probe; what is known of its set gives way.

        Args:
            probe: of `fracdna probe`, called by its set.
            about: facts of the set and of the machine.

        Raises:
            InputError: a folder without a finished probe.
        """
        name, path = probe.name, probe / "result.json"
        try:
            result = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: no finished probe; `run` writes one: {error}") from error
        self.table = [row for row in self.table if row["set"] != name]
        self.differences = [row for row in self.differences if row["set"] != name]
        self.table += [{"set": name} | row for row in result["table"]]
        self.differences += [{"set": name} | row for row in result["differences"]]
        kept = (
            "classes", "rows", "bases", "leakage", "repeats_removed", "training_rows_found",
            "left_out", "models", "versions", "set_sha256", "seconds",
        )  # fmt: skip
        self.sets[name] = {key: result[key] for key in kept} | about
        options = result["config"].items()
        self.sets[name]["options"] = {k: v for k, v in options if k not in _PLACES}
        self.sets[name]["networks"] = {
            network: {key: facts[key] for key in ("model_hash", "device", "version")}
            for network, facts in result["networks"].items()
        }

    def write(self) -> None:
        """All three files, the last of them the mark that the others are whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _write_csv(self.folder / TABLE, ("set", *TableRow._fields), self.table)
        _write_csv(self.folder / DIFFERENCES, ("set", *DifferenceRow._fields), self.differences)
        with atomic_file(self.folder / SETS) as temporary:
            temporary.write_text(json.dumps(self.sets, indent=1) + "\n")

    def models(self) -> list[str]:
        """Names in the order in which sets have them."""
        return list(dict.fromkeys(row["model"] for row in self.table))

    def tables(self) -> dict[str, str]:
        """Every table by its name in the page."""
        return {
            "sets": render([self._set_row(name) for name in self.sets]),
            **{metric: render(self._by_set(metric)) for metric in _WORDS},
            "differences": render(self._paired()) if self.differences else "No network yet.",
            "choices": render([self._choices(name) for name in self.sets]),
            "machine": render(self._machines()),
        }

    def draw(self) -> list[Path]:
        """A picture for each metric that has a table: sets side by side."""
        paths = []
        for metric, words in _WORDS.items():
            points: dict[str, dict[str, tuple[float, float, float]]] = {}
            for row in self.table:
                if row["metric"] == metric:
                    numbers = float(row["value"]), float(row["low"]), float(row["high"])
                    points.setdefault(row["model"], {})[row["set"]] = numbers
            paths.append(self.folder / f"{metric}.png")
            draw_points(
                paths[-1],
                points,
                xlabel=f"{words} of test rows, 95 % intervals by resampling them",
                title="Linear probes of frozen vectors beside counts of k-mers",
            )
        return paths

    def _set_row(self, name: str) -> Row:
        """What a set holds and what repeats in it."""
        facts = self.sets[name]
        rows, leakage = facts["rows"], facts["leakage"]
        total = {split: sum(of.values()) for split, of in rows.items()}
        return {
            "set": name,
            "classes": ", ".join(facts["classes"]),
            "train used": total["train"],
            "of": facts["training_rows_found"],
            "dev": total["dev"] or "a tenth of train",
            "test": total["test"],
            "mean length": round(facts["bases"] / sum(total.values())),
            "test rows that repeat in train or dev": leakage["test_rows_repeated"],
            "training rows removed for that": facts["repeats_removed"],
            "test intervals that overlap others": leakage["test_intervals_overlapping_others"],
            **{
                f"{split} rows read in pretraining": f"{of['seen']:,} of {of['rows']:,}"
                for split, of in (facts.get("seen") or {}).items()
                if split != "dev"
            },
        }

    def _by_set(self, metric: str) -> list[Row]:
        """Models beside each other: value and interval."""
        rows = []
        for name in self.sets:
            row: Row = {"set": name}
            for one in self.table:
                if (one["set"], one["metric"]) == (name, metric):
                    row[one["model"]] = _told(one, "value")
            rows.append(row)
        return rows

    def _paired(self) -> list[Row]:
        """Differences in MCC of the same test rows."""
        rows = []
        for name in self.sets:
            row: Row = {"set": name}
            for one in self.differences:
                if (one["set"], one["metric"]) == (name, "mcc") and one["other"] != MAJORITY:
                    row[f"{one['model']} - {one['other']}"] = _told(one, "difference")
            rows.append(row)
        return rows

    def _choices(self, name: str) -> Row:
        """What validation chose: k, and the strength of the penalty for each seed."""
        row: Row = {"set": name}
        for model, facts in self.sets[name]["models"].items():
            if "l2" in facts:
                told = ", ".join(f"{value:g}" for value in facts["l2"])
                k = f"k {', '.join(map(str, facts['k']))}; " if "k" in facts else ""
                row[model] = f"{k}L2 {told}"
        return row

    def _machines(self) -> list[Row]:
        """Where and with what the numbers were computed."""
        rows = []
        for name, facts in self.sets.items():
            devices = dict.fromkeys(one["device"] for one in facts["networks"].values())
            rows.append(
                {
                    "set": name,
                    "networks on": ", ".join(devices) or "no network",
                    "host": facts["host"],
                    "torch": facts["versions"]["torch"],
                    "scikit-learn": facts["versions"]["scikit-learn"],
                    "commit": facts["commit"],
                    "seconds": f"{facts['seconds']:,.0f}",
                }
            )
        return rows


def _told(row: Row, name: str) -> str:
    """A number with its interval."""
    value, low, high = (float(row[key]) for key in (name, "low", "high"))
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _read_csv(path: Path) -> list[Row]:
    """Rows by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _write_csv(path: Path, names: Sequence[str], rows: Sequence[Row]) -> None:
    """Rows with a header."""
    with atomic_file(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
