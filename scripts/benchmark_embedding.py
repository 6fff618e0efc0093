"""Measures how fast regions are embedded, beside the loops that people would write themselves.

    python scripts/benchmark_embedding.py --output docs/results/embedding.json

Four ways to the same vectors (output of the final norm, mean over a region) take turns, so that a
machine that slows down slows all of them: `loop` is one region after another, from the genome
through the model to numpy; `batched` is the same with as many regions in a pass as `fracdna embed`
takes; `embed_regions` is the Python call; `command` is all of `fracdna embed`, which also opens the
model, hashes it, keeps what is finished and writes Parquet. A case that fails is a row with its
reason. The JSON file is replaced after every row and keeps the runs of other devices; a picture
(.png) comes beside it, and tables are put into the page (.md) beside it where there is one.
Without installation: PYTHONPATH=.:kernels:data_prep.
"""

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernel_benchmark.report import Row, cell, circumstances, render, write_json
from kernel_benchmark.run import reason
from length_study.page import fill

from fracdna import cli, pictures
from fracdna.devices import choose_device, choose_precision, describe_device
from fracdna.embedding import EmbeddingOptions, embed_regions
from fracdna.model.checkpoint import load_model, model_hash
from fracdna.model.heads import LanguageModel
from fracdna_prep.errors import InputError
from fracdna_prep.example import example_files
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA

WEIGHTS = Path(__file__).parents[1] / "docs" / "results" / "pretrained" / "frac_7m.safetensors"
LENGTHS = (1024, 8192, 65536)
# bases of a repetition, where they are not given
BASES = {"cuda": 1 << 22, "cpu": 1 << 16}
FEWEST, MOST = 3, 100  # repetitions
WAYS = ("loop", "batched", "embed_regions", "command")


@dataclass(frozen=True)
class Case:
    """What is embedded, by which model, where.

    Attributes:
        model: on the device.
        checkpoint: its file.
        store: the genome.
        regions: all of one length.
        device: as named on the command line.
        precision: "float32" or "bf16".
        scratch: a folder for what the command writes.
    """

    model: LanguageModel
    checkpoint: Path
    store: GenomeStore
    regions: list[Interval]
    device: str
    precision: str
    scratch: Path

    @property
    def per_pass(self) -> int:
        """Regions of a pass by hand."""
        place = self.model.backbone.embedding.weight.device
        return max(1, EmbeddingOptions().on(place).batch_bases // (self.regions[0].width + 1))


def main() -> None:
    """Reads the command line, measures, prints and writes."""
    given = command_line()
    runs = earlier(given.output)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        store = GenomeStore.build(example_files().fasta, scratch / "genome", progress=False)
        for device in given.devices:
            run = new_run(device, given)
            # a later run on the same device takes the place of the earlier one
            runs = [other for other in runs if other["device"] != run["device"]] + [run]
            for row in measured(device, store, scratch, given):
                run["rows"].append(row)
                shown = [f"{name}: {cell(name, value)}" for name, value in row.items()]
                print("  " + "  ".join(shown), flush=True)
                if given.output:  # after every row: what is measured is kept
                    write_json(given.output, {"runs": runs})
    for name, text in tables(runs).items():
        print(f"\n## {name}\n\n{text}")
    if given.output:
        # a scale of logarithms wants at least one point
        if any("note" not in row for run in runs for row in run["rows"]):
            draw(given.output.with_suffix(".png"), runs)
        if given.output.with_suffix(".md").is_file():
            fill(given.output.with_suffix(".md"), tables(runs))


def command_line() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--checkpoint", type=Path, default=WEIGHTS, help="weights or a checkpoint")
    parser.add_argument("--lengths", type=numbers, default=LENGTHS, help="bases of a region")
    parser.add_argument("--devices", type=words, help="cpu, cuda; all that there are")
    parser.add_argument("--precisions", type=words, default=["float32"], help="float32, bf16")
    parser.add_argument("--bases", type=int, help=f"of a repetition, at least one region: {BASES}")
    parser.add_argument("--threads", type=int, help="of the processor; as PyTorch chooses")
    parser.add_argument("--row-seconds", type=float, default=20, help="for one row's repetitions")
    parser.add_argument("--output", type=Path, help="JSON file; a PNG comes beside it")
    parser.add_argument("--commit", help="name of the code, where it is no git checkout")
    given = parser.parse_args()
    if given.output and not given.output.absolute().parent.is_dir():
        parser.error(f"no such folder: {given.output.parent}")
    given.devices = given.devices or ["cpu", *["cuda"] * torch.cuda.is_available()]
    try:
        for precision in given.precisions:
            choose_precision(precision)
            for device in given.devices:
                choose_device(device, precision)
        load_model(given.checkpoint)
    except InputError as error:
        parser.error(str(error))
    if given.threads:
        torch.set_num_threads(given.threads)
    return given


def words(text: str) -> list[str]:
    """Words in a list with commas."""
    return text.split(",")


def numbers(text: str) -> tuple[int, ...]:
    """Lengths in a list with commas, at least 1."""
    found = tuple(map(int, text.split(",")))
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text}: lengths must be at least 1")
    return found


def earlier(output: Path | None) -> list[dict[str, Any]]:
    """Runs that the output holds already."""
    if output is None or not output.is_file():
        return []
    return json.loads(output.read_text())["runs"]


