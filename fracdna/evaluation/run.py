"""`fracdna evaluate`: perplexity by length of several models beside count models."""

import json
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

import fracdna
from fracdna.devices import choose_device, choose_precision, describe_device
from fracdna.evaluation.cells import CellFolder
from fracdna.evaluation.length_curve import (
    Scores,
    count_training_bases,
    score_counts,
    score_network,
)
from fracdna.evaluation.markov import HIGHEST_ORDER, STRENGTH, MarkovModel
from fracdna.evaluation.regions import Regions, check_lengths, choose_regions, merged
from fracdna.evaluation.report import COUNT_MODEL, write_report
from fracdna.model.checkpoint import load_model, model_hash, read_checkpoint
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import FINE
from fracdna_prep.errors import InputError
from fracdna_prep.files import check_writable, writing_refusals
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.prepare import read_intervals_table, store_path
from fracdna_prep.progress import progress_bar


def evaluate(config: DictConfig) -> int:
    """Run `fracdna evaluate`.

    Args:
        config: the composed configuration of configs/evaluate.yaml.

    Returns:
        0.

    Raises:
        InputError: checkpoints, prepared data or lengths that cannot be used; nothing is written.
    """
    started = time.monotonic()
    lengths = check_lengths(config.lengths)
    paths = [config.checkpoint] if isinstance(config.checkpoint, str) else config.checkpoint
    models = _open_models(list(paths or ()), config.names)
    store, intervals = _open_genome(config.prepared)
    if config.split not in intervals:
        raise InputError(
            f"split={config.split}: {config.prepared} holds the splits {', '.join(intervals)}"
        )
    regions = choose_regions(
        store,
        intervals[config.split],
        lengths[-1],
        count=config.regions,
        max_n_fraction=config.max_n_fraction,
    )
    training = intervals.get("train", ()) if config.markov else ()
    if config.output is None:
        raise InputError("output= is not set: name a folder for tables and pictures")
    precision = choose_precision(config.precision)
    device = choose_device(config.device, config.precision)
    output = Path(config.output).absolute()
    check_writable(output)
    with writing_refusals(output):
        output.mkdir(parents=True, exist_ok=True)
    regions.write(output / "regions.parquet")
    cells = CellFolder(output / "cells", regions, store.checksum, config.force)
    scores = _score_networks(models, store, regions, lengths, cells, config, device, precision)
    if training:
        scores |= _score_counts(store, training, regions, lengths, cells, config.progress)
    _check_same_bases(scores)
    settings = {
        "config": OmegaConf.to_container(config, resolve=True),
        "version": fracdna.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": describe_device(device),
        "precision": config.precision,
        "split": f"split {config.split}",
        "genome": store.checksum,
        "models": {
            name: {
                "checkpoint": str(path),
                "weights": model_hash(model),
                "trained_on_length": _trained_on(path),
                "parameters": sum(p.numel() for p in model.parameters()),
                "state_scalars": model.backbone.state_size(),
            }
            for (name, model), path in zip(models.items(), paths or (), strict=True)
        },
        "training_bases_of_count_models": sum(i.width for i in training),
        "seconds": time.monotonic() - started,
    }
    print(write_report(output, regions, scores, list(models), settings))
    return FINE


def _open_models(paths: Sequence[str], names: Sequence[str] | None) -> dict[str, LanguageModel]:
    """Models by the name they have in tables, in the order given."""
    if not paths:
        raise InputError("checkpoint= is not set: name one or several checkpoints")
    names = [names] if isinstance(names, str) else names
    if names and len(names) != len(paths):
        raise InputError(f"names= has {len(names)} names for {len(paths)} checkpoints")
    chosen = list(names) if names else [run_name(Path(path)) for path in paths]
    models: dict[str, LanguageModel] = {}
    for name, path in zip(chosen, paths, strict=True):
        if name.startswith(COUNT_MODEL) or name == "uniform":
            raise InputError(
                f"{name!r} is the name of a reference line: choose another with names="
            )
        if name in models:
            raise InputError(f"two checkpoints are called {name!r}: tell them apart with names=")
        models[name] = load_model(path)
    return models


def _trained_on(path: str) -> int | None:
    """Length of the windows that a model was trained on, where its checkpoint tells."""
    recipe = read_checkpoint(path)["fracdna"].get("recipe", {})
    return recipe.get("data", {}).get("length")


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


def _score_networks(
    models: dict[str, LanguageModel],
    store: GenomeStore,
    regions: Regions,
    lengths: Sequence[int],
    cells: CellFolder,
    config: DictConfig,
    device: torch.device,
    precision: torch.dtype,
) -> Scores:
    """All cells of all networks; those already in the folder are read."""
    total = len(models) * len(lengths) * len(regions.intervals) * regions.width
    scores: Scores = {}
    with progress_bar(total, "networks", config.progress) as bar:
        for name, model in models.items():
            key = f"{model_hash(model)} {config.precision} {device.type}"
            model.to(device)
            scores[name] = {}
            for length in lengths:
                score = partial(
                    score_network, model, store, regions, length,
                    batch_bases=config.batch_bases, precision=precision, progress=bar,
                )  # fmt: skip
                scores[name][length] = cells.get(key, length, score, bar)
            model.to("cpu")
    return scores


def _score_counts(
    store: GenomeStore,
    training: Sequence[Interval],
    regions: Regions,
    lengths: Sequence[int],
    cells: CellFolder,
    progress: bool,
) -> Scores:
    """All orders of the count model of the training split."""
    where = "\n".join(f"{i.chromosome} {i.start} {i.end}" for i in training)
    bases = sum(i.width for i in training)

    @cache
    def model() -> MarkovModel:
        with progress_bar(bases, "counting", progress) as bar:
            return MarkovModel(count_training_bases(store, training, progress=bar))

    total = len(lengths) * len(regions.intervals) * regions.width
    scores: Scores = {f"{COUNT_MODEL}{order}": {} for order in range(HIGHEST_ORDER + 1)}
    with progress_bar(total, "count models", progress) as bar:
        for length in lengths:
            # counting waits until a cell is missing
            score = lambda n=length: score_counts(model(), store, regions, n, progress=bar)  # noqa: E731
            found = cells.get_all(f"{COUNT_MODEL}{STRENGTH} {where}", length, score, bar)
            for by_length, cell in zip(scores.values(), found, strict=True):
                by_length[length] = cell
    return scores


def _check_same_bases(scores: Scores) -> None:
    """Every model at every length must have scored the same positions: the point of the curve."""
    seen = {
        (cell.scored, int(np.sum(cell.tokens))) for by in scores.values() for cell in by.values()
    }
    if len(seen) != 1:
        raise RuntimeError(f"lengths or models scored different bases: {json.dumps(sorted(seen))}")
