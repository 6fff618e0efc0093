"""`fracdna evaluate`: perplexity by length of several models beside count models."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

import fracdna
from fracdna.devices import (
    AUTO_BATCH_BASES,
    choose_device,
    choose_precision,
    describe_device,
)
from fracdna.evaluation.cells import CellFolder
from fracdna.evaluation.classes import BaseClasses, ClassBed, divide, read_classes
from fracdna.evaluation.length_curve import count_training_bases, score_counts, score_network
from fracdna.evaluation.markov import HIGHEST_ORDER, STRENGTH, MarkovModel
from fracdna.evaluation.plan import FIXED, TILING, Plan, check_reset, make_plan, reset_lengths
from fracdna.evaluation.regions import Regions, choose_regions, merged
from fracdna.evaluation.report import write_report, write_result
from fracdna.evaluation.streams import check_streams, evaluate_streams
from fracdna.evaluation.tables import COUNT_MODEL, UNIFORM, Cells, Scores, make_tables
from fracdna.evaluation.tally import Reading
from fracdna.model.checkpoint import load_model, model_hash, read_checkpoint
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import FINE
from fracdna_prep.errors import InputError
from fracdna_prep.files import check_writable, writing_refusals
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.prepare import read_intervals_table, store_path
from fracdna_prep.progress import progress_bar

# files of an evaluation's folder; the first says that the others are whole
WRITTEN = (
    "result.json", "table.csv", "positions.csv", "gains.csv", "differences.csv", "streams.csv",
    "samples.parquet", "regions.parquet", "perplexity.png", "fixed.png", "positions.png",
    "gains.png", "classes.png", "streams.png",
)  # fmt: skip


@dataclass(frozen=True)
class _Inputs:
    """What the options name, opened and checked.

    Attributes:
        plan: what is measured over lengths; None: streams alone.
        regions: what is scored; None likewise.
        beds: classes of bases.
        models: by the name they have in tables.
        paths: their checkpoints.
        trained: length of the windows that each was trained on, where its checkpoint tells.
        reset: the option of that name.
        store: the genome.
        training: bases that count models are made from.
        splits: bases of each split.
        device: where networks compute.
        precision: their compute type.
        batch_bases: most bases of one of their forward passes.
        output: the folder.
    """

    plan: Plan | None
    regions: Regions | None
    beds: list[ClassBed]
    models: dict[str, LanguageModel]
    paths: dict[str, str]
    trained: dict[str, int | None]
    reset: int | None
    store: GenomeStore
    training: Sequence[Interval]
    splits: Mapping[str, Sequence[Interval]]
    device: torch.device
    precision: torch.dtype
    batch_bases: int
    output: Path


@dataclass(frozen=True)
class _Task:
    """How regions are scored.

    Attributes:
        plan: what is measured.
        classes: the regions and how their bases are divided.
        inputs: models and genome.
        cells: where finished parts are.
        config: the options.
    """

    plan: Plan
    classes: BaseClasses
    inputs: _Inputs
    cells: CellFolder
    config: DictConfig

    def readings(self, reset: int | None = None) -> list[Reading]:
        """What a model reads, one strand after the other at each length."""
        plan, store = self.plan, self.inputs.store
        return [
            Reading(store, self.classes, length, span, plan.target, strand)
            for length, span in plan.passes(reset).items()
            for strand in plan.strands
        ]


def evaluate(config: DictConfig) -> int:
    """Run `fracdna evaluate`.

    Args:
        config: the composed configuration of configs/evaluate.yaml.

    Returns:
        0.

    Raises:
        InputError: checkpoints, prepared data or options that cannot be used; nothing is written.
    """
    started = time.monotonic()
    inputs = _check(config)
    with writing_refusals(inputs.output):
        inputs.output.mkdir(parents=True, exist_ok=True)
        for name in WRITTEN:  # what is there may be of other models; finished parts are kept
            (inputs.output / name).unlink(missing_ok=True)
    settings = _settings(config, inputs)
    if config.streams:
        settings["streams"] = _streams(config, inputs)
    if inputs.plan is None or inputs.regions is None:
        write_result(inputs.output, settings | {"seconds": time.monotonic() - started})
        return FINE
    inputs.regions.write(inputs.output / "regions.parquet")
    classes = divide(inputs.store, inputs.regions, inputs.beds)
    cells = CellFolder(inputs.output / "cells", config.force)
    task = _Task(inputs.plan, classes, inputs, cells, config)
    resets, notes = reset_lengths(inputs.trained, inputs.reset, inputs.plan.width)
    scores = _score_networks(task, resets)
    if inputs.training:
        scores |= _score_counts(task)
    _check_same_bases(inputs.plan, scores)
    tables = make_tables(inputs.plan, classes, scores, list(inputs.models), resets, notes)
    settings["seconds"] = time.monotonic() - started
    print(write_report(inputs.output, inputs.plan, classes, scores, tables, settings))
    return FINE


def _check(config: DictConfig) -> _Inputs:
    """Open what the options name; everything that can be refused is refused here."""
    plan = make_plan(config) if config.lengths or not config.streams else None
    reset = check_reset(config.reset)
    named = [config.checkpoint] if isinstance(config.checkpoint, str) else config.checkpoint or []
    models = _open_models(named, config.names, alone=_counts_alone(config, plan))
    paths = dict(zip(models, named, strict=True))
    store, intervals = _open_genome(config.prepared)
    if not models and "train" not in intervals:
        raise InputError(
            f"checkpoint= is not set, and count models need a split train: {config.prepared} holds "
            f"the splits {', '.join(intervals)}"
        )
    if config.split not in intervals:
        raise InputError(
            f"split={config.split}: {config.prepared} holds the splits {', '.join(intervals)}"
        )
    regions = plan and choose_regions(
        store,
        intervals[config.split],
        plan.width,
        count=config.regions,
        max_n_fraction=config.max_n_fraction,
    )
    trained = {name: _trained_on(path) for name, path in paths.items()}
    device = choose_device(config.device, config.precision)
    batch_bases = _batch_bases(config, device)
    if config.streams:
        sizes = _stream_sizes(config, batch_bases, reset, trained)
        check_streams(models, store, _stream_names(config), **sizes)
    if config.output is None:
        raise InputError("output= is not set: name a folder for tables and pictures")
    output = Path(config.output).absolute()
    check_writable(output)
    return _Inputs(
        plan=plan,
        regions=regions,
        beds=read_classes(config.classes, store.contigs, config.rename),
        models=models,
        paths=paths,
        trained=trained,
        reset=reset,
        store=store,
        training=intervals.get("train", ()) if config.markov and plan else (),
        splits=intervals,
        device=device,
        precision=choose_precision(config.precision),
        batch_bases=batch_bases,
        output=output,
    )


def _counts_alone(config: DictConfig, plan: Plan | None) -> bool:
    """Whether count models can be all that is asked for."""
    return bool(
        config.markov and not config.streams and plan and {TILING, FIXED} & set(plan.curves)
    )


def _settings(config: DictConfig, inputs: _Inputs) -> dict[str, Any]:
    """What result.json keeps about the call."""
    return {
        "config": OmegaConf.to_container(config, resolve=True),
        "version": fracdna.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": describe_device(inputs.device),
        "precision": config.precision,
        "batch_bases": inputs.batch_bases,
        "split": f"split {config.split}",
        "genome": inputs.store.checksum,
        "models": {
            name: {
                "checkpoint": str(inputs.paths[name]),
                "weights": model_hash(model),
                "trained_on_length": inputs.trained[name],
                "parameters": sum(p.numel() for p in model.parameters()),
                "state_scalars": model.backbone.state_size(),
            }
            for name, model in inputs.models.items()
        },
        "training_bases_of_count_models": sum(i.width for i in inputs.training),
    }


def _stream_names(config: DictConfig) -> list[str]:
    """Contigs to stream; one called 20 is read as a number by the command line."""
    return [str(name) for name in config.streams]


def _batch_bases(config: DictConfig, device: torch.device) -> int:
    """Most bases of one forward pass; `auto` is what the device works best with."""
    return AUTO_BATCH_BASES[device.type] if config.batch_bases == "auto" else config.batch_bases


def _stream_sizes(
    config: DictConfig, segment: int, reset: int | None, trained: Mapping[str, int | None]
) -> dict[str, Any]:
    """How contigs are cut: the control empties states as in the carried curve."""
    return {
        "segment": segment,
        "block": config.stream_block,
        "reset": {name: reset or length for name, length in trained.items()},
    }


def _streams(config: DictConfig, inputs: _Inputs) -> dict[str, Any]:
    """Whole contigs in one pass, beside states emptied as in the carried curve."""
    return evaluate_streams(
        inputs.models,
        inputs.store,
        _stream_names(config),
        inputs.output,
        splits=inputs.splits,
        **_stream_sizes(config, inputs.batch_bases, inputs.reset, inputs.trained),
        device=inputs.device,
        precision=inputs.precision,
        force=config.force,
        progress=config.progress,
    )


def _open_models(
    paths: Sequence[str], names: Sequence[str] | None, *, alone: bool
) -> dict[str, LanguageModel]:
    """Models by the name they have in tables, in the order given.

    alone: whether count models would be scored without any network.
    """
    if not paths and not alone:
        raise InputError("checkpoint= is not set: name one or several checkpoints")
    names = [names] if isinstance(names, str) else names
    if names and len(names) != len(paths):
        raise InputError(f"names= has {len(names)} names for {len(paths)} checkpoints")
    chosen = list(names) if names else [run_name(Path(path)) for path in paths]
    models: dict[str, LanguageModel] = {}
    for name, path in zip(chosen, paths, strict=True):
        if name.startswith(COUNT_MODEL) or name == UNIFORM:
            raise InputError(
                f"{name!r} is the name of a reference line: choose another with names="
            )
        if name in models:
            raise InputError(f"two checkpoints are called {name!r}: tell them apart with names=")
        models[name] = load_model(path)
    return models


def _trained_on(path: str) -> int | None:
    """Length of the windows that a model was trained on, where its file tells."""
    facts = read_checkpoint(path)["fracdna"]
    if "about" in facts:  # weights alone
        return facts["about"].get("training_length")
    return facts.get("recipe", {}).get("data", {}).get("length")


def run_name(path: Path) -> str:
    """How a checkpoint is called in tables: its run's folder, or its own name elsewhere."""
    path = path.absolute()
    return path.parents[1].name if path.parent.name == "checkpoints" else path.stem


