"""A training run from its configuration to its checkpoints."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from fracdna.data.datamodule import WindowData
from fracdna.devices import describe_device
from fracdna.evaluation.likelihood import bits_per_base, perplexity
from fracdna.model.checkpoint import build_model, read_checkpoint
from fracdna.outcomes import FINE, INTERRUPTED, ROW_PROBLEMS
from fracdna.training.batch_memory import (
    CPU_BASES,
    BatchFromMemory,
    measure_on_gpu,
    measures_memory,
)
from fracdna.training.compilation import check_compiler
from fracdna.training.engine import build_trainer
from fracdna.training.graphs import GraphedPass, choose_graphs
from fracdna.training.language_modelling import LanguageModelling
from fracdna.training.loggers import build_logger
from fracdna.training.optimizer import schedule_factors
from fracdna.training.saving import Interrupted, NotSaved, saving
from fracdna_kernels.fused import describe_kernels
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file, check_writable, exclusive_lock


def train(config: DictConfig) -> int:
    """Run `fracdna train`.

    Everything that can be refused is refused before anything is written, but a window that turns
    out to be too long for the memory of a device.

    Args:
        config: the composed configuration of configs/train.yaml.

    Returns:
        0, or 130 after an interruption.

    Raises:
        InputError: unusable data or options, or an output folder that holds another run.
    """
    output = Path(config.output).absolute()
    last = output / "checkpoints" / "last.ckpt"
    plain = OmegaConf.to_container(config, resolve=True)
    if plain["data"]["prepared"] is not None:
        plain["data"]["prepared"] = str(Path(plain["data"]["prepared"]).absolute())
    if config.seed < 0:
        raise InputError(f"seed={config.seed} must be at least 0")
    automatic = plain["data"]["bases_per_batch"] == "auto"
    data = WindowData(
        steps=config.steps,
        seed=config.seed,
        soft_mask=config.soft_mask_weight < 1,
        **plain["data"] | ({"bases_per_batch": None} if automatic else {}),
    )
    start, final = schedule_factors(plain["schedule"], config.optimizer.lr)
    pl.seed_everything(config.seed, workers=True, verbose=False)
    model = build_model(plain["model"])
    logger = build_logger(plain, output)
    trainer = build_trainer(config, data, logger, last)
    graphs, about_graphs = choose_graphs(
        config.cuda_graphs, trainer.strategy, model, config.compile
    )
    if config.compile:
        check_compiler(trainer.strategy.root_device)
    resume = _resume_from(output, last, config.resume)
    saved = {} if resume is None else read_checkpoint(resume)["fracdna"].get("recipe", {})
    recipe = _recipe(config, plain, data, trainer)
    settle = partial(_settle_batches, config, data, recipe)
    if automatic:
        _choose_batches(trainer, data, saved, settle)
    settle(trainer)
    if resume:
        _check_same(resume, saved, recipe)
    check_writable(output)
    module = LanguageModelling(
        model,
        optimizer=_optimizer(config),
        weight_decay=config.optimizer.weight_decay,
        steps=config.steps,
        warmup=config.schedule.warmup,
        final=final,
        start=start,
        soft_mask_weight=config.soft_mask_weight,
        recipe=recipe,
        graphs=partial(GraphedPass, required=config.cuda_graphs is True) if graphs else None,
        compiled=config.compile,
    )
    with contextlib.ExitStack() as stack:
        if trainer.is_global_zero:
            stack.enter_context(exclusive_lock(output / ".lock", wait=False))
            _write_configuration(output, plain)
            _announce(config, data, trainer, model, resume)
            print(f"CUDA graphs: {about_graphs}")
        return _fit(trainer, module, data, resume, last)


def _recipe(
    config: DictConfig, plain: dict[str, Any], data: WindowData, trainer: pl.Trainer
) -> dict[str, Any]:
    """What a resumed run must repeat; options that are left out, or null, are not in it."""
    schedule = {name: value for name, value in plain["schedule"].items() if value is not None}
    return {
        "model": plain["model"],
        "data": data.identity(),
        "optimizer": plain["optimizer"],
        "schedule": schedule,
        "steps": config.steps,
        "soft_mask_weight": config.soft_mask_weight,
        "gradient_clip_val": config.trainer.gradient_clip_val,
        "precision": str(trainer.precision),
    } | ({"compile": True} if config.compile else {})


def _choose_batches(
    trainer: pl.Trainer,
    data: WindowData,
    saved: dict[str, Any],
    settle: Callable[[pl.Trainer], None],
) -> None:
    """Batches of a run that was not told their size: as before, from memory, or modest."""
    known = saved.get("data", {}).get("batches_per_step")
    if known:
        data.repeat_batches(known, trainer.world_size)
    elif measures_memory(trainer.strategy.root_device):
        # takes the place of what is known so far when the devices have met
        trainer.callbacks.insert(0, BatchFromMemory(data, settle, measure_on_gpu))
    else:
        data.take_largest_batch(max(CPU_BASES // data.length, 1), trainer.world_size)


def _settle_batches(
    config: DictConfig, data: WindowData, recipe: dict[str, Any], trainer: pl.Trainer
) -> None:
    """Tell engine and recipe how many batches a step has.

    Raises:
        InputError: shares of a step that do not come out even.
    """
    _, accumulate = data.batches(trainer.world_size)
    trainer.accumulate_grad_batches = accumulate
    trainer.val_check_interval = min(config.validate_every, config.steps) * accumulate
    recipe["data"]["batches_per_step"] = accumulate


def _fit(
    trainer: pl.Trainer,
    module: LanguageModelling,
    data: WindowData,
    resume: Path | None,
    last: Path,
) -> int:
    """Train to the end or to an interruption; the exit code."""
    output = last.parent.parent
    try:
        with saving(output):
            # a checkpoint holds plain values only, so it is opened as data, never as code
            trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
            trainer.save_checkpoint(last, weights_only=False)
            if trainer.is_global_zero:
                _summarize(trainer, output)
    except Interrupted as stop:
        if trainer.is_global_zero:
            where = "and saved" if stop.saved else "before it could save the newest steps"
            print(f"interrupted at step {trainer.global_step} {where}: resume=true goes on")
        return INTERRUPTED
    except NotSaved as error:
        print(f"fracdna train: step {trainer.global_step}: {error}", file=sys.stderr)
        return ROW_PROBLEMS
    return FINE


def _optimizer(config: DictConfig) -> Any:
    """The optimizer, still to be given its parameters."""
    try:
        optimizer = instantiate(config.optimizer.algorithm, _convert_="all")
        # on a parameter of its own: a wrong value shows here, not after the folder was made
        optimizer([torch.nn.Parameter(torch.zeros(1))])
    except (HydraException, TypeError, ValueError, IndexError) as error:
        options = OmegaConf.to_container(config.optimizer.algorithm, resolve=True)
        raise InputError(f"the optimizer cannot be built from {options}: {error}") from error
    return optimizer


def _resume_from(output: Path, last: Path, resume: bool) -> Path | None:
    """The checkpoint to continue from, None for a new run."""
    begun = any((output / name).exists() for name in ("checkpoints", "metrics.csv", "summary.json"))
    if begun and not resume:
        raise InputError(
            f"{output} holds a run already: continue it with resume=true, or name another folder "
            "with output="
        )
    # a run may be killed before its first validation has ended, when the last is still to come;
    # names with a dot are what it has not finished
    periodic = sorted(last.parent.glob("step-*.ckpt"))
    for path in (last, last.with_name("best.ckpt"), *reversed(periodic)):
        if path.exists():
            return path
    return None


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all single values."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        inner = f"{name}[{key}]" if isinstance(value, list) else f"{name}.{key}".lstrip(".")
        if isinstance(part, (dict, list)) and part:
            yield from _leaves(part, inner)
        else:
            yield inner, part


def _check_same(last: Path, saved: dict[str, Any], recipe: dict[str, Any]) -> None:
    """Refuse to continue a run with what would change it."""
    there, now = dict(_leaves(saved)), dict(_leaves(recipe))
    changed = [name for name in there | now if there.get(name) != now.get(name)]
    if changed:
        details = "; ".join(f"{n}: {there.get(n)} there, {now.get(n)} now" for n in changed)
        raise InputError(
            f"{last} belongs to a run with other settings, which cannot be continued: {details}. "
            "Give those settings, or start a new run with another output="
        )


def _write_configuration(output: Path, plain: dict[str, Any]) -> None:
    """Keep the resolved configuration beside the results."""
    with atomic_file(output / "config.yaml") as temporary:
        OmegaConf.save(OmegaConf.create(plain), temporary)


def _announce(
    config: DictConfig,
    data: WindowData,
    trainer: pl.Trainer,
    model: torch.nn.Module,
    resume: Path | None,
) -> None:
    """Say what is about to happen, before it takes hours."""
    device = trainer.strategy.root_device
    parameters = sum(p.numel() for p in model.parameters())
    bases = config.steps * data.bases_per_step
    epochs = bases / (len(data.training) * data.length)
    searched = any(isinstance(callback, BatchFromMemory) for callback in trainer.callbacks)
    batches = "as few batches as memory allows"
    if not searched:
        count = trainer.accumulate_grad_batches
        batches = "one batch" if count == 1 else f"{count} batches"
    print(
        f"{parameters:,} parameters; {config.steps:,} steps of {data.windows_per_step:,} windows "
        f"of {data.length:,} bases in {batches}: {bases:,} bases, {epochs:.2f} epochs of "
        f"{len(data.training):,} windows"
    )
    if data.stages[1:]:
        stages = (
            f"{stage.steps:,} steps of {data.bases_per_step // stage.length:,} windows of "
            f"{stage.length:,} bases"
            for stage in data.stages[:-1]
        )
        print(f"of these, length warm-up: {', '.join(stages)}")
    print(f"{describe_device(device)}; kernels: {describe_kernels(device)}")
    if resume:
        print(f"continuing from {resume}")
    elif config.resume:
        print(f"{config.output} holds no run yet: starting from step 0")


def _summarize(trainer: pl.Trainer, output: Path) -> None:
    """Write and say what came out."""
    best = trainer.checkpoint_callbacks[0]
    score = None if best.best_model_score is None else float(best.best_model_score)
    with atomic_file(output / "summary.json") as temporary:
        summary = {"steps": trainer.global_step, "best_validation_nll": score, "complete": True}
        temporary.write_text(json.dumps(summary, indent=2) + "\n")
    if score is not None:
        print(
            f"complete at step {trainer.global_step:,}; best validation: perplexity "
            f"{perplexity(score):.4f}, {bits_per_base(score):.4f} bits per base, "
            f"{score:.4f} nats per base (counts are in metrics.csv)"
        )
    print(f"checkpoints in {output / 'checkpoints'}; curve in {output / 'metrics.png'}")
