"""Tables, picture and result of a synthetic benchmark."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from fracdna.benchmarks.probe_run import Run
from fracdna.benchmarks.probe_tables import (
    NETWORK,
    ORACLE,
    DifferenceRow,
    Panel,
    Row,
    SummaryRow,
    variant_words,
)
from fracdna.pictures import bases, draw_band, save
from fracdna_prep.files import atomic_file

WRITTEN = (
    "result.json", "table.csv", "summary.csv", "differences.csv", "samples.parquet", "plot.png",
)  # fmt: skip
COLUMNS = 2  # panels beside each other
DASHES = ((7, 2), (4, 2), (2, 1.5), (7, 2, 1.5, 2), (4, 1.5, 1, 1.5))


class Tables(NamedTuple):
    """All that is told of a benchmark."""

    rows: Sequence[Row]
    summary: Sequence[SummaryRow]
    differences: Sequence[DifferenceRow]


def write_report(
    output: Path,
    tables: Tables,
    samples: Mapping[Run, pa.Table],
    facts: Mapping[str, Any],
    *,
    title: str,
    trained: int,
    chance: float,
) -> None:
    """Write a benchmark's files, result.json last.

    Args:
        output: the folder.
        tables: what they show.
        samples: rows of each run.
        facts: of the benchmark, plain values.
        title: of the picture.
        trained: length of the training sequences.
        chance: accuracy of a guess.
    """
    flat = [_flat(row) for row in tables.rows]
    _write_csv(output / "table.csv", flat)
    _write_csv(output / "summary.csv", [row._asdict() for row in tables.summary])
    _write_csv(output / "differences.csv", [row._asdict() for row in tables.differences])
    _write_samples(output / "samples.parquet", samples)
    save(accuracy_figure(tables, title, trained, chance), output / "plot.png")
    result = dict(facts) | {
        "table": flat,
        "summary": [row._asdict() for row in tables.summary],
        "differences": [row._asdict() for row in tables.differences],
        "complete": True,
    }
    with atomic_file(output / "result.json") as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n")


def accuracy_figure(tables: Tables, title: str, trained: int, chance: float) -> Figure:
    """Accuracy by length: a panel for each variant and part, oracles dashed.

    Bands are the range of the seeds, of a single one the 95 % interval over samples.
    """
    panels = list(dict.fromkeys(row.panel for row in tables.rows))
    columns = min(len(panels), COLUMNS) or 1
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns + 3.4, 4.0 * lines + 0.6), layout="constrained")
    figure.suptitle(title, fontsize=12)
    drawn: dict[str, Any] = {}
    plots = [figure.add_subplot(lines, columns, place + 1) for place in range(len(panels))]
    styles = _styles(tables)
    for panel, axes in zip(panels, plots, strict=True):
        lengths = _draw_panel(axes, panel, tables, styles, drawn)
        axes.axhline(chance, color="0.6", lw=0.9, ls=":")
        axes.axvline(trained, color="0.6", lw=0.9, ls=":")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(lengths[:: max(len(lengths) // 9, 1)]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bases(value)))
        axes.xaxis.set_minor_locator(FixedLocator([]))
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel("length")
        axes.grid(alpha=0.25)
        axes.set_ylabel("accuracy")
        axes.spines[["top", "right"]].set_visible(False)
    names = [name for name in styles if name in drawn]
    place = {"loc": "outside center right", "frameon": False, "fontsize": 8}
    figure.legend([drawn[name] for name in names], names, **place)
    return figure


def _styles(tables: Tables) -> dict[str, dict[str, Any]]:
    """How each name is drawn: networks in colours, oracles dashed in grey."""
    names = {kind: [r.name for r in tables.rows if r.kind == kind] for kind in (NETWORK, ORACLE)}
    networks, oracles = (list(dict.fromkeys(names[kind])) for kind in (NETWORK, ORACLE))
    colours = colormaps["tab10" if len(networks) <= 10 else "tab20"].colors
    styles = {
        name: {"color": colours[number % len(colours)], "lw": 1.8, "marker": "o", "ms": 4}
        for number, name in enumerate(networks)
    }
    dashed = {
        name: {"color": "0.35", "lw": 1.0, "ls": (0, DASHES[number % len(DASHES)])}
        for number, name in enumerate(oracles)
    }
    return styles | dashed


def _draw_panel(
    axes: Axes,
    panel: Panel,
    tables: Tables,
    styles: Mapping[str, Mapping[str, Any]],
    drawn: dict[str, Any],
) -> list[int]:
    """Curves of one panel; the lengths that they reach over."""
    for name, curve in _curves(panel, tables).items():
        lengths, values, low, high = zip(*sorted(curve), strict=True)
        (drawn[name],) = axes.plot(lengths, values, **styles[name])
        if None not in low:
            draw_band(axes, lengths, low, high, styles[name]["color"])
    return sorted({row.length for row in tables.rows if row.panel == panel})


def _curves(panel: Panel, tables: Tables) -> dict[str, list[tuple[Any, ...]]]:
    """By name: length, accuracy, and the ends of its band, which oracles have none of."""
    curves: dict[str, list[tuple[Any, ...]]] = {}
    intervals = {}
    for row in tables.rows:
        if row.panel == panel and row.kind == ORACLE:
            curves.setdefault(row.name, []).append((row.length, row.accuracy, None, None))
        elif row.panel == panel and row.chosen:
            intervals[row.name, row.length] = row.accuracy_low, row.accuracy_high
    for row in tables.summary:
        if Panel(row.variant, row.part) == panel:
            ends = (row.lowest, row.highest) if row.seeds > 1 else intervals[row.name, row.length]
            curves.setdefault(row.name, []).append((row.length, row.accuracy, *ends))
    return curves


def terminal_lines(tables: Tables) -> list[str]:
    """Accuracies by length, in percent: networks in the mean over seeds, then oracles."""
    lines = []
    for panel in dict.fromkeys(row.panel for row in tables.rows):
        lengths = sorted({row.length for row in tables.rows if row.panel == panel})
        found = {
            name: {length: value for length, value, *_ in curve}
            for name, curve in _curves(panel, tables).items()
        }
        networks = {row.name for row in tables.rows if row.kind == NETWORK}
        width = max(map(len, found)) + 2
        lines.append(
            f"{panel.title or 'accuracy, %':<{width}}" + "".join(f"{bases(t):>8}" for t in lengths)
        )
        for name in sorted(found, key=lambda name: name not in networks):
            values = "".join(
                f"{100 * found[name][t]:>8.1f}" if t in found[name] else f"{'-':>8}"
                for t in lengths
            )
            lines.append(f"{name:<{width}}{values}")
    return lines


def _flat(row: Row) -> dict[str, Any]:
    """A row with its details beside its fields."""
    fields = row._asdict()
    return {name: fields[name] for name in Row._fields if name != "details"} | dict(row.details)


def _write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A table with a header of all columns."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with atomic_file(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def _write_samples(path: Path, samples: Mapping[Run, pa.Table]) -> None:
    """All rows of all runs, each with the run that it is of."""
    tables = []
    for run, table in samples.items():
        if table.num_rows:
            told = {
                "network": run.network,
                "variant": variant_words(run.test),
                "learning_rate": run.recipe.rate,
                "seed": run.recipe.seed,
            }
            columns = {name: pa.repeat(value, table.num_rows) for name, value in told.items()}
            of_table = {name: table[name] for name in table.column_names}
            tables.append(pa.table(columns | of_table))
    with atomic_file(path) as temporary:
        pq.write_table(pa.concat_tables(tables) if tables else pa.table({}), temporary)
