"""A run through the command: what it writes, how it stops, how it goes on."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from fracdna import cli
from fracdna.data.dataset import WindowDataset
from fracdna.model.checkpoint import load_model, model_hash
from fracdna.training.language_modelling import LanguageModelling
from fracdna.training.monitor import Monitor
from fracdna.training.optimizer import warmup_cosine
from fracdna_prep.files import exclusive_lock

SMALL = [
    "data.length=64", "data.bases_per_step=512", "data.validation_bases=2048",
    "model.d_model=16", "model.num_layers=2", "log_every=1", "progress=false",
]  # fmt: skip


def train(prepared, output, *overrides):
    arguments = [f"data.prepared={prepared}", f"output={output}", *SMALL, *overrides]
    return cli.run(["train", *arguments])


def curve_rows(output):
    with (output / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def seen(monkeypatch):
    """The (epoch, index) samples that reach the model, batch by batch."""
    batches = []
    original = WindowDataset.__getitems__

    def remember(self, samples):
        if self.reverse_complement:
            batches.append(list(samples))
        return original(self, samples)

    monkeypatch.setattr(WindowDataset, "__getitems__", remember)
    return batches


@pytest.fixture
def interrupt_at(monkeypatch):
    """Send this process Ctrl-C while a step is under way."""

    def arm(step):
        original = Monitor.on_train_batch_end

        def press(self, trainer, *arguments):
            original(self, trainer, *arguments)
            if trainer.global_step == step:
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(Monitor, "on_train_batch_end", press)
        return original

    return arm


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("mixer", ["frac", "attention"])
def test_a_run_learns_and_leaves_everything_behind(prepared, tmp_path, mixer):
    """Falling loss; best, periodic and last checkpoints; curve as CSV and PNG; logs; summary."""
    output = tmp_path / "run"
    overrides = ["steps=40", "validate_every=20", "checkpoint_every=20", f"mixer={mixer}"]
    assert train(prepared, output, *overrides, "optimizer.lr=5e-3") == 0
    names = {p.name for p in (output / "checkpoints").iterdir()}
    assert names == {"best.ckpt", "last.ckpt", "step-00000020.ckpt", "step-00000040.ckpt"}
    assert (output / "metrics.png").read_bytes().startswith(b"\x89PNG")
    assert list((output / "tensorboard").glob("events.*"))
    assert json.loads((output / "summary.json").read_text())["complete"] is True
    rows = curve_rows(output)
    losses = [float(r["train_nll"]) for r in rows if r["train_nll"]]
    validations = [float(r["validation_nll"]) for r in rows if r["validation_nll"]]
    assert len(losses) == 40
    assert losses[-1] < losses[0] - 0.3
    assert len(validations) == 2
    assert validations[1] < validations[0]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["data.workers=2"],
        ["data.bases_per_batch=128"],
        ["log_every=5"],
        ["mixer=hyena", "model.embedding_dropout=0.5"],
    ],
    ids=str,
)
def test_resume_continues_with_the_bases_of_an_unbroken_run(
    prepared, tmp_path, seen, interrupt_at, monkeypatch, options
):
    """Case 43: stopped in the middle of an epoch, a resumed run repeats and skips nothing.

    With workers, with accumulation, with dropout, and to the last bit of the weights.
    """
    recipe = ["steps=12", "validate_every=5", "checkpoint_every=100", *options]
    assert train(prepared, tmp_path / "whole", *recipe) == 0
    whole = list(seen)
    seen.clear()
    with monkeypatch.context():
        original = interrupt_at(7)
        assert train(prepared, tmp_path / "parts", *recipe) == 130
        monkeypatch.setattr(Monitor, "on_train_batch_end", original)
    assert train(prepared, tmp_path / "parts", *recipe, "resume=true") == 0
    if "data.workers=2" not in options:  # workers fetch in processes of their own
        assert seen == whole
    hashes = {
        model_hash(load_model(tmp_path / run / "checkpoints" / "last.ckpt"))
        for run in ("whole", "parts")
    }
    assert len(hashes) == 1
    whole, parts = (
        [(row["step"], row["train_nll"]) for row in curve_rows(tmp_path / run)]
        for run in ("whole", "parts")
    )
    assert whole == parts


def test_resume_crosses_epochs(prepared, tmp_path, seen):
    """Periodic checkpoints of a run over several epochs are as good a start."""
    recipe = ["steps=50", "validate_every=50", "data.bases_per_step=2048", "checkpoint_every=22"]
    assert train(prepared, tmp_path / "whole", *recipe) == 0
    assert {epoch for batch in seen for epoch, _ in batch} == {0, 1, 2}
    last = tmp_path / "whole" / "checkpoints" / "last.ckpt"
    whole = model_hash(load_model(last))
    (tmp_path / "whole" / "checkpoints" / "step-00000044.ckpt").replace(last)
    assert train(prepared, tmp_path / "whole", *recipe, "resume=true") == 0
    assert model_hash(load_model(last)) == whole


def test_resume_after_a_crash_starts_at_the_last_validation(prepared, tmp_path, monkeypatch):
    """Killed between two checkpoints, the run goes on from its last validation, bit for bit."""
    recipe = ["steps=12", "validate_every=5", "checkpoint_every=100", "log_every=3"]
    assert train(prepared, tmp_path / "whole", *recipe) == 0

    class Crash(Exception):
        pass

    original = Monitor.on_train_batch_end

    def crash(self, trainer, *arguments):
        original(self, trainer, *arguments)
        if trainer.global_step == 8:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Monitor, "on_train_batch_end", crash)
        with pytest.raises(Crash):
            train(prepared, tmp_path / "parts", *recipe)
    assert train(prepared, tmp_path / "parts", *recipe) == 2
    assert train(prepared, tmp_path / "parts", *recipe, "resume=true") == 0
    checkpoints = [tmp_path / run / "checkpoints" for run in ("whole", "parts")]
    for name in ("last.ckpt", "best.ckpt"):
        assert len({model_hash(load_model(folder / name)) for folder in checkpoints}) == 1
    columns = ("step", "train_nll", "validation_nll")
    whole, parts = ([[r[c] for c in columns] for r in curve_rows(f.parent)] for f in checkpoints)
    assert whole == parts


def test_a_run_killed_before_its_first_validation_goes_on(prepared, tmp_path, monkeypatch):
    """From the newest periodic checkpoint, where there is no other yet."""
    recipe = ["steps=8", "validate_every=7", "checkpoint_every=2"]
    assert train(prepared, tmp_path / "whole", *recipe) == 0
    original = Monitor.on_train_batch_end

    def crash(self, trainer, *arguments):
        original(self, trainer, *arguments)
        if trainer.global_step == 5:
            raise RuntimeError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(Monitor, "on_train_batch_end", crash)
        with pytest.raises(RuntimeError, match="gone"):
            train(prepared, tmp_path / "parts", *recipe)
    folder = tmp_path / "parts" / "checkpoints"
    assert {path.name for path in folder.iterdir()} == {"step-00000002.ckpt", "step-00000004.ckpt"}
    assert train(prepared, tmp_path / "parts", *recipe, "resume=true") == 0
    columns = ("step", "train_nll", "validation_nll")
    whole, parts = (
        [[row[c] for c in columns] for row in curve_rows(tmp_path / run)]
        for run in ("whole", "parts")
    )
    assert whole == parts


def test_the_curve_tells_the_learning_rate_that_each_step_had(prepared, tmp_path):
    """Steps of several batches too; the schedule has moved on when a step is over."""
    recipe = ["steps=6", "schedule.warmup=0.5", "optimizer.lr=0.003", "data.bases_per_batch=256"]
    assert train(prepared, tmp_path / "run", *recipe) == 0
    rates = [float(r["learning_rate"]) for r in curve_rows(tmp_path / "run") if r["learning_rate"]]
    expected = [0.003 * warmup_cosine(n, steps=6, warmup=0.5, final=0.1) for n in range(6)]
    assert rates == pytest.approx(expected, rel=1e-12)


@pytest.mark.usefixtures("pictures")
def test_resuming_a_finished_run_changes_nothing(prepared, tmp_path):
    recipe = ["steps=4", "validate_every=2"]
    assert train(prepared, tmp_path / "run", *recipe) == 0
    before = model_hash(load_model(tmp_path / "run" / "checkpoints" / "last.ckpt"))
    rows = curve_rows(tmp_path / "run")
    assert train(prepared, tmp_path / "run", *recipe, "resume=true") == 0
    assert model_hash(load_model(tmp_path / "run" / "checkpoints" / "last.ckpt")) == before
    assert curve_rows(tmp_path / "run") == rows


@pytest.mark.parametrize(
    "changed",
    ["data.bases_per_batch=128", "soft_mask_weight=0.5", "trainer.precision=bf16-mixed", "seed=1"],
)
def test_resuming_with_what_would_change_the_run_is_refused(prepared, tmp_path, capsys, changed):
    """Other batches of a step, another loss or precision would not continue this run."""
    assert train(prepared, tmp_path / "run", "steps=2") == 0
    assert train(prepared, tmp_path / "run", "steps=2", "resume=true", changed) == 2
    assert "other settings" in capsys.readouterr().err


@pytest.mark.parametrize("step", [5, 8], ids=["at a validation", "between"])
def test_an_interruption_loses_no_validation(prepared, tmp_path, interrupt_at, monkeypatch, step):
    """Asked to stop where a validation is due, the run validates first: the whole curve is kept."""
    recipe = ["steps=12", "validate_every=5", "data.bases_per_batch=128"]
    assert train(prepared, tmp_path / "whole", *recipe) == 0
    with monkeypatch.context():
        original = interrupt_at(step)
        assert train(prepared, tmp_path / "parts", *recipe) == 130
        monkeypatch.setattr(Monitor, "on_train_batch_end", original)
    assert train(prepared, tmp_path / "parts", *recipe, "resume=true") == 0
    columns = ("step", "train_nll", "validation_nll")
    whole, parts = (
        [[row[c] for c in columns] for row in curve_rows(tmp_path / run)]
        for run in ("whole", "parts")
    )
    assert whole == parts


def test_sigterm_between_two_batches_of_a_step_is_no_success(prepared, tmp_path, monkeypatch):
    """A scheduler's signal in the middle of accumulation: saved and 130, never 0."""
    original = LanguageModelling.training_step

    def terminate(self, batch, batch_idx):
        if batch_idx == 10:  # the third of four batches
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batch, batch_idx)

    recipe = ["steps=12", "data.bases_per_batch=128"]
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModelling, "training_step", terminate)
        assert train(prepared, tmp_path / "run", *recipe) == 130
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()


