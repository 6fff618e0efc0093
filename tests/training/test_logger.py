"""Loggers by configuration: event files, Weights & Biases, or none."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from omegaconf import OmegaConf
from pytorch_lightning.loggers import wandb as lightning_wandb

from fracdna.training import loggers

WANDB = ["logger=wandb", "logger.project=genomes", "logger.group=small"]


class Account:
    """Weights & Biases without a network: what runs were started with, were told, and how ended."""

    def __init__(self):
        self.runs, self.key, self.failure = [], True, None

    def init(self, project=None, name=None, group=None, entity=None, dir=None, id=None,
             resume=None, mode=None, config=None, tags=None):  # fmt: skip
        given = {k: v for k, v in locals().items() if k != "self"}
        started = SimpleNamespace(**given, metrics=[], ended=[])
        started.log = started.metrics.append
        started.finish = lambda exit_code: started.ended.append(exit_code)
        self.runs.append(started)
        return started

    def settings(self, project, entity, run_group, run_id, run_tags):
        if "/" in project:
            raise RuntimeError(f"Invalid project name {project!r}")

    def login(self, prompt=True):
        assert not prompt
        if self.failure:
            raise self.failure
        return self.key


@pytest.fixture
def account(monkeypatch):
    """The package wandb is replaced, whether it is installed or not."""
    account = Account()
    names = ("wandb", "wandb.sdk", "wandb.sdk.lib", "wandb.wandb_run")
    modules = {name: ModuleType(name) for name in names}
    modules["wandb"].__spec__ = SimpleNamespace(name="wandb")
    modules["wandb"].run = None
    modules["wandb"].init, modules["wandb"].login = account.init, account.login
    modules["wandb"].Settings = account.settings
    modules["wandb.sdk.lib"].RunDisabled = modules["wandb.wandb_run"].Run = type("Run", (), {})
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(lightning_wandb, "_WANDB_AVAILABLE", True)
    return account


def noted_id(folder):
    return OmegaConf.load(folder / "config.yaml").logger.id


def test_event_files_are_the_default_and_none_leaves_them_out(small_run, tmp_path):
    assert small_run("default", "steps=1") == 0
    assert list((tmp_path / "default" / "tensorboard").glob("events.*"))
    assert small_run("none", "steps=1", "logger=none") == 0
    assert not (tmp_path / "none" / "tensorboard").exists()
    assert (tmp_path / "none" / "metrics.csv").exists()


def test_a_run_tells_wandb_its_options_and_metrics(small_run, tmp_path, account):
    """Project, group, name of the folder, configuration; losses by step; and that it ended well."""
    assert small_run("mine", "steps=2", "validate_every=2", "+logger.tags=[a,b]", *WANDB) == 0
    (run,) = account.runs
    assert (run.project, run.group, run.name) == ("genomes", "small", "mine")
    assert (run.mode, run.entity, run.tags) == ("online", None, ["a", "b"])
    assert run.dir == str(tmp_path / "mine")
    assert run.config["data"]["length"] == 256
    assert run.id == noted_id(tmp_path / "mine")
    losses = {m["trainer/global_step"]: m["train/nll"] for m in run.metrics if "train/nll" in m}
    assert sorted(losses) == [1, 2]
    assert any("validation/nll" in metrics for metrics in run.metrics)
    assert run.ended == [0]
    assert not (tmp_path / "mine" / "tensorboard").exists()


def test_a_resumed_run_goes_on_under_its_id(small_run, tmp_path, account, interrupt_at):
    """Another run gets another one; a word of the user wins."""
    interrupt_at(1)
    assert small_run("run", "steps=2", *WANDB) == 130
    interrupt_at(None)
    assert small_run("run", "steps=2", "resume=true", *WANDB) == 0
    assert small_run("other", "steps=1", *WANDB) == 0
    assert small_run("third", "steps=1", "logger.id=chosen", *WANDB) == 0
    first, second, other, third = account.runs
    assert first.id == second.id != other.id
    assert first.resume == second.resume == "allow"
    assert (first.ended, second.ended) == ([1], [0])
    assert third.id == "chosen" == noted_id(tmp_path / "third")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["logger.mode=sometimes"], "logger.mode=sometimes: choose one of online, offline"),
        (["+logger.colour=red"], "logger.colour: wandb.init has no such option; it has"),
        (["logger.project=null"], "logger.project=null needs text"),
        (["logger.project=a/b"], "logger=wandb cannot be used so: Invalid project name 'a/b'"),
    ],
)
def test_options_that_wandb_does_not_know_are_refused(
    small_run, tmp_path, account, capsys, words, message
):
    assert small_run("run", "steps=1", *WANDB, *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("failure", [None, ConnectionError("no route")])
def test_a_run_that_wandb_would_not_take_is_refused(small_run, tmp_path, account, capsys, failure):
    """Nobody logged in, or no network: before any work, with the way around."""
    account.key, account.failure = False, failure
    assert small_run("run", "steps=1", *WANDB) == 2
    error = capsys.readouterr().err
    assert str(failure or "nobody is logged in") in error
    assert "logger.mode=offline" in error
    assert not (tmp_path / "run").exists()
    assert small_run("run", "steps=1", *WANDB, "logger.mode=offline") == 0
    assert account.runs[0].mode == "offline"


def test_a_missing_package_is_named(small_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    assert small_run("run", "steps=1", *WANDB) == 2
    assert "pip install 'fracdna[wandb]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_logger_that_takes_no_options_says_so(small_run, capsys):
    assert small_run("run", "steps=1", "+logger.colour=red") == 2
    assert "the logger cannot be built" in capsys.readouterr().err


def test_an_offline_run_of_the_real_package_keeps_its_id(
    small_run, tmp_path, monkeypatch, interrupt_at
):
    """Its folders, which `wandb sync` sends, both carry the id of the run."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    words = ["steps=2", "logger.mode=offline", *WANDB]
    interrupt_at(1)
    assert small_run("run", *words) == 130
    interrupt_at(None)
    assert small_run("run", *words, "resume=true") == 0
    folders = list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert {folder.name.rpartition("-")[2] for folder in folders} == {noted_id(tmp_path / "run")}
    assert all(list(folder.glob("*.wandb")) for folder in folders)
