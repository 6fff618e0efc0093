"""Tables and pictures of an evaluation."""

import csv
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fracdna.evaluation.length_curve import RegionScores, Scores
from fracdna.evaluation.likelihood import bits_per_base, perplexity
from fracdna.evaluation.regions import Regions
from fracdna.evaluation.statistics import interval_95, resampled_nll
from fracdna.pictures import Line, bases, draw_lines
from fracdna_prep.files import atomic_file

COUNT_MODEL = "markov-"
FEWEST_BASES = 1000  # that a point of the context curve stands on


class Row(NamedTuple):
    """One line of table.csv: a model at a length, over all regions or one contig's."""

    model: str
    contig: str
    length: int
    bases: int
    nll_nats: float
    bits_per_base: float
    perplexity: float
    perplexity_low: float | None
    perplexity_high: float | None
    perplexity_acgt: float


def write_report(
    output: Path, regions: Regions, scores: Scores, networks: list[str], settings: dict[str, Any]
) -> str:
    """Write result.json, table.csv, positions.csv, samples.parquet and the pictures.

    Args:
        output: folder, existing.
        regions: what was scored.
        scores: model name to length to sums.
        networks: names in scores that are networks.
        settings: plain values kept in result.json.

    Returns:
        A table for the terminal.
    """
    rows = [row for model, cells in scores.items() for row in _rows(model, regions, cells)]
    rows += _uniform_rows([row for row in rows if row.model == networks[0]])
    positions = [row for model in networks for row in _position_rows(model, scores[model])]
    best = best_count_model(scores)
    _write_csv(output / "table.csv", Row._fields, rows)
    fields = ("model", "context_from", "context_to", "bases", "nll_nats", "perplexity")
    _write_csv(output / "positions.csv", fields, positions)
    _write_samples(output / "samples.parquet", scores)
    _draw(output, rows, positions, networks, best, settings)
    result = settings | {
        "regions": {
            "count": len(regions.intervals),
            "width": regions.width,
            "manifest": regions.manifest_hash,
            "tiles_found": regions.found,
            "tiles_dropped_for_n": regions.with_n,
            "bases_in_no_tile": regions.unused,
        },
        "scored": {
            str(length): {
                "bases_counted": int(cell.tokens.sum()),
                "n_skipped": cell.n_skipped,
                "pad_skipped": cell.pad_skipped,
                "coordinates": cell.scored,
            }
            for length, cell in next(iter(scores.values())).items()
        },
        "best_count_model": best,
        "table": [row._asdict() for row in rows],
        "differences": _differences(scores, networks, best),
        "complete": True,
    }
    with atomic_file(output / "result.json") as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n")
    cell = next(iter(scores[networks[0]].values()))
    return _terminal_table(rows, networks, best, cell, output)


def best_count_model(scores: Scores) -> str | None:
    """The count model with the lowest nats over all lengths, chosen on the scored bases themselves.

    That favours the count model: a network that beats it has beaten every order.
    """
    totals = {
        name: sum(cell.nats.sum() for cell in cells.values())
        for name, cells in scores.items()
        if name.startswith(COUNT_MODEL)
    }
    return min(totals, key=totals.get) if totals else None


def _rows(model: str, regions: Regions, cells: dict[int, RegionScores]) -> list[Row]:
    """Over all regions, then by contig where there are several."""
    contigs = np.array([i.chromosome for i in regions.intervals])
    groups = {"all": np.ones(len(contigs), dtype=bool)}
    if len(set(contigs)) > 1:
        groups |= {str(name): contigs == name for name in dict.fromkeys(contigs)}
    rows = []
    for length, cell in cells.items():
        for contig, chosen in groups.items():
            nats, tokens = cell.nats[chosen], cell.tokens[chosen]
            if not tokens.sum():
                continue
            nll = float(nats.sum() / tokens.sum())
            low, high = _perplexity_interval(nats, tokens)
            acgt = perplexity(float(cell.nats_acgt[chosen].sum() / tokens.sum()))
            counted, bits = int(tokens.sum()), bits_per_base(nll)
            rows.append(
                Row(model, contig, length, counted, nll, bits, perplexity(nll), low, high, acgt)
            )
    return rows


