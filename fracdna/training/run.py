"""A training run from its configuration to its checkpoints."""

import contextlib
import json
import logging
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fracdna.data.datamodule import WindowData
from fracdna.devices import describe_device
from fracdna.evaluation.likelihood import bits_per_base, perplexity
from fracdna.model.checkpoint import build_model, read_checkpoint
from fracdna.outcomes import FINE, INTERRUPTED
from fracdna.training.callbacks import BestCheckpoint, Interrupted, KeepLast, Monitor, RandomState
from fracdna.training.graphs import GraphedPass, choose_graphs
from fracdna.training.language_modelling import LanguageModelling
from fracdna_kernels.fused import describe_kernels
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file, check_writable, exclusive_lock


def train(config: DictConfig) -> int:
    """Run `fracdna train`.

    Everything that can be refused is refused before anything is written.

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
    data = WindowData(
        steps=config.steps,
        seed=config.seed,
        soft_mask=config.soft_mask_weight < 1,
        **plain["data"],
    )
    pl.seed_everything(config.seed, workers=True, verbose=False)
    model = build_model(plain["model"])
    trainer, accumulate = _build_trainer(config, data, output, last)
    graphs, about_graphs = choose_graphs(config.cuda_graphs, trainer.strategy, model)
    recipe = {
        "model": plain["model"],
        "data": data.identity() | {"batches_per_step": accumulate},
        "optimizer": plain["optimizer"],
        "schedule": plain["schedule"],
        "steps": config.steps,
        "soft_mask_weight": config.soft_mask_weight,
        "gradient_clip_val": config.trainer.gradient_clip_val,
        "precision": str(trainer.precision),
    }
    resume = _resume_from(output, last, recipe, config.resume)
    check_writable(output)
    module = LanguageModelling(
        model,
        optimizer=_optimizer(config),
        weight_decay=config.optimizer.weight_decay,
        steps=config.steps,
        warmup=config.schedule.warmup,
        final=config.schedule.final,
        soft_mask_weight=config.soft_mask_weight,
        recipe=recipe,
        graphs=partial(GraphedPass, required=config.cuda_graphs is True) if graphs else None,
    )
    with contextlib.ExitStack() as stack:
        if trainer.is_global_zero:
            stack.enter_context(exclusive_lock(output / ".lock", wait=False))
            _write_configuration(output, plain)
            _announce(config, data, model, accumulate, resume, trainer.strategy.root_device)
            print(f"CUDA graphs: {about_graphs}")
        return _fit(trainer, module, data, resume, last)


def _fit(
    trainer: pl.Trainer,
    module: LanguageModelling,
    data: WindowData,
    resume: Path | None,
    last: Path,
) -> int:
    """Train to the end or to an interruption; the exit code."""
    try:
        # a checkpoint holds plain values only, so it is opened as data, never as code
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
    except Interrupted as stop:
        where = "and saved" if stop.saved else "before it could save the newest steps"
        print(f"interrupted at step {trainer.global_step} {where}: resume=true goes on")
        return INTERRUPTED
    trainer.save_checkpoint(last, weights_only=False)
    if trainer.is_global_zero:
        _summarize(trainer, last.parent.parent)
    return FINE


def _optimizer(config: DictConfig) -> Any:
    """The optimizer, still to be given its parameters."""
    try:
        optimizer = instantiate(config.optimizer.algorithm, _convert_="all")
        # on a parameter of its own: a wrong value shows here, not after the folder was made
        optimizer([torch.nn.Parameter(torch.zeros(1))])
    except (HydraException, TypeError, ValueError, IndexError) as error:
        raise InputError(f"the optimizer cannot be built: {error}") from error
    return optimizer


def _resume_from(output: Path, last: Path, recipe: dict[str, Any], resume: bool) -> Path | None:
    """The checkpoint to continue from, None for a new run."""
    begun = any((output / name).exists() for name in ("checkpoints", "metrics.csv", "summary.json"))
    if begun and not resume:
        raise InputError(
            f"{output} holds a run already: continue it with resume=true, or name another folder "
            "with output="
        )
    if not last.exists():
        if resume and any(last.parent.glob("*.ckpt")):
            raise InputError(f"{last} is missing, other checkpoints are there: rename one to it")
        return None
    saved = read_checkpoint(last)["fracdna"].get("recipe", {})
    changed = [name for name in recipe if saved.get(name) != recipe[name]]
    if changed:
        details = "; ".join(f"{n}: {saved.get(n)} there, {recipe[n]} now" for n in changed)
        raise InputError(
            f"{last} belongs to a run with other settings, which cannot be continued: {details}. "
            "Give those settings, or start a new run with another output="
        )
    return last


def _build_trainer(
    config: DictConfig, data: WindowData, output: Path, last: Path
) -> tuple[pl.Trainer, int]:
    """Lightning's engine with our callbacks, and batches per optimizer step."""
    _quiet_lightning()
    settings = OmegaConf.to_container(config.trainer, resolve=True)
    if settings["precision"] == "auto":
        settings["precision"] = "bf16-mixed" if torch.cuda.is_available() else "32-true"
    callbacks: list[Callback] = [
        RandomState(),
        Monitor(
            output / "metrics.csv",
            bases_per_step=data.windows_per_step * data.length,
            bases_per_epoch=len(data.training) * data.length,
            every=config.log_every,
            title=output.name,
            progress=config.progress,
        ),
        *_checkpoints(last.parent, config.checkpoint_every),
        KeepLast(last),
    ]
    fixed = {
        "max_steps": config.steps,
        "max_epochs": -1,
        "check_val_every_n_epoch": None,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        "use_distributed_sampler": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": output,
    }
    try:
        logger = TensorBoardLogger(output, name="tensorboard", version="")
        trainer = pl.Trainer(**settings, **fixed, logger=logger, callbacks=callbacks)
    except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"trainer options cannot be met here: {error}") from error
    _, accumulate = data.batches(trainer.world_size)
    trainer.accumulate_grad_batches = accumulate
    trainer.val_check_interval = min(config.validate_every, config.steps) * accumulate
    return trainer, accumulate


