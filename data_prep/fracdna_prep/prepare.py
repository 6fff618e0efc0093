"""From FASTA and BED to a genome store and window tables: refusals first, then the work."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from fracdna_prep.build_store import build_store, plan_store
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file, check_writable, sha256_file, writing_refusals
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.options import PrepareOptions
from fracdna_prep.rows import Rows, read_rows
from fracdna_prep.summary import (
    PreparationSummary,
    count_row_problems,
    summarise_genome,
    summarise_intervals,
    summarise_windows,
)
from fracdna_prep.tables import (
    INTERVAL_COLUMNS,
    VERSION,
    WindowTable,
    read_metadata,
    read_table,
    write_table,
)
from fracdna_prep.window_plan import WindowPlan, fill_table, plan_windows

_INTERVALS_FILE = "intervals.parquet"
SUMMARY_FILE = "summary.json"


def prepare(options: PrepareOptions) -> PreparationSummary:
    """Prepares a genome for training and evaluation.

    Writes into the output folder the genome store, intervals.parquet, one windows-<L>.parquet a
    length and, last of all, summary.json. A run that was interrupted goes on with what is
    complete; a run with other options replaces the tables.

    Raises:
        InputError: anything that can be known before the work; then nothing has been written.
    """
    options.check()
    store_plan = plan_store(options.fasta, options.store_directory)
    rows = read_rows(options, store_plan.contigs)
    if not len(rows):
        raise InputError(f"{options.fasta} holds no base")
    check_writable(options.output)
    if not store_plan.complete:
        check_writable(store_plan.directory)
    plans = [plan_windows(rows, length, options) for length in options.lengths]
    build_store(store_plan, progress=options.progress)
    store = GenomeStore(store_plan.directory)
    return _write(options, store, rows, plans)


def windows_path(output: Path | str, length: int) -> Path:
    """Where the window table of one length lies."""
    return Path(output) / f"windows-{length}.parquet"


def store_path(output: Path | str) -> Path:
    """The folder of the genome store that a preparation used.

    Raises:
        InputError: there is no finished preparation.
    """
    return Path(output).absolute() / read_summary(output)["genome"]["store"]


def read_summary(output: Path | str) -> dict[str, Any]:
    """The plain values of summary.json.

    Raises:
        InputError: there is no finished preparation.
    """
    path = Path(output) / SUMMARY_FILE
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{output} holds no finished preparation: run `fracdna prepare output={output}`"
        ) from error


def read_intervals_table(output: Path | str) -> dict[str, list[Interval]]:
    """The usable input intervals of a preparation by split, clipped to their contigs.

    Returns:
        split ("train", "valid", "test" or "none") to intervals, in input order.

    Raises:
        InputError: the table is missing or damaged.
    """
    columns, metadata = read_table(Path(output) / _INTERVALS_FILE, INTERVAL_COLUMNS)
    lengths = metadata["contigs"]
    intervals: dict[str, list[Interval]] = {}
    for row in range(len(columns["row"])):
        if columns["status"][row].startswith("dropped"):
            continue
        contig = columns["contig"][row]
        start = max(0, int(columns["start"][row]))
        end = min(lengths[contig], int(columns["end"][row]))
        interval = Interval(contig, start, end, columns["strand"][row])
        intervals.setdefault(columns["split"][row], []).append(interval)
    return intervals


def _write(
    options: PrepareOptions, store: GenomeStore, rows: Rows, plans: list[WindowPlan]
) -> PreparationSummary:
    output = Path(options.output).absolute()
    metadata = _metadata(options, store, rows)
    # The summary marks a finished preparation, so it goes before the tables change.
    with writing_refusals(output):
        (output / SUMMARY_FILE).unlink(missing_ok=True)
    _remove_foreign_tables(output, metadata["inputs_hash"])
    _write_intervals(output / _INTERVALS_FILE, rows, store, metadata)
    tables = []
    for plan in plans:
        path = windows_path(output, plan.length)
        tables.append(_table(path, plan, rows, store, options, metadata))
    source = None if options.intervals is None else str(options.intervals)
    summary = PreparationSummary(
        output=str(output),
        genome=summarise_genome(store, output),
        intervals=summarise_intervals(rows, source),
        windows=[
            summarise_windows(table, rows, table.path.name, plan.shared_bases)
            for table, plan in zip(tables, plans, strict=True)
        ],
        row_problems=count_row_problems(rows, tables),
        options=options.plain(),
    )
    with atomic_file(output / SUMMARY_FILE) as temporary:
        temporary.write_text(json.dumps(summary.plain(), indent=1), encoding="utf-8")
    return summary


def _metadata(options: PrepareOptions, store: GenomeStore, rows: Rows) -> dict[str, Any]:
    files = {
        name: {"name": Path(path).name, "sha256": sha256_file(path)}
        for name, path in (("intervals", options.intervals), ("rename", options.rename))
        if path is not None and path not in ("none", "chr_prefix")
    }
    inputs = {
        "version": VERSION,
        "genome_checksum": store.checksum,
        "files": {name: file["sha256"] for name, file in files.items()},
        "options": {k: v for k, v in options.effective().items() if k not in files},
    }
    return {
        "genome_checksum": store.checksum,
        "sources": store.metadata["sources"],
        "files": files,
        "policy": options.policy,
        "seed": options.seed,
        "split_rule": rows.rule,
        "options": options.plain(),
        "inputs_hash": hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
    }


def _remove_foreign_tables(output: Path, inputs_hash: str) -> None:
    """Removes tables of other inputs or options, which no longer fit the intervals."""
    for path in output.glob("windows-*.parquet"):
        if read_metadata(path).get("inputs_hash", inputs_hash) != inputs_hash:
            path.unlink()


def _write_intervals(path: Path, rows: Rows, store: GenomeStore, metadata: dict[str, Any]) -> None:
    columns = {
        "row": np.arange(len(rows)),
        "contig": rows.contigs,
        "start": rows.starts,
        "end": rows.ends,
        "strand": rows.strands,
        "name": rows.names,
        "split": rows.splits,
        "status": rows.statuses(),
    }
    write_table(path, INTERVAL_COLUMNS, columns, {**metadata, "contigs": store.contigs})


def _table(
    path: Path,
    plan: WindowPlan,
    rows: Rows,
    store: GenomeStore,
    options: PrepareOptions,
    metadata: dict[str, Any],
) -> WindowTable:
    """The table of one length: the one that an earlier run finished, or a new one."""
    if read_metadata(path).get("inputs_hash") == metadata["inputs_hash"]:
        return WindowTable.read(path)
    own = {**metadata, "length": plan.length, "split_overlap_bases": plan.shared_bases}
    return fill_table(plan, rows, store, options.max_n_fraction, own).write(path)
