"""Evaluations of the same bases, which may stand in one chart, brought together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fracdna.report.elements import printable
from fracdna.report.folders import TABLES, Evaluation, Row, TrainingRun, headline_strand

COUNT_MODEL = "markov-"
MODELS = ("model", "minus")  # columns
# what makes two rows of a file the same row
IDENTITY = ("model", "minus", "curve", "strand", "part", "group", "length", "reset_length")
IDENTITY += ("context_from", "contig", "start")
TARGET = 1024  # last bases of each region, where an evaluation does not say


@dataclass(frozen=True)
class SameBases:
    """What several evaluations of the same bases found.

    Attributes:
        names: of the evaluations.
        networks: facts of result.json by the name that a network has in the page.
        tables: rows of the CSV files by their names.
        results: contents of result.json.
        best_count: the count model with the lowest nats, None without count models.
    """

    names: Sequence[str]
    networks: dict[str, dict[str, Any]]
    tables: dict[str, list[Row]]
    results: Sequence[dict[str, Any]]
    best_count: str | None

    def rows(self, table: str, **wanted: Any) -> list[Row]:
        """Rows of a table with these values."""
        return [
            row
            for row in self.tables[table]
            if all(row.get(key) == value for key, value in wanted.items())
        ]

    @property
    def strand(self) -> str:
        """The strand of the headline."""
        return headline_strand(self.tables["table"])

    @property
    def lengths(self) -> list[int]:
        """Lengths of windows with which networks tiled the regions."""
        rows = self.rows("table", curve="tiling", part="all")
        return sorted({row["length"] for row in rows if row["model"] in self.networks})

    @property
    def gc_ranges(self) -> dict[str, tuple[float, float]]:
        """Least and greatest share of G and C in each fifth, as far as they are told."""
        told = [result.get("classes", {}) for result in self.results]
        return next((c["gc_share_of_fifths"] for c in told if "gc_share_of_fifths" in c), {})

    def models(self, *, references: bool = False) -> list[str]:
        """Networks, and the count models that stand beside them in pictures."""
        shown = ["markov-2", self.best_count] if references and self.best_count else []
        known = {row["model"] for row in self.tables["table"]}
        return [*self.networks, *(name for name in dict.fromkeys(shown) if name in known)]

    def label(self, model: str) -> str:
        """How a model is called in pictures."""
        if not model.startswith(COUNT_MODEL):
            return model
        order = model.removeprefix(COUNT_MODEL)
        best = " (the best)" if model == self.best_count else ""
        return f"counts, {order} base{'' if order == '1' else 's'} back{best}"

    def tiled(self, length: int) -> list[Row]:
        """The headline: a row of each model at a length, over all tiled bases on one strand."""
        return self.rows("table", **self._headline(length))

    def ranking(self, length: int) -> list[Row]:
        """Those of the networks, the best first."""
        rows = [row for row in self.tiled(length) if row["model"] in self.networks]
        return sorted(rows, key=lambda row: row["nll_nats"])

    def difference(self, model: str, minus: str, length: int) -> Row | None:
        """Nats per base of a model minus another, over all tiled bases, whichever way it was kept.

        Returns:
            a row with nll_nats, low and high; None where the two were not compared.
        """
        for row in self.rows("differences", model=model, minus=minus, **self._headline(length)):
            return row
        for row in self.rows("differences", model=minus, minus=model, **self._headline(length)):
            low, high = (None if end is None else -end for end in (row["high"], row["low"]))
            return row | {"nll_nats": -row["nll_nats"], "low": low, "high": high}
        return None

    def compared(self, model: str, minus: str, length: int) -> Row | None:
        """The paired difference; of models that were not compared that of their rows alone."""
        nats = {row["model"]: row["nll_nats"] for row in self.tiled(length)}
        row = self.difference(model, minus, length)
        if row is not None or not {model, minus} <= set(nats):
            return row
        return {"nll_nats": nats[model] - nats[minus], "low": None, "high": None}

    def _headline(self, length: int) -> dict[str, Any]:
        """Values of the columns of the headline's rows."""
        return {"curve": "tiling", "strand": self.strand, "part": "all", "length": length}


