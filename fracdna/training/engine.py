"""Lightning's engine: which of its options a run may have, and what is fixed for all runs."""

import logging
import os
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import Logger
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fracdna.data.datamodule import WindowData
from fracdna.training.monitor import Monitor
from fracdna.training.saving import BestCheckpoint, KeepLast, RandomState
from fracdna_prep.errors import InputError

# others would change which bases a run sees, or when, behind the back of what is recorded of it
OPTIONS = {
    "accelerator", "devices", "num_nodes", "strategy", "precision", "gradient_clip_val",
    "benchmark", "deterministic", "detect_anomaly", "profiler", "sync_batchnorm",
}  # fmt: skip
# parameters stay in float32, which decays and time scales need
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
# what launchers of several machines tell each of them
NODE_VARIABLES = ("NODE_RANK", "GROUP_RANK")


def build_trainer(
    config: DictConfig, data: WindowData, logger: Logger | None, last: Path
) -> pl.Trainer:
    """Lightning's engine with our callbacks.

    Args:
        config: the composed configuration of configs/train.yaml.
        data: windows of the run.
        logger: of the run; None: none.
        last: the newest checkpoint of the run's folder.

    Raises:
        InputError: options that are not ours to give, or that cannot be met on this machine.
    """
    output = last.parent.parent
    quiet_lightning()
    settings = OmegaConf.to_container(config.trainer, resolve=True)
    _check(settings)
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
        trainer = pl.Trainer(**settings, **fixed, logger=logger or False, callbacks=callbacks)
    except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"trainer options cannot be met here: {error}") from error
    _check_place(settings, trainer)
    return trainer


def _check(settings: dict[str, Any]) -> None:
    """Refuse options that a run has no use for."""
    foreign = sorted(set(settings) - OPTIONS)
    if foreign:
        raise InputError(
            f"trainer.{foreign[0]}: a run has no such option; it has {', '.join(sorted(OPTIONS))}, "
            "and its length and rhythm by steps, validate_every, checkpoint_every, log_every and "
            "data.bases_per_batch"
        )
    if settings["precision"] not in ("auto", *PRECISIONS):
        raise InputError(
            f"trainer.precision={settings['precision']}: choose auto, {', '.join(PRECISIONS)}; "
            "parameters stay in float32"
        )


def _check_place(settings: dict[str, Any], trainer: pl.Trainer) -> None:
    """Refuse what this machine cannot do, or not alone."""
    if settings["precision"] == "16-mixed" and trainer.strategy.root_device.type == "cpu":
        raise InputError("trainer.precision=16-mixed needs a GPU: use bf16-mixed or 32-true")
    environment = getattr(trainer.strategy, "cluster_environment", None)
    alone = environment is None or isinstance(environment, LightningEnvironment)
    if trainer.num_nodes > 1 and alone and not any(name in os.environ for name in NODE_VARIABLES):
        raise InputError(
            f"trainer.num_nodes={trainer.num_nodes}: start the run on every machine with torchrun "
            "or SLURM, which tell each its number (docs/training.md)"
        )


def quiet_lightning() -> None:
    """Keep the terminal for what concerns the user: no tips, no advice on workers."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    known = (
        "does not have many workers", "LeafSpec.*is deprecated", "exists and is not empty",
        "fp16 is not supported on CPU",  # is refused instead
    )  # fmt: skip
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