def _quiet_lightning() -> None:
    """Keep the terminal for what concerns the user: no tips, no advice on workers."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    known = ("does not have many workers", "LeafSpec.*is deprecated", "exists and is not empty")
    for message in known:
        warnings.filterwarnings("ignore", message=f".*{message}.*")


def _checkpoints(folder: Path, every: int) -> list[BestCheckpoint]:
    """Best on validation, and one per period."""
    shared = {"dirpath": folder, "auto_insert_metric_name": False, "enable_version_counter": False}
    return [
        BestCheckpoint(filename="best", monitor="validation/nll", mode="min", **shared),
        BestCheckpoint(
            filename="step-{step:08d}",
            every_n_train_steps=every,
            save_on_train_epoch_end=False,
            save_top_k=-1,
            **shared,
        ),
    ]


def _write_configuration(output: Path, plain: dict[str, Any]) -> None:
    """Keep the resolved configuration beside the results."""
    with atomic_file(output / "config.yaml") as temporary:
        OmegaConf.save(OmegaConf.create(plain), temporary)


def _announce(
    config: DictConfig,
    data: WindowData,
    model: torch.nn.Module,
    accumulate: int,
    resume: Path | None,
    device: torch.device,
) -> None:
    """Say what is about to happen, before it takes hours."""
    parameters = sum(p.numel() for p in model.parameters())
    bases = config.steps * data.windows_per_step * data.length
    epochs = bases / (len(data.training) * data.length)
    print(
        f"{parameters:,} parameters; {config.steps:,} steps of {data.windows_per_step:,} windows "
        f"of {data.length:,} bases in {accumulate} batches: {bases:,} bases, {epochs:.2f} epochs "
        f"of {len(data.training):,} windows"
    )
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