def by_bases(evaluations: Sequence[Evaluation], runs: Sequence[TrainingRun]) -> list[SameBases]:
    """Finished evaluations, those of the same regions and last bases of the same genome together.

    Args:
        evaluations: in the order in which their models are to be shown.
        runs: whose names their networks get.
    """
    groups: dict[Any, list[Evaluation]] = {}
    for evaluation in evaluations:
        if evaluation.result:
            manifest = evaluation.result.get("regions", {}).get("manifest")
            alone = evaluation.folder if manifest is None else None
            target = evaluation.result.get("config", {}).get("target", TARGET)
            key = (evaluation.result.get("genome"), manifest, target, alone)
            groups.setdefault(key, []).append(evaluation)
    return [_together(group, runs) for group in groups.values()]


def _together(group: Sequence[Evaluation], runs: Sequence[TrainingRun]) -> SameBases:
    """All rows of a group, each once, under names that tell different models apart."""
    seen: dict[str, Any] = {}
    networks: dict[str, dict[str, Any]] = {}
    tables: dict[str, dict[Any, Row]] = {name: {} for name in TABLES}
    classes: dict[str, Any] = {}
    for evaluation in group:
        new = _renaming(evaluation, runs, seen)
        parts = _parts(evaluation, classes)
        streamed = {(row["model"], row["contig"]) for row in tables["streams"].values()}
        for name, facts in evaluation.models.items():
            networks.setdefault(new[printable(name)], facts)
        for name, rows in evaluation.tables.items():
            for row in rows:
                both = {key: new[row[key]] for key in MODELS if key in row}
                renamed = row | both | {"part": parts.get(row.get("part"), row.get("part"))}
                if name == "streams" and (renamed["model"], renamed["contig"]) in streamed:
                    continue  # blocks of two sizes would be counted twice
                tables[name].setdefault(tuple(renamed.get(key) for key in IDENTITY), renamed)
    found = {name: list(rows.values()) for name, rows in tables.items()}
    return SameBases(
        [evaluation.name for evaluation in group], networks, found,
        [evaluation.result for evaluation in group], _best_count(found["table"]),
    )  # fmt: skip


def _parts(evaluation: Evaluation, seen: dict[str, Any]) -> dict[str, str]:
    """Names in the page of classes whose name stands for another file already."""
    new = {}
    for name, facts in evaluation.result.get("classes", {}).get("files", {}).items():
        identity = (facts.get("file"), facts.get("bases_in_genome"))
        if seen.setdefault(name, identity) != identity:
            new[printable(name)] = f"{printable(name)} ({evaluation.name})"
    return new


def _renaming(
    evaluation: Evaluation, runs: Sequence[TrainingRun], seen: dict[str, Any]
) -> dict[str, str]:
    """Names in the page of an evaluation's models; seen says what each name stands for already."""
    new = {}
    facts = {printable(name): about for name, about in evaluation.models.items()}
    models = dict.fromkeys(facts)
    for rows in evaluation.tables.values():
        models |= dict.fromkeys(row[key] for row in rows for key in MODELS if key in row)
    for model in models:
        rows = [row for row in evaluation.tables["table"] if row["model"] == model]
        values = tuple((row["curve"], row["length"], row["nll_nats"]) for row in rows)
        identity = facts.get(model, {}).get("weights") or values
        name = _name_of_run(model, facts.get(model, {}), runs)
        if seen.setdefault(name, identity) != identity:
            name = f"{name} ({evaluation.name})"
            seen[name] = identity
        new[model] = name
    return new


def _name_of_run(model: str, facts: dict[str, Any], runs: Sequence[TrainingRun]) -> str:
    """The page's name of a model's run, where the model is called after the run's folder."""
    checkpoint = Path(facts.get("checkpoint", "")).absolute()
    for run in runs:
        folder = run.folder.resolve()
        if checkpoint.resolve().is_relative_to(folder) and model == printable(folder.name):
            return run.name
    return model


def _best_count(rows: Sequence[Row]) -> str | None:
    """The count model with the lowest nats over all lengths."""
    totals: dict[str, float] = {}
    for row in rows:
        headline = (row["curve"], row["part"]) == ("tiling", "all")
        if row["model"].startswith(COUNT_MODEL) and headline:
            totals[row["model"]] = totals.get(row["model"], 0.0) + row["nll_nats"]
    return min(totals, key=totals.get) if totals else None
