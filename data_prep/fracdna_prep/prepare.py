"""From FASTA and BED to a genome store and window tables: refusals first, then the work."""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fracdna_prep.build_store import build_store, plan_store
from fracdna_prep.compression import reading_refusals
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
from fracdna_prep.window_plan import WindowPlan, check_rows, fill_table, plan_windows

_INTERVALS_FILE = "intervals.parquet"
SUMMARY_FILE = "summary.json"
# short contigs are padded up to a window, but not to one of any size
_LONGEST_PADDED = 1 << 24


def prepare(options: PrepareOptions) -> PreparationSummary:
    """Prepares a genome for training and evaluation.

    Writes into the output folder the genome store, intervals.parquet, one windows-<L>.parquet a
    length and, last of all, summary.json. A run that was interrupted goes on with what is
    complete; a run with other options replaces the tables.

    Raises:
        InputError: anything that can be known before the work; then nothing has been written.
    """
    options.check()
    check_writable(options.output)
    store_plan = plan_store(options.fasta, options.store_directory)
    rows = read_rows(options, store_plan.contigs)
    if not len(rows):
        raise InputError(f"{options.fasta} holds no base")
    _check_lengths(options.lengths, store_plan.contigs)
    shared_bases = check_rows(rows, allow=options.allow_split_overlap)
    if not store_plan.complete:
        check_writable(store_plan.directory)
    plans = [plan_windows(rows, length, options) for length in options.lengths]
    build_store(store_plan, progress=options.progress)
    store = GenomeStore(store_plan.directory)
    return _write(options, store, rows, plans, shared_bases)


def windows_path(output: Path | str, length: int) -> Path:
    """Where the window table of one length lies."""
    return Path(output) / f"windows-{length}.parquet"


def store_path(output: Path | str) -> Path:
    """The folder of the genome store that a preparation used.

    Raises:
        InputError: there is no finished preparation.
    """
    try:
        return Path(output).absolute() / read_summary(output)["genome"]["store"]
    except (KeyError, TypeError) as error:
        raise _damaged(Path(output) / SUMMARY_FILE) from error