def test_a_moved_run_keeps_its_best_score(prepared, tmp_path):
    """Resumed in another folder it knows its best validation, and replaces it only by a better."""
    recipe = ["steps=6", "validate_every=2"]
    assert train(prepared, tmp_path / "run", *recipe) == 0
    best = json.loads((tmp_path / "run" / "summary.json").read_text())["best_validation_nll"]
    (tmp_path / "run").rename(tmp_path / "moved")
    assert train(prepared, tmp_path / "moved", *recipe, "resume=true") == 0
    after = json.loads((tmp_path / "moved" / "summary.json").read_text())
    assert after["best_validation_nll"] == best is not None


def test_two_interrupts_stop_at_once(prepared, tmp_path, monkeypatch, capsys):
    """The second Ctrl-C does not wait for the step: still exit code 130, still resumable."""
    original = Monitor.on_train_batch_end

    def press_twice(self, trainer, *arguments):
        original(self, trainer, *arguments)
        if trainer.global_step == 6:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)

    recipe = ["steps=9", "validate_every=4"]
    with monkeypatch.context() as patch:
        patch.setattr(Monitor, "on_train_batch_end", press_twice)
        assert train(prepared, tmp_path / "run", *recipe) == 130
    assert "before it could save" in capsys.readouterr().out
    assert train(prepared, tmp_path / "run", *recipe, "resume=true") == 0


