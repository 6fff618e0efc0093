"""What a run shows and records while it goes: progress, curve, speed of model and loader."""

import math
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from fracdna.evaluation.likelihood import perplexity
from fracdna.outcomes import NotFinite
from fracdna.training.curve import CurvePoint, TrainingCurve
from fracdna.training.saving import step_complete
from fracdna_prep.progress import progress_bar

WAITING = 0.05  # share of the time beyond which the loader is worth a remedy


class LoaderWait:
    """How long the device had nothing to do because the next batch was not there.

    On a GPU by events in its own stream: the host runs ahead of it, and may wait for a batch while
    the device still has work. Elsewhere by the clock. What lies between a batch and the next one
    counts, unless `forget` says that something else took that time.

    Args:
        device: that works on the batches.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._done: Any = None
        self._open: list[tuple[Any, Any]] = []
        self.seconds, self.batches = 0.0, 0

    def batch_done(self) -> None:
        """All work on a batch is submitted."""
        self._done = self._mark()

    def batch_here(self) -> None:
        """The next batch is there."""
        if self._done is not None:
            self._open.append((self._done, self._mark()))
            self.batches += 1
        self._done = None
        while self._open and (not self._cuda or self._open[0][1].query()):
            self._add(*self._open.pop(0))

    def forget(self) -> None:
        """The time since the last batch is no waiting."""
        self._done = None

    def total(self) -> float:
        """Seconds of waiting so far; a GPU finishes what it was given."""
        while self._open:
            begin, end = self._open.pop(0)
            if self._cuda:
                end.synchronize()
            self._add(begin, end)
        return self.seconds

    def _mark(self) -> Any:
        """This moment, of the device."""
        if not self._cuda:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _add(self, begin: Any, end: Any) -> None:
        """Add an interval."""
        self.seconds += begin.elapsed_time(end) / 1e3 if self._cuda else end - begin


class Monitor(Callback):
    """Progress bar with bases/s and time left, training curve, and a stop when the loss is NaN.

    At the end a line says what model and loader did by themselves.

    Args:
        curve_path: CSV file of the curve; the picture stands beside it.
        bases_per_step: bases of one optimizer step over all devices.
        bases_per_epoch: bases of one pass over the training windows.
        every: optimizer steps between two rows.
        title: of the picture.
        progress: show the bar.
    """

    def __init__(
        self,
        curve_path: Path,
        *,
        bases_per_step: int,
        bases_per_epoch: int,
        every: int,
        title: str,
        progress: bool = True,
    ) -> None:
        self.path, self.every, self.title, self.progress = curve_path, every, title, progress
        self.bases_per_step, self.bases_per_epoch = bases_per_step, bases_per_epoch
        self.earlier_seconds = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open curve and bar where the run stands."""
        step = trainer.global_step
        self.curve = TrainingCurve(self.path, step) if trainer.is_global_zero else None
        if self.curve and self.curve.points:
            self.earlier_seconds = self.curve.points[-1].seconds
        if not trainer.is_global_zero:
            # a checkpoint holds the sums of all devices, which the first one goes on with
            pl_module.training_likelihood.reset()
        self.wait = LoaderWait(trainer.strategy.root_device)
        self.trained_seconds = self.waited = 0.0
        self.started = self.marked = time.monotonic()
        self.marked_step = self.first_step = step
        total = trainer.max_steps * self.bases_per_step
        self.bar = progress_bar(total, self.title, self.progress and trainer.is_global_zero)
        self.bar.update(step * self.bases_per_step)
        self.bar.initial = self.bar.n  # the rate counts from here

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The loader has given a batch; the schedule moves before the end of a step's last one."""
        self.wait.batch_here()
        self.learning_rate = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Advance the bar; write a row at its turn."""
        if step_complete(trainer, batch_idx):
            self.bar.update(self.bases_per_step)
            step = trainer.global_step
            if step % self.every == 0 or step == trainer.max_steps:
                self._write_row(trainer, pl_module, step)
        self.wait.batch_done()

    def _write_row(self, trainer: pl.Trainer, pl_module: pl.LightningModule, step: int) -> None:
        """What was measured since the row before.

        Raises:
            NotFinite: the loss is no number.
        """
        nats, counted = pl_module.training_likelihood.totals()
        nll = nats / max(counted, 1)
        pl_module.training_likelihood.reset()
        if counted and not math.isfinite(nll):
            raise NotFinite(
                f"the loss is {nll} at step {step}: start a new run (another output=) with a lower "
                "optimizer.lr, a longer schedule.warmup or trainer.precision=32-true; "
                "checkpoints/best.ckpt holds the best weights before"
            )
        waited = self.wait.total()
        now = time.monotonic()
        seconds = max(now - self.marked, 1e-9)
        rate = (step - self.marked_step) * self.bases_per_step / seconds
        share = (waited - self.waited) / seconds
        self.trained_seconds += seconds
        self.marked, self.marked_step, self.waited = now, step, waited
        known = nll if counted else None
        self._record(
            trainer,
            bases_per_second=rate,
            learning_rate=self.learning_rate,
            train_bases=counted,
            train_nll=known,
            train_perplexity=None if known is None else perplexity(known),
            loader_wait=share,
        )
        for name, value in (("nll", known), ("bases_per_second", rate)):
            for logger in trainer.loggers if value is not None else ():
                logger.log_metrics({f"train/{name}": value}, step=step)
        if known is not None:
            self.bar.set_postfix_str(f"perplexity {perplexity(known):.3f}")

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validating takes no part in bases per second."""
        self.wait.forget()
        self.paused = time.monotonic()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the validation's row and draw."""
        self.marked += time.monotonic() - self.paused
        nll = float(trainer.callback_metrics["validation/nll"])
        self._record(
            trainer,
            validation_nll=nll,
            validation_perplexity=perplexity(nll),
            validation_bases=pl_module.validated_bases,
        )
        if self.curve:
            self.curve.draw(self.path.with_suffix(".png"), self.title)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the whole curve, and say how fast it was."""
        self.bar.close()
        if self.curve:
            self.curve.draw(self.path.with_suffix(".png"), self.title)
            if self.trained_seconds:
                print(self._throughput(trainer))

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Saving is no waiting; sums of the next row go into the file as of all devices."""
        if hasattr(self, "wait"):
            self.wait.forget()
        nats, counted = pl_module.training_likelihood.totals()
        state = checkpoint["state_dict"]
        for name, value in (("nll_nats", nats), ("tokens", counted)):
            key = f"training_likelihood.{name}"
            if key in state:  # not on each device, where they share the weights
                state[key] = torch.full_like(state[key], value)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Leave the terminal tidy."""
        if hasattr(self, "bar"):
            self.bar.close()

    def _record(self, trainer: pl.Trainer, **values: float | None) -> None:
        """Add a row at the present step."""
        if self.curve is None:
            return
        bases = trainer.global_step * self.bases_per_step
        self.curve.add(
            CurvePoint(
                step=trainer.global_step,
                bases=bases,
                epoch=bases / self.bases_per_epoch,
                seconds=self.earlier_seconds + time.monotonic() - self.started,
                **values,
            )
        )

    def _throughput(self, trainer: pl.Trainer) -> str:
        """Bases per second of this call's steps, and of model and loader by themselves."""
        bases = (self.marked_step - self.first_step) * self.bases_per_step
        rate = bases / self.trained_seconds
        share = self.waited / self.trained_seconds
        workers = trainer.train_dataloader.num_workers
        if workers:  # which read while the model works: only what is waited for shows their limit
            loader = f"{'' if share > WAITING else 'at least '}{rate:,.0f}"
        else:
            read = self.wait.batches * self.bases_per_step / trainer.accumulate_grad_batches
            loader = f"{read / max(self.waited, 1e-9):,.0f}"
        line = (
            f"{rate:,.0f} bases/s: the model alone "
            f"{bases / max(self.trained_seconds - self.waited, 1e-9):,.0f}, the loader {loader}; "
            f"{share:.1%} of the time waiting for data"
        )
        remedy = f": read ahead in more processes, data.workers= (now {workers})"
        return line + (remedy if share > WAITING else "")
