"""What a run says about itself."""

import re
import threading
from types import SimpleNamespace

import pytest
import torch

from fracdna import cli
from fracdna.data.dataset import WindowDataset
from fracdna.training import monitor
from fracdna.training.curve import CurvePoint, TrainingCurve, read_curve
from fracdna.training.monitor import LoaderWait
from fracdna.training.saving import AtomicCheckpoints

SMALL = [
    "data.length=64", "data.bases_per_step=512", "data.validation_bases=1024",
    "model.d_model=16", "model.num_layers=1", "log_every=1", "progress=false",
]  # fmt: skip
OLD = """step,bases,epoch,seconds,bases_per_second,learning_rate,train_bases,train_nll,\
train_perplexity,validation_nll,validation_perplexity
1,512,0.0128,0.5,1024.0,0.001,500,2.5,12.2,,
2,1024,0.0256,1.0,,,,,,2.25,9.5
"""


def train(prepared, output, *overrides):
    return cli.run(["train", f"data.prepared={prepared}", f"output={output}", *SMALL, *overrides])


def test_a_curve_of_an_older_version_goes_on(tmp_path):
    """It lacks a column: its rows are kept, empty there, under the new heading."""
    path = tmp_path / "metrics.csv"
    path.write_text(OLD)
    curve = TrainingCurve(path, step=2)
    curve.add(CurvePoint(step=3, bases=1536, epoch=0.04, seconds=1.5, loader_wait=0.25))
    rows = read_curve(path)
    assert [row.loader_wait for row in rows] == [None, None, 0.25]
    assert rows[0].train_nll == 2.5
    assert rows[1].validation_perplexity == 9.5
    assert path.read_text().splitlines()[0].endswith("loader_wait,validation_bases")


@pytest.mark.parametrize("cut", [1, 2, 5, 12])
def test_a_line_cut_off_is_no_row(tmp_path, cut):
    """Also where all its cells have begun: the last number may lack digits."""
    path = tmp_path / "metrics.csv"
    curve = TrainingCurve(path)
    for step in (1, 2):
        curve.add(CurvePoint(step=step, bases=512, epoch=0.1, seconds=1.0, loader_wait=0.125))
    path.write_text(path.read_text()[:-cut])
    assert [row.step for row in read_curve(path)] == [1]


def test_waiting_is_what_lies_between_two_batches(monkeypatch):
    """But not before the first one, nor where something else took the time."""
    now = iter([10.0, 10.5, 20.0, 30.0, 31.0])
    monkeypatch.setattr(monitor, "time", SimpleNamespace(monotonic=lambda: next(now)))
    wait = LoaderWait(torch.device("cpu"))
    wait.batch_here()
    assert (wait.total(), wait.batches) == (0.0, 0)
    wait.batch_done()
    wait.batch_here()
    assert (wait.total(), wait.batches) == (0.5, 1)
    wait.batch_done()
    wait.forget()
    wait.batch_here()
    wait.batch_done()
    wait.batch_here()
    assert (wait.total(), wait.batches) == (1.5, 2)


class Event:
    """A moment of a device that lags behind: it is over when somebody waits for it."""

    moments = ()

    def __init__(self, enable_timing):
        self.over = False

    def record(self):
        self.moment = next(Event.moments)

    def query(self):
        return self.over

    def synchronize(self):
        self.over = True

    def elapsed_time(self, later):
        assert later.over
        return later.moment - self.moment


def test_on_a_gpu_waiting_is_what_its_stream_stood_still(monkeypatch):
    """Nothing waits for the device until a row is written, and then for all that is open."""
    Event.moments = iter([0.0, 250.0, 1000.0, 1000.0])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    wait = LoaderWait(torch.device("cuda"))
    for _ in range(2):
        wait.batch_done()
        wait.batch_here()
    assert wait.seconds == 0
    assert wait.total() == 0.25
    assert wait.batches == 2


@pytest.mark.parametrize(("reading", "saving"), [(0.2, 0.0), (0.0, 0.3)])
def test_a_loader_that_keeps_the_model_waiting_is_named(
    prepared, tmp_path, capsys, monkeypatch, reading, saving
):
    """With its share in metrics.csv and both speeds at the end; slow saving does not count."""
    original = WindowDataset.__getitems__

    def read(self, samples):
        if self.reverse_complement:
            threading.Event().wait(reading)
        return original(self, samples)

    def save(self, checkpoint, path, storage_options=None):
        threading.Event().wait(saving)
        keep(self, checkpoint, path, storage_options)

    keep = AtomicCheckpoints.save_checkpoint
    monkeypatch.setattr(WindowDataset, "__getitems__", read)
    monkeypatch.setattr(AtomicCheckpoints, "save_checkpoint", save)
    monkeypatch.setattr(monitor, "WAITING", 0.2)  # these steps take milliseconds
    recipe = ["steps=6", "validate_every=6", "checkpoint_every=3"]
    assert train(prepared, tmp_path / "run", *recipe) == 0
    said = capsys.readouterr().out
    line = re.search(
        r"([\d,]+) bases/s: the model alone ([\d,]+), the loader ([\d,]+); ([\d.]+)%.*", said
    )
    whole, model, loader = (int(number.replace(",", "")) for number in line.groups()[:3])
    assert whole < model
    assert ("data.workers= (now 0)" in line[0]) == bool(reading)
    shares = [row.loader_wait for row in read_curve(tmp_path / "run" / "metrics.csv")]
    shares = [share for share in shares if share is not None]
    assert len(shares) == 6
    assert all(0 <= share < 1 for share in shares)
    assert shares[0] == shares[3] == 0  # before them the readers started, and a checkpoint was made
    if reading:
        assert loader < 512 / reading
        assert min(shares[1], shares[2], shares[4], shares[5]) > 0.2
