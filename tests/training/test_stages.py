"""Runs whose windows grow: what each step sees, and that they resume exactly in any stage."""

import csv

import pytest
import torch

from fracdna.data.dataset import WindowDataset
from fracdna.model.checkpoint import load_model, model_hash, read_checkpoint
from fracdna.training import run
from fracdna.training.graphs import GraphedPass
from fracdna.training.language_modelling import LanguageModelling

STAGES = "data.stages=[{length: 64, steps: 2}, {length: 256, steps: 2}, {length: 64, steps: 1}]"
RECIPE = ["steps=8", "validate_every=4", "data.bases_per_batch=512", STAGES]
LENGTHS = [64, 64, 256, 256, 64, 256, 256, 256]


@pytest.fixture
def shapes(monkeypatch):
    """Rows and length of all batches that reach the model, and all training samples."""
    seen = {"training_step": [], "validation_step": [], "samples": []}

    def spy(name):
        original = getattr(LanguageModelling, name)

        def remember(self, batch, batch_idx):
            seen[name].append(tuple(batch["ids"].shape))
            return original(self, batch, batch_idx)

        monkeypatch.setattr(LanguageModelling, name, remember)

    spy("training_step")
    spy("validation_step")
    original = WindowDataset.__getitems__

    def fetch(self, samples):
        if self.reverse_complement:
            seen["samples"].append((self.table.length, *samples))
        return original(self, samples)

    monkeypatch.setattr(WindowDataset, "__getitems__", fetch)
    return seen


def test_every_stage_has_its_length_and_all_steps_the_same_bases(small_run, shapes, capsys):
    """Validation is always at the main length; the first lines of the run say what comes."""
    assert small_run("run", *RECIPE) == 0
    assert [length for _, length in shapes["training_step"]] == [n for n in LENGTHS for _ in "ab"]
    assert {rows * length for rows, length in shapes["training_step"]} == {512}
    assert {length for _, length in shapes["validation_step"]} == {256}
    stages = (
        "length warm-up: 2 steps of 16 windows of 64 bases, 2 steps of 4 windows of 256 bases, "
    )
    assert stages in capsys.readouterr().out


@pytest.mark.parametrize(
    ("step", "workers"),
    # inside the first stage, at a border, at another with workers; the others in the long run
    [
        (1, 0),
        (2, 0),
        (5, 2),
        *(pytest.param(step, n, marks=pytest.mark.slow) for step, n in [(3, 2), (4, 0), (6, 0)]),
    ],
)
def test_a_run_resumes_exactly_in_any_stage(
    small_run, tmp_path, losses, shapes, interrupt_at, step, workers
):
    """Inside and at the borders: the samples, losses and weights of an unbroken run."""
    recipe = [*RECIPE, f"data.workers={workers}"]
    assert small_run("whole", *recipe) == 0
    whole = list(shapes["samples"])
    shapes["samples"].clear()
    interrupt_at(step)
    assert small_run("parts", *recipe) == 130
    interrupt_at(None)
    assert small_run("parts", *recipe, "resume=true") == 0
    assert losses("parts") == losses("whole")
    # workers read in processes of their own
    assert workers or shapes["samples"] == whole
    last = [tmp_path / name / "checkpoints" / "last.ckpt" for name in ("whole", "parts")]
    assert len({model_hash(load_model(path)) for path in last}) == 1


def test_other_stages_are_another_run(small_run, tmp_path, capsys):
    """A resumed run keeps its stages; one without any has the recipe of earlier versions."""
    assert small_run("run", "steps=2", "data.stages=[{length: 64, steps: 1}]") == 0
    assert small_run("run", "steps=2", "resume=true") == 2
    assert "belongs to a run with other settings" in capsys.readouterr().err
    assert small_run("plain", "steps=1") == 0
    recipe = read_checkpoint(tmp_path / "plain" / "checkpoints" / "last.ckpt")["fracdna"]["recipe"]
    assert set(recipe["data"]) == {
        "windows", "length", "windows_per_step", "seed", "reverse_complement", "batches_per_step",
    }  # fmt: skip
    assert recipe["schedule"] == {"warmup": 0.02, "final": 0.1}
    assert "compile" not in recipe


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.stages=[{length: 32, steps: 1}]"], "length=32"),
        (["data.stages=[{length: 64, steps: 2}]"], "leave some to windows of data.length=256"),
        (["data.stages=[{length: 64}]"], "needs a list of length and steps"),
        (["data.stages=[{length: 64, steps: 1, bases: 3}]"], "needs a list of length and steps"),
        (["data.stages=[{length: 64, steps: 0}]"], "whole numbers of at least 1"),
        (["data.stages=64"], '"data.stages=[{length: 1000, steps: 1000}]"'),
    ],
)
def test_stages_that_cannot_be_had_are_refused(small_run, tmp_path, capsys, words, message):
    """Before anything is written, with the remedy."""
    assert small_run("run", "steps=2", *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_replays_follow_the_stages(small_run, tmp_path, monkeypatch, losses):
    """A pass is recorded anew for a stage, and the run is the one without replays."""
    assert small_run("plain", *RECIPE) == 0
    recorded = []

    class Rerun:
        """Computes anew at every replay."""

        def __init__(self, device):
            recorded.append(device)

        def warm_up(self, work):
            return work()

        def record(self, work):
            outputs = work()

            @torch.enable_grad()
            def replay():
                for old, new in zip(outputs or (), work() or (), strict=True):
                    old.copy_(new)

            return outputs, replay

    def graphs(compute, parameters, required):
        return GraphedPass(compute, parameters, required=True, recorder=Rerun)

    monkeypatch.setattr(run, "GraphedPass", graphs)
    monkeypatch.setattr(run, "choose_graphs", lambda *_: (True, "here"))
    assert small_run("replayed", *RECIPE) == 0
    assert losses("replayed") == losses("plain")
    assert len(recorded) == 4


def test_the_curve_counts_the_bases_of_all_stages(small_run, tmp_path):
    assert small_run("run", *RECIPE) == 0
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["train_nll"]]
    assert [int(row["bases"]) for row in rows] == [1024 * n for n in range(1, 9)]