@pytest.mark.parametrize(
    "number",
    # the same handler takes both
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],
    ids=lambda n: n.name,
)
def test_a_signal_to_the_whole_process_group_stops_in_order(prepared, tmp_path, number):
    """A terminal's Ctrl-C and a scheduler signal the readers too, and nothing breaks."""
    recipe = ["steps=100000", "validate_every=50000", "data.workers=2"]
    command = ["train", f"data.prepared={prepared}", f"output={tmp_path / 'run'}", *SMALL, *recipe]
    run = subprocess.Popen(
        [sys.executable, "-m", "fracdna", *command],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    curve = tmp_path / "run" / "metrics.csv"
    deadline = time.monotonic() + 120
    while not (curve.exists() and curve.read_text().count("\n") > 3):
        assert run.poll() is None, run.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(run.pid, number)
    _, error = run.communicate(timeout=120)
    assert run.returncode == 130, error
    assert "Traceback" not in error
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()


def test_a_folder_with_a_run_is_not_overwritten(prepared, tmp_path, capsys):
    assert train(prepared, tmp_path / "run", "steps=2") == 0
    before = (tmp_path / "run" / "checkpoints" / "last.ckpt").read_bytes()
    assert train(prepared, tmp_path / "run", "steps=2") == 2
    assert "resume=true" in capsys.readouterr().err
    assert train(prepared, tmp_path / "run", "steps=3", "resume=true") == 2
    assert "with other settings, which cannot be continued: steps: 2 there, 3 now. Give" in (
        capsys.readouterr().err
    )
    assert (
        train(prepared, tmp_path / "run", "steps=2", "resume=true", "data.bases_per_step=128") == 2
    )
    assert "data.windows_per_step: 8 there, 2 now" in capsys.readouterr().err
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").read_bytes() == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.accelerator=cpu", "trainer.precision=16-mixed"], "16-mixed needs a GPU"),
        (["trainer.accelerator=cpu", "trainer.num_nodes=2"], "with torchrun or SLURM"),
    ],
)
def test_what_this_machine_cannot_do_alone_is_refused(
    prepared, tmp_path, monkeypatch, capsys, overrides, message
):
    for name in ("NODE_RANK", "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert train(prepared, tmp_path / "run", "steps=1", *overrides) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.length=65", "no windows of 65 bases"),
        ("data.bases_per_step=100", "not a multiple"),
        ("model.mixer.num_heads=3", "num_heads=3 does not divide"),
        ("+model.mixer.colour=red", "colour"),
        ("data.prepared=null", "data.prepared is not set"),
        ("trainer.accelerator=cuda", "cuda"),
        ("trainer.devices=0", "devices"),
        ("data.length=0", "at least 1"),
        ("optimizer.betas=[0.9]", "optimizer cannot be built"),
        ("optimizer.betas=[0.9,1.0]", "optimizer cannot be built"),
        ("+optimizer.algorithm.colour=1", "optimizer cannot be built"),
        ("steps=0", "at least 1"),
        ("seed=-1", "seed=-1"),
        ("+trainer.limit_train_batches=2", "trainer.limit_train_batches: a run has no such option"),
        ("+trainer.fast_dev_run=true", "trainer.fast_dev_run: a run has no such option"),
        ("+trainer.max_steps=3", "trainer.max_steps: a run has no such option"),
        ("trainer.precision=16-true", "choose auto, 32-true, bf16-mixed, 16-mixed"),
    ],
)
def test_refusals_come_before_anything_is_written(prepared, tmp_path, capsys, override, message):
    """Exit code 2, one message that names the value, no output folder."""
    assert train(prepared, tmp_path / "run", "steps=1", override) == 2
    error = capsys.readouterr().err
    assert message.lower() in error.lower()
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_bf16_compute_stays_finite_and_falls(prepared, tmp_path):
    """Case 40: 50 steps of bf16 compute on float32 master weights."""
    output = tmp_path / "run"
    assert train(prepared, output, "steps=50", "trainer.precision=bf16-mixed") == 0
    rows = curve_rows(output)
    losses = [float(r["train_nll"]) for r in rows if r["train_nll"]]
    assert losses[-1] < losses[0]
    content = torch.load(output / "checkpoints" / "last.ckpt", weights_only=True)
    assert {w.dtype for w in content["state_dict"].values() if w.is_floating_point()} <= {
        torch.float32, torch.float64,
    }  # fmt: skip


