"""What happens around the steps of a run: progress, curve, interruption, random state."""

import math
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, Checkpoint, ModelCheckpoint

from fracdna.evaluation.likelihood import perplexity
from fracdna.outcomes import NotFinite
from fracdna.training.curve import CurvePoint, TrainingCurve
from fracdna_prep.progress import progress_bar


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


def step_complete(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Whether the batch that just ended completed an optimizer step."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


class KeepLast(Checkpoint):
    """Save the newest state after every validation, and when a signal asks the run to stop.

    Ctrl-C or SIGTERM finishes the step, saves and stops; a second one stops at once. Lightning
    calls a Checkpoint last, so what is saved holds the best score of this validation.

    Args:
        path: checkpoint to write.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.asked = path, False
        self._previous: dict[int, Any] = {}

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


class Monitor(Callback):
    """Progress bar with bases/s and time left, training curve, and a stop when the loss is NaN.

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
        self.started = self.marked = time.monotonic()
        self.marked_step = step
        total = trainer.max_steps * self.bases_per_step
        self.bar = progress_bar(total, self.title, self.progress and trainer.is_global_zero)
        self.bar.update(step * self.bases_per_step)
        self.bar.initial = self.bar.n  # the rate counts from here

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Advance the bar; write a row at its turn."""
        if not step_complete(trainer, batch_idx):
            return
        self.bar.update(self.bases_per_step)
        step = trainer.global_step
        if step % self.every and step != trainer.max_steps:
            return
        nats, counted = pl_module.training_likelihood.totals()
        nll = nats / max(counted, 1)
        pl_module.training_likelihood.reset()
        if counted and not math.isfinite(nll):
            raise NotFinite(
                f"the loss is {nll} at step {step}: start a new run (another output=) with a lower "
                "optimizer.lr, a longer schedule.warmup or trainer.precision=32-true; "
                "checkpoints/best.ckpt holds the best weights before"
            )
        now = time.monotonic()
        rate = (step - self.marked_step) * self.bases_per_step / max(now - self.marked, 1e-9)
        self.marked, self.marked_step = now, step
        known = nll if counted else None
        self._record(
            trainer,
            bases_per_second=rate,
            learning_rate=trainer.optimizers[0].param_groups[0]["lr"],
            train_bases=counted,
            train_nll=known,
            train_perplexity=None if known is None else perplexity(known),
        )
        for name, value in (("nll", known), ("bases_per_second", rate)):
            for logger in trainer.loggers if value is not None else ():
                logger.log_metrics({f"train/{name}": value}, step=step)
        if known is not None:
            self.bar.set_postfix_str(f"perplexity {perplexity(known):.3f}")

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validating takes no part in bases per second."""
        self.paused = time.monotonic()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the validation's row and draw."""
        self.marked += time.monotonic() - self.paused
        nll = float(trainer.callback_metrics["validation/nll"])
        self._record(trainer, validation_nll=nll, validation_perplexity=perplexity(nll))
        if self.curve:
            self.curve.draw(self.path.with_suffix(".png"), self.title)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the whole curve."""
        self.bar.close()
        if self.curve:
            self.curve.draw(self.path.with_suffix(".png"), self.title)

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
