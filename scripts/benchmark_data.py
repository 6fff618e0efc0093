"""Measures genome preparation and reading on one core, beside pyfaidx in the same run.

    python scripts/benchmark_data.py chr20.fa.gz chrX.fa.gz --intervals splits.bed
    python scripts/benchmark_data.py --synthetic-bases 3.1e9 --scratch /large/disk

Every measurement runs in a process of its own, so that its peak memory is its own.
"""

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import numpy as np
import pyfaidx

from fracdna_prep.build_store import partial_folder
from fracdna_prep.compression import open_unpacked
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.prepare import PrepareOptions, prepare, read_summary, windows_path
from fracdna_prep.store_layout import BASES_FILE
from fracdna_prep.tables import WindowTable
from fracdna_prep.vocabulary import DNA

WIDTH = 65_536
LENGTHS = tuple(1_024 << step for step in range(7))
PIECE = 1_000_000
SEED = 2222
COMPLEMENT = str.maketrans("ACGTacgt", "TGCAtgca")

# The synthetic genome: as many sequences as hg38 has, chromosomes and many short ones.
CHROMOSOMES, SHORT_SEQUENCES = 24, 431
LINE = 60
LINES_AT_ONCE = 50_000
MASKED_RUN = 300
END_GAP, INNER_GAP = 10_000, 5_000
# FASTA and store take a little over a byte a base each, the window tables a few hundredths.
DISK_BYTES_PER_BASE = 2.3


@dataclass(frozen=True)
class Measurement:
    """Bases handled, seconds by the clock and of the processor, peak resident memory in MB."""

    bases: int
    seconds: float
    cpu_seconds: float
    peak_mb: float


class Stopwatch:
    """Seconds since it was made, by the clock and of this process's processor time."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Both of them."""
        clock, cpu = self._began
        return time.perf_counter() - clock, time.process_time() - cpu


def main() -> None:
    """Reads the command line, measures, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("fasta", type=Path, nargs="*", help="FASTA files of one or more contigs")
    parser.add_argument("--windows", type=int, default=4_000, help="random windows to draw")
    parser.add_argument("--intervals", type=Path, help="BED with splits in its fourth column")
    parser.add_argument("--rename", default="chr_prefix", help="its names to those of the FASTA")
    parser.add_argument(
        "--synthetic-bases", type=float, default=0, help="size of a made genome; 3.1e9 as hg38"
    )
    parser.add_argument("--scratch", type=Path, help="folder for temporary files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        folder = Path(scratch)
        print(f"one core, Python {sys.version.split()[0]}")
        print(f"{'what':<58}{'seconds':>9}{'CPU s':>9}{'Mbase/s':>9}{'peak MB':>9}")
        if arguments.fasta:
            measure_reading(arguments.fasta[0], folder, arguments.windows)
        if arguments.intervals:
            measure_splits(arguments.fasta, arguments.intervals, arguments.rename, folder)
        if arguments.synthetic_bases:
            measure_synthetic(int(arguments.synthetic_bases), folder)


def measure_reading(fasta: Path, folder: Path, windows: int) -> None:
    """One file prepared and read, beside pyfaidx."""
    plain = folder / "plain.fa"
    with open_unpacked(fasta) as source, plain.open("wb") as target:
        shutil.copyfileobj(source, target)
    few = max(1, windows // 10)
    print(f"{fasta.name}, windows of {WIDTH:,}")
    options = {"length": (1_024, WIDTH), "split": "none"}
    for what, function, *given in (
        ("prepare: store, windows of 1,024 and 65,536", prepare_genome, fasta, folder / "out",
         options),
        ("pyfaidx: index, read in pieces of 1 Mbase, encode", read_all, fasta, folder / "faidx"),
        (f"store: {windows:,} random windows, half on the other strand", draw_from_store,
         folder / "out" / "genome", windows),
        (f"pyfaidx, this file: {few:,} such windows", draw_from_pyfaidx,
         fasta, folder / "faidx", few),
        (f"pyfaidx, unpacked FASTA: {few:,} such windows", draw_from_pyfaidx,
         plain, folder / "faidx-plain", few),
    ):  # fmt: skip
        measure(what, function, *given)


def measure_splits(fasta: list[Path], intervals: Path, rename: str, folder: Path) -> None:
    """All files prepared, split by a BED and windowed at every length."""
    print(f"{', '.join(path.name for path in fasta)}, split by {intervals.name}")
    options = {"intervals": intervals, "rename": rename, "split": "bed", "length": LENGTHS}
    output = folder / "split"
    measure("prepare: store, windows of 1K, 2K .. 64K", prepare_genome, fasta, output, options)
    for window in read_summary(output)["windows"]:
        print(f"  {window['length']:,}: {window['usable_by_split']}")


def measure_synthetic(bases: int, folder: Path) -> None:
    """A made genome prepared, and prepared again by a run that goes on after SIGKILL."""
    if shutil.disk_usage(folder).free < DISK_BYTES_PER_BASE * bases:
        raise SystemExit(
            f"{folder} has no {DISK_BYTES_PER_BASE * bases / 1e9:.1f} GB free: name another "
            "--scratch or fewer --synthetic-bases"
        )
    fasta, options = folder / "synthetic.fa", {"split": "none", "length": LENGTHS}
    print(f"synthetic genome, {bases:,} bases in {CHROMOSOMES + SHORT_SEQUENCES} sequences")
    measure("(making it: FASTA of 60 letters a line)", write_synthetic, fasta, bases)
    whole, killed = folder / "whole", folder / "killed"
    measure("prepare: store, windows of 1K, 2K .. 64K", prepare_genome, fasta, whole, options)
    unbroken = results_of(whole)
    measure("window table of 1,024 read for training", read_table, whole)
    shutil.rmtree(whole)
    kill_half_way(fasta, killed, options, bases)
    measure("the same, going on after SIGKILL half way through", prepare_genome, fasta, killed,
            options)  # fmt: skip
    if results_of(killed) != unbroken:
        raise SystemExit("the resumed run made another store or other tables")
    print("  checksum of the store and content hashes of all tables equal those of the first run")


def measure(what: str, function: Callable[..., Any], *given: object) -> None:
    """Runs a function in a process of its own and prints its line."""
    result = in_own_process(function, given)
    speed = result.bases / result.seconds / 1e6
    print(
        f"{what:<58}{result.seconds:>9.2f}{result.cpu_seconds:>9.2f}{speed:>9.1f}"
        f"{result.peak_mb:>9.0f}",
        flush=True,
    )


def in_own_process(function: Callable[..., tuple[int, Stopwatch]], given: tuple) -> Measurement:
    """Runs a function in a fresh process that is bound to one core."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=_report, args=(function, given, results))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{function.__name__} failed")
    return results.get()


