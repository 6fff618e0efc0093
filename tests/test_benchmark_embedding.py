"""The benchmark of embedding, on few bases with a tiny model."""

import json
import sys
from pathlib import Path

import pytest
import torch
from models import tiny_model

import fracdna

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import benchmark_embedding as benchmark

PAGE = """# Embedding

<!-- table circumstances -->
<!-- end -->

<!-- table throughput -->
<!-- end -->
"""


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    fracdna.save_weights(tiny_model("frac"), path)
    return path


@pytest.fixture
def measure(weights, tmp_path, monkeypatch):
    """Run the benchmark on the processor; what it has written."""
    monkeypatch.setattr(benchmark, "FEWEST", 1)

    def run(*words):
        output = tmp_path / "embedding.json"
        given = ["--checkpoint", weights, "--devices", "cpu", "--row-seconds", "0", *words]
        given += ["--bases", "300", "--commit", "this one", "--output", output]
        monkeypatch.setattr(sys, "argv", ["benchmark_embedding.py", *map(str, given)])
        benchmark.main()
        return json.loads(output.read_text())["runs"]

    return run


def test_all_ways_are_measured_and_agree(measure, tmp_path):
    """A row for each length and precision with speeds and ratios; page and picture follow."""
    page = tmp_path / "embedding.md"
    page.write_text(PAGE)
    (run,) = measure("--lengths", "150", "--precisions", "float32,bf16")
    assert run["circumstances"]["commit"] == "this one"
    cases = [(row["length"], row["precision"], row["regions"]) for row in run["rows"]]
    assert cases == [(150, "float32", 2), (150, "bf16", 2)]
    for row in run["rows"]:
        speeds = [row[f"{way} regions/s"] for way in benchmark.WAYS]
        assert min(speeds) > 0
        assert row["embed_regions over loop"] == pytest.approx(speeds[2] / speeds[0])
        assert row["repetitions"] == 1
        assert row["largest difference"] < (1e-5 if row["precision"] == "float32" else 0.1)
    assert "| float32 | 150 | 2 |" in page.read_text()
    assert "| this one |" in page.read_text()
    assert (tmp_path / "embedding.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_replaces_the_earlier_one_of_its_device(measure, tmp_path, monkeypatch):
    """Those of other devices stay; a case that fails says why and ends no other."""
    other = {"device": "another", "circumstances": {}, "rows": []}
    (tmp_path / "embedding.json").write_text(json.dumps({"runs": [other]}))
    loop = benchmark.loop

    def failing(case, count):
        if case.regions[0].width == 100:
            raise MemoryError("no room")
        return loop(case, count)

    monkeypatch.setattr(benchmark, "loop", failing)
    measure("--lengths", "100")
    runs = measure("--lengths", "100,150")
    assert [run["device"] == "another" for run in runs] == [True, False]
    assert runs[1]["rows"][0]["note"] == "MemoryError: no room"
    assert runs[1]["rows"][1]["loop regions/s"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengths", "0"], "at least 1"),
        (["--devices", "tpu"], "device=tpu: choose auto, cpu"),
        (["--precisions", "fp8"], "precision=fp8: choose one of"),
        (["--output", "/nowhere/at/all.json"], "no such folder"),
        (["--checkpoint", "none.ckpt"], "no such checkpoint file"),
    ],
)
def test_wrong_arguments_are_refused_first(monkeypatch, capsys, words, message):
    monkeypatch.setattr(sys, "argv", ["benchmark_embedding.py", *words])
    with pytest.raises(SystemExit):
        benchmark.command_line()
    assert message in capsys.readouterr().err