def _uniform_rows(like: list[Row]) -> list[Row]:
    """The guess that knows nothing: 2 bits a base."""
    nll = math.log(4)
    bits, four = bits_per_base(nll), perplexity(nll)
    return [
        row._replace(
            model="uniform", nll_nats=nll, bits_per_base=bits, perplexity=four,
            perplexity_low=four, perplexity_high=four, perplexity_acgt=four,
        )
        for row in like
    ]  # fmt: skip


def _perplexity_interval(
    nats: np.ndarray, tokens: np.ndarray
) -> tuple[float, float] | tuple[None, None]:
    """95 % by resampling regions; one region alone says nothing about the spread."""
    if len(tokens) < 2:
        return None, None
    low, high = interval_95(resampled_nll(nats, tokens))
    return perplexity(low), perplexity(high)


def _position_rows(model: str, cells: dict[int, RegionScores]) -> list[tuple]:
    """Perplexity by bases of context, from the longest windows: least, most, what was counted."""
    cell = cells[max(cells)]
    return [
        (
            model,
            2**bucket // 2,
            2**bucket - 1,
            int(tokens),
            nats / tokens,
            perplexity(nats / tokens),
        )
        for bucket, (nats, tokens) in enumerate(
            zip(cell.bucket_nats, cell.bucket_tokens, strict=True)
        )
        if tokens
    ]


def _differences(scores: Scores, networks: list[str], best: str | None) -> list[dict[str, Any]]:
    """Nats per base of each network minus another model, paired by region, with intervals."""
    others = [*networks, *([best] if best else [])]
    found = []
    for place, model in enumerate(networks):
        for other in others[place + 1 :]:
            for length, cell in scores[model].items():
                against = scores[other][length]
                both = resampled_nll(np.stack([cell.nats, against.nats]), cell.tokens)
                several = len(cell.tokens) > 1
                low, high = interval_95(both[0] - both[1]) if several else (None, None)
                mean = float((cell.nats - against.nats).sum() / cell.tokens.sum())
                pair = {"model": model, "minus": other, "length": length}
                found.append(pair | {"nll_nats": mean, "low": low, "high": high})
    return found


def _write_csv(path: Path, names: tuple[str, ...], rows: list[tuple]) -> None:
    """A table with a header."""
    with atomic_file(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)


def _write_samples(path: Path, scores: Scores) -> None:
    """One row per model, length and region: any later statistic can be made from them."""
    columns: dict[str, list] = {n: [] for n in ("model", "length", "region", "nll_nats", "tokens")}
    for model, cells in scores.items():
        for length, cell in cells.items():
            count = len(cell.tokens)
            values = ([model] * count, [length] * count, range(count), cell.nats, cell.tokens)
            for column, value in zip(columns.values(), values, strict=True):
                column.extend(value)
    with atomic_file(path) as temporary:
        pq.write_table(pa.table(columns), temporary)


