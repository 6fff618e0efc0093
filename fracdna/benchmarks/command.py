"""`fracdna benchmark`: what memories hold and for how long."""

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from fracdna.benchmarks import associative_recall_report, heavy_tail_report
from fracdna.benchmarks.networks import network_config
from fracdna.benchmarks.probe_report import WRITTEN, Tables, terminal_lines, write_report
from fracdna.benchmarks.probe_run import FINE as RUN_FINE
from fracdna.benchmarks.probe_run import Place, Run, read_samples
from fracdna.benchmarks.probe_tables import (
    difference_rows,
    network_rows,
    summary_rows,
    variant_words,
)
from fracdna.benchmarks.small_training import Recipe
from fracdna.benchmarks.stream_reading import Reading
from fracdna.benchmarks.sweep import Results, Sweep, further_seeds
from fracdna.devices import choose_device, choose_precision
from fracdna.outcomes import FINE, ROW_PROBLEMS
from fracdna.provenance import circumstances
from fracdna_prep.errors import InputError
from fracdna_prep.files import check_writable, exclusive_lock
from fracdna_prep.wording import counted

TASKS: dict[str, ModuleType] = {
    "heavy_tail": heavy_tail_report,
    "associative_recall": associative_recall_report,
}
# positions of one pass in tests, whose networks are small
AUTO_POSITIONS = {"cuda": 262_144, "cpu": 8_192}


def benchmark(config: DictConfig) -> int:
    """Run `fracdna benchmark`.

    Everything that can be refused is refused before anything is written. Finished runs in the
    output folder are not computed again.

    Args:
        config: the composed configuration of configs/benchmark.yaml.

    Returns:
        0; 1 where the numbers of a run were not finite.

    Raises:
        InputError: options that cannot be used.
    """
    started = time.monotonic()
    plain = OmegaConf.to_container(config, resolve=True)
    options, task = plain["task"], TASKS[plain["task"]["name"]]
    if config.output is None:
        raise InputError("output= is missing: name the folder of the results")
    output = Path(config.output).absolute()
    device = choose_device(config.device)
    sweep = Sweep(_place(plain, output, device), config.jobs, config.progress)
    runs = _grid(task, options, _precision(config.precision, device))
    check_writable(output)
    with exclusive_lock(output / ".lock", wait=False):
        for name in WRITTEN:  # of an earlier call; finished runs are kept
            (output / name).unlink(missing_ok=True)
        results = sweep.run(runs)
        if options["select"]:
            results |= sweep.run(further_seeds(results, options["seeds"][1:]))
        samples = {run: read_samples(run, sweep.place.folder) for run in results}
        tables, unlabelled = _tables(task, results, samples, device)
        facts = _facts(plain, results, device) | {
            "samples_without_label": unlabelled,
            "seconds": time.monotonic() - started,
        }
        write_report(
            output, tables, samples, facts,
            title=task.TITLE, trained=runs[0].test.task.length, chance=task.CHANCE,
        )  # fmt: skip
    return _tell(output, tables, results)


def _place(plain: Mapping[str, Any], output: Path, device: torch.device) -> Place:
    """Where runs are computed."""
    positions = plain["batch_positions"]
    reading = Reading(
        precision=choose_precision(_precision(plain["precision"], device)),
        segment=plain["segment"],
        batch_positions=AUTO_POSITIONS[device.type] if positions == "auto" else positions,
        growing_limit=plain["task"]["growing_limit"],
    )
    return Place(output / "runs", str(device), reading)


def _precision(name: str, device: torch.device) -> str:
    """A compute type by name, "auto" that of training."""
    if name != "auto":
        choose_precision(name)
        return name
    return "bf16" if device.type == "cuda" else "float32"


def _grid(task: ModuleType, options: Mapping[str, Any], precision: str) -> list[Run]:
    """Runs of all networks, variants and learning rates, with one seed or all of them."""
    for name in ("mixers", "learning_rates", "seeds"):
        if len(set(options[name])) < len(options[name]):
            raise InputError(f"task.{name}={options[name]} names one twice")
    tests = task.variants(options)
    networks = {words: network_config(words, tests[0].task, options) for words in options["mixers"]}
    seeds = options["seeds"][:1] if options["select"] else options["seeds"]
    fixed = ("batch", "weight_decay", "warmup", "final", "clip")
    recipe = {name: options[name] for name in fixed} | task.recipe_options(options)
    return [
        Run(words, model, test, Recipe(rate, seed, **recipe), options["validation"], precision)
        for words, model in networks.items()
        for test in tests
        for rate in options["learning_rates"]
        for seed in seeds
    ]


def _tables(
    task: ModuleType,
    results: Results,
    samples: Mapping[Run, Any],
    device: torch.device,
) -> tuple[Tables, dict[str, dict[str, int]]]:
    """All rows, and by variant how many scores have no label."""
    rows = network_rows(results, samples, task.details)
    unlabelled = {}
    for test in dict.fromkeys(run.test for run in results):
        found, missing = task.references(test, device)
        rows += found
        unlabelled[variant_words(test)] = missing
    return Tables(rows, summary_rows(rows), difference_rows(results, samples)), unlabelled


def _facts(plain: Mapping[str, Any], results: Results, device: torch.device) -> dict[str, Any]:
    """What result.json tells beside the tables."""
    return {
        "task": plain["task"]["name"],
        "config": dict(plain),
        **circumstances(device),
        "precision": _precision(plain["precision"], device),
        "data_hash": _data_hash(results),
        "positions_trained": sum(run.training_positions for run in results),
        "runs": [run.about | result | {"folder": run.name} for run, result in results.items()],
    }


def _data_hash(results: Results) -> str:
    """SHA-256 over what is tested: samples are a function of that alone."""
    tests = sorted({json.dumps([type(r.test).__name__, asdict(r.test)]) for r in results})
    return hashlib.sha256("\n".join(tests).encode()).hexdigest()


def _tell(output: Path, tables: Tables, results: Results) -> int:
    """Say what was found; the exit code."""
    print("\n".join([*terminal_lines(tables), f"tables and picture in {output}"]))
    broken = {run: r["status"] for run, r in results.items() if r["status"] != RUN_FINE}
    for run, status in broken.items():
        about = " ".join(f"{name}={value}" for name, value in run.about.items())
        print(f"fracdna benchmark: {about}: {status}", file=sys.stderr)
    if broken:
        print(f"{counted(len(broken), 'run')} of {len(results)} without a result", file=sys.stderr)
    return ROW_PROBLEMS if broken else FINE
