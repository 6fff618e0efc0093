"""Tables and the picture of contigs read in one pass."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from tqdm import tqdm

from fracdna.evaluation.likelihood import perplexity
from fracdna.evaluation.statistics import Mean, mean_nll
from fracdna.evaluation.stream_pass import StreamSettings
from fracdna.evaluation.stream_splits import pooled, split_line
from fracdna.pictures import bases, legend_beside, position_unit, save
from fracdna_prep.files import atomic_file

ALL_CONTIGS = "all"
COLUMNS = (
    "model", "contig", "start", "end", "bases", "nll_nats", "nll_reset", "perplexity",
    "perplexity_reset",
)  # fmt: skip
SHOWN = 12  # contigs in the picture and the terminal, the longest ones
FEWEST_KNOWN = 0.01  # of a block's bases, for a point in the picture
NOTHING = Mean(None, None, None)  # of no counted base


@dataclass(frozen=True)
class StreamScores:
    """What one model made of a contig, by blocks.

    Attributes:
        model: its name.
        contig: its name.
        starts: (blocks,) first base of each block.
        ends: (blocks,) base after the last.
        tokens: (blocks,) int64 counted bases.
        nats: (blocks,) float64, summed over them in the carried pass.
        nats_acgt: (blocks,) the same with the softmax over A, C, G and T alone.
        reset: bases between two empty states of the control; None: there is none.
        nats_reset: (blocks,) nats of the control.
        bases_per_second: of the carried pass; None: not measured.
        peak_memory_bytes: of the device in the carried pass; None: not measured.
    """

    model: str
    contig: str
    starts: np.ndarray
    ends: np.ndarray
    tokens: np.ndarray
    nats: np.ndarray
    nats_acgt: np.ndarray
    reset: int | None
    nats_reset: np.ndarray | None
    bases_per_second: float | None
    peak_memory_bytes: int | None


def write_streams(
    output: Path,
    scores: Sequence[StreamScores],
    settings: StreamSettings,
    splits: Mapping[str, Mapping[str, int]],
) -> dict[str, Any]:
    """Write streams.csv and streams.png and print a table.

    Args:
        output: folder, existing.
        scores: every model on every contig.
        settings: how contigs were read.
        splits: by contig, its counted bases in each split and in none.

    Returns:
        The numbers as plain values.
    """
    groups = _groups(scores)
    rows = [_row(score) for group in groups for score in group]
    blocks = [block for score in scores for block in _blocks(score)]
    with atomic_file(output / "streams.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(blocks)
    save(streams_figure(scores, settings.block), output / "streams.png")
    differences = [difference for group in groups for difference in _differences(group)]
    if len(splits) > 1:
        splits = {**splits, ALL_CONTIGS: pooled(splits.values())}
    print(_terminal_table(rows, differences, settings, splits, output))
    return {
        "segment": settings.segment,
        "block": settings.block,
        "bases_by_split": splits,
        "rows": rows,
        "blocks": blocks,
        "differences": differences,
    }


def _groups(scores: Sequence[StreamScores]) -> list[list[StreamScores]]:
    """Scores of all models contig by contig, and where there are several of all together."""
    contigs: dict[str, list[StreamScores]] = {}
    models: dict[str, list[StreamScores]] = {}
    for score in scores:
        contigs.setdefault(score.contig, []).append(score)
        models.setdefault(score.model, []).append(score)
    together = [_joined(mine) for mine in models.values()] if len(contigs) > 1 else []
    return [group for group in (*contigs.values(), together) if group]


def _joined(scores: Sequence[StreamScores]) -> StreamScores:
    """One model's contigs behind one another."""

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(score, name) for score in scores])

    rates = [score.bases_per_second for score in scores]
    peaks = [score.peak_memory_bytes for score in scores]
    lengths = [int(score.ends[-1]) for score in scores]
    seconds = sum(length / rate for length, rate in zip(lengths, rates, strict=True) if rate)
    return StreamScores(
        model=scores[0].model,
        contig=ALL_CONTIGS,
        starts=joined("starts"),
        ends=joined("ends"),
        tokens=joined("tokens"),
        nats=joined("nats"),
        nats_acgt=joined("nats_acgt"),
        reset=scores[0].reset,
        nats_reset=None if scores[0].reset is None else joined("nats_reset"),
        bases_per_second=sum(lengths) / seconds if all(rates) else None,
        peak_memory_bytes=None if None in peaks else max(peaks),
    )