def test_a_loss_that_is_no_number_ends_the_run(prepared, tmp_path, capsys):
    """With the step and what to do, exit code 1; nothing goes on training in silence."""
    wild = ["steps=30", "optimizer.lr=1e30", "schedule.warmup=0.0"]
    assert train(prepared, tmp_path / "run", *wild) == 1
    assert re.search(r"loss is (nan|inf) at step \d+: start a new run", capsys.readouterr().err)


def test_signals_are_given_back(prepared, tmp_path):
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    assert train(prepared, tmp_path / "run", "steps=1") == 0
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_training_works_outside_the_main_thread(prepared, tmp_path):
    """Signals belong to the main thread: elsewhere the run goes without them."""
    codes = []
    thread = threading.Thread(
        target=lambda: codes.append(train(prepared, tmp_path / "run", "steps=1"))
    )
    thread.start()
    thread.join()
    assert codes == [0]


def test_soft_masked_bases_can_weigh_less(tmp_path):
    """soft_mask_weight=0 on a genome in lower case leaves no loss, hence no change of weights."""
    (tmp_path / "low.fa").write_text(">c\n" + "acgt" * 1000 + "\n")
    (tmp_path / "s.bed").write_text("c\t0\t3000\ttrain\nc\t3000\t4000\tvalid\n")
    arguments = [f"fasta={tmp_path / 'low.fa'}", f"intervals={tmp_path / 's.bed'}", "length=[64]"]
    assert cli.run(["prepare", *arguments, f"output={tmp_path / 'p'}", "progress=false"]) == 0
    start = model_hash(load_model(_untrained(tmp_path, tmp_path / "p")))
    for weight, same in ((0.0, True), (1.0, False)):
        output = tmp_path / f"run{weight}"
        plain = [f"soft_mask_weight={weight}", "steps=3", "optimizer.weight_decay=0.0"]
        assert train(tmp_path / "p", output, *plain) == 0
        trained = model_hash(load_model(output / "checkpoints" / "last.ckpt"))
        assert (trained == start) == same


