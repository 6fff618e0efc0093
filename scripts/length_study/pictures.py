"""The pictures of the study."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cycler import cycler
from length_study.evaluations import Evaluations
from length_study.plan import FINAL, Known, Study, last_nll
from length_study.tables import called, gain
from matplotlib import colormaps, rc_context
from matplotlib.ticker import FuncFormatter

from fracdna.evaluation.likelihood import perplexity
from fracdna.evaluation.plan import FIXED, TILING
from fracdna.pictures import Line, bases, draw_lines, draw_points, legend_beside, new_axes, save

TOO_HIGH = 1.05  # times the lowest perplexity: a curve leaves the picture there
BROKEN = 1.05  # times its own perplexity at the training length: a network that breaks down
FAR = 0.05  # nats per base: a difference or loss that would flatten all others
LEAST_CONTEXT = 1024  # bases, of the curve of gains

TITLES = {
    TILING: "Perplexity by window length, the same bases at every length",
    FIXED: "The last bases of each region, read with more and more before",
}


def draw_all(folder: Path, study: Study, records: Known, evaluations: Evaluations) -> list[Path]:
    """Write every picture for which there are figures.

    Returns:
        Their paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, tuple[bool, Callable[[Path], None]]] = {
        "training.png": (True, partial(draw_training, study=study, records=records)),
        "speed.png": (True, partial(draw_speed, study=study, records=records)),
        "rates.png": (True, partial(draw_rates, study=study, records=records)),
    }
    known = {"study": study, "evaluations": evaluations}
    for curve, name in ((TILING, "perplexity.png"), (FIXED, "fixed.png")):
        there = bool(curves(evaluations, curve))
        drawn[name] = (there, partial(draw_lengths, curve=curve, **known))
    tiled = bool(curves(evaluations, TILING))
    drawn["differences.png"] = (tiled, partial(draw_differences, **known))
    length = longest_unbroken(study, evaluations)
    drawn["classes.png"] = (length is not None, partial(draw_classes, length=length, **known))
    drawn["gains.png"] = (bool(evaluations.carried), partial(draw_gains, **known))
    for name, (there, draw) in drawn.items():
        if there:
            draw(folder / name)
    return [folder / name for name, (there, _) in drawn.items() if there]


def color(study: Study, label: str) -> Any:
    """The same of a network in every picture; paler of further seeds."""
    rank, further, _ = study.place(label)
    # pairs of a full and a pale color; variants have those of another table
    within = rank if rank < len(study.order) else rank - len(study.order)
    table = colormaps["tab20" if rank < len(study.order) else "tab20b"].colors
    return table[(2 * within + further) % len(table)]


@contextmanager
def colored(study: Study, labels: Sequence[str]) -> Iterator[None]:
    """What is drawn one after the other has the colors of these networks."""
    colors = [color(study, label) for label in labels] or ["black"]
    with rc_context({"axes.prop_cycle": cycler(color=colors)}):
        yield


def curves(evaluations: Evaluations, curve: str) -> dict[str, dict[int, float]]:
    """Perplexity by network and length, of those that have any."""
    found = {
        name: {
            length: perplexity(cell.mean.value)
            for length in evaluations.lengths(curve)
            if (cell := evaluations.cell(name, length, curve))
        }
        for name in evaluations.networks
    }
    return {name: values for name, values in found.items() if values}


def longest_unbroken(study: Study, evaluations: Evaluations) -> int | None:
    """The longest length with classes of bases up to which no network breaks down."""
    found = curves(evaluations, TILING)
    broken = [
        length
        for values in found.values()
        for length, value in values.items()
        if value > BROKEN * values.get(study.length, value)
    ]
    lengths = [n for n in study.content["lengths_of_classes"] if evaluations.groups(n)]
    return max((n for n in lengths if n < min(broken, default=n + 1)), default=None)


def leaving(name: str, kept: Sequence[int], lengths: Sequence[int]) -> str:
    """A name for the legend, which says where the curve leaves the picture."""
    gone = [length for length in lengths if length not in kept]
    if not gone:
        return name
    if not kept:
        return f"{name}, above throughout"
    if min(gone) > max(kept):
        return f"{name}, above from {bases(min(gone))} on"
    return f"{name}, above at {', '.join(map(bases, gone))}"


def draw_lengths(path: Path, study: Study, evaluations: Evaluations, curve: str) -> None:
    """Perplexity of the networks by length; what rises far above the lowest leaves the picture."""
    found, lines = curves(evaluations, curve), []
    highest = TOO_HIGH * min(value for values in found.values() for value in values.values())
    for name, values in found.items():
        kept = {length: value for length, value in values.items() if value <= highest}
        lines.append(Line(leaving(name, [*kept], [*values]), [*kept], [*kept.values()]))
    below = study.content["test"]
    best = evaluations.best_counts
    cell = best and evaluations.cell(best, evaluations.lengths(curve)[-1], curve)
    if cell:
        value = perplexity(cell.mean.value)
        off = ", off the top" if value > highest else ""
        below += f"; best table of counts ({best}): {value:.3f}{off}"
    with colored(study, [*found]):
        draw_lines(
            path, lines, xlabel=f"window length (bases)\n{below}", title=TITLES[curve],
            marks=_trained(study),
        )  # fmt: skip


