"""Prepared windows for Lightning, resumable in the middle of an epoch."""

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from fracdna.data.dataset import Batch, StagedWindows, WindowDataset, as_is
from fracdna.data.order import StagedBatches, StepBatches, stage_seed
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
        self, dataset: StagedWindows, batches: StagedBatches, done: Callable[[], int], workers: int
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


class Stage(NamedTuple):
    """A part of the run with windows of one length."""

    windows: WindowDataset
    steps: int

    @property
    def length(self) -> int:
        """Bases of a window."""
        return self.windows.table.length


class WindowData(pl.LightningDataModule):
    """Training windows, of one length after another, and validation windows of the last length.

    Every step of every stage sees the same number of bases, in the same number of batches.

    Args:
        prepared: folder written by `fracdna prepare`.
        length: bases of a window, in training after the stages and in validation.
        bases_per_step: bases that one optimizer step sees, over all devices.
        bases_per_batch: most bases that one device works on at a time; None: its whole share.
        steps: optimizer steps of the run, those of the stages included.
        stages: shorter windows that come first, each with "length" in bases and "steps".
        seed: of order and strands.
        reverse_complement: read half of the training samples from the other strand.
        soft_mask: give the soft mask with the training windows.
        workers: reading processes.
        validation_bases: at most so many bases of validation, evenly spaced windows.

    Raises:
        InputError: no prepared folder or table, no usable window, sizes that do not divide, or
            stages that leave no step to the whole length.
    """

    def __init__(
        self,
        prepared: str | Path | None,
        *,
        length: int,
        bases_per_step: int,
        steps: int,
        bases_per_batch: int | None = None,
        stages: Sequence[Mapping[str, int]] = (),
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
        lengths = [stage["length"] for stage in stages] + [length]
        require_tables(prepared, lengths)
        _check_stages(stages, length, bases_per_step, steps)
        self.length, self.seed, self.workers = length, seed, workers
        self.bases_per_step = bases_per_step
        self.windows_per_step = bases_per_step // length
        self.bases_per_batch = bases_per_batch or bases_per_step
        self.validation_bases = validation_bases
        self.stages = []
        counts = [stage["steps"] for stage in stages]
        for number, count in enumerate([*counts, steps - sum(counts)]):
            store, table = open_prepared(prepared, lengths[number])
            windows = WindowDataset(
                store, table, "train",
                seed=stage_seed(seed, len(stages) - number),
                reverse_complement=reverse_complement,
                soft_mask=soft_mask,
            )  # fmt: skip
            self.stages.append(Stage(_usable(windows, "train"), count))
        self.training = self.stages[-1].windows
        self.store, self.table = self.training.store, self.training.table
        self.validation = _usable(WindowDataset(self.store, self.table, "valid"), "valid")

    def batches(self, devices: int) -> tuple[int, int]:
        """Windows of a batch on one device after the stages, and batches of an optimizer step.

        Raises:
            InputError: shares that do not come out even.
        """
        shares = self._shares(devices)
        most = max(self.bases_per_batch // self.length, 1)
        accumulate = -(-shares[-1] // most)
        for share, stage in zip(shares, self.stages, strict=True):
            if share % accumulate:
                raise InputError(
                    f"{share * devices} windows of {stage.length} bases a step cannot be shared "
                    f"evenly by {devices} devices in {accumulate} batches, of at most {most} "
                    f"windows of {self.length} bases: change data.bases_per_step, "
                    "data.bases_per_batch or trainer.devices"
                )
        return shares[-1] // accumulate, accumulate

    def take_largest_batch(self, windows: int, devices: int) -> None:
        """Make the batch of one device as large as memory allows and a step can be divided.

        Args:
            windows: of self.length, at most so many on one device.
            devices: that share a step.

        Raises:
            InputError: every even share of a step has more windows than that.
        """
        *_, share = shares = self._shares(devices)
        common = math.gcd(*shares)
        sizes = [share // n for n in range(1, common + 1) if common % n == 0]
        fitting = [size for size in sizes if size <= windows]
        if not fitting:
            raise InputError(
                f"data.bases_per_batch=auto: {windows} windows of {self.length} bases fit, and no "
                f"even batch of {share} windows a step is that small: choose another "
                "data.bases_per_step or other lengths of data.stages"
            )
        self.bases_per_batch = fitting[0] * self.length

    def repeat_batches(self, accumulate: int, devices: int) -> None:
        """Take as many batches to a step as a run did that is to be continued."""
        self.bases_per_batch = self.bases_per_step // (devices * accumulate)

    def _shares(self, devices: int) -> list[int]:
        """Windows of a step that one device sees, for every stage.

        Raises:
            InputError: devices cannot share a step, or the validation windows.
        """
        if len(self.validation) < devices:
            raise InputError(
                f"{self.table.path}: {len(self.validation)} validation windows cannot be shared by "
                f"{devices} devices: use shorter windows or fewer devices"
            )
        windows = [self.bases_per_step // stage.length for stage in self.stages]
        for count, stage in zip(windows, self.stages, strict=True):
            if count % devices:
                raise InputError(
                    f"{count} windows of {stage.length} bases a step cannot be shared evenly by "
                    f"{devices} devices: change data.bases_per_step or trainer.devices"
                )
        return [count // devices for count in windows]

    def train_dataloader(self) -> TrainingLoader:
        """Batches of the whole run."""
        trainer = self.trainer
        _, accumulate = self.batches(trainer.world_size)
        batches = StagedBatches(
            [
                StepBatches(
                    len(stage.windows),
                    seed=stage.windows.seed,
                    size=share // accumulate,
                    total=stage.steps * accumulate,
                    devices=trainer.world_size,
                    rank=trainer.global_rank,
                )
                for share, stage in zip(self._shares(trainer.world_size), self.stages, strict=True)
            ]
        )
        windows = StagedWindows([stage.windows for stage in self.stages])
        done = lambda: trainer.global_step * accumulate  # noqa: E731
        return TrainingLoader(windows, batches, done, self.workers)

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

    def example(self, windows: int) -> Batch:
        """A training batch of any size, to try things with."""
        return self.training.__getitems__([(0, n % len(self.training)) for n in range(windows)])

    def identity(self) -> dict[str, Any]:
        """What must be equal for a resumed run to see the bases it would have seen."""
        known = {
            "windows": self.table.content_hash,
            "length": self.length,
            "windows_per_step": self.windows_per_step,
            "seed": self.seed,
            "reverse_complement": self.training.reverse_complement,
        }
        stages = [
            {"windows": x.windows.table.content_hash, "length": x.length, "steps": x.steps}
            for x in self.stages[:-1]
        ]
        # absent where there are none, as in runs from before there were any
        return known | ({"stages": stages} if stages else {})


def leave_signals_to_the_parent(worker: int) -> None:
    """Ctrl-C reaches the whole process group: workers must live until the step has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _check_stages(
    stages: Sequence[Mapping[str, int]], length: int, bases_per_step: int, steps: int
) -> None:
    """Refuse lengths that a step is no multiple of, longer stages, and stages for the whole run."""
    for stage in stages:
        if min(stage["length"], stage["steps"]) < 1 or stage["length"] > length:
            raise InputError(
                f"data.stages: {dict(stage)} needs at least one step, and windows of 1 to "
                f"data.length={length} bases"
            )
    for name, size in [("data.stages", s["length"]) for s in stages] + [("data.length", length)]:
        if bases_per_step % size:
            raise InputError(
                f"data.bases_per_step={bases_per_step} is not a multiple of {name}={size}"
            )
    warm = sum(stage["steps"] for stage in stages)
    if warm >= steps:
        raise InputError(
            f"data.stages take {warm} steps and steps={steps}: leave some to windows of "
            f"data.length={length} bases"
        )


def _usable(windows: WindowDataset, split: str) -> WindowDataset:
    """The windows, of which there must be some."""
    if not len(windows):
        raise InputError(f"{windows.table.path}: no usable window in split {split!r}")
    return windows


def require_tables(prepared: str | Path, lengths: Sequence[int]) -> None:
    """Refuse a folder that lacks the windows of some lengths; the message says how to make them.

    Raises:
        InputError: the folder or a table is missing.
    """
    folder = Path(prepared)
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder; make it with `fracdna prepare output={folder}`"
        )
    missing = [n for n in dict.fromkeys(lengths) if not windows_path(folder, n).is_file()]
    if missing:
        wanted = missing[0] if len(missing) == 1 else str(missing).replace(" ", "")
        raise InputError(
            f"{folder} has no windows of {' and '.join(map(str, missing))} bases; add them with "
            f"`fracdna prepare length={wanted} output={folder} ...`"
        )


def open_prepared(prepared: str | Path, length: int) -> tuple[GenomeStore, WindowTable]:
    """The genome of a prepared folder and its window table of one length.

    Raises:
        InputError: the folder or the table is missing; the message says how to make it.
    """
    require_tables(prepared, [length])
    folder = Path(prepared)
    path = windows_path(folder, length)
    table = WindowTable.read(path)
    store = GenomeStore(store_path(folder))
    if store.checksum != table.metadata["genome_checksum"]:
        raise InputError(
            f"{path} was made from another genome than {store.directory}: prepare again"
        )
    return store, table
