"""Killed, out of space or locked out at any moment, a run goes on as if nothing had been."""

import contextlib
import csv
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fracdna import cli
from fracdna.model.checkpoint import load_model, model_hash
from fracdna_prep.files import exclusive_lock

SMALL = [
    "data.length=64", "data.bases_per_step=512", "data.validation_bases=1024",
    "model.d_model=16", "model.num_layers=1", "log_every=1", "progress=false",
]  # fmt: skip
RECIPE = [*SMALL, "steps=14", "validate_every=4", "checkpoint_every=6"]
# readers are forked, as the command does it: the start of this process would be handed on to them
PRELUDE = """
import multiprocessing
from fracdna.training.curve import TrainingCurve

multiprocessing.set_start_method("fork", force=True)
TrainingCurve.draw = lambda *_: None
"""
ROOM = 60_000  # bytes: more than rows and events take, less than a checkpoint


@pytest.fixture(scope="module")
def processes():
    """Processes of their own that do not import everything again."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fracdna.training.run", "fracdna.cli"])
    return context


@pytest.fixture(scope="module")
def whole(prepared, tmp_path_factory):
    """An unbroken run."""
    output = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fracdna.training.curve.TrainingCurve.draw", lambda *_: None)
        assert cli.run(command(prepared, output)) == 0
    return output


@pytest.fixture
def launch(processes, prepared, tmp_path):
    """Starts the command in a process of its own, which ends with the test."""
    started = []

    def start(*overrides, first="pass"):
        words = command(prepared, tmp_path / "run", "resume=true", *overrides)
        code = [
            "import os, signal, sys", f"errors = open({str(tmp_path / 'stderr')!r}, 'w')",
            "os.dup2(errors.fileno(), 2)", PRELUDE, first,
            f"from fracdna.cli import run; sys.exit(run({words!r}))",
        ]  # fmt: skip
        process = processes.Process(target=exec, args=("\n".join(code), {}))
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        kill(process)


def command(prepared, output, *overrides):
    return ["train", f"data.prepared={prepared}", f"output={output}", *RECIPE, *overrides]


def rows(output):
    path = output / "metrics.csv"
    return path.read_text().count("\n") - 1 if path.exists() else 0


def wait_for_rows(process, output, count):
    deadline = time.monotonic() + 60
    while rows(output) < count:
        assert process.is_alive(), (output.parent / "stderr").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def kill(process):
    """SIGKILL, until it is gone; join would wait for its orphans too."""
    process.kill()
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(process.pid, 0)
            time.sleep(0.001)


def assert_same(whole, parts):
    """Losses of all rows, weights of all checkpoints, best score; nothing is left over."""
    curves = []
    for run in (whole, parts):
        with (run / "metrics.csv").open() as file:
            columns = ("step", "train_bases", "train_nll", "validation_nll", "learning_rate")
            curves.append([[row[name] for name in columns] for row in csv.DictReader(file)])
    assert curves[0] == curves[1]
    assert (whole / "summary.json").read_text() == (parts / "summary.json").read_text()
    names = [{path.name for path in (run / "checkpoints").iterdir()} for run in (whole, parts)]
    assert names[0] == names[1] >= {"best.ckpt", "last.ckpt", "step-00000012.ckpt"}
    for name in names[0]:
        one, two = (model_hash(load_model(run / "checkpoints" / name)) for run in (whole, parts))
        assert one == two, name
    assert not list(parts.glob(".*"))


def assert_whole_checkpoints(output):
    for path in (output / "checkpoints").glob("[!.]*.ckpt"):
        load_model(path)


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_at_random_moments_a_run_is_resumed_exactly(
    launch, prepared, whole, tmp_path, workers
):
    """SIGKILL, and at once the same command again, whose folder no orphan keeps locked."""
    draw = random.Random(workers)
    output = tmp_path / "run"
    for least in (2, 10):
        run = launch(f"data.workers={workers}")
        wait_for_rows(run, output, least + draw.randrange(3))
        time.sleep(draw.random() * 0.02)
        kill(run)
        assert_whole_checkpoints(output)
    assert cli.run(command(prepared, output, "resume=true", f"data.workers={workers}")) == 0
    assert_same(whole, output)


@pytest.mark.parametrize(
    ("flush", "there"),
    [
        (1, set()),
        (2, {"best.ckpt"}),
        (3, {"best.ckpt"}),
        (9, {"best.ckpt", "last.ckpt", "step-00000006.ckpt"}),
    ],
)
def test_killed_while_a_checkpoint_is_written_the_others_are_whole(
    launch, prepared, whole, tmp_path, flush, there
):
    """Each checkpoint reaches the disk under another name: its file first, then its folder.

    Flushes 1, 3, 5 belong to the files of best, last and step-6, 2, 4, 6 to the folder; at 9 last
    is written a second time.
    """
    run = launch(
        first=f"""