def _open_genome(prepared: str | None) -> tuple[GenomeStore, dict[str, list[Interval]]]:
    """The store and the bases of each split, each in one interval on the forward strand."""
    if prepared is None:
        raise InputError("prepared= is not set: name a folder written by `fracdna prepare`")
    intervals = {split: merged(rows) for split, rows in read_intervals_table(prepared).items()}
    return GenomeStore(store_path(prepared)), intervals


def _score_networks(task: _Task, resets: Mapping[str, int | None]) -> Scores:
    """All cells of all networks; those already in the folder are read."""
    config, inputs, models = task.config, task.inputs, task.inputs.models
    readings = {name: task.readings(resets[name]) for name in models}
    total = sum(reading.total for mine in readings.values() for reading in mine)
    scores: Scores = {}
    with progress_bar(total, "networks", config.progress) as bar:
        for name, model in models.items():
            key = f"{model_hash(model)} {config.precision} {inputs.device.type}"
            model.to(inputs.device)
            scores[name] = {}
            for reading in readings[name]:
                score = partial(
                    score_network, model, reading,
                    batch_bases=inputs.batch_bases, precision=inputs.precision, progress=bar,
                )  # fmt: skip
                cell = task.cells.get(key, reading, score, bar)
                scores[name][reading.strand, reading.length] = cell
            model.to("cpu")
    return scores


