"""Batches as large as memory allows: the arithmetic, the devices, and what a run records."""

from functools import partial
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from models import tiny_model

from fracdna.data.datamodule import WindowData
from fracdna.model.checkpoint import read_checkpoint
from fracdna.training import run
from fracdna.training.batch_memory import (
    CPU_BASES,
    SHARE,
    BatchFromMemory,
    measure_on_gpu,
    windows_that_fit,
)
from fracdna.training.language_modelling import LanguageModelling
from fracdna_prep.errors import InputError

MB = 2**20
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def measure(windows, *, fixed=50 * MB, each=100 * MB, most=10):
    """A device on which every window takes the same, and which holds so many."""
    if windows > most:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return fixed + windows * each


@pytest.mark.parametrize(
    ("budget", "most", "expected"),
    [
        (1000 * MB, 10, 9),
        (950 * MB, 10, 9),
        (949 * MB, 10, 8),
        (250 * MB, 10, 2),
        (160 * MB, 10, 1),
        (100 * MB, 10, 1),  # it was tried, and went well
        (1000 * MB, 1, 1),
        (1000 * MB, 0, 0),
    ],
)
def test_windows_are_as_many_as_the_budget_holds(budget, most, expected):
    """From one window and two; what does not fit is no error but fewer windows."""
    assert windows_that_fit(partial(measure, most=most), budget) == expected


class Devices(SimpleNamespace):
    """A trainer of several devices, of which the others can hold these windows."""

    def __init__(self, *others):
        told = lambda mine: torch.stack([mine, *map(torch.tensor, others)])  # noqa: E731
        strategy = SimpleNamespace(root_device=torch.device("cpu"), all_gather=told)
        super().__init__(strategy=strategy, world_size=1 + len(others), is_global_zero=True)


@pytest.fixture
def data(prepared):
    return WindowData(prepared, length=256, bases_per_step=24 * 256, steps=3)


def setup(data, trainer, budget=1000 * MB):
    settled = []
    measured = lambda *_: (measure, budget)  # noqa: E731
    BatchFromMemory(data, settled.append, measured).setup(trainer, None, "fit")
    assert settled == [trainer]
    return data.batches(trainer.world_size)


def test_the_largest_even_batch_is_taken(data, capsys):
    """Nine windows fit, and eight are a third of a step."""
    assert setup(data, Devices()) == (8, 3)
    assert capsys.readouterr().out == (
        "memory holds about 9 windows of 256 bases: batches of 8 windows (2,048 bases), 3 to a "
        "step\n"
    )


def test_devices_take_what_the_least_of_them_holds(data):
    assert setup(data, Devices(3, 100)) == (2, 4)


def test_all_devices_give_up_where_one_holds_nothing(data):
    with pytest.raises(InputError, match="not even one window of 256 bases fits"):
        setup(data, Devices(0))


def test_stages_share_the_batch(prepared):
    """As many bases at 64 as at 256."""
    stages = [{"length": 64, "steps": 1}]
    data = WindowData(prepared, length=256, bases_per_step=24 * 256, steps=3, stages=stages)
    assert setup(data, Devices()) == (8, 3)


def saved_recipe(folder):
    return read_checkpoint(folder / "checkpoints" / "last.ckpt")["fracdna"]["recipe"]


def test_a_run_trains_with_the_batches_that_were_found_and_goes_on_with_them(
    small_run, tmp_path, losses, interrupt_at, monkeypatch, capsys
):
    """Recorded, so that a resumed run does not measure again, whatever memory it finds."""
    words = ["steps=6", "validate_every=2", "data.bases_per_step=3072"]
    assert small_run("given", *words, "data.bases_per_batch=1024") == 0
    find = lambda *_: (measure, 550 * MB)  # noqa: E731
    monkeypatch.setattr(run, "measure_on_gpu", find)
    monkeypatch.setattr(run, "measures_memory", lambda device: True)
    auto = [*words, "data.bases_per_batch=auto"]
    interrupt_at(3)
    capsys.readouterr()
    assert small_run("found", *auto) == 130
    printed = capsys.readouterr().out
    assert "in as few batches as memory allows" in printed
    assert "memory holds about 5 windows of 256 bases: batches of 4 windows" in printed
    interrupt_at(None)
    monkeypatch.setattr(run, "measure_on_gpu", None)
    assert small_run("found", *auto, "resume=true") == 0
    assert saved_recipe(tmp_path / "found") == saved_recipe(tmp_path / "given")
    assert losses("found") == losses("given")


def test_a_cpu_takes_a_modest_number_of_bases(small_run, tmp_path):
    """Of 32,768 bases a step half at a time; short of that the whole step."""
    auto = ["steps=1", "data.bases_per_batch=auto"]
    assert small_run("large", *auto, f"data.bases_per_step={2 * CPU_BASES}") == 0
    assert saved_recipe(tmp_path / "large")["data"]["batches_per_step"] == 2
    assert small_run("small", *auto) == 0
    assert saved_recipe(tmp_path / "small")["data"]["batches_per_step"] == 1


@needs_cuda
def test_what_is_measured_is_what_a_pass_takes(prepared):
    """Peak memory of the found batch stays within the budget and is near it."""
    data = WindowData(prepared, length=256, bases_per_step=4096 * 256, steps=3)
    trainer = pl.Trainer(accelerator="cuda", devices=1, precision="bf16-mixed", logger=False)
    module = LanguageModelling(
        tiny_model("frac").train(), optimizer=partial(torch.optim.AdamW, lr=1e-3),
        weight_decay=0.1, steps=3, warmup=0.0, final=1.0,
    )  # fmt: skip
    before = torch.cuda.get_rng_state()
    measured, budget = measure_on_gpu(trainer, module, data)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert all(p.grad is None for p in module.parameters())
    free, _ = torch.cuda.mem_get_info()
    assert 0.5 * SHARE * free < budget < SHARE * free + 64 * MB
    windows = windows_that_fit(measured, 512 * MB)
    assert 0.5 * 512 * MB < measured(windows) < 1.1 * 512 * MB
