"""The pictures of the study."""

from pathlib import Path

from length_study.evaluations import FIXED, TILING, Evaluations
from length_study.plan import FINAL, Study
from length_study.tables import FIRST, Records, end, grid_networks
from matplotlib.ticker import FuncFormatter

from fracdna.evaluation.likelihood import perplexity
from fracdna.evaluation.statistics import Mean
from fracdna.pictures import Line, draw_lines, legend_beside, new_axes, save

TOO_HIGH = 1.15  # times the lowest perplexity: a curve that leaves the picture there
LEAST_CONTEXT = 1024  # bases, of the curve of gains


def draw_all(folder: Path, study: Study, records: Records, evaluations: Evaluations) -> list[Path]:
    """Write every picture for which there are figures.

    Returns:
        Their paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {
        "training.png": lambda path: draw_training(path, study, records),
        "rates.png": lambda path: draw_rates(path, study, records),
    }
    if evaluations.cells:
        pictures |= {
            "perplexity.png": lambda path: draw_lengths(path, study, evaluations, TILING),
            "fixed.png": lambda path: draw_lengths(path, study, evaluations, FIXED),
            "differences.png": lambda path: draw_differences(path, study, evaluations),
            "gains.png": lambda path: draw_gains(path, study, evaluations),
        }
    for name, draw in pictures.items():
        draw(folder / name)
    return [folder / name for name in pictures]


def draw_lengths(path: Path, study: Study, evaluations: Evaluations, curve: str) -> None:
    """Perplexity of the networks by length; what rises far above the lowest leaves the picture."""
    lines, trained = [], study.content["common"]["data.length"]
    lowest = min(
        perplexity(evaluations.cell(name, length, curve).mean.value)
        for name in evaluations.networks(study.order)
        for length in evaluations.lengths(curve)
    )
    for name in evaluations.networks(study.order):
        means = {n: evaluations.cell(name, n, curve).mean for n in evaluations.lengths(curve)}
        seen = {n: perplexity(mean.value) for n, mean in means.items()}
        seen = {n: value for n, value in seen.items() if value < TOO_HIGH * lowest}
        leaves = "" if len(seen) == len(means) else f", above from {_next(seen, means):,} on"
        lines.append(Line(f"{name}{leaves}", list(seen), list(seen.values())))
    titles = {
        TILING: "Perplexity by window length, the same bases at every length",
        FIXED: "The last 1,024 bases of each region, read with more and more before",
    }
    best = evaluations.count_model
    beside = f"best table of counts ({best}): " if best else ""
    if best:
        count = evaluations.cell(best, evaluations.lengths(curve)[-1], curve).mean.value
        beside += f"{perplexity(count):.3f}, off the top"
    draw_lines(
        path, lines, xlabel=f"window length (bases)\nGRCh37 chr20 50-63 Mb; {beside}",
        title=titles[curve], marks={trained: "trained on 8K"},
    )  # fmt: skip


def _next(seen: dict[int, float], means: dict[int, Mean]) -> int:
    """The first length that is not in the picture."""
    return min(length for length in means if length not in seen)


def draw_differences(path: Path, study: Study, evaluations: Evaluations) -> None:
    """Nats of each network less those of FRAC at every length, with paired intervals."""
    lines, lengths = [], evaluations.lengths(TILING)
    for name in evaluations.networks(study.order):
        found = [evaluations.cell(name, n).minus(evaluations.cell(FIRST, n)) for n in lengths]
        kept = [(n, mean) for n, mean in zip(lengths, found, strict=True) if mean.value < 0.06]
        if name != FIRST and kept:
            columns = zip(*((n, m.value, m.low, m.high) for n, m in kept), strict=True)
            lines.append(Line(name, *map(list, columns)))
    lines.append(Line(FIRST, lengths, [0.0] * len(lengths), reference=True))
    draw_lines(
        path, lines, ylabel="nats per base less FRAC's",
        xlabel="window length (bases)\nbands: 95 %, paired by region; below 0: better than FRAC",
        title="Differences from FRAC on the same bases", marks={8192: "trained on 8K"},
    )  # fmt: skip


def draw_gains(path: Path, study: Study, evaluations: Evaluations) -> None:
    """What a carried state is worth by bases of context; the widest pass of each network."""
    lines = []
    for name in evaluations.networks(study.order):
        mine = [row for row in evaluations.carried if row["model"] == name]
        widest = max((int(row["span"]) for row in mine), default=0)
        rows = [
            row for row in mine
            if int(row["span"]) == widest and int(row["context_from"]) >= LEAST_CONTEXT
        ]  # fmt: skip
        if not rows or min(float(row["gain_nats"]) for row in rows) < -0.05:
            continue  # one that breaks down is told in the table, and would flatten all others
        keys = ("context_from", "gain_nats", "gain_low", "gain_high")
        lines.append(Line(name, *([float(row[key]) for row in rows] for key in keys)))
    if lines:
        draw_lines(
            path, lines, ylabel="gain, nats per base",
            xlabel="bases of context, from\nabove 0: the state carried past 8,192 bases helps",
            title="One pass over a region against a state emptied every 8,192 bases",
        )  # fmt: skip


def draw_training(path: Path, study: Study, records: Records) -> None:
    """Validation of the final runs against bases."""
    figure, axes = new_axes(
        "bases seen", "validation perplexity", "Final runs: chr20 45-50 Mb while training"
    )
    drawn = {}
    finals = [record for record in records.values() if record["stage"] == FINAL]
    for record in sorted(finals, key=lambda it: study.order.index(it["network"])):
        points = [(p["bases"], perplexity(p["nll_nats"])) for p in record["validation"]]
        name = f"{record['network']}, rate {record['rate']:g}, seed {record['seed']}"
        (drawn[name],) = axes.plot(*zip(*points, strict=True), marker="o", ms=3, lw=1.5)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:.0f}M"))
    legend_beside(axes, drawn)
    save(figure, path)


def draw_rates(path: Path, study: Study, records: Records) -> None:
    """Validation at the end of the grid against the learning rate."""
    figure, axes = new_axes(
        "learning rate", "validation perplexity", "Which learning rate: 100.7 million bases each"
    )
    drawn = {}
    for name in grid_networks(study, records):
        found = {run.rate: records.get(run.name) for run in study.grid(name)}
        points = [(rate, end(record)) for rate, record in found.items() if record]
        (drawn[name],) = axes.plot(*zip(*points, strict=True), marker="o", ms=4, lw=1.5)
    axes.set_xscale("log", base=2)
    axes.set_xticks(study.rates, [f"{rate:g}" for rate in study.rates])
    axes.set_xticks([], minor=True)
    legend_beside(axes, drawn)
    save(figure, path)
