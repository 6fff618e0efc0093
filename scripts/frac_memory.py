"""Measures how the memories of a trained FRAC are used on the DNA of a split.

    python scripts/frac_memory.py runs/frac/checkpoints/best.ckpt --prepared prepared --output out

Writes memory_use.json (everything, with histograms and responses), memory_use.csv (a row for each
layer, head and group of bases) and memory_use.png. Repeats are the bases in lower case.
"""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import fracdna
from fracdna.benchmarks.memory_use import frac_layers, measure_memory_use
from fracdna.benchmarks.memory_use_figure import draw_memory_use
from fracdna.benchmarks.memory_use_result import MemoryUse
from fracdna.devices import AUTO_BATCH_BASES, choose_device, describe_device
from fracdna.evaluation.regions import Regions, choose_regions, merged
from fracdna.evaluation.run import run_name
from fracdna.model.checkpoint import load_model, model_hash
from fracdna.outcomes import NotFinite
from fracdna.pictures import bases
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file, check_writable
from fracdna_prep.genome import GenomeStore
from fracdna_prep.prepare import read_intervals_table, store_path
from fracdna_prep.wording import counted


def main(arguments_given: Sequence[str] | None = None) -> int:
    """Reads the command line, measures, writes; returns 2 where an input is refused."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("checkpoint", type=Path, help="of a model with FRAC layers")
    parser.add_argument("--prepared", type=Path, required=True, help="from `fracdna prepare`")
    parser.add_argument("--split", default="test", help="train, valid, test or none")
    parser.add_argument("--regions", type=int, default=16, help="windows to read, at most")
    parser.add_argument("--length", type=int, default=65_536, help="bases of a window")
    parser.add_argument("--output", type=Path, required=True, help="folder, made if need be")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<number>")
    parser.add_argument("--batch-bases", type=int, help="most bases of one forward pass")
    arguments = parser.parse_args(arguments_given)
    try:
        measure(arguments)
    except InputError as error:
        print(f"frac_memory: {error}", file=sys.stderr)
        return 2
    except NotFinite as error:
        print(f"frac_memory: {error}", file=sys.stderr)
        return 1
    return 0


def measure(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be, measure, write the three files and print a line for each layer."""
    for name in ("regions", "length"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name} {getattr(arguments, name)} must be at least 1")
    device = choose_device(arguments.device)
    check_writable(arguments.output)
    model = load_model(arguments.checkpoint, device)
    frac_layers(model)
    store, regions = open_regions(arguments)
    size = arguments.batch_bases
    size = AUTO_BATCH_BASES[device.type] if size is None else size
    use = measure_memory_use(model, store, regions.intervals, batch_bases=size)
    about = {
        "checkpoint": str(arguments.checkpoint.absolute()),
        "weights": model_hash(model),
        "version": fracdna.__version__,
        "torch": torch.__version__,
        "device": describe_device(device),
        "genome": store.checksum,
        "split": arguments.split,
        "regions": regions.manifest_hash,
    }
    write(arguments.output, use, about)
    print("\n".join(described(use)))
    print(f"written: {arguments.output}/memory_use.json, memory_use.csv, memory_use.png")


def open_regions(arguments: argparse.Namespace) -> tuple[GenomeStore, Regions]:
    """The genome and what is read of it."""
    intervals = read_intervals_table(arguments.prepared)
    if arguments.split not in intervals:
        raise InputError(
            f"--split {arguments.split}: {arguments.prepared} holds the splits "
            f"{', '.join(intervals)}"
        )
    store = GenomeStore(store_path(arguments.prepared))
    places = merged(intervals[arguments.split])
    return store, choose_regions(store, places, arguments.length, count=arguments.regions)


def write(folder: Path, use: MemoryUse, about: dict[str, Any]) -> None:
    """The three files."""
    with atomic_file(folder / "memory_use.json") as temporary:
        temporary.write_text(json.dumps(about | use.to_json(), allow_nan=False) + "\n")
    rows = use.to_rows()
    with atomic_file(folder / "memory_use.csv") as temporary, temporary.open("w") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    windows = f"{counted(use.windows, 'window')} of {bases(use.length)} bases"
    name = run_name(Path(about["checkpoint"]))
    title = f"{name}: {windows}, split {about['split']}"
    draw_memory_use(folder / "memory_use.png", use, title=title)


def described(use: MemoryUse) -> list[str]:
    """A line for each layer and group, all heads together."""
    columns = f"{'layer':>5} {'group':<8} {'alpha':>7} {'lambda':>7} {'log10 u':>8} "
    lines = [columns + f"{'slowest':>12} {'half lag':>9} {'slope':>7}"]
    for u in use.uses:
        if u.head == "all":
            slope = "" if u.slope is None else f"{u.slope:.2f}"
            half = "" if u.half_lag is None else f"{u.half_lag:,}"
            lines.append(
                f"{u.layer:>5} {u.group:<8} {u.alpha.mean:>7.3f} {u.lam.mean:>7.3f} "
                f"{u.log10_u.mean:>8.3f} {max(u.time_scales):>12,.0f} {half:>9} {slope:>7}"
            )
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