def _report(
    function: Callable[..., tuple[int, Stopwatch]], given: tuple, results: SimpleQueue
) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    bases, stopwatch = function(*given)
    clock, cpu = stopwatch.read()
    # Linux counts in KB, macOS in bytes.
    unit = 1e6 if sys.platform == "darwin" else 1e3
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    results.put(Measurement(bases, clock, cpu, peak))


def prepare_genome(
    fasta: Path | list[Path], output: Path, options: dict[str, Any]
) -> tuple[int, Stopwatch]:
    """The whole of `fracdna prepare` on one genome."""
    stopwatch = Stopwatch()
    summary = prepare(PrepareOptions(fasta, output, progress=False, **options))
    return summary.genome.bases, stopwatch


def read_table(output: Path) -> tuple[int, Stopwatch]:
    """The longest window table as training opens it, its content verified."""
    stopwatch = Stopwatch()
    table = WindowTable.read(windows_path(output, LENGTHS[0]))
    return len(table.usable()) * table.length, stopwatch


def results_of(output: Path) -> list[str]:
    """Checksum of the store and content hashes of the tables."""
    summary = read_summary(output)
    return [summary["genome"]["checksum"], *(w["content_hash"] for w in summary["windows"])]


def kill_half_way(fasta: Path, output: Path, options: dict[str, Any], bases: int) -> None:
    """Starts `fracdna prepare` and kills it when half of the store is written."""
    lengths = ",".join(map(str, options["length"]))
    overrides = [f"fasta={fasta}", f"output={output}", f"split={options['split']}"]
    command = [sys.executable, "-m", "fracdna", "prepare"]
    process = subprocess.Popen(
        [*command, *overrides, f"length=[{lengths}]"], stderr=subprocess.DEVNULL
    )
    written = partial_folder(output / "genome") / BASES_FILE
    while process.poll() is None and not (written.exists() and written.stat().st_size > bases // 2):
        time.sleep(0.05)
    process.kill()
    process.wait()
    if (output / "genome").exists():
        raise SystemExit("the preparation ended before it could be killed")


def sizes_of_synthetic(bases: int) -> dict[str, int]:
    """Names and lengths of a genome of a few long and many short sequences."""
    draw = np.random.default_rng(SEED)
    short = draw.lognormal(np.log(6e-5), 1.5, SHORT_SEQUENCES)
    long = np.linspace(1, 0.2, CHROMOSOMES)
    long *= (32 - short.sum()) / long.sum()
    shares = np.concatenate([long, short]) / 32
    sizes = np.maximum(np.floor(shares * bases), 1).astype(int)
    return {f"seq{index + 1}": int(size) for index, size in enumerate(sizes)}


def write_synthetic(path: Path, bases: int) -> tuple[int, Stopwatch]:
    """Writes the genome as FASTA: runs of lower case, N at both ends and within."""
    stopwatch = Stopwatch()
    draw = np.random.default_rng(SEED)
    sizes = sizes_of_synthetic(bases)
    with path.open("wb") as file:
        for name, size in sizes.items():
            file.write(f">{name} synthetic\n".encode())
            for letters in pieces_of_synthetic(draw, size):
                whole = len(letters) // LINE
                lines = np.full((whole, LINE + 1), ord("\n"), dtype=np.uint8)
                lines[:, :LINE] = letters[: whole * LINE].reshape(whole, LINE)
                file.write(lines.data)
                if len(letters) % LINE:
                    file.write(letters[whole * LINE :].tobytes() + b"\n")
    return sum(sizes.values()), stopwatch


def pieces_of_synthetic(draw: np.random.Generator, size: int) -> Iterator[np.ndarray]:
    """The letters of one sequence, whole lines at a time."""
    bases = np.frombuffer(b"ACGT", dtype=np.uint8)
    gap = min(END_GAP, size // 20)
    for start in range(0, size, LINE * LINES_AT_ONCE):
        count = min(LINE * LINES_AT_ONCE, size - start)
        letters = bases[draw.integers(0, 4, count, dtype=np.uint8)]
        runs = draw.geometric(1 / MASKED_RUN, 2 * count // MASKED_RUN + 16)
        lower = np.repeat(np.arange(len(runs)) % 2 == 1, runs)[:count]
        letters[: len(lower)][lower] |= 0x20
        inner = int(draw.integers(0, LINE * LINES_AT_ONCE))
        letters[inner : inner + INNER_GAP] = ord("N")
        letters[: max(gap - start, 0)] = ord("N")
        letters[max(size - gap - start, 0) :] = ord("N")
        yield letters


def open_pyfaidx(fasta: Path, folder: Path) -> pyfaidx.Faidx:
    """pyfaidx with its index files in a folder of their own."""
    folder.mkdir(exist_ok=True)
    return pyfaidx.Faidx(
        fasta, indexname=folder / "index.fai", gzi_indexname=folder / "index.gzi", as_raw=True
    )


def read_all(fasta: Path, folder: Path) -> tuple[int, Stopwatch]:
    """Every base once through pyfaidx, encoded."""
    stopwatch = Stopwatch()
    genome = open_pyfaidx(fasta, folder)
    bases = 0
    for name, record in genome.index.items():
        for start in range(0, record.rlen, PIECE):
            end = min(start + PIECE, record.rlen)
            bases += len(DNA.encode(genome.fetch(name, start + 1, end)))
    return bases, stopwatch


def places(contigs: dict[str, int], count: int) -> list[tuple[str, int, bool]]:
    """Contig, start and strand of random windows, the same for every reader."""
    draw = random.Random(SEED)
    names = [name for name, length in contigs.items() if length >= WIDTH]
    if not names:
        raise SystemExit(f"no contig has {WIDTH:,} bases")
    weights = [contigs[name] for name in names]
    chosen = draw.choices(names, weights, k=count)
    return [(n, draw.randrange(contigs[n] - WIDTH + 1), draw.random() < 0.5) for n in chosen]


def draw_from_store(directory: Path, count: int) -> tuple[int, Stopwatch]:
    """Random windows as training draws them."""
    store = GenomeStore(directory)
    drawn = places(store.contigs, count)
    stopwatch = Stopwatch()
    for name, start, reverse in drawn:
        store.fetch_window(Interval(name, start, start + WIDTH), 0, 0, reverse=reverse)
    return count * WIDTH, stopwatch


def draw_from_pyfaidx(fasta: Path, folder: Path, count: int) -> tuple[int, Stopwatch]:
    """The same windows from text, with the same ids as the result."""
    genome = open_pyfaidx(fasta, folder)
    drawn = places({name: record.rlen for name, record in genome.index.items()}, count)
    stopwatch = Stopwatch()
    for name, start, reverse in drawn:
        text = genome.fetch(name, start + 1, start + WIDTH)
        DNA.encode(text.translate(COMPLEMENT)[::-1] if reverse else text)
    return count * WIDTH, stopwatch


if __name__ == "__main__":
    main()
