"""What an evaluation leaves behind: files, pictures and a table for the terminal."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fracdna.evaluation.classes import BaseClasses
from fracdna.evaluation.figures import draw_all
from fracdna.evaluation.plan import FIXED, TILING, Plan
from fracdna.evaluation.tables import (
    DifferenceRow,
    GainRow,
    PositionRow,
    Row,
    SampleColumns,
    Scores,
    Tables,
    samples,
)
from fracdna.evaluation.tally import FORWARD
from fracdna.evaluation.terminal import terminal_table
from fracdna_prep.files import atomic_file

_TEXTS = ("model", "curve", "strand", "part", "group")


def write_report(
    output: Path,
    plan: Plan,
    classes: BaseClasses,
    scores: Scores,
    tables: Tables,
    settings: dict[str, Any],
) -> str:
    """Write tables, samples, pictures, and result.json last.

    Args:
        output: folder, existing.
        plan: what was measured.
        classes: how bases are divided.
        scores: of all models.
        tables: made from them.
        settings: plain values kept in result.json.

    Returns:
        A table for the terminal.
    """
    _write_csv(output / "table.csv", Row._fields, tables.rows)
    _write_csv(output / "positions.csv", PositionRow._fields, tables.positions)
    _write_csv(output / "gains.csv", GainRow._fields, tables.gains)
    _write_csv(output / "differences.csv", DifferenceRow._fields, tables.differences)
    _write_samples(output / "samples.parquet", samples(plan, classes, scores))
    trained = {name: model["trained_on_length"] for name, model in settings["models"].items()}
    draw_all(output, plan, classes, tables, trained, settings["split"])
    write_result(
        output,
        settings
        | {
            "regions": _regions(classes),
            "classes": classes.about,
            "scored": list(_scored(plan, scores)),
            "best_count_model": tables.best,
            "reset_lengths": tables.resets,
            "without_gains": list(tables.notes),
            "table": [row._asdict() for row in tables.rows],
            "positions": [row._asdict() for row in tables.positions],
            "gains": [row._asdict() for row in tables.gains],
            "differences": [row._asdict() for row in tables.differences],
        },
    )
    cell = next(iter(scores.values()))[FORWARD, plan.width]
    return f"{terminal_table(plan, classes, tables, cell)}\ntables and pictures in {output}"


def write_result(output: Path, result: dict[str, Any]) -> None:
    """Write result.json, the mark of a finished evaluation."""
    with atomic_file(output / "result.json") as temporary:
        temporary.write_text(json.dumps(result | {"complete": True}, indent=1) + "\n")


def _regions(classes: BaseClasses) -> dict[str, Any]:
    """What is scored, and what was left out on the way to it."""
    regions = classes.regions
    return {
        "count": len(regions.intervals),
        "width": regions.width,
        "manifest": regions.manifest_hash,
        "tiles_found": regions.found,
        "tiles_dropped_for_n": regions.with_n,
        "bases_in_no_tile": regions.unused,
    }


def _scored(plan: Plan, scores: Scores) -> Iterable[dict[str, Any]]:
    """The proof that every length scored the same bases; models were compared before."""
    cells = next(iter(scores.values()))
    for curve in (TILING, FIXED):
        for strand in plan.strands:
            for length in plan.lengths_of(curve):
                cell = cells[strand, length]
                sums = cell.target if curve == FIXED else cell.bases
                yield {
                    "curve": curve,
                    "strand": strand,
                    "length": length,
                    "bases_counted": int(sums.tokens[:, 0].sum()),
                    "n_skipped_in_regions": cell.n_skipped,
                    "pad_skipped_in_regions": cell.pad_skipped,
                    "coordinates": cell.target_scored if curve == FIXED else cell.scored,
                }


def _write_csv(path: Path, names: Sequence[str], rows: Iterable[tuple]) -> None:
    """A table with a header."""
    with atomic_file(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)


def _write_samples(path: Path, columns: Iterable[SampleColumns]) -> None:
    """One row per model, curve, strand, length, group and region."""
    tables = [_sample_table(entry) for entry in columns]
    with atomic_file(path) as temporary:
        table = pa.concat_tables(tables) if tables else pa.table({})
        pq.write_table(table, temporary)


def _sample_table(entry: SampleColumns) -> pa.Table:
    """The rows of one model, curve, strand, length and group."""
    count = len(entry.sums.tokens)
    texts = {name: pa.repeat(getattr(entry, name), count) for name in _TEXTS}
    numbers = {
        "length": np.full(count, entry.length),
        "region": np.arange(count),
        "nll_nats": entry.sums.nats,
        "nll_acgt_nats": entry.sums.nats_acgt,
        "tokens": entry.sums.tokens,
    }
    return pa.table(texts | {name: pa.array(values) for name, values in numbers.items()})