def _score_counts(task: _Task) -> Scores:
    """All orders of the count model of the training split."""
    training = task.inputs.training
    where = "\n".join(f"{i.chromosome} {i.start} {i.end}" for i in training)
    key, progress = f"{COUNT_MODEL}{STRENGTH} {where}", task.config.progress

    @cache
    def model() -> MarkovModel:
        with progress_bar(sum(i.width for i in training), "counting", progress) as bar:
            return MarkovModel(count_training_bases(task.inputs.store, training, progress=bar))

    readings = task.readings()
    scores: Scores = {f"{COUNT_MODEL}{order}": {} for order in range(HIGHEST_ORDER + 1)}
    with progress_bar(sum(r.total for r in readings), "count models", progress) as bar:
        for reading in readings:
            # counting waits until a cell is missing
            score = lambda it=reading: score_counts(model(), it, progress=bar)  # noqa: E731
            found = task.cells.get_all(key, reading, score, bar)
            for mine, cell in zip(scores.values(), found, strict=True):
                mine[reading.strand, reading.length] = cell
    return scores


def _check_same_bases(plan: Plan, scores: Scores) -> None:
    """Every model at every length must have scored the same positions: the point of the curves."""
    for strand in plan.strands:
        for curve in (TILING, FIXED):
            seen = {
                proof
                for cells in scores.values()
                for proof in _proofs(cells, curve, strand, plan.lengths_of(curve))
            }
            if len(seen) > 1:
                raise RuntimeError(
                    f"lengths or models scored different bases: {json.dumps(sorted(seen))}"
                )


def _proofs(cells: Cells, curve: str, strand: str, lengths: Sequence[int]) -> list[tuple[str, int]]:
    """Hash of the coordinates and number of the bases that a model scored, at each length."""
    mine = [cells[strand, length] for length in lengths]
    if curve == FIXED:
        return [(cell.target_scored, int(cell.target.tokens[:, 0].sum())) for cell in mine]
    return [(cell.scored, int(cell.bases.tokens[:, 0].sum())) for cell in mine]