count, flush = iter(range(1, 100)), os.fsync
os.fsync = lambda handle: (
    os.kill(os.getpid(), signal.SIGKILL) if next(count) == {flush} else flush(handle)
)"""
    )
    run.join(60)
    assert run.exitcode == -signal.SIGKILL
    folder = tmp_path / "run" / "checkpoints"
    assert {path.name for path in folder.glob("[!.]*")} == there
    unfinished = list(folder.glob(".*.ckpt"))
    assert len(unfinished) == flush % 2
    assert_whole_checkpoints(tmp_path / "run")
    assert cli.run(command(prepared, tmp_path / "run", "resume=true")) == 0
    assert_same(whole, tmp_path / "run")


def assert_ended_tidily(run, output, reason):
    """Exit code 1, one message with reason and remedy, whole checkpoints, no half file."""
    run.join(60)
    error = (output.parent / "stderr").read_text()
    assert run.exitcode == 1, error
    assert "Traceback" not in error
    assert reason in error
    assert "resume=true" in error
    assert_whole_checkpoints(output)


def test_a_file_that_may_not_grow_ends_the_run_tidily(launch, prepared, whole, tmp_path):
    """A quota on the size of files, which any user can meet: the checkpoint before stays usable."""
    output = tmp_path / "run"
    run = launch()
    wait_for_rows(run, output, 6)
    kill(run)
    before = model_hash(load_model(output / "checkpoints" / "last.ckpt"))
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({ROOM}, {ROOM}))"
    assert_ended_tidily(launch(first=limit), output, "File too large")
    assert model_hash(load_model(output / "checkpoints" / "last.ckpt")) == before
    assert not list((output / "checkpoints").glob(".*"))
    assert cli.run(command(prepared, output, "resume=true")) == 0
    assert_same(whole, output)


@contextlib.contextmanager
def mounted(folder, *options):
    """A mount over a folder; the test is skipped where this user may not mount."""
    done = subprocess.run(["mount", *options, folder], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def disk(tmp_path):
    """A disk of 4 MB where the run will be."""
    if os.geteuid():
        pytest.skip("only root may mount a small disk")
    folder = tmp_path / "run"
    folder.mkdir()
    with mounted(folder, "-t", "tmpfs", "-o", "size=4m", "tmpfs"):
        yield folder


def test_a_full_disk_ends_the_run_tidily(launch, prepared, whole, disk):
    """It fills up in the middle; with room again, the run goes on exactly."""
    run = launch()
    wait_for_rows(run, disk, 5)
    run_stopped = fill(run, disk)
    assert_ended_tidily(run, disk, "No space left on device")
    assert not list((disk / "checkpoints").glob(".*"))
    run_stopped.unlink()
    assert cli.run(command(prepared, disk, "resume=true")) == 0
    assert_same(whole, disk)


def fill(run, disk):
    """Take all room but ROOM, while the run holds its breath."""
    os.kill(run.pid, signal.SIGSTOP)
    ballast = disk / "ballast"
    room = os.statvfs(disk)
    ballast.write_bytes(bytes(room.f_bavail * room.f_bsize - ROOM))
    os.kill(run.pid, signal.SIGCONT)
    return ballast


@contextlib.contextmanager
def read_only(folder):
    """Nobody writes into the folder, not even root, who gets a read-only mount over it."""
    if os.geteuid():
        folder.chmod(0o500)
        yield
        folder.chmod(0o700)
        return
    with mounted(folder, "--bind", folder):
        mount = ["mount", "-o", "remount,bind,ro", folder]
        subprocess.run(mount, check=True)
        yield


@pytest.mark.parametrize("part", [".", "checkpoints"])
def test_a_folder_that_turns_read_only_ends_the_run_tidily(launch, prepared, whole, tmp_path, part):
    """Locked out of the folder, or of its checkpoints alone; let in again it goes on exactly."""
    output = tmp_path / "run"
    run = launch()
    wait_for_rows(run, output, 6)
    os.kill(run.pid, signal.SIGSTOP)
    with read_only(output / part):
        os.kill(run.pid, signal.SIGCONT)
        reason = "Permission denied" if os.geteuid() else "Read-only file system"
        assert_ended_tidily(run, output, reason)
    assert cli.run(command(prepared, output, "resume=true")) == 0
    assert_same(whole, output)


@pytest.mark.slow
def test_the_command_itself_is_killed_with_its_readers_left_behind(prepared, whole, tmp_path):
    """`python -m fracdna train` with workers: SIGKILL to it alone, and the same command at once."""
    words = command(prepared, tmp_path / "run", "resume=true", "data.workers=2")
    train = [sys.executable, "-m", "fracdna", *words]
    run = subprocess.Popen(train)
    deadline = time.monotonic() + 120
    while rows(tmp_path / "run") < 6:
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    run.kill()
    run.wait()
    again = subprocess.run(train, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert_same(whole, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 14


def test_a_fork_does_not_keep_its_parents_lock(tmp_path):
    """The lock is free when its holder ends, though a process forked from it lives on."""
    path = tmp_path / "lock"
    ready, go = os.pipe(), os.pipe()
    with exclusive_lock(path):
        child = os.fork()
        if not child:
            os.write(ready[1], b".")
            os.read(go[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        held = [file for file in Path(f"/proc/{child}/fd").iterdir() if file.samefile(path)]
    os.write(go[1], b".")
    os.waitpid(child, 0)
    assert held == []
