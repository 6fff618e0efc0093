"""What happens around the steps of a run: progress, curve, interruption, saving, random state."""

import contextlib
import errno
import io
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, Checkpoint, ModelCheckpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO

from fracdna.evaluation.likelihood import perplexity
from fracdna.outcomes import NotFinite
from fracdna.training.curve import CurvePoint, TrainingCurve
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file
from fracdna_prep.progress import progress_bar

_UNFINISHED = re.compile(r"\.[0-9a-f]{8}\..+")  # as atomic_file calls what it has not renamed yet
_NOT_SAVED = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
)  # fmt: skip
WAITING = 0.05  # share of the time beyond which the loader is worth a remedy


class Interrupted(BaseException):
    """A run was asked to stop.

    No Exception, so that nothing on the way out takes it for an error, and no KeyboardInterrupt,
    which Lightning turns into an exit code of its own.

    Args:
        saved: the run has saved where it is.
    """

    def __init__(self, saved: bool) -> None:
        super().__init__()
        self.saved = saved


class NotSaved(Exception):
    """A run ended because its folder could not be written."""


@contextlib.contextmanager
def saving(output: Path) -> Iterator[None]:
    """Turns what a full or read-only folder does to a run, wherever it shows, into NotSaved.

    Args:
        output: folder of the run.
    """
    report = threading.excepthook

    def hook(thread: threading.ExceptHookArgs) -> None:
        # TensorBoard writes in a thread, whose error it raises again in this one
        if not _is_refusal(thread.exc_value):
            report(thread)

    threading.excepthook = hook
    try:
        yield
    except (InputError, OSError) as error:
        cause = error.__cause__ if isinstance(error, InputError) else error
        if not _is_refusal(cause):
            raise
        raise NotSaved(
            f"{os.fsdecode(cause.filename or output)} could not be written ({cause.strerror}), so "
            "the run has stopped. All checkpoints that are there are whole: free some space, or "
            "make the folder writable again, and give the same command with resume=true, which "
            "goes on from the last one"
        ) from error
    finally:
        threading.excepthook = report


def _is_refusal(error: BaseException | None) -> bool:
    """Whether a disk or the rights on it refused to be written."""
    return isinstance(error, OSError) and error.errno in _NOT_SAVED


class AtomicCheckpoints(TorchCheckpointIO):
    """Every checkpoint gets its name when the disk holds all of it, whatever ends the process.

    Lightning itself writes where the system keeps temporary files and moves the file from there,
    which between two disks is a copy under the final name: cut off, it is half a checkpoint.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write under a temporary name in the same folder, flush to the disk, rename."""
        content = io.BytesIO()
        torch.save(checkpoint, content)
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        _flush_folder(Path(path).parent)


def _flush_folder(folder: Path) -> None:
    """The new name of a file is on the disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def step_complete(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Whether the batch that just ended completed an optimizer step."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


class KeepLast(Checkpoint):
    """Save the newest state after every validation, and when a signal asks the run to stop.

    All checkpoints of the run, of other callbacks too, are written by AtomicCheckpoints.

    Ctrl-C or SIGTERM finishes the step, saves and stops; a second one stops at once. Lightning
    calls a Checkpoint last, so what is saved holds the best score of this validation.

    Args:
        path: checkpoint to write.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.asked = path, False
        self._previous: dict[int, Any] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Write whole files only, and remove what a killed run has left unfinished."""
        trainer.strategy.checkpoint_io = AtomicCheckpoints()
        if trainer.is_global_zero:
            for folder in (self.path.parent, self.path.parent.parent):
                for left in folder.glob(".*"):
                    if _UNFINISHED.fullmatch(left.name):
                        left.unlink(missing_ok=True)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remember whose the signals were."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.getsignal(number)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take over the signals; only the main thread may.

        Not sooner: Lightning puts its own handler of SIGTERM in place after on_fit_start, which
        would end the run between two batches of a step, unsaved and with exit code 0.
        """
        try:
            for number in self._previous:
                signal.signal(number, self._ask)
        except ValueError:
            self._previous.clear()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A crash costs no more than the steps since the last validation; stop here if asked."""
        trainer.save_checkpoint(self.path, weights_only=False)
        if self._asked_anywhere(trainer):
            raise Interrupted(saved=True)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Stop where no gradients are half gathered and no validation would be lost."""
        due = (batch_idx + 1) % trainer.val_check_interval == 0
        if not step_complete(trainer, batch_idx) or due:
            return
        if self._asked_anywhere(trainer):
            trainer.save_checkpoint(self.path, weights_only=False)
            raise Interrupted(saved=True)

    def _asked_anywhere(self, trainer: pl.Trainer) -> bool:
        """Whether a signal has reached any device: all of them stop together."""
        return trainer.strategy.reduce_boolean_decision(self.asked, all=False)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        """Remember the wish; a second one is not polite any more."""
        if self.asked:
            raise Interrupted(saved=False)
        self.asked = True
        print(
            "\nstopping after this step and a validation that is due; once more stops at once",
            file=sys.stderr,
        )


class BestCheckpoint(ModelCheckpoint):
    """ModelCheckpoint of a run whose folder may have been moved: scores are kept, paths follow."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the saved paths the present folder, then restore."""

        def here(path: str) -> str:
            return str(Path(self.dirpath) / Path(path).name) if path else path

        paths = ("best_model_path", "kth_best_model_path", "last_model_path")
        moved = {name: here(state_dict[name]) for name in paths if name in state_dict}
        models = {here(path): score for path, score in state_dict["best_k_models"].items()}
        moved |= {"dirpath": self.dirpath, "best_k_models": models}
        super().load_state_dict(state_dict | moved)


class RandomState(Callback):
    """Random generators travel with the checkpoint, for parts that draw numbers."""

    def state_dict(self) -> dict[str, Any]:
        """States of the CPU's and the GPUs' generators."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {"cpu": torch.get_rng_state(), "cuda": cuda}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put them back, where as many GPUs are there."""
        torch.set_rng_state(state_dict["cpu"])
        if len(state_dict["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state_dict["cuda"])


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
        """The loader has given a batch."""
        self.wait.batch_here()

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
            learning_rate=trainer.optimizers[0].param_groups[0]["lr"],
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
        self._record(trainer, validation_nll=nll, validation_perplexity=perplexity(nll))
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
