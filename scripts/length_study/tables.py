"""The tables of the study, as text with | between columns."""

from collections.abc import Mapping, Sequence
from typing import Any

from length_study.evaluations import FIXED, TILING, Evaluations
from length_study.plan import FINAL, GRID, Study

from fracdna.evaluation.likelihood import perplexity
from fracdna.evaluation.statistics import Mean

FIRST = "frac"  # which others are compared with
Records = Mapping[str, Mapping[str, Any]]


def all_tables(study: Study, records: Records, evaluations: Evaluations) -> dict[str, str]:
    """Every table by its name in the page."""
    return {
        "networks": networks(study, records, evaluations),
        "perplexity": by_length(study, evaluations, TILING),
        "differences": differences(study, evaluations),
        "fixed": by_length(study, evaluations, FIXED),
        "carried": carried(study, evaluations),
        "classes": classes(study, evaluations),
        "rates": rates(study, records),
        "counts": counts(evaluations),
        "commands": commands(records),
    }


def networks(study: Study, records: Records, evaluations: Evaluations) -> str:
    """What each network is and what it cost."""
    rows = []
    for name in evaluations.networks(study.order):
        facts = evaluations.facts["models"][name]
        record = final_record(name, records)
        rows.append([
            f"`{name}`", f"{facts['parameters']:,}", f"{facts['state_scalars']:,}",
            f"{record['rate']:g}", str(record["seed"]),
            f"{record['median_bases_per_second'] / 1e6:.2f}", f"{record['gibibytes']:.1f}",
            f"{record['seconds']:.0f}", f"{perplexity(record['validation'][-1]['nll_nats']):.4f}",
        ])  # fmt: skip
    head = [
        "network", "parameters", "state, scalars", "rate", "seed", "training, Mbases/s", "GiB",
        "seconds in all", "validation perplexity",
    ]  # fmt: skip
    return render(head, rows)


def by_length(study: Study, evaluations: Evaluations, curve: str) -> str:
    """Perplexity of every network, with its interval at the longest length."""
    lengths = evaluations.lengths(curve)
    rows = []
    for name in _with_counts(study, evaluations):
        means = [evaluations.cell(name, length, curve).mean for length in lengths]
        values = [f"{perplexity(mean.value):.4f}" for mean in means]
        rows.append([f"`{name}`", *values, _interval(means[-1])])
    return render(["network", *(f"{n:,}" for n in lengths), "95 % at the last"], rows)


def differences(study: Study, evaluations: Evaluations) -> str:
    """Nats per base of each network less those of FRAC, in thousandths, paired by region."""
    lengths, rows = evaluations.lengths(TILING), []
    for name in _with_counts(study, evaluations):
        if name != FIRST:
            cells = [evaluations.cell(name, n).minus(evaluations.cell(FIRST, n)) for n in lengths]
            rows.append([f"`{name}`", *map(_thousandths, cells)])
    return render(["network less `frac`", *(f"{n:,}" for n in lengths)], rows)


def carried(study: Study, evaluations: Evaluations) -> str:
    """What the state is worth beyond the training length, in thousandths of a nat."""
    rows = []
    spans = sorted({int(row["span"]) for row in evaluations.carried})
    for name in evaluations.networks(study.order):
        for span in spans:
            mine = [
                row for row in evaluations.carried
                if row["model"] == name and int(row["span"]) == span
            ]  # fmt: skip
            if not mine:
                continue
            last = max(mine, key=lambda row: int(row["context_from"]))
            gain = Mean(*(float(last[key]) for key in ("gain_nats", "gain_low", "gain_high")))
            rows.append([
                f"`{name}`", f"{span:,}", str(last["regions"]),
                f"{int(last['context_from']):,} to {int(last['context_to']):,}",
                f"{perplexity(float(last['nll_carried'])):.4f}", _thousandths(gain),
            ])  # fmt: skip
    head = [
        "network", "one pass over", "regions", "bases of context", "perplexity there",
        "gain over a state emptied every 8,192, nats / 1000",
    ]  # fmt: skip
    return render(head, rows)


