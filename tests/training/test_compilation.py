"""torch.compile by one option: the same training, the same checkpoints, refusals before work."""

import shutil

import pytest
import torch
from models import tiny_model

from fracdna.model.checkpoint import load_model, read_checkpoint
from fracdna.training.compilation import check_compiler
from fracdna_prep.errors import InputError


@pytest.fixture
def compilations(monkeypatch):
    """Compile without a compiler: the graphs are captured, and run as they are."""
    made, original = [], torch.compile

    def capture(*arguments, **options):
        made.append(options)
        return original(*arguments, **options | {"backend": "eager"})

    monkeypatch.setattr(torch, "compile", capture)
    torch._dynamo.reset()
    yield made
    torch._dynamo.reset()


def test_a_compiled_run_is_the_run_without(small_run, tmp_path, losses, compilations):
    """Losses, and the names in its checkpoints, which load as any others."""
    stages = "data.stages=[{length: 64, steps: 1}]"
    assert small_run("plain", "steps=3", stages) == 0
    assert not compilations
    assert small_run("compiled", "steps=3", stages, "compile=true") == 0
    assert compilations == [{"dynamic": False}]
    for (_, plain), (_, compiled) in zip(losses("plain"), losses("compiled"), strict=True):
        assert float(compiled or 0) == pytest.approx(float(plain or 0), rel=1e-5)
    last = [tmp_path / name / "checkpoints" / "last.ckpt" for name in ("plain", "compiled")]
    plain, compiled = (set(read_checkpoint(path)["state_dict"]) for path in last)
    assert plain == compiled
    assert load_model(last[1])(torch.tensor([[2, 7, 8]])).isfinite().all()


def test_a_resumed_run_is_compiled_as_before(small_run, capsys, compilations):
    """It rounds in other places: what was begun with it goes on with it."""
    assert small_run("run", "steps=2", "compile=true") == 0
    assert small_run("run", "steps=2", "compile=true", "resume=true") == 0
    assert small_run("run", "steps=2", "resume=true") == 2
    assert "compile: True there, None now" in capsys.readouterr().err


@pytest.mark.slow
def test_the_real_compiler_trains_alike():
    """Code for the CPU, of the model with the fewest operators: losses and gradients."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not here: TorchInductor builds C++ for a CPU")
    torch.manual_seed(0)
    plain, compiled = (tiny_model("attention", "model.num_layers=1").train() for _ in range(2))
    compiled.load_state_dict(plain.state_dict())
    compiled.compile(dynamic=False)
    ids = torch.randint(7, 11, (2, 32))
    for model in (plain, compiled):
        model(ids).logsumexp(-1).sum().backward()
    assert list(plain.state_dict()) == list(compiled.state_dict())
    for one, two in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("device", "variable"), [("cpu", "CXX"), ("cuda", "CC")])
def test_a_missing_compiler_is_refused(monkeypatch, device, variable):
    """With the name of what was looked for; a variable names another one."""
    monkeypatch.delenv(variable, raising=False)
    there = {"g++", "gcc", "my-compiler"}
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there else None)
    check_compiler(torch.device(device))
    monkeypatch.setenv(variable, "my-compiler")
    check_compiler(torch.device(device))
    monkeypatch.setenv(variable, "none-such")
    with pytest.raises(InputError, match=f"{variable}=none-such is none"):
        check_compiler(torch.device(device))
    monkeypatch.delenv(variable)
    there.clear()
    with pytest.raises(InputError, match=r"compile=true needs a compiler.*g(\+\+|cc).* not here"):
        check_compiler(torch.device(device))


def test_a_run_without_a_compiler_is_refused(small_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "none-such")
    assert small_run("run", "steps=1", "compile=true") == 2
    assert "compile=true needs a compiler for the CPU" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