def draw_differences(path: Path, study: Study, evaluations: Evaluations) -> None:
    """Nats of each network less those of the first at every length, with paired intervals."""
    lines, labels, lengths = [], [], evaluations.lengths(TILING)
    for name in evaluations.networks:
        found = {n: evaluations.difference(name, study.first, n) for n in lengths}
        known = {n: mean for n, mean in found.items() if mean}
        if name == study.first or not known:
            continue
        kept = {n: mean for n, mean in known.items() if mean.value < FAR}
        lines.append(_line(leaving(name, [*kept], [*known]), kept))
        labels.append(name)
    lines.append(Line(study.first, lengths, [0.0] * len(lengths), reference=True))
    with colored(study, [*labels, study.first]):
        draw_lines(
            path, lines, ylabel=f"nats per base less those of {study.first}",
            xlabel="window length (bases)\nbands: 95 %, paired by region; below 0: better than "
            f"{study.first}",
            title=f"Differences from {study.first} on the same bases", marks=_trained(study),
        )  # fmt: skip


def draw_classes(path: Path, study: Study, evaluations: Evaluations, length: int) -> None:
    """Perplexity by class of bases in windows of one length."""
    groups = evaluations.groups(length)
    points = {}
    for name in evaluations.networks:
        cells = {called(of): evaluations.cell(name, length, of=of) for of in groups}
        values = {of: (perplexity(c.mean.value), None, None) for of, c in cells.items() if c}
        points |= {name: values} if values else {}
    with colored(study, [*points]):
        draw_points(
            path, points, xlabel=f"perplexity in windows of {length:,}\n{study.content['test']}",
            title="Perplexity by class of bases",
        )  # fmt: skip


def draw_gains(path: Path, study: Study, evaluations: Evaluations) -> None:
    """What a carried state is worth by bases of context; the widest pass of each network."""
    lines, labels = [], []
    for name in evaluations.networks:
        mine = [row for row in evaluations.carried if row["model"] == name]
        widest = max((int(row["span"]) for row in mine), default=0)
        means = {
            int(row["context_from"]): gain(row) for row in mine
            if int(row["span"]) == widest and int(row["context_from"]) >= LEAST_CONTEXT
        }  # fmt: skip
        if not means:
            continue
        worst = min(mean.value for mean in means.values())
        lines.append(_line(f"{name}, breaks down: {worst:.2f}", {}) if worst < -FAR
                     else _line(name, means))  # fmt: skip
        labels.append(name)
    with colored(study, labels):
        draw_lines(
            path, lines, ylabel="gain, nats per base",
            xlabel="bases of context, from\nabove 0: the state carried past "
            f"{study.length:,} bases helps",
            title=f"One pass over a region against a state emptied every {study.length:,} bases",
        )  # fmt: skip


def draw_training(path: Path, study: Study, records: Known) -> None:
    """Validation of the final runs against bases."""
    title = f"Final runs: {study.content['validation']} while training"
    _draw_finals(path, study, records, "bases seen", title, lambda _: 1e-6, "M")


def draw_speed(path: Path, study: Study, records: Known) -> None:
    """Validation of the final runs against time: which quality is reached when."""
    label = "seconds of training, without validation and compilation"
    title = f"Time to quality: {study.content['validation']}"
    _draw_finals(path, study, records, label, title, _seconds_per_base, "")


def _draw_finals(
    path: Path,
    study: Study,
    records: Known,
    xlabel: str,
    title: str,
    scale: Callable[[Mapping[str, Any]], float | None],
    unit: str,
) -> None:
    """Validation of the final runs against bases times what `scale` gives for a record."""
    finals = [record for record in records.values() if record["stage"] == FINAL]
    named = [(study.label(record["network"], record["seed"]), record) for record in finals]
    named = [(name, it) for name, it in named if it["validation"] and scale(it)]
    figure, axes = new_axes(xlabel, "validation perplexity", title)
    drawn = {}
    for name, record in sorted(named, key=lambda pair: (study.place(pair[0]), pair[1]["rate"])):
        x = [point["bases"] * scale(record) for point in record["validation"]]
        y = [perplexity(point["nll_nats"]) for point in record["validation"]]
        told = f"{name}, rate {record['rate']:g}{', diverged' if record['diverged'] else ''}"
        (drawn[told],) = axes.plot(x, y, marker="o", ms=3, lw=1.5, color=color(study, name))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}{unit}"))
    legend_beside(axes, drawn)
    save(figure, path)


def _seconds_per_base(record: Mapping[str, Any]) -> float | None:
    """Of training at the median speed; None where it was not measured."""
    speed = record.get("median_bases_per_second")
    return 1 / speed if speed else None


def draw_rates(path: Path, study: Study, records: Known) -> None:
    """Validation at the end of the grid against the learning rate."""
    size = study.bases("grid") / 1e6
    figure, axes = new_axes(
        "learning rate", "validation perplexity",
        f"Which learning rate: {size:.1f} million bases each",
    )  # fmt: skip
    drawn = {}
    for name in study.order:
        ends = {rate: last_nll(record) for rate, record in study.graded(name, records).items()}
        points = {rate: perplexity(nll) for rate, nll in ends.items() if nll is not None}
        if ends:
            gone = [f"{rate:g}" for rate in ends if rate not in points]
            told = f"{name}, diverged at {', '.join(gone)}" if gone else name
            style = {"marker": "o", "ms": 4, "lw": 1.5, "color": color(study, name)}
            (drawn[told],) = axes.plot([*points], [*points.values()], **style)
    axes.set_xscale("log", base=2)
    tried = study.tried(records)
    axes.set_xticks(tried, [f"{rate:g}" for rate in tried])
    axes.set_xticks([], minor=True)
    legend_beside(axes, drawn)
    save(figure, path)


def _trained(study: Study) -> dict[float, str]:
    """The mark of the training length."""
    return {study.length: f"trained on {bases(study.length)}"}


def _line(name: str, means: Mapping[int, Any]) -> Line:
    """A curve with its intervals, where all points have one."""
    x, y = [*means], [mean.value for mean in means.values()]
    low, high = ([getattr(m, end) for m in means.values()] for end in ("low", "high"))
    return Line(name, x, y, low, high) if x and None not in low else Line(name, x, y)
