"""Weights of a run, exported, and every verb that opens them."""

import csv
import json
import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import export_weights

from fracdna import cli
from fracdna.model.checkpoint import load_model, model_hash

STEPS = 4


@pytest.fixture(scope="module")
def run_folder(prepared, tmp_path_factory):
    """A run whose best weights are not its last ones: the learning rate ruins those."""
    output = tmp_path_factory.mktemp("runs") / "run"
    arguments = [
        f"data.prepared={prepared}", f"output={output}", f"steps={STEPS}", "validate_every=1",
        "data.length=64", "data.bases_per_step=128", "data.validation_bases=128", "progress=false",
        "logger=none", "model.num_layers=1", "optimizer.lr=0.3", "seed=7",
    ]  # fmt: skip
    assert cli.run(["train", *arguments]) == 0
    return output


@pytest.fixture(scope="module")
def exported(run_folder, tmp_path_factory):
    """The best weights, as bfloat16, away from the run's folder."""
    path = tmp_path_factory.mktemp("weights") / "handed-on.safetensors"
    best = run_folder / "checkpoints" / "best.ckpt"
    assert export_weights.main([str(best), str(path), "--about", "genome=made for tests"]) == 0
    return path


def facts_of(path):
    return json.loads(path.with_suffix(".json").read_text())


def numbers(text):
    """Rounding of a weight, difference of log-probabilities, nats per base before and after."""
    rounding = re.search(r"rounding of a weight: (\S+)", text)[1]
    difference = re.search(r"at most (\S+) nats", text)[1]
    nats = re.search(r"nats per base: (\S+) before, (\S+) as", text).groups()
    return [float(number) for number in (rounding, difference, *nats)]


def test_the_json_tells_of_the_training(run_folder, exported):
    """Facts are those of the run; the score is that of the exported weights."""
    about = facts_of(exported)["about"]
    rows = list(csv.DictReader((run_folder / "metrics.csv").open()))
    scores = {int(r["step"]): float(r["validation_nll"]) for r in rows if r["validation_nll"]}
    best = min(scores, key=scores.get)
    assert best < STEPS
    expected = {
        "mixer": "Frac", "training_length": 64, "bases_per_step": 128, "planned_steps": STEPS,
        "step": best, "bases": best * 128, "learning_rate": 0.3, "seed": 7,
        "genome": "made for tests",
    }  # fmt: skip
    assert {name: about[name] for name in expected} == expected
    assert about["validation_nll_nats"] == pytest.approx(scores[best], rel=1e-5)


def test_a_score_is_told_of_the_best_weights_alone(run_folder, tmp_path):
    """The last checkpoint knows the best score too, but has it not."""
    path = tmp_path / "last.safetensors"
    assert export_weights.main([str(run_folder / "checkpoints" / "last.ckpt"), str(path)]) == 0
    about = facts_of(path)["about"]
    assert about["step"] == STEPS
    assert not any("validation" in name for name in about)


def test_what_rounding_costs_is_printed(run_folder, tmp_path, capsys):
    """Nothing in float32; in bfloat16 up to 1 in 2^8 of a weight, which shows in what comes out."""
    best, path = run_folder / "checkpoints" / "best.ckpt", tmp_path / "w.safetensors"
    assert export_weights.main([str(best), str(path), "--dtype", "float32"]) == 0
    rounding, difference, before, after = numbers(capsys.readouterr().out)
    assert (rounding, difference) == (0, 0)
    assert before == after
    assert export_weights.main([str(best), str(path)]) == 0
    printed = capsys.readouterr().out
    rounding, difference, before, after = numbers(printed)
    assert 2**-10 < rounding <= 2**-8
    assert difference > 0
    assert abs(after - before) <= difference
    facts = facts_of(path)
    assert all(str(facts[name]) in printed for name in ("sha256", "model_hash"))
    size = path.stat().st_size
    assert f"{facts['parameters']:,} parameters in bfloat16, {size:,} bytes" in printed