def read_summary(output: Path | str) -> dict[str, Any]:
    """The plain values of summary.json.

    Raises:
        InputError: there is no finished preparation, or its summary is damaged.
    """
    path = Path(output) / SUMMARY_FILE
    try:
        with reading_refusals(path):
            summary = json.loads(_existing(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _damaged(path) from error
    if not isinstance(summary, dict):
        raise _damaged(path)
    return summary


def read_intervals_table(output: Path | str) -> dict[str, list[Interval]]:
    """The usable input intervals of a preparation by split, clipped to their contigs.

    Returns:
        split ("train", "valid", "test" or "none") to intervals, in input order.

    Raises:
        InputError: the table is missing or damaged.
    """
    path = _existing(Path(output) / _INTERVALS_FILE)
    columns, metadata = read_table(path, INTERVAL_COLUMNS)
    lengths = metadata.get("contigs", {})
    intervals: dict[str, list[Interval]] = {}
    for row in range(len(columns["row"])):
        if columns["status"][row].startswith("dropped"):
            continue
        contig = columns["contig"][row]
        if contig not in lengths:
            raise _damaged(path)
        start = max(0, int(columns["start"][row]))
        end = min(lengths[contig], int(columns["end"][row]))
        interval = Interval(contig, start, end, columns["strand"][row])
        intervals.setdefault(columns["split"][row], []).append(interval)
    return intervals


def _existing(path: Path) -> Path:
    """A file of a preparation, if it is there."""
    with reading_refusals(path):
        if path.exists():
            return path
    output = path.parent
    raise InputError(
        f"{output} holds no finished preparation: make it with `fracdna prepare fasta=GENOME "
        f"output={output}`"
    )


def _damaged(path: Path) -> InputError:
    return InputError(
        f"{path} is damaged: run `fracdna prepare` again with the same options to write it anew"
    )


def _check_lengths(lengths: tuple[int, ...], contigs: Mapping[str, int]) -> None:
    """Refuses windows that no contig can fill and that no memory should hold as padding."""
    name, longest = max(contigs.items(), key=lambda item: item[1])
    if max(lengths) > max(longest, _LONGEST_PADDED):
        raise InputError(
            f"length={max(lengths)}: the longest contig, {name!r}, has {longest:,} bases, so every "
            f"window would be padded or dropped; give a length of at most {longest}"
        )


def _write(
    options: PrepareOptions,
    store: GenomeStore,
    rows: Rows,
    plans: list[WindowPlan],
    shared_bases: int,
) -> PreparationSummary:
    output = Path(options.output).absolute()
    metadata = _metadata(options, store, rows)
    # The summary marks a finished preparation, so it goes before the tables change.
    with writing_refusals(output):
        (output / SUMMARY_FILE).unlink(missing_ok=True)
        removed = _remove_foreign_tables(output, metadata["inputs_hash"])
    own = {"contigs": store.contigs, "split_overlap_bases": shared_bases}
    _write_intervals(output / _INTERVALS_FILE, rows, {**metadata, **own})
    tables = []
    for plan in plans:
        path = windows_path(output, plan.length)
        tables.append(_table(path, plan, rows, store, options, metadata))
    earlier = _earlier_tables(output, tables, metadata["inputs_hash"])
    source = None if options.intervals is None else str(options.intervals)
    summary = PreparationSummary(
        output=str(output),
        genome=summarise_genome(store, output),
        intervals=summarise_intervals(rows, source, shared_bases),
        windows=[
            *(summarise_windows(table, rows) for table in tables),
            *(summarise_windows(table, rows, earlier=True) for table in earlier),
        ],
        removed=removed,
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
    # Sizes that were chosen by the longest length make other rows when that one changes.
    blocks = {
        name: getattr(rows.blocks, name) if rows.blocks else None
        for name in ("block_size", "guard")
    }
    inputs = {
        "version": VERSION,
        "genome_checksum": store.checksum,
        "files": {name: file["sha256"] for name, file in files.items()},
        "options": {k: v for k, v in (options.effective() | blocks).items() if k not in files},
    }
    return {
        "genome_checksum": store.checksum,
        "sources": store.metadata["sources"],
        "files": files,
        "policy": options.policy,
        "seed": options.seed,
        "split_rule": rows.rule,
        "blocks": blocks,
        "options": options.plain(),
        "inputs_hash": hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
    }


def _remove_foreign_tables(output: Path, inputs_hash: str) -> list[str]:
    """Removes tables of other inputs or options, which no longer fit the intervals."""
    removed = []
    for path in sorted(output.glob("windows-*.parquet")):
        if read_metadata(path).get("inputs_hash", inputs_hash) != inputs_hash:
            path.unlink()
            removed.append(path.name)
    return removed


def _earlier_tables(output: Path, made: list[WindowTable], inputs_hash: str) -> list[WindowTable]:
    """Tables of other lengths that earlier runs made from the same inputs and options."""
    tables = []
    for path in sorted(set(output.glob("windows-*.parquet")) - {table.path for table in made}):
        if read_metadata(path).get("inputs_hash") != inputs_hash:
            continue
        # A damaged one is no part of the preparation; whoever reads it is told.
        with contextlib.suppress(InputError):
            tables.append(WindowTable.read(path))
    return sorted(tables, key=lambda table: table.length)


def _write_intervals(path: Path, rows: Rows, metadata: dict[str, Any]) -> None:
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
    write_table(path, INTERVAL_COLUMNS, columns, metadata)


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
        # One that was changed or damaged meanwhile is made again.
        with contextlib.suppress(InputError):
            return WindowTable.read(path)
    own = {**metadata, "length": plan.length, "split_overlap_bases": plan.shared_bases}
    return fill_table(plan, rows, store, options.max_n_fraction, own).write(path)