def _blocks(score: StreamScores) -> list[dict[str, Any]]:
    """The lines of streams.csv; what is per base is empty where nothing is counted."""
    lines = []
    for block, tokens in enumerate(score.tokens.tolist()):
        means = [
            None if sums is None or not tokens else float(sums[block]) / tokens
            for sums in (score.nats, score.nats_reset)
        ]
        place = score.model, score.contig, int(score.starts[block]), int(score.ends[block]), tokens
        lines.append(dict(zip(COLUMNS, (*place, *means, *map(_perplexity, means)), strict=True)))
    return lines


def _row(score: StreamScores) -> dict[str, Any]:
    """One model on one contig."""
    length, counted = int((score.ends - score.starts).sum()), int(score.tokens.sum())
    carried = _mean(score.nats, score.tokens)
    reset = gain = NOTHING
    if score.nats_reset is not None:
        reset = _mean(score.nats_reset, score.tokens)
        gain = _mean(score.nats_reset - score.nats, score.tokens)
    return {
        "model": score.model,
        "contig": score.contig,
        "length": length,
        "bases": counted,
        "n_skipped": length - counted,
        "nll_nats": carried.value,
        "perplexity": _perplexity(carried.value),
        "perplexity_low": _perplexity(carried.low),
        "perplexity_high": _perplexity(carried.high),
        "perplexity_acgt": _perplexity(_mean(score.nats_acgt, score.tokens).value),
        "reset_length": score.reset,
        "nll_reset": reset.value,
        "perplexity_reset": _perplexity(reset.value),
        "gain_nats": gain.value,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "bases_per_second": score.bases_per_second,
        "peak_memory_bytes": score.peak_memory_bytes,
    }


def _differences(group: Sequence[StreamScores]) -> list[dict[str, Any]]:
    """Nats per base of each model minus those of each later one on a contig, paired by block."""
    found = []
    for one, other in combinations(group, 2):
        mean = _mean(one.nats - other.nats, one.tokens)
        pair = {"model": one.model, "minus": other.model, "contig": one.contig}
        pair |= {"bases": int(one.tokens.sum()), "nll_nats": mean.value}
        found.append(pair | {"low": mean.low, "high": mean.high})
    return found


def _mean(nats: np.ndarray, tokens: np.ndarray) -> Mean:
    """Nats per base with its interval by resampling blocks; nothing of no base."""
    return mean_nll(nats, tokens) if tokens.any() else NOTHING


def _perplexity(nll_nats: float | None) -> float | None:
    """The perplexity where there are nats."""
    return None if nll_nats is None else perplexity(nll_nats)


