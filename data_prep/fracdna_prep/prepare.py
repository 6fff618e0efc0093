"""From FASTA and BED to a genome store and window tables: refusals first, then the work."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fracdna_prep.bed import read_bed
from fracdna_prep.build_store import (
    StoreDraft,
    folders_removed_if_refused,
    going_on_again,
    store_draft,
)
from fracdna_prep.compression import reading_refusals
from fracdna_prep.errors import InputError
from fracdna_prep.files import (
    atomic_file,
    check_writable,
    exclusive_lock,
    remove_leftovers,
    sha256_file,
    writing_refusals,
)
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.options import PrepareOptions
from fracdna_prep.progress import progress_bar
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
    read_metadata,
    read_table,
    verify_windows,
    write_table,
)
from fracdna_prep.tally import Tally, tally_windows
from fracdna_prep.verification import Verification, verify_store
from fracdna_prep.window_files import Batch, write_windows
from fracdna_prep.window_plan import check_rows, check_windows, window_batches

_INTERVALS_FILE = "intervals.parquet"
_LOCK_FILE = ".prepare.lock"
_SCRATCH = ".verification"
SUMMARY_FILE = "summary.json"
# short contigs are padded up to a window, but not to one of any size
_LONGEST_PADDED = 1 << 24


@going_on_again()
def prepare(options: PrepareOptions) -> PreparationSummary:
    """Prepares a genome for training and evaluation.

    Writes into the output folder the genome store, intervals.parquet, one windows-<L>.parquet a
    length and, last of all, summary.json. A run that was interrupted or killed goes on with what
    is complete, contigs of an unfinished store included; a run with other options replaces the
    tables. A second run on the same folder waits for the first.

    Raises:
        InputError: whatever can be known from the inputs; then nothing is left written.
        Unfinished: no space left, or a disk that fails; what is finished is kept.
    """
    options.check()
    check_writable(options.output)
    bed = None if options.intervals is None else read_bed(options.intervals)
    with store_draft(options.fasta, options.store_directory, progress=options.progress) as draft:
        rows = read_rows(options, draft.contigs, bed)
        if not len(rows):
            raise InputError(f"{options.fasta} holds no base")
        _check_lengths(options.lengths, draft.contigs)
        shared = check_rows(rows, allow=options.allow_split_overlap)
        shared_by_length = {
            length: check_windows(rows, length, options) for length in options.lengths
        }
        verification = _verify(options, draft) if options.verify else None
        draft.publish()
    store = GenomeStore(options.store_directory)
    output = Path(options.output).absolute()
    with exclusive_lock(output / _LOCK_FILE):
        return _write(options, store, rows, shared, shared_by_length, verification)


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


def _verify(options: PrepareOptions, draft: StoreDraft) -> Verification:
    """Verifies a store before anybody can see it, with scratch space in the output folder."""
    output = Path(options.output).absolute()
    scratch = output / _SCRATCH
    with folders_removed_if_refused(output), exclusive_lock(output / _LOCK_FILE):
        # That of a run that was killed.
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            with writing_refusals(output):
                scratch.mkdir()
            return verify_store(draft, scratch, progress=options.progress)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _write(
    options: PrepareOptions,
    store: GenomeStore,
    rows: Rows,
    shared_bases: int,
    shared_by_length: Mapping[int, int],
    verification: Verification | None,
) -> PreparationSummary:
    output = Path(options.output).absolute()
    metadata = _metadata(options, store, rows)
    # The summary marks a finished preparation, so it goes before the tables change.
    with writing_refusals(output):
        (output / SUMMARY_FILE).unlink(missing_ok=True)
        removed = _remove_foreign_tables(output, metadata["inputs_hash"])
        remove_leftovers(output, "windows-*.parquet")
        shutil.rmtree(output / _SCRATCH, ignore_errors=True)
    own = {"contigs": store.contigs, "split_overlap_bases": shared_bases}
    _write_intervals(output / _INTERVALS_FILE, rows, {**metadata, **own})
    tables: dict[Path, Tally] = {}
    for length, shared in shared_by_length.items():
        path = windows_path(output, length)
        own = {"length": length, "split_overlap_bases": shared}
        _make_table(path, rows, length, store, options, {**metadata, **own})
        tables[path] = tally_windows(path, rows)
    earlier = {
        path: tally_windows(path, rows)
        for path in _earlier_tables(output, tables, metadata["inputs_hash"])
    }
    source = None if options.intervals is None else str(options.intervals)
    summary = PreparationSummary(
        output=str(output),
        genome=summarise_genome(store, output),
        verification=verification,
        intervals=summarise_intervals(rows, source, shared_bases),
        windows=[
            summarise_windows(path, tally, rows, earlier=path in earlier)
            for path, tally in (tables | earlier).items()
        ],
        removed=removed,
        row_problems=count_row_problems(rows, tables.values()),
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
        "sources": [asdict(source) for source in store.record.sources],
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


def _earlier_tables(output: Path, made: Container[Path], inputs_hash: str) -> list[Path]:
    """Tables of other lengths that earlier runs made from the same inputs and options."""
    found = [path for path in output.glob("windows-*.parquet") if path not in made]
    # A damaged one is no part of the preparation; whoever reads it is told.
    whole = [path for path in found if _is_whole(path, inputs_hash)]
    return sorted(whole, key=lambda path: read_metadata(path)["length"])


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


def _make_table(
    path: Path,
    rows: Rows,
    length: int,
    store: GenomeStore,
    options: PrepareOptions,
    metadata: dict[str, Any],
) -> None:
    """Writes the table of one length where no earlier run has finished it."""
    if _is_whole(path, metadata["inputs_hash"]):
        return
    starts, ends = rows.clipped()
    total = int(np.maximum(ends - starts, 0).sum())
    with progress_bar(total, f"windows of {length:,}", options.progress) as bar:
        batches = window_batches(rows, length, store, options)
        write_windows(path, _counting(batches, rows, bar), metadata)


def _counting(batches: Iterator[Batch], rows: Rows, bar: tqdm) -> Iterator[Batch]:
    """Moves the bar on by the bases of the rows of each batch."""
    starts, ends = rows.clipped()
    widths = np.maximum(ends - starts, 0)
    for batch in batches:
        yield batch
        bar.update(int(widths[batch["row"][0] : batch["row"][-1] + 1].sum()))


def _is_whole(path: Path, inputs_hash: str) -> bool:
    """Whether a table was made from some inputs and is as it was written."""
    if read_metadata(path).get("inputs_hash") != inputs_hash:
        return False
    with contextlib.suppress(InputError):
        verify_windows(path)
        return True
    return False
