"""Two processes over gloo are one run: losses, validation, interruption, what is written."""

import csv
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from fracdna import cli
from fracdna.data.datamodule import WindowData
from fracdna.model.checkpoint import load_model, model_hash, read_checkpoint

SMALL = [
    "data.length=64", "data.bases_per_step=512", "data.validation_bases=1088",
    "model.d_model=16", "model.num_layers=1", "trainer.accelerator=cpu",
]  # fmt: skip
RECIPE = [*SMALL, "steps=12", "validate_every=4", "log_every=5"]
TWO = ["trainer.devices=2", "trainer.strategy=ddp"]
FLOAT32 = 1e-5  # relative; gradients of two halves are added in another order


def command(prepared, output, *overrides):
    return ["train", f"data.prepared={prepared}", f"output={output}", *RECIPE, *overrides]


@pytest.fixture(scope="module")
def processes():
    """Processes of their own that do not import everything again."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fracdna.training.run", "fracdna.cli"])
    return context


def launch(processes, words, errors):
    """The command as Lightning starts it for two devices of one machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(2):
        place = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0",
            "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        code = [
            "import os, sys", f"os.environ.update({place!r})",
            f"said = open({str(errors / f'said{rank}')!r}, 'w')",
            "[os.dup2(said.fileno(), stream) for stream in (1, 2)]",
            "from fracdna.training.curve import TrainingCurve",
            "TrainingCurve.draw = lambda *_: None",
            f"from fracdna.cli import run; sys.exit(run({words!r}))",
        ]  # fmt: skip
        process = processes.Process(target=exec, args=("\n".join(code), {}))
        process.start()
        started.append(process)
    return started


def finish(started):
    """Exit codes."""
    for process in started:
        process.join(120)
        if process.is_alive():
            process.kill()
    return [process.exitcode for process in started]


@pytest.fixture(scope="module")
def one(prepared, tmp_path_factory):
    """An unbroken run of one process."""
    output = tmp_path_factory.mktemp("one") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fracdna.training.curve.TrainingCurve.draw", lambda *_: None)
        assert cli.run(command(prepared, output, "progress=false")) == 0
    return output


@pytest.fixture(scope="module")
def two(processes, prepared, tmp_path_factory):
    """The same run of two processes, with the bar."""
    folder = tmp_path_factory.mktemp("two")
    started = launch(processes, command(prepared, folder / "run", *TWO), folder)
    codes = finish(started)
    assert codes == [0, 0], (folder / "said0").read_text() + (folder / "said1").read_text()
    return folder / "run"


def rows(output):
    with (output / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def assert_alike(one, two, tolerance):
    """Steps, counts and losses of all rows."""
    for left, right in zip(rows(one), rows(two), strict=True):
        assert (left["step"], left["train_bases"]) == (right["step"], right["train_bases"])
        for name in ("train_nll", "validation_nll"):
            assert bool(left[name]) == bool(right[name])
            if left[name]:
                assert float(right[name]) == pytest.approx(float(left[name]), rel=tolerance)


def test_two_processes_have_the_losses_of_one(one, two):
    """With the same bases a step; an odd number of validation windows, each counted once."""
    assert_alike(one, two, FLOAT32)


def test_only_the_first_process_speaks(two):
    """One bar, one curve, one announcement."""
    first, second = ((two.parent / f"said{rank}").read_text() for rank in range(2))
    assert "bases/s: the model alone" in first
    assert "100%" in first
    for word in ("bases/s", "%|", "parameters", "complete", "checkpoints"):
        assert word not in second


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_each_validation_window_is_read_once(prepared, devices):
    """Whatever the number of devices, and where it does not divide the windows."""
    data = WindowData(prepared, length=64, bases_per_step=64 * 12, steps=1, validation_bases=1088)
    seen = []
    for rank in range(devices):
        data.trainer = SimpleNamespace(world_size=devices, global_rank=rank)
        seen += [index for batch in data.val_dataloader().batch_sampler for _, index in batch]
    expected = np.linspace(0, len(data.validation) - 1, 17).round().astype(int)
    assert sorted(seen) == expected.tolist()


@pytest.mark.parametrize("devices", [2, 1])
def test_interrupted_across_devices_a_run_goes_on(processes, prepared, two, tmp_path, devices):
    """A signal to one process stops both; the sums of a row that is half gathered are kept.

    Bit for bit on as many devices; on another number to the rounding of a sum.
    """
    output = tmp_path / "run"
    words = command(prepared, output, *TWO, "progress=false")
    started = launch(processes, words, tmp_path)
    deadline = time.monotonic() + 90
    while not (output / "metrics.csv").exists() or len(rows(output)) < 2:
        assert time.monotonic() < deadline
        assert all(process.is_alive() for process in started)
        time.sleep(0.002)
    os.kill(started[1].pid, signal.SIGINT)
    assert finish(started) == [130, 130], (tmp_path / "said0").read_text()
    step = read_checkpoint(output / "checkpoints" / "last.ckpt")["global_step"]
    assert step < 12
    assert (tmp_path / "said0").read_text().count("interrupted at step") == 1
    assert "interrupted" not in (tmp_path / "said1").read_text()
    if devices == 1:
        assert cli.run(command(prepared, output, "progress=false", "resume=true")) == 0
        assert_alike(two, output, FLOAT32)
        return
    assert finish(launch(processes, [*words, "resume=true"], tmp_path)) == [0, 0]
    assert_alike(two, output, 1e-12)
    hashes = {model_hash(load_model(run / "checkpoints" / "last.ckpt")) for run in (two, output)}
    assert len(hashes) == 1


@pytest.mark.slow
def test_ctrl_c_stops_the_processes_that_the_command_started(prepared, two, tmp_path):
    """`python -m fracdna train trainer.devices=2`: the terminal's signal reaches all of them."""
    output = tmp_path / "run"
    words = [sys.executable, "-m", "fracdna", *command(prepared, output, *TWO, "steps=100000")]
    run = subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (output / "metrics.csv").exists() or len(rows(output)) < 2:
        assert run.poll() is None, run.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)
    _, error = run.communicate(timeout=120)
    assert run.returncode == 130, error
    assert "Traceback" not in error
    assert (output / "checkpoints" / "last.ckpt").exists()