def streams_figure(scores: Sequence[StreamScores], block: int) -> Figure:
    """Perplexity along the longest contigs, a panel each; a line per model, its control thin.

    Args:
        scores: every model on every contig.
        block: bases of a point.
    """
    lengths = {score.contig: int(score.ends[-1]) for score in scores}
    longest = set(sorted(lengths, key=lengths.__getitem__, reverse=True)[:SHOWN])
    shown = [contig for contig in lengths if contig in longest]
    colours = {name: f"C{n}" for n, name in enumerate(dict.fromkeys(s.model for s in scores))}
    figure = Figure(figsize=(8.6, 1.4 + 2.4 * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    unit, unit_name = position_unit(max(lengths.values()))
    named: dict[str, Line2D] = {}
    for contig, axes in zip(shown, panels, strict=True):
        for score in scores:
            if score.contig == contig:
                named |= _draw_contig(axes, score, colours[score.model], unit)
        axes.set(ylabel="perplexity", xlim=(0, lengths[contig] / unit))
        axes.set_title(contig, fontsize=9, loc="left", parse_math=False)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left_out = f"; {len(lengths) - len(shown):,} shorter contigs are not shown"
    note = left_out if len(shown) < len(lengths) else ""
    place = f"{unit_name} along the contig"
    panels[-1].set_xlabel(f"{place}; points: blocks of {bases(block)} bases{note}")
    legend_beside(panels[0], named)
    figure.suptitle("Perplexity along contigs, each read in one pass")
    return figure


def _draw_contig(axes: Axes, score: StreamScores, colour: str, unit: int) -> dict[str, Line2D]:
    """Both lines of one model by their names, broken where hardly a base is known."""
    known = score.tokens >= np.maximum(FEWEST_KNOWN * (score.ends - score.starts), 1)
    x = (score.starts + score.ends) / (2 * unit)
    carried = {"lw": 1.6, "marker": "o", "ms": 2.5}
    control = {"lw": 0.9, "ls": "--", "marker": "o", "ms": 1.5}
    lines = {score.model: (score.nats, carried)}
    if score.nats_reset is not None:
        name = f"{score.model}, reset every {bases(score.reset)}"
        lines[name] = (score.nats_reset, control)
    drawn = {}
    for name, (nats, style) in lines.items():
        y = np.full(len(x), np.nan)
        y[known] = np.exp(nats[known] / score.tokens[known])
        (drawn[name],) = axes.plot(x, y, color=colour, **style)
    return drawn


def _terminal_table(
    rows: Sequence[dict[str, Any]],
    differences: Sequence[dict[str, Any]],
    settings: StreamSettings,
    splits: Mapping[str, Mapping[str, int]],
    output: Path,
) -> str:
    """Contig by contig, the longest ones where there are many."""
    contigs = {row["contig"]: row["length"] for row in rows}
    longest = sorted(contigs, key=contigs.__getitem__, reverse=True)[:SHOWN]
    width = max(len("model"), *(len(row["model"]) for row in rows))
    lines = [
        f"whole contigs in one pass, forward strand, segments of {settings.segment:,} bases; "
        f"[low, high]: 95 % by resampling blocks of {settings.block:,} bases",
        f"{'model':<{width}}  {'perplexity':<25} {'with resets':<25} "
        f"{'gain of carrying, nats':<30} {'bases/s':>9} {'memory':>10}",
    ]
    for contig in (contig for contig in contigs if contig in longest):
        mine = [row for row in rows if row["contig"] == contig]
        title = (
            f"{contig} ({len(splits) - 1:,} contigs pooled)" if contig == ALL_CONTIGS else contig
        )
        lines.append(
            f"{title}: {mine[0]['length']:,} bases, {mine[0]['bases']:,} counted, "
            f"{mine[0]['n_skipped']:,} N skipped"
        )
        if mine[0]["bases"]:
            lines.append(split_line(splits[contig]))
        lines += [_line(row, width) for row in mine]
        lines += [_pair(pair) for pair in differences if pair["contig"] == contig]
    if len(contigs) > SHOWN:
        lines.append(f"... and {len(contigs) - SHOWN:,} shorter contigs, see result.json")
    without = dict.fromkeys(row["model"] for row in rows if row["reset_length"] is None)
    lines += [
        f"no control for {name}: at what length to empty its state is not known; give reset="
        for name in without
    ]
    lines.append(f"streams.csv and streams.png in {output}")
    return "\n".join(lines)


def _line(row: dict[str, Any], width: int) -> str:
    """One model on one contig, in the columns of the terminal table."""
    carried = _span(row["perplexity"], row["perplexity_low"], row["perplexity_high"], ".4f")
    reset = "-"
    if row["nll_reset"] is not None:
        reset = f"{row['perplexity_reset']:.4f} every {row['reset_length']:,}"
    gain = _span(row["gain_nats"], row["gain_low"], row["gain_high"], "+.5f")
    rate, memory = row["bases_per_second"], row["peak_memory_bytes"]
    speed = "-" if rate is None else tqdm.format_sizeof(rate)
    peak = "-" if memory is None else f"{memory / 2**20:,.0f} MiB"
    return f"{row['model']:<{width}}  {carried:<25} {reset:<25} {gain:<30} {speed:>9} {peak:>10}"


def _pair(pair: dict[str, Any]) -> str:
    """Two models on one contig."""
    difference = _span(pair["nll_nats"], pair["low"], pair["high"], "+.5f")
    return f"  {pair['model']} - {pair['minus']}: {difference} nats per base"


def _span(value: float | None, low: float | None, high: float | None, digits: str) -> str:
    """A number and its interval, as far as they exist."""
    if value is None:
        return "-"
    return f"{value:{digits}}" + ("" if low is None else f" [{low:{digits}}, {high:{digits}}]")