def classes(study: Study, evaluations: Evaluations) -> str:
    """Perplexity by class of bases at the longest length."""
    length, models = max(evaluations.lengths(TILING)), _with_counts(study, evaluations)
    groups = {
        (key.part, key.group): int(cell.tokens.sum())
        for key, cell in evaluations.cells.items()
        if key.length == length and key.curve == TILING and key.model == FIRST
    }
    rows = [
        [
            part if part == group else f"{part} {group}", f"{bases:,}",
            *(
                f"{perplexity(evaluations.cell(name, length, of=(part, group)).mean.value):.4f}"
                for name in models
            ),
        ]
        for (part, group), bases in groups.items()
    ]  # fmt: skip
    return render([f"windows of {length:,}", "bases", *(f"`{name}`" for name in models)], rows)


def rates(study: Study, records: Records) -> str:
    """Validation perplexity at the end of every run of the grid; the best of each in bold."""
    rows = []
    for name in grid_networks(study, records):
        ends = [record and end(record) for record in map(records.get, _grid_names(study, name))]
        best = min((value for value in ends if value is not None), default=None)
        shown = ["" if v is None else f"**{v:.4f}**" if v == best else f"{v:.4f}" for v in ends]
        rows.append([f"`{name}`", *shown])
    return render(["network", *(f"{rate:g}" for rate in study.rates)], rows)


def counts(evaluations: Evaluations) -> str:
    """All orders of the tables of counts."""
    length = max(evaluations.lengths(TILING))
    names = sorted(
        {key.model for key in evaluations.cells if key.model.startswith("markov-")},
        key=lambda name: int(name.removeprefix("markov-")),
    )
    values = [perplexity(evaluations.cell(name, length).mean.value) for name in names]
    head = ["order", *(name.removeprefix("markov-") for name in names)]
    return render(head, [["perplexity", *(f"{value:.4f}" for value in values)]])


def commands(records: Records) -> str:
    """How every run was called."""
    lines = []
    for name, record in records.items():
        note = f"   # {record['note']}" if "note" in record else ""
        lines.append(f"{record['command']}   # {name}, commit {record['commit']}{note}")
    return "\n".join(["```", *lines, "```"])


def final_record(name: str, records: Records) -> Mapping[str, Any]:
    """Of the run whose weights were evaluated; NETWORK@SEED is one of another seed."""
    network, _, seed = name.partition("@")
    found = [
        record for record in records.values()
        if (record["network"], record["stage"]) == (network, FINAL)
        and (not seed or record["seed"] == int(seed))
    ]  # fmt: skip
    return found[0]


def grid_networks(study: Study, records: Records) -> list[str]:
    """Networks with runs of the grid, in the order of the study."""
    begun = {record["network"] for record in records.values() if record["stage"] == GRID}
    return [name for name in study.content["networks"] if name in begun]


def end(record: Mapping[str, Any]) -> float:
    """Validation perplexity at the last step."""
    return perplexity(record["validation"][-1]["nll_nats"])


def render(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _grid_names(study: Study, network: str) -> list[str]:
    """Its runs, by rate."""
    return [run.name for run in study.grid(network)]


def _with_counts(study: Study, evaluations: Evaluations) -> list[str]:
    """Networks, and the best table of counts."""
    best = evaluations.count_model
    return [*evaluations.networks(study.order), *([best] if best else [])]


def _interval(mean: Mean) -> str:
    """Bounds of a perplexity."""
    return "" if mean.low is None else f"{perplexity(mean.low):.4f} to {perplexity(mean.high):.4f}"


def _thousandths(mean: Mean) -> str:
    """Nats with their interval, in thousandths."""
    if mean.low is None:
        return f"{1000 * mean.value:+.2f}"
    return f"{1000 * mean.value:+.2f} [{1000 * mean.low:+.2f}, {1000 * mean.high:+.2f}]"