def _untrained(tmp_path, prepared):
    """A checkpoint of the initial weights: one step at learning rate 0."""
    still = ["steps=1", "optimizer.lr=0.0", "optimizer.weight_decay=0.0"]
    assert train(prepared, tmp_path / "still", *still) == 0
    return tmp_path / "still" / "checkpoints" / "last.ckpt"


def test_two_runs_never_share_a_folder(prepared, tmp_path, capsys):
    """While one process trains in a folder, another is refused."""
    with exclusive_lock(tmp_path / "run" / ".lock"):
        assert train(prepared, tmp_path / "run", "steps=1") == 2
    assert "another process works on" in capsys.readouterr().err
    assert not (tmp_path / "run" / "metrics.csv").exists()
    assert train(prepared, tmp_path / "run", "steps=1") == 0


def test_two_processes_train_and_count_as_one(prepared, tmp_path):
    """Case 44 for training: the same bases a step, losses, counts and validation over gloo."""
    recipe = ["steps=4", "validate_every=2", "log_every=2", "trainer.accelerator=cpu"]
    assert train(prepared, tmp_path / "one", *recipe) == 0
    words = ["train", f"data.prepared={prepared}", f"output={tmp_path / 'two'}", *SMALL, *recipe]
    shared = ["trainer.devices=2", "trainer.strategy=ddp"]
    done = subprocess.run(
        [sys.executable, "-m", "fracdna", *words, *shared], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("complete at step 4") == 1
    for one, two in zip(curve_rows(tmp_path / "one"), curve_rows(tmp_path / "two"), strict=True):
        assert one["train_bases"] == two["train_bases"]
        for name in ("train_nll", "validation_nll"):
            if one[name]:
                assert float(two[name]) == pytest.approx(float(one[name]), rel=1e-5)
