"""How a run is saved and stopped: checkpoints whole at every moment, signals, random state."""

import contextlib
import errno
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, Checkpoint, ModelCheckpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO

from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file

_UNFINISHED = re.compile(r"\.[0-9a-f]{8}\..+")  # as atomic_file calls what it has not renamed yet
_NOT_SAVED = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
)  # fmt: skip


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
