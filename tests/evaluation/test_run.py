"""The evaluate verb: what it writes, says and refuses."""

import csv
import json

import pyarrow.parquet as pq
import pytest
import torch
from models import tiny_model

from fracdna import cli
from fracdna.evaluation import run as evaluation
from fracdna.model.checkpoint import description


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Two checkpoints in run folders of their own."""
    paths = []
    for mixer in ("frac", "attention"):
        model = tiny_model(mixer)
        folder = tmp_path_factory.mktemp("runs") / mixer / "checkpoints"
        folder.mkdir(parents=True)
        state = {f"model.{name}": weight for name, weight in model.state_dict().items()}
        path = folder / "best.ckpt"
        torch.save({"state_dict": state, "fracdna": description(model) | {"recipe": {}}}, path)
        paths.append(path)
    return paths


def evaluate(checkpoints, prepared, output, *overrides):
    names = ",".join(map(str, checkpoints))
    return cli.run(
        ["evaluate", f"checkpoint=[{names}]", f"prepared={prepared}", f"output={output}",
         "lengths=[64,256]", "progress=false", "device=cpu", *overrides]
    )  # fmt: skip


def test_tables_pictures_and_an_honest_verdict(checkpoints, prepared, tmp_path, capsys):
    output = tmp_path / "results"
    assert evaluate(checkpoints, prepared, output) == 0
    printed = capsys.readouterr().out
    result = json.loads((output / "result.json").read_text())
    rows = list(csv.DictReader((output / "table.csv").open()))
    assert result["complete"] is True
    assert {row["model"] for row in rows} == {
        "frac", "attention", "uniform", *(f"markov-{order}" for order in range(13)),
    }  # fmt: skip
    assert {int(row["length"]) for row in rows} == {64, 256}
    for row in rows:
        low, value, high = (float(row[f"perplexity{part}"]) for part in ("_low", "", "_high"))
        assert low <= value <= high
    counted = {entry["bases_counted"] for entry in result["scored"].values()}
    assert len(counted) == len({e["coordinates"] for e in result["scored"].values()}) == 1
    assert counted == {int(row["bases"]) for row in rows}
    counts = {row["model"]: float(row["perplexity"]) for row in rows if row["length"] == "256"}
    best = result["best_count_model"]
    assert best.startswith("markov-")
    assert f"{best:<11}" in printed
    assert "best count model" in printed
    assert counts[best] < counts["frac"]
    assert f"above {best} at every length: a table of counts predicts these bases better" in printed
    for name in ("perplexity.png", "positions.png"):
        assert (output / name).read_bytes().startswith(b"\x89PNG")
    samples = pq.read_table(output / "samples.parquet").to_pydict()
    assert len(samples["tokens"]) == 15 * 2 * result["regions"]["count"]
    frac = [i for i, m in enumerate(samples["model"]) if m == "frac"]
    total = sum(samples["nll_nats"][i] for i in frac if samples["length"][i] == 256)
    row = next(r for r in rows if r["model"] == "frac" and r["length"] == "256")
    assert total / int(row["bases"]) == pytest.approx(float(row["nll_nats"]))
    differences = {(d["model"], d["minus"]) for d in result["differences"]}
    assert differences == {("frac", "attention"), ("frac", best), ("attention", best)}


def test_an_interrupted_evaluation_goes_on_where_it_was(
    checkpoints, prepared, tmp_path, monkeypatch
):
    """Finished cells are read, not computed: same table, and only the missing cell is scored."""
    whole = tmp_path / "whole"
    assert evaluate(checkpoints, prepared, whole) == 0
    original, scored = evaluation.score_network, []

    def stop_at_third(*arguments, **options):
        scored.append(arguments[3])
        if len(scored) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    parts = tmp_path / "parts"
    monkeypatch.setattr(evaluation, "score_network", stop_at_third)
    assert evaluate(checkpoints, prepared, parts) == 130
    assert not (parts / "result.json").exists()
    assert evaluate(checkpoints, prepared, parts) == 0
    assert len(scored) == 3 + 2
    assert (parts / "table.csv").read_bytes() == (whole / "table.csv").read_bytes()


def test_another_genome_never_reads_cells_of_this_one(checkpoints, tmp_path):
    """The same coordinates and output folder, other bases: other numbers, for every model."""
    tables = []
    for name, unit in (("x", "ACGTTGCA"), ("y", "GGCATTAC")):
        (tmp_path / f"{name}.fa").write_text(f">a\n{unit * 200}\n")
        (tmp_path / "s.bed").write_text("a\t0\t800\ttrain\na\t800\t1600\ttest\n")
        places = [f"fasta={tmp_path / name}.fa", f"intervals={tmp_path / 's.bed'}"]
        arguments = [*places, "length=[64]", f"output={tmp_path / name}", "progress=false"]
        assert cli.run(["prepare", *arguments]) == 0
        output = tmp_path / "results"
        assert evaluate(checkpoints, tmp_path / name, output) == 0
        rows = list(csv.DictReader((output / "table.csv").open()))
        tables.append({(r["model"], r["length"]): r["nll_nats"] for r in rows})
    for cell, nats in tables[0].items():
        # every base is as frequent as any other in both: only order 0 may agree
        if cell[0] not in ("uniform", "markov-0"):
            assert tables[1][cell] != nats


def test_one_region_has_no_interval(checkpoints, prepared, tmp_path):
    output = tmp_path / "results"
    assert evaluate(checkpoints, prepared, output, "regions=1", "markov=false") == 0
    rows = list(csv.DictReader((output / "table.csv").open()))
    assert {r["perplexity_low"] for r in rows if r["model"] == "frac"} == {""}
    assert "NaN" not in (output / "result.json").read_text()


def test_a_finished_count_model_is_not_counted_again(checkpoints, prepared, tmp_path, monkeypatch):
    output = tmp_path / "results"
    assert evaluate(checkpoints, prepared, output) == 0
    monkeypatch.setattr(evaluation, "count_training_bases", None)
    assert evaluate(checkpoints, prepared, output) == 0


def test_a_broken_weight_ends_with_the_region_and_no_table(prepared, tmp_path, capsys):
    """Case 38: exit code 1, the first affected region named, no result."""
    model = tiny_model("frac")
    model.backbone.final_norm.weight.data[0] = torch.nan
    path = tmp_path / "broken.ckpt"
    state = {f"model.{name}": weight for name, weight in model.state_dict().items()}
    torch.save({"state_dict": state, "fracdna": description(model) | {"recipe": {}}}, path)
    output = tmp_path / "results"
    assert evaluate([path], prepared, output) == 1
    assert "region three:" in capsys.readouterr().err
    assert not (output / "result.json").exists()


def test_bf16_is_close_and_kept_apart(checkpoints, prepared, tmp_path):
    """Another compute type has cells of its own."""
    output = tmp_path / "results"
    plain = ["markov=false"]
    assert evaluate(checkpoints, prepared, output, *plain) == 0
    exact = {tuple(r.values())[:3]: r for r in csv.DictReader((output / "table.csv").open())}
    assert evaluate(checkpoints, prepared, output, *plain, "precision=bf16") == 0
    low = {tuple(r.values())[:3]: r for r in csv.DictReader((output / "table.csv").open())}
    assert exact.keys() == low.keys()
    for key, row in ((k, r) for k, r in exact.items() if r["model"] != "uniform"):
        assert float(low[key]["nll_nats"]) != float(row["nll_nats"])
        assert float(low[key]["nll_nats"]) == pytest.approx(float(row["nll_nats"]), rel=2e-2)


def test_one_row_a_contig_where_there_are_several(checkpoints, prepared, tmp_path):
    """Rows of contigs add up to the row of all."""
    (tmp_path / "g.fa").write_text(">a\n" + "ACGTTGCA" * 100 + "\n>b\n" + "GGCATTAC" * 50 + "\n")
    (tmp_path / "s.bed").write_text("a\t0\t800\ttest\nb\t0\t400\ttest\n")
    arguments = [f"fasta={tmp_path / 'g.fa'}", f"intervals={tmp_path / 's.bed'}", "length=[64]"]
    assert cli.run(["prepare", *arguments, f"output={tmp_path / 'p'}", "progress=false"]) == 0
    output = tmp_path / "results"
    assert evaluate(checkpoints, tmp_path / "p", output, "markov=false") == 0
    rows = [r for r in csv.DictReader((output / "table.csv").open()) if r["model"] == "frac"]
    bases = {(r["contig"], r["length"]): int(r["bases"]) for r in rows}
    assert bases["a", "64"] + bases["b", "64"] == bases["all", "64"] == 1024


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lengths=[48,256]", "48 does not divide 256"),
        ("lengths=[65536]", "longest interval of this split has 9,100"),
        ("split=validation2", "holds the splits train, valid, test"),
        ("names=[markov-3,b]", "name of a reference line"),
        ("names=[a,a]", "two checkpoints are called 'a'"),
        ("names=[a]", "1 names for 2 checkpoints"),
        ("device=cuda:77", "device=cuda:77: PyTorch sees"),
        ("precision=fp8", "precision=fp8"),
        ("output=null", "output= is not set"),
        ("prepared=null", "prepared= is not set"),
        ("checkpoint=null", "checkpoint= is not set"),
        ("checkpoint=missing.ckpt", "no such checkpoint"),
    ],
)
def test_refusals_come_before_anything_is_written(
    checkpoints, prepared, tmp_path, capsys, override, message
):
    output = tmp_path / "results"
    assert evaluate(checkpoints, prepared, output, override) == 2
    assert message in capsys.readouterr().err
    assert not output.exists()
