"""Prepared windows for Lightning, resumable in the middle of an epoch."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from fracdna.data.dataset import Batch, WindowDataset, as_is
from fracdna.data.order import StepBatches
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.prepare import store_path, windows_path
from fracdna_prep.tables import WindowTable


class TrainingLoader(DataLoader[Batch]):
    """A loader that tells Lightning where it is, so that a resumed run goes on with the next batch.

    Args:
        dataset: windows.
        batches: the run's list of batches.
        done: batches whose optimizer step is complete at this moment.
        workers: processes that read ahead.
    """

    def __init__(
        self, dataset: WindowDataset, batches: StepBatches, done: Callable[[], int], workers: int
    ) -> None:
        super().__init__(
            dataset,
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=as_is,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=leave_signals_to_the_parent,
            generator=torch.Generator(),  # see val_dataloader
        )
        self.done = done

    def state_dict(self) -> dict[str, int]:
        """Counted by optimizer steps: batches that workers have read ahead are not seen yet."""
        return {"batches": self.done()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the batches of a checkpoint."""
        self.batch_sampler.start = state["batches"]


class WindowData(pl.LightningDataModule):
    """Training and validation windows of one length.

    Args:
        prepared: folder written by `fracdna prepare`.
        length: bases of a window.
        bases_per_step: bases that one optimizer step sees, over all devices.
        bases_per_batch: most bases that one device works on at a time; None: its whole share.
        steps: optimizer steps of the run.
        seed: of order and strands.
        reverse_complement: read half of the training samples from the other strand.
        soft_mask: give the soft mask with the training windows.
        workers: reading processes.
        validation_bases: at most so many bases of validation, evenly spaced windows.

    Raises:
        InputError: no prepared folder or table, no usable window, or sizes that do not divide.
    """

    def __init__(
        self,
        prepared: str | Path | None,
        *,
        length: int,
        bases_per_step: int,
        steps: int,
        bases_per_batch: int | None = None,
        seed: int = 0,
        reverse_complement: bool = True,
        soft_mask: bool = False,
        workers: int = 0,
        validation_bases: int = 1 << 20,
    ) -> None:
        super().__init__()
        if min(length, bases_per_step, steps, bases_per_batch or 1) < 1:
            raise InputError(
                f"data.length={length}, data.bases_per_step={bases_per_step}, "
                f"data.bases_per_batch={bases_per_batch} and steps={steps} must be at least 1"
            )
        if prepared is None:
            raise InputError("data.prepared is not set: name a folder written by `fracdna prepare`")
        self.store, self.table = open_prepared(prepared, length)
        self.length, self.steps, self.seed, self.workers = length, steps, seed, workers
        self.windows_per_step, rest = divmod(bases_per_step, length)
        if rest or not self.windows_per_step:
            raise InputError(
                f"data.bases_per_step={bases_per_step} is not a multiple of data.length={length}"
            )
        self.bases_per_batch = bases_per_batch or bases_per_step
        self.validation_bases = validation_bases
        self.training = WindowDataset(
            self.store, self.table, "train",
            seed=seed, reverse_complement=reverse_complement, soft_mask=soft_mask,
        )  # fmt: skip
        self.validation = WindowDataset(self.store, self.table, "valid")
        for split, windows in (("train", self.training), ("valid", self.validation)):
            if not len(windows):
                raise InputError(f"{self.table.path}: no usable window in split {split!r}")

    def batches(self, devices: int) -> tuple[int, int]:
        """Windows of a batch on one device, and batches of an optimizer step.

        Raises:
            InputError: shares that do not come out even.
        """
        share, rest = divmod(self.windows_per_step, devices)
        most = max(self.bases_per_batch // self.length, 1)
        accumulate = -(-share // most)
        if len(self.validation) < devices:
            raise InputError(
                f"{self.table.path}: {len(self.validation)} validation windows cannot be shared by "
                f"{devices} devices: use shorter windows or fewer devices"
            )
        if rest or share % accumulate:
            raise InputError(
                f"{self.windows_per_step} windows a step cannot be shared evenly by {devices} "
                f"devices with at most {most} windows at a time: change data.bases_per_step, "
                "data.bases_per_batch or trainer.devices"
            )
        return share // accumulate, accumulate

    def train_dataloader(self) -> TrainingLoader:
        """Batches of the whole run."""
        trainer = self.trainer
        size, accumulate = self.batches(trainer.world_size)
        batches = StepBatches(
            len(self.training),
            seed=self.seed,
            size=size,
            total=self.steps * accumulate,
            devices=trainer.world_size,
            rank=trainer.global_rank,
        )
        done = lambda: trainer.global_step * accumulate  # noqa: E731
        return TrainingLoader(self.training, batches, done, self.workers)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Each validation window exactly once over all devices, without augmentation."""
        size, _ = self.batches(self.trainer.world_size)
        devices = self.trainer.world_size
        count = min(len(self.validation), max(self.validation_bases // self.length, devices))
        chosen = np.linspace(0, len(self.validation) - 1, count).round().astype(int)
        mine = [(0, int(index)) for index in chosen[self.trainer.global_rank :: devices]]
        groups = [mine[first : first + size] for first in range(0, len(mine), size)]
        # a loader draws when it is first read; from the generator of dropout, a resumed run, which
        # reads at other times, would then drop other channels than an unbroken one
        own = torch.Generator()
        return DataLoader(self.validation, batch_sampler=groups, collate_fn=as_is, generator=own)

    def identity(self) -> dict[str, Any]:
        """What must be equal for a resumed run to see the bases it would have seen."""
        return {
            "windows": self.table.content_hash,
            "length": self.length,
            "windows_per_step": self.windows_per_step,
            "seed": self.seed,
            "reverse_complement": self.training.reverse_complement,
        }


def leave_signals_to_the_parent(worker: int) -> None:
    """Ctrl-C reaches the whole process group: workers must live until the step has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def open_prepared(prepared: str | Path, length: int) -> tuple[GenomeStore, WindowTable]:
    """The genome of a prepared folder and its window table of one length.

    Raises:
        InputError: the folder or the table is missing; the message says how to make it.
    """
    folder = Path(prepared)
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder; make it with `fracdna prepare output={folder}`"
        )
    path = windows_path(folder, length)
    if not path.is_file():
        raise InputError(
            f"{folder} has no windows of {length} bases; add them with "
            f"`fracdna prepare length={length} output={folder} ...`"
        )
    table = WindowTable.read(path)
    store = GenomeStore(store_path(folder))
    if store.checksum != table.metadata["genome_checksum"]:
        raise InputError(
            f"{path} was made from another genome than {store.directory}: prepare again"
        )
    return store, table