def _draw(
    output: Path,
    rows: list[Row],
    positions: list[tuple],
    networks: list[str],
    best: str | None,
    settings: dict[str, Any],
) -> None:
    """Perplexity by length and by amount of context, with the count models beside them."""
    rows = [row for row in rows if row.contig == "all"]
    references = ["markov-2", best] if best else []
    lines = []
    for model in dict.fromkeys([*networks, *references]):
        mine = [row for row in rows if row.model == model]
        x, y = [row.length for row in mine], [row.perplexity for row in mine]
        low, high = [r.perplexity_low for r in mine], [r.perplexity_high for r in mine]
        band = (None, None) if None in low else (low, high)
        lines.append(Line(_label(model, best), x, y, *band, reference=model in references))
    trained = {m["trained_on_length"] for m in settings["models"].values()} - {None}
    note = f"{rows[0].bases:,} bases of {settings['split']}; bands: 95 % by resampling regions"
    draw_lines(
        output / "perplexity.png",
        lines,
        xlabel=f"window length (bases)\n{note}",
        title="Perplexity by window length, the same bases at every length",
        marks={length: f"trained on {bases(length)}" for length in trained},
    )
    lines = []
    for model in networks:
        # the first buckets hold a handful of bases each: their noise would fill the picture
        mine = [p for p in positions if p[0] == model and p[1] > 0 and p[3] >= FEWEST_BASES]
        lines.append(Line(model, [p[1] for p in mine], [p[5] for p in mine]))
    longest = max(row.length for row in rows)
    for model in references:
        level = next(r.perplexity for r in rows if r.model == model and r.length == longest)
        x = lines[0].x
        lines.append(Line(_label(model, best), x, [level] * len(x), reference=True))
    draw_lines(
        output / "positions.png",
        [line for line in lines if line.x],
        xlabel=f"bases of context: each point from there to twice as many\n{note.split(';')[0]}",
        title=f"Perplexity by bases of context, windows of {longest:,}",
        marks={length: f"trained on {bases(length)}" for length in trained},
    )


def _label(model: str, best: str | None) -> str:
    """A model's name in pictures."""
    if not model.startswith(COUNT_MODEL):
        return model
    order = model.removeprefix(COUNT_MODEL)
    return f"counts, {order} bases back" + (" (the best)" if model == best else "")


def _terminal_table(
    rows: list[Row], networks: list[str], best: str | None, cell: RegionScores, output: Path
) -> str:
    """Perplexities side by side, the best count model named and compared."""
    rows = [row for row in rows if row.contig == "all"]
    table = {(row.model, row.length): row.perplexity for row in rows}
    lengths = sorted({row.length for row in rows})
    names = list(dict.fromkeys(row.model for row in rows))
    width = max(map(len, names)) + 6

    def line(name: str, values: list[float], digits: int, end: str = "") -> str:
        return f"{name:<{width}}" + "".join(f"{v:9.{digits}f}" for v in values) + end

    lines = [
        f"the same bases at every length: {int(cell.tokens.sum()):,} counted, "
        f"{cell.n_skipped:,} N and {cell.pad_skipped:,} pads skipped",
        f"{'perplexity':<{width}}" + "".join(f"{length:>9,}" for length in lengths),
    ]
    for name in names:
        values = [table[name, length] for length in lengths]
        lines.append(line(name, values, 4, "  <- best count model" if name == best else ""))
    for unit in ("nll_nats", "bits_per_base"):
        lines.append("nats per base" if unit == "nll_nats" else "bits per base")
        for name in networks:
            values = [getattr(row, unit) for row in rows if row.model == name]
            lines.append(line(name, values, 4))
    if best:
        lines += [_verdict(table, name, best, lengths) for name in networks]
    lines.append(f"tables and pictures in {output}")
    return "\n".join(lines)


def _verdict(table: dict[tuple[str, int], float], name: str, best: str, lengths: list[int]) -> str:
    """Whether a network knows more than counting gives, at every length."""
    better = [length for length in lengths if table[name, length] < table[best, length]]
    if len(better) == len(lengths):
        return f"{name} is below {best} at every length: it has learned more than counts give"
    if better:
        return f"{name} is below {best} at {len(better)} of {len(lengths)} lengths only"
    shortest = lengths[0]
    beaten = [m for m, n in table if n == shortest and table[m, n] > table[name, n]]
    weaker = [m for m in beaten if m.startswith(COUNT_MODEL)]
    known = f"below {weaker[-1]} at {shortest:,} bases, but " if weaker else ""
    return (
        f"{name} is {known}above {best} at every length: a table of counts predicts these bases "
        "better; train it longer or on more bases"
    )
