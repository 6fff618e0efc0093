import csv
import os
import signal

import pytest

from fracdna import cli
from fracdna.training.curve import TrainingCurve
from fracdna.training.monitor import Monitor

DRAW = TrainingCurve.draw


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """A picture takes longer than the steps of these runs."""
    monkeypatch.setattr(TrainingCurve, "draw", lambda *_: None)


@pytest.fixture
def pictures(no_pictures, monkeypatch):
    """Runs draw their curve after all."""
    monkeypatch.setattr(TrainingCurve, "draw", DRAW)


@pytest.fixture
def small_run(prepared, tmp_path):
    """Train a model of a few hundred parameters in tmp_path/NAME through the command."""

    def train(name, *overrides):
        words = [
            f"data.prepared={prepared}", f"output={tmp_path / name}", "data.length=256",
            "data.bases_per_step=1024", "data.validation_bases=1024", "model.d_model=8",
            "model.num_layers=1", "mixer=attention", "log_every=1", "validate_every=100",
            "progress=false", "trainer.accelerator=cpu",
        ]  # fmt: skip
        return cli.run(["train", *words, *overrides])

    return train


@pytest.fixture
def losses(tmp_path):
    """Step and training loss of every row of a run, as text with all digits."""

    def read(name):
        with (tmp_path / name / "metrics.csv").open() as file:
            return [(row["step"], row["train_nll"]) for row in csv.DictReader(file)]

    return read


@pytest.fixture
def interrupt_at(monkeypatch):
    """Send this process Ctrl-C when a step has ended; steps of None end the rule."""
    original = Monitor.on_train_batch_end

    def arm(step):
        def press(self, trainer, *arguments):
            original(self, trainer, *arguments)
            if trainer.global_step == step:
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(Monitor, "on_train_batch_end", press)

    return arm
