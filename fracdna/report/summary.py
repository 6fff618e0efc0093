"""What the page says first: who is best where, by how much, and what was trained on what."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from fracdna.pictures import bases
from fracdna.report.elements import element, printable
from fracdna.report.folders import Evaluation, Opened, Row, TrainingRun, headline_strand
from fracdna.report.same_bases import SameBases
from fracdna.report.sections import Block, Section
from fracdna.report.tables import Cell, Column, Table, fixed, interval, number


class Size(NamedTuple):
    """How large a network is."""

    parameters: int | None
    state_scalars: int | None


def summary(
    opened: Sequence[Opened], groups: Sequence[SameBases], sizes: Mapping[str, Size]
) -> Section:
    """The section on top.

    Args:
        opened: all folders of the report.
        groups: the finished evaluations.
        sizes: of networks by their names in the page, as far as they are known.
    """
    blocks: list[Block] = []
    for same in groups:
        if same.lengths:
            blocks += [_headline(same), _best(same)]
    runs = [folder for folder in opened if isinstance(folder, TrainingRun)]
    if runs:
        blocks.append(_runs(runs, sizes))
    others = _others(groups, sizes, {run.name for run in runs})
    evaluations = [folder for folder in opened if isinstance(folder, Evaluation)]
    blocks += [others] if others.rows else []
    blocks += [_evaluations(evaluations)] if evaluations else []
    return Section("summary", "Summary", blocks)


def _headline(same: SameBases) -> Element:
    """The result in a sentence or two."""
    ranked = {length: same.ranking(length) for length in same.lengths}
    longest = same.lengths[-1]
    best, *rest = ranked[longest]
    said = f" has a perplexity of {best['perplexity']:.4f} in windows of {longest:,} bases"
    if rest:
        row = same.compared(rest[0]["model"], best["model"], longest)
        wins = sum(rows[0]["model"] == best["model"] for rows in ranked.values())
        said += (
            f", the lowest of {len(ranked[longest])} networks and {_distance(row)} below "
            f"{rest[0]['model']}; it is the best at {wins} of {len(ranked)} lengths"
        )
    counts = _against_counts(same, best["model"], longest) if same.best_count else ""
    return element("p", element("strong", best["model"]), f"{said}.{counts}", class_="headline")


def _distance(row: Row) -> str:
    """How large a difference is, without its sign."""
    ends = sorted(abs(end) for end in (row["low"], row["high"]) if end is not None)
    undecided = bool(ends) and row["low"] <= 0 <= row["high"]
    spread = f" (95 %: {ends[0]:.4f} to {ends[1]:.4f})" if ends and not undecided else ""
    doubt = " (the 95 % interval includes 0)" if undecided else spread
    return f"{abs(row['nll_nats']):.4f} nats per base{doubt}"


def _against_counts(same: SameBases, model: str, length: int) -> str:
    """Whether a network knows more than a table of counts."""
    row = same.compared(model, same.best_count, length)
    if row is None:
        return ""
    order = same.label(same.best_count).removesuffix(" (the best)")
    if row["nll_nats"] < 0:
        return f" It has learned more than counts give: {_distance(row)} below {order}, the best."
    return f" A table of counts still predicts these bases better: {order}, by {_distance(row)}."


def _best(same: SameBases) -> Table:
    """A row for each length."""
    columns = ["window length", "best network", "perplexity", "95 % interval", "bases"]
    several, counted = len(same.networks) > 1, same.best_count is not None
    columns += ["next network", "behind by (nats)", "95 % of that"] if several else []
    columns += ["minus best counts (nats)", "95 % of this"] if counted else []
    rows = []
    for length in same.lengths:
        ranked = same.ranking(length)
        best = ranked[0]
        row: list[Cell] = [
            number(length), best["model"], fixed(best["perplexity"]),
            interval(best.get("perplexity_low"), best.get("perplexity_high")),
            number(best["bases"]),
        ]  # fmt: skip
        if several:
            second = ranked[1] if len(ranked) > 1 else None
            row += [second["model"] if second else None]
            row += _nats(same, second["model"], best["model"], length) if second else [None, None]
        if counted:
            row += _nats(same, best["model"], same.best_count, length)
        rows.append(row)
    where = f"best network at each length, from {', '.join(same.names)}"
    return Table([Column(title) for title in columns], rows, where)


def _nats(same: SameBases, model: str, minus: str, length: int) -> list[Cell]:
    """A difference and its interval."""
    row = same.compared(model, minus, length)
    if row is None:
        return [None, None]
    return [fixed(row["nll_nats"], 4, sign=True), interval(row["low"], row["high"])]


def _runs(runs: Sequence[TrainingRun], sizes: Mapping[str, Size]) -> Table:
    """What was trained, on what, and how far it came."""
    titles = (
        "run", "mixer", "parameters", "state", "window", "bases seen", "hours",
        "best validation perplexity", "status", "folder",
    )  # fmt: skip
    hints = {"state": "scalars carried from base to base; per position where a cache grows"}
    columns = [Column(title, hints.get(title)) for title in titles]
    return Table(columns, [_run(run, sizes) for run in runs], "training runs")


def _run(run: TrainingRun, sizes: Mapping[str, Size]) -> list[Cell]:
    """One run."""
    size = sizes.get(run.name, Size(None, None))
    last = run.points[-1] if run.points else None
    validated = [p.validation_nll for p in run.points if p.validation_nll is not None]
    window = run.setting("data", "length")
    return [
        run.name, printable(mixer_name(run)), number(size.parameters), number(size.state_scalars),
        number(window) if isinstance(window, int) else None,
        number(last.bases) if last else None, fixed(last.seconds / 3600, 2) if last else None,
        fixed(math.exp(min(validated))) if validated else None, run.status,
        printable(str(run.folder)),
    ]  # fmt: skip


def mixer_name(run: TrainingRun) -> str:
    """The class that mixes along the sequence, and its write gain where that is told."""
    target = run.setting("model", "mixer", "_target_")
    gain = run.setting("model", "mixer", "gain")
    name = "" if target is None else str(target).rpartition(".")[2]
    return f"{name} ({gain})" if gain else name


def _others(groups: Sequence[SameBases], sizes: Mapping[str, Size], runs: set[str]) -> Table:
    """Evaluated networks whose training is no part of the report."""
    networks = {n: facts for same in groups for n, facts in same.networks.items() if n not in runs}
    rows = [
        [
            name, number(sizes[name].parameters), number(sizes[name].state_scalars),
            number(facts.get("trained_on_length")), printable(str(facts.get("checkpoint", ""))),
        ]
        for name, facts in networks.items()
    ]  # fmt: skip
    titles = ("network", "parameters", "state", "trained on windows of", "checkpoint")
    return Table([Column(title) for title in titles], rows, "networks trained elsewhere")


def _evaluations(evaluations: Sequence[Evaluation]) -> Table:
    """What was evaluated on which bases, where."""
    titles = ("evaluation", "status", "bases", "regions", "of", "split", "device", "folder")
    hints = {"bases": "on each strand"}
    columns = [Column(title, hints.get(title)) for title in titles]
    return Table(columns, [_evaluation(e) for e in evaluations], "evaluations")


def _evaluation(evaluation: Evaluation) -> list[Cell]:
    """One evaluation."""
    result = evaluation.result
    regions = result.get("regions", {})
    rows, strand = evaluation.tables["table"], headline_strand(evaluation.tables["table"])
    counted = [row["bases"] for row in rows if (row["part"], row["strand"]) == ("all", strand)]
    width = regions.get("width")
    return [
        evaluation.name, evaluation.status, number(max(counted)) if counted else None,
        number(regions.get("count")), bases(width) if width else None,
        printable(str(result.get("split", ""))), printable(str(result.get("device", ""))),
        printable(str(evaluation.folder)),
    ]  # fmt: skip