def new_run(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """A run without rows: on which device, of what, how it came about."""
    about = circumstances(given.commit)
    about |= {
        "checkpoint": given.checkpoint.name,
        "model": model_hash(load_model(given.checkpoint)),
    }
    return {"device": describe_device(choose_device(name)), "circumstances": about, "rows": []}


def measured(
    device: str, store: GenomeStore, scratch: Path, given: argparse.Namespace
) -> Iterator[Row]:
    """A row for each length and precision on a device."""
    model = load_model(given.checkpoint, choose_device(device))
    bases = given.bases or BASES[choose_device(device).type]
    for length in given.lengths:
        regions = spread(store, length, max(1, bases // length))
        for precision in given.precisions:
            row: Row = {"precision": precision, "length": length, "regions": len(regions)}
            case = Case(model, given.checkpoint, store, regions, device, precision, scratch)
            try:
                yield row | timed(case, given.row_seconds)
            except Exception as error:  # of a device or its memory: the other cases still count
                yield row | {"note": reason(error)}
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def spread(store: GenomeStore, length: int, count: int) -> list[Interval]:
    """Regions of one length from end to end of the genome; many of them overlap."""
    ((contig, size),) = store.contigs.items()
    starts = np.linspace(0, size - length, count).astype(int).tolist()
    return [Interval(contig, start, start + length) for start in starts]


def timed(case: Case, seconds: float) -> Row:
    """Regions per second of every way, ratios, and how far their vectors differ."""
    calls: dict[str, Callable[[], np.ndarray | None]] = {
        "loop": partial(loop, case, 1),
        "batched": partial(loop, case, case.per_pass),
        "embed_regions": partial(by_call, case),
        "command": partial(by_command, case),
    }
    first = {name: call() for name, call in calls.items()}  # compiles, and fills allocators
    taken: dict[str, list[float]] = {name: [] for name in calls}
    ends = time.perf_counter() + seconds
    for repetition in range(MOST):
        if repetition >= FEWEST and time.perf_counter() > ends:
            break
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - began)
    speeds = {
        name: len(case.regions) / statistics.median(samples) for name, samples in taken.items()
    }
    spreads = {name: (max(x) - min(x)) / statistics.median(x) for name, x in taken.items()}
    plain = first["loop"]
    return {
        **{f"{name} regions/s": speed for name, speed in speeds.items()},
        "embed_regions over loop": speeds["embed_regions"] / speeds["loop"],
        "embed_regions over batched": speeds["embed_regions"] / speeds["batched"],
        "command over loop": speeds["command"] / speeds["loop"],
        "largest difference": float(np.abs(first["embed_regions"] - plain).max()),
        "repetitions": len(taken["loop"]),
        "spread": max(spreads.values()),
    }


@torch.inference_mode()
def loop(case: Case, count: int) -> np.ndarray:
    """What one would write: regions to ids, ids through the model, means to numpy."""
    device = case.model.backbone.embedding.weight.device
    dtype, found = choose_precision(case.precision), []
    for start in range(0, len(case.regions), count):
        some = [case.store.fetch(region) for region in case.regions[start : start + count]]
        ids = torch.tensor(np.stack([np.concatenate([[DNA.bos], one]) for one in some])).to(device)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            states = case.model.backbone(ids)
        found.append(states[:, 1:].float().mean(1).cpu().numpy())
    return np.concatenate(found)


def by_call(case: Case) -> np.ndarray:
    """By `fracdna.embedding.embed_regions`."""
    return embed_regions(
        case.model, case.store, case.regions, EmbeddingOptions(precision=case.precision)
    )


def by_command(case: Case) -> None:
    """By all of `fracdna embed`.

    Raises:
        RuntimeError: it ends with another exit code than 0.
    """
    bed = case.scratch / "regions.bed"
    bed.write_text("".join(f"{r.chromosome}\t{r.start}\t{r.end}\n" for r in case.regions))
    with contextlib.redirect_stdout(io.StringIO()):
        code = cli.run(
            [
                "embed", f"checkpoint={case.checkpoint}", f"genome={case.store.directory}",
                f"regions={bed}", f"output={case.scratch / 'out.parquet'}", "progress=false",
                f"device={case.device}", f"precision={case.precision}",
            ]
        )  # fmt: skip
    if code:
        raise RuntimeError(f"fracdna embed ended with exit code {code}")


def tables(runs: list[dict[str, Any]]) -> dict[str, str]:
    """What was measured, and where and how."""
    rows = [{"device": run["device"], **row} for run in runs for row in run["rows"]]
    about = [{"device": run["device"], **run["circumstances"]} for run in runs]
    return {"throughput": render(rows), "circumstances": render(about)}


def draw(path: Path, runs: list[dict[str, Any]]) -> None:
    """Regions per second against their length: a colour for each way, a line style a device."""
    figure, axes = pictures.new_axes("bases of a region", "regions/s", "embedding by four ways")
    curves = {
        (number, run["device"], precision): [
            row for row in run["rows"] if row["precision"] == precision and "note" not in row
        ]
        for number, run in enumerate(runs)
        for precision in dict.fromkeys(row["precision"] for row in run["rows"])
    }
    drawn = {}
    for (number, device, precision), rows in curves.items():
        for place, way in enumerate(WAYS):
            (drawn[f"{way}, {device}, {precision}"],) = axes.plot(
                [row["length"] for row in rows], [row[f"{way} regions/s"] for row in rows],
                color=f"C{place}", ls=("-", "--", ":", "-.")[number % 4],
                marker="o" if precision == "float32" else "s", ms=4,
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: pictures.bases(value))
    pictures.legend_beside(axes, drawn)
    pictures.save(figure, path)


if __name__ == "__main__":
    main()
