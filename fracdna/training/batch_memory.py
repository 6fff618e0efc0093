"""How many bases a batch may have: as many as the memory of the device holds, found by trying."""

import contextlib
from collections.abc import Callable

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from fracdna.data.datamodule import WindowData
from fracdna.training.language_modelling import LanguageModelling
from fracdna_prep.errors import InputError

SHARE = 0.85  # of the free memory: kernels and allocator need more than the peak of a pass
CPU_BASES = 16_384  # where memory is no guide, and larger batches are no faster
# a number of windows to the most bytes that a forward and a backward pass of them take at a time
Measure = Callable[[int], int]


def windows_that_fit(measure: Measure, budget: float) -> int:
    """Windows of a batch whose passes stay within a budget, if each takes as much as the second.

    Args:
        measure: called with 1 and 2.
        budget: bytes.

    Returns:
        0 where not even one window could be tried, otherwise at least 1.
    """
    try:
        one = measure(1)
    except torch.OutOfMemoryError:
        return 0
    try:
        each = measure(2) - one
    except torch.OutOfMemoryError:
        return 1
    return max(1, 1 + int((budget - one) // max(each, 1)))


class BatchFromMemory(Callback):
    """Finds the batch of a new run before its first step: the same on all devices.

    Args:
        data: whose batches are set.
        settle: called when they are, with the trainer.
        measured: makes a measure and the budget in bytes, of a trainer and a module.
    """

    def __init__(
        self,
        data: WindowData,
        settle: Callable[[pl.Trainer], object],
        measured: Callable[[pl.Trainer, LanguageModelling, WindowData], tuple[Measure, float]],
    ) -> None:
        self.data, self.settle, self.measured = data, settle, measured

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """When the devices know each other, and the loader is not there yet.

        Raises:
            InputError: not even one window fits on some device.
        """
        windows = windows_that_fit(*self.measured(trainer, pl_module, self.data))
        # told to all before anyone gives up, or the others would wait for ever
        told = torch.tensor(windows, device=trainer.strategy.root_device)
        least = int(trainer.strategy.all_gather(told).min())
        if not least:
            raise InputError(
                f"data.bases_per_batch=auto: not even one window of {self.data.length} bases fits "
                "into the free memory of the device: shorten data.length, choose a smaller size, "
                "or set model.activation_checkpointing=true"
            )
        self.data.take_largest_batch(least, trainer.world_size)
        self.settle(trainer)
        size, accumulate = self.data.batches(trainer.world_size)
        if trainer.is_global_zero:
            print(
                f"memory holds about {least:,} windows of {self.data.length:,} bases: batches of "
                f"{size:,} windows ({size * self.data.length:,} bases), {accumulate:,} to a step"
            )


def measures_memory(device: torch.device) -> bool:
    """Whether a device has memory of its own that can be measured."""
    return device.type == "cuda"


def measure_on_gpu(
    trainer: pl.Trainer, module: LanguageModelling, data: WindowData
) -> tuple[Measure, float]:
    """Passes on the device of a run, as the run will take them, and the bytes that they may use.

    Args:
        trainer: says device and precision.
        module: moved to the device.
        data: gives the windows.
    """
    device = trainer.strategy.root_device
    module.to(device)
    sizes = [p.numel() * p.element_size() for p in module.model.parameters()]

    def measure(windows: int) -> int:
        batch = {name: x.to(device) for name, x in data.example(windows).items()}
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        try:
            with torch.random.fork_rng([device]):
                with trainer.precision_plugin.forward_context():
                    loss, *_ = module.plain_pass(batch)
                loss.backward()
            return torch.cuda.max_memory_allocated(device) - before
        finally:
            module.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()

    with contextlib.suppress(torch.OutOfMemoryError):
        measure(1)  # libraries take memory of their own at first use
    free, _ = torch.cuda.mem_get_info(device)
    # an optimizer keeps two moments of every parameter
    return measure, SHARE * free - 2 * sum(sizes)