def test_exported_weights_export_with_what_was_told_of_them(exported, tmp_path):
    """From bfloat16 to float32: the same model, the same facts and one more."""
    path = tmp_path / "again.safetensors"
    arguments = [str(exported), str(path), "--dtype", "float32", "--about", "by=us"]
    assert export_weights.main(arguments) == 0
    old, new = facts_of(exported), facts_of(path)
    assert new["model_hash"] == old["model_hash"]
    assert new["about"] == old["about"] | {"by": "us"}


@pytest.mark.parametrize("ending", [".safetensors", ".json"])
def test_weights_are_not_replaced_by_their_own_rounding(exported, capsys, ending):
    """Neither file is touched."""
    before = exported.read_bytes(), exported.with_suffix(".json").read_bytes()
    assert export_weights.main([str(exported.with_suffix(ending)), str(exported)]) == 2
    assert "is what is exported: name another file" in capsys.readouterr().err
    assert (exported.read_bytes(), exported.with_suffix(".json").read_bytes()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.ckpt", "out.safetensors"], "missing.ckpt: no such"),
        (["{best}", "out.bin"], "ends in .safetensors"),
        (["{best}", "out.safetensors", "--about", "genome"], "--about genome: give NAME=VALUE"),
        (["{best}", "out.safetensors", "--about", "training_length=9"], "the checkpoint's own"),
    ],
)
def test_refused_calls_write_nothing(run_folder, tmp_path, monkeypatch, capsys, words, message):
    """One line and exit code 2, as of the command."""
    monkeypatch.chdir(tmp_path)
    best = run_folder / "checkpoints" / "best.ckpt"
    assert export_weights.main([word.format(best=best) for word in words]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_evaluations_empty_states_at_the_length_of_training_and_the_report_names_the_file(
    exported, prepared, tmp_path
):
    """Length and hash in result.json are those of the JSON; the page has name and path."""
    output = tmp_path / "results"
    arguments = [
        f"checkpoint={exported}", f"prepared={prepared}", f"output={output}", "lengths=[64,256]",
        "target=32", "markov=false", "regions=2", "progress=false", "device=cpu",
    ]  # fmt: skip
    assert cli.run(["evaluate", *arguments]) == 0
    facts = json.loads((output / "result.json").read_text())["models"]["handed-on"]
    assert facts["checkpoint"] == str(exported)
    assert facts["trained_on_length"] == 64
    assert facts["weights"] == facts_of(exported)["model_hash"] == model_hash(load_model(exported))
    gains = list(csv.DictReader((output / "gains.csv").open()))
    assert {row["reset_length"] for row in gains} == {"64"}
    assert cli.run(["report", str(output), f"output={tmp_path / 'page'}"]) == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert "handed-on" in page
    assert str(exported) in page


def test_embeddings_and_new_bases_come_from_them(exported, prepared, tmp_path):
    """Both verbs tell the model's hash, that of the JSON, whichever of the two files is named."""
    identity = facts_of(exported)["model_hash"]
    table, fasta = tmp_path / "e.parquet", tmp_path / "g.fa"
    told = [f"checkpoint={exported}", "progress=false"]
    assert cli.run(
        ["embed", *told, f"genome={prepared}", "regions=two:1-50", f"output={table}"]
    ) == 0  # fmt: skip
    metadata = json.loads(pq.read_schema(table).metadata[b"fracdna"])
    assert identity in metadata.values()
    told[0] = f"checkpoint={exported.with_suffix('.json')}"
    assert cli.run(["generate", *told, "prompt=ACGT", "length=5", f"output={fasta}"]) == 0
    assert re.search(r" model=(\w{12})\n", fasta.read_text())[1] == identity[:12]


def test_a_damaged_file_is_refused_by_the_command(exported, prepared, tmp_path, capsys):
    """Exit 2 and the reason, before a folder is made."""
    for path in (exported, exported.with_suffix(".json")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    copy, output = tmp_path / exported.name, tmp_path / "results"
    copy.write_bytes(copy.read_bytes()[:-1] + b"\x55")
    arguments = [f"checkpoint={copy}", f"prepared={prepared}", f"output={output}"]
    assert cli.run(["evaluate", *arguments]) == 2
    assert "not the file that handed-on.json tells of" in capsys.readouterr().err
    assert not output.exists()
