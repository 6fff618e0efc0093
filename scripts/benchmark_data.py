"""Measures genome preparation and reading on one core, beside pyfaidx in the same run.

    python scripts/benchmark_data.py GRCh37_chr20.fa.gz

Every measurement runs in a process of its own, so that its peak memory is its own.
"""

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pyfaidx

from fracdna_prep.compression import open_unpacked
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.prepare import PrepareOptions, prepare
from fracdna_prep.vocabulary import DNA

WIDTH = 65_536
PIECE = 1_000_000
SEED = 2222
COMPLEMENT = str.maketrans("ACGTacgt", "TGCAtgca")


@dataclass(frozen=True)
class Measurement:
    """Bases handled, seconds, and peak resident memory of the process in MB."""

    bases: int
    seconds: float
    peak_mb: float


def main() -> None:
    """Reads the command line, measures, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("fasta", type=Path, help="FASTA of one or more long contigs")
    parser.add_argument("--windows", type=int, default=4_000, help="random windows to draw")
    parser.add_argument("--scratch", type=Path, help="folder for temporary files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        folder = Path(scratch)
        plain = folder / "plain.fa"
        with open_unpacked(arguments.fasta) as source, plain.open("wb") as target:
            shutil.copyfileobj(source, target)
        measure_all(arguments.fasta, plain, folder, arguments.windows)


def measure_all(fasta: Path, plain: Path, folder: Path, windows: int) -> None:
    """Runs the measurements in turn and prints a line for each."""
    few = max(1, windows // 10)
    print(f"{fasta.name}, windows of {WIDTH:,}, one core, Python {sys.version.split()[0]}")
    print(f"{'what':<58}{'seconds':>9}{'Mbase/s':>9}{'peak MB':>9}")
    for what, function, given in (
        ("prepare: store, windows of 1,024 and 65,536", prepare_genome, (fasta, folder / "out")),
        ("pyfaidx: index, read in pieces of 1 Mbase, encode", read_all, (fasta, folder / "faidx")),
        (f"store: {windows:,} random windows, half on the other strand", draw_from_store,
         (folder / "out" / "genome", windows)),
        (f"pyfaidx, this file: {few:,} such windows", draw_from_pyfaidx,
         (fasta, folder / "faidx", few)),
        (f"pyfaidx, unpacked FASTA: {few:,} such windows", draw_from_pyfaidx,
         (plain, folder / "faidx-plain", few)),
    ):  # fmt: skip
        result = in_own_process(function, given)
        speed = result.bases / result.seconds / 1e6
        print(f"{what:<58}{result.seconds:>9.2f}{speed:>9.1f}{result.peak_mb:>9.0f}")


def in_own_process(function: Callable[..., tuple[int, float]], given: tuple) -> Measurement:
    """Runs a function in a fresh process that is bound to one core."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=_report, args=(function, given, results))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{function.__name__} failed")
    return results.get()


def _report(function: Callable[..., tuple[int, float]], given: tuple, results: SimpleQueue) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    bases, seconds = function(*given)
    # Linux counts in KB, macOS in bytes.
    unit = 1e6 if sys.platform == "darwin" else 1e3
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    results.put(Measurement(bases, seconds, peak))


def prepare_genome(fasta: Path, output: Path) -> tuple[int, float]:
    """The whole of `fracdna prepare` on one genome."""
    began = time.perf_counter()
    options = PrepareOptions(fasta, output, split="none", length=(1_024, WIDTH), progress=False)
    summary = prepare(options)
    return summary.genome.bases, time.perf_counter() - began


def open_pyfaidx(fasta: Path, folder: Path) -> pyfaidx.Faidx:
    """pyfaidx with its index files in a folder of their own."""
    folder.mkdir(exist_ok=True)
    return pyfaidx.Faidx(
        fasta, indexname=folder / "index.fai", gzi_indexname=folder / "index.gzi", as_raw=True
    )


def read_all(fasta: Path, folder: Path) -> tuple[int, float]:
    """Every base once through pyfaidx, encoded."""
    began = time.perf_counter()
    genome = open_pyfaidx(fasta, folder)
    bases = 0
    for name, record in genome.index.items():
        for start in range(0, record.rlen, PIECE):
            end = min(start + PIECE, record.rlen)
            bases += len(DNA.encode(genome.fetch(name, start + 1, end)))
    return bases, time.perf_counter() - began


def places(contigs: dict[str, int], count: int) -> list[tuple[str, int, bool]]:
    """Contig, start and strand of random windows, the same for every reader."""
    draw = random.Random(SEED)
    names = [name for name, length in contigs.items() if length >= WIDTH]
    if not names:
        raise SystemExit(f"no contig has {WIDTH:,} bases")
    weights = [contigs[name] for name in names]
    chosen = draw.choices(names, weights, k=count)
    return [(n, draw.randrange(contigs[n] - WIDTH + 1), draw.random() < 0.5) for n in chosen]


def draw_from_store(directory: Path, count: int) -> tuple[int, float]:
    """Random windows as training draws them."""
    store = GenomeStore(directory)
    drawn = places(store.contigs, count)
    began = time.perf_counter()
    for name, start, reverse in drawn:
        store.fetch_window(Interval(name, start, start + WIDTH), 0, 0, reverse=reverse)
    return count * WIDTH, time.perf_counter() - began


def draw_from_pyfaidx(fasta: Path, folder: Path, count: int) -> tuple[int, float]:
    """The same windows from text, with the same ids as the result."""
    genome = open_pyfaidx(fasta, folder)
    drawn = places({name: record.rlen for name, record in genome.index.items()}, count)
    began = time.perf_counter()
    for name, start, reverse in drawn:
        text = genome.fetch(name, start + 1, start + WIDTH)
        DNA.encode(text.translate(COMPLEMENT)[::-1] if reverse else text)
    return count * WIDTH, time.perf_counter() - began


if __name__ == "__main__":
    main()
