"""The tables of the study, as text with | between columns."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from length_study.evaluations import Evaluations
from length_study.plan import FINAL, GRID, Known, Study, last_nll, word

from fracdna.evaluation.likelihood import perplexity
from fracdna.evaluation.plan import FIXED, TILING
from fracdna.evaluation.statistics import Mean
from fracdna.evaluation.tables import COUNT_MODEL

NOTHING = "Nothing yet."
CLOSE = 0.003  # nats per base


def all_tables(study: Study, records: Known, evaluations: Evaluations) -> dict[str, str]:
    """Every table by its name in the page."""
    return {
        "networks": networks(study, records, evaluations),
        "perplexity": by_length(evaluations, TILING),
        "differences": differences(study, evaluations),
        "close": close_pairs(study, evaluations),
        "fixed": by_length(evaluations, FIXED),
        "carried": carried(study, evaluations),
        "classes": classes(evaluations),
        "rates": rates(study, records),
        "ablation": ablation(study, records),
        "counts": counts(evaluations),
        "commands": commands(records),
    }


def networks(study: Study, records: Known, evaluations: Evaluations) -> str:
    """What each network is and what it cost; what training has left no record of is empty."""
    rows = []
    for name in evaluations.networks:
        facts, record = evaluations.facts["models"][name], final_record(study, name, records)
        cells = ["", "", "", "", "", ""] if record is None else [
            f"{record['rate']:g}", str(record["seed"]), _speed(record),
            _number(record.get("gibibytes"), ".1f"), _number(record.get("seconds"), ".0f"),
            _end(record),
        ]  # fmt: skip
        of_facts = [f"{facts['parameters']:,}", f"{facts['state_scalars']:,}"]
        rows.append([f"`{name}`", *of_facts, *cells])
    head = [
        "network", "parameters", "state, scalars", "rate", "seed", "training, Mbases/s", "GiB",
        "seconds in all", "validation perplexity",
    ]  # fmt: skip
    return render(head, rows)


def by_length(evaluations: Evaluations, curve: str) -> str:
    """Perplexity of every network, with its interval at the longest length."""
    lengths, rows = evaluations.lengths(curve), []
    for name in _with_counts(evaluations):
        cells = [evaluations.cell(name, length, curve) for length in lengths]
        if any(cells):
            interval = _interval(cells[-1].mean) if cells[-1] else ""
            values = [f"{perplexity(cell.mean.value):.4f}" if cell else "" for cell in cells]
            rows.append([f"`{name}`", *values, interval])
    return render(["network", *(f"{n:,}" for n in lengths), "95 % at the last"], rows)


def differences(study: Study, evaluations: Evaluations) -> str:
    """Nats per base of each network less those of the first, in thousandths, paired by region."""
    lengths, rows = evaluations.lengths(TILING), []
    for name in _with_counts(evaluations):
        found = [evaluations.difference(name, study.first, n) for n in lengths]
        if name != study.first and any(found):
            rows.append([f"`{name}`", *(_thousandths(mean) if mean else "" for mean in found)])
    return render([f"network less `{study.first}`", *(f"{n:,}" for n in lengths)], rows)


def close_pairs(study: Study, evaluations: Evaluations) -> str:
    """As differences, of networks other than the first that are close at the training length."""
    lengths, rows = evaluations.lengths(TILING), []
    others = [name for name in evaluations.networks if name != study.first]
    for name, other in combinations(others, 2):
        found = [evaluations.difference(other, name, n) for n in lengths]
        trained = evaluations.difference(other, name, study.length)
        if trained and abs(trained.value) < CLOSE:
            values = [_thousandths(mean) if mean else "" for mean in found]
            rows.append([f"`{other}` less `{name}`", *values])
    return render(["pair", *(f"{n:,}" for n in lengths)], rows)


def carried(study: Study, evaluations: Evaluations) -> str:
    """What the state is worth beyond the training length, in thousandths of a nat."""
    last: dict[tuple[str, int], Mapping[str, Any]] = {}
    for row in evaluations.carried:
        key = (row["model"], int(row["span"]))
        if key not in last or int(row["context_from"]) > int(last[key]["context_from"]):
            last[key] = row
    rows = []
    for name, span in sorted(last, key=lambda key: (study.place(key[0]), key[1])):
        row = last[name, span]
        rows.append([
            f"`{name}`", f"{span:,}", str(row["regions"]),
            f"{int(row['context_from']):,} to {int(row['context_to']):,}",
            f"{perplexity(float(row['nll_carried'])):.4f}", _thousandths(gain(row)),
        ])  # fmt: skip
    head = [
        "network", "one pass over", "regions", "bases of context", "perplexity there",
        f"gain over a state emptied every {study.length:,}, nats / 1000",
    ]  # fmt: skip
    return render(head, rows)


def classes(evaluations: Evaluations) -> str:
    """Perplexity by class of bases at the longest length."""
    length, models = max(evaluations.lengths(TILING), default=0), _with_counts(evaluations)
    rows = []
    for group, bases in evaluations.groups(length).items():
        cells = [evaluations.cell(name, length, of=group) for name in models]
        values = [f"{perplexity(cell.mean.value):.4f}" if cell else "" for cell in cells]
        rows.append([called(group), f"{bases:,}", *values])
    return render([f"windows of {length:,}", "bases", *(f"`{name}`" for name in models)], rows)


def rates(study: Study, records: Known) -> str:
    """Validation perplexity at the end of every run of the grid.

    The best of each network is bold, with a mark where better ones may lie beyond.
    """
    rows, tried = [], study.tried(records)
    for name in study.order:
        found = study.graded(name, records)
        known = [nll for nll in map(last_nll, found.values()) if nll is not None]
        best = min(known, default=None)
        shown = {rate: _end(record) for rate, record in found.items()}
        for rate, record in found.items():
            if best is not None and last_nll(record) == best:
                border = " (border)" if study.at_border(name, rate, records) else ""
                shown[rate] = f"**{_end(record)}**{border}"
        if shown:
            rows.append([f"`{name}`", *(shown.get(rate, "") for rate in tried)])
    return render(["network", *(f"{rate:g}" for rate in tried)], rows)


def ablation(study: Study, records: Known) -> str:
    """Networks that are no part of the order beside the first, at one rate of the grid."""
    first, rows = records.get(study.run(study.first, GRID, study.ablation_rate).name), []
    base = None if first is None else last_nll(first)
    common = study.content["networks"][study.first]["options"]
    for name in (study.first, *study.variants):
        record = records.get(study.run(name, GRID, study.ablation_rate).name)
        if record is None:
            continue
        nll = last_nll(record)
        less = "" if None in (nll, base) or name == study.first else f"{1000 * (nll - base):+.2f}"
        options = study.content["networks"][name]["options"]
        own = {key: value for key, value in options.items() if common.get(key) != value}
        changed = ", ".join(f"`{key.lstrip('+')}={word(own[key])}`" for key in sorted(own))
        rows.append([f"`{name}`", changed, _end(record), less, _speed(record)])
    head = [
        f"rate {study.ablation_rate:g}", "options", "validation perplexity",
        f"less `{study.first}`, nats / 1000", "training, Mbases/s",
    ]  # fmt: skip
    return render(head, rows)


def counts(evaluations: Evaluations) -> str:
    """All orders of the tables of counts."""
    length = max(evaluations.lengths(TILING), default=0)
    found = {name: evaluations.cell(name, length) for name in evaluations.count_models}
    known = {name: cell for name, cell in found.items() if cell}
    values = [f"{perplexity(cell.mean.value):.4f}" for cell in known.values()]
    head = ["order", *(name.removeprefix(COUNT_MODEL) for name in known)]
    return render(head, [["perplexity", *values]] if values else [])


def commands(records: Known) -> str:
    """How every run was called."""
    lines = []
    for name, record in records.items():
        note = f"   # {record['note']}" if "note" in record else ""
        lines.append(f"{record['command']}   # {name}, commit {record['commit']}{note}")
    return "\n".join(["```", *lines, "```"]) if lines else NOTHING


def final_record(study: Study, label: str, records: Known) -> Mapping[str, Any] | None:
    """Of the run whose weights are called NETWORK or NETWORK@SEED.

    None without one; of several rates that with the best validation.
    """
    wanted = (*study.split(label), FINAL)
    found = [
        record for record in records.values()
        if (record["network"], record["seed"], record["stage"]) == wanted
    ]  # fmt: skip
    return min(found, key=lambda record: last_nll(record) or float("inf"), default=None)


def called(group: tuple[str, str]) -> str:
    """What a class and its side are called."""
    part, side = group
    return part if part == side else f"{part} {side}"


def gain(row: Mapping[str, str]) -> Mean:
    """What a carried state is worth, of a row of carried.csv; one region has no interval."""
    value, low, high = (row[name] for name in ("gain_nats", "gain_low", "gain_high"))
    return Mean(float(value), float(low) if low else None, float(high) if high else None)


def render(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, or a sentence where it would be empty."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) if rows else NOTHING


def _with_counts(evaluations: Evaluations) -> list[str]:
    """Networks, and the best table of counts."""
    best = evaluations.best_counts
    return [*evaluations.networks, *([best] if best else [])]


def _end(record: Mapping[str, Any]) -> str:
    """Validation perplexity at the last step."""
    nll = last_nll(record)
    return "diverged" if nll is None else f"{perplexity(nll):.4f}"


def _speed(record: Mapping[str, Any]) -> str:
    """Million bases per second of training."""
    speed = record.get("median_bases_per_second")
    return _number(speed and speed / 1e6, ".2f")


def _number(value: float | None, digits: str) -> str:
    """A number, or nothing where it was not measured."""
    return "" if value is None else format(value, digits)


def _interval(mean: Mean) -> str:
    """Bounds of a perplexity."""
    return "" if mean.low is None else f"{perplexity(mean.low):.4f} to {perplexity(mean.high):.4f}"


def _thousandths(mean: Mean) -> str:
    """Nats with their interval, in thousandths."""
    if mean.low is None:
        return f"{1000 * mean.value:+.2f}"
    return f"{1000 * mean.value:+.2f} [{1000 * mean.low:+.2f}, {1000 * mean.high:+.2f}]"
