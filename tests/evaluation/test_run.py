"""The evaluate verb: what it writes, says and refuses."""

import csv
import json

import pyarrow.parquet as pq
import pytest
import torch
from models import tiny_model
from omegaconf import OmegaConf

from fracdna import cli
from fracdna.configuration import compose_configuration
from fracdna.evaluation import run as evaluation
from fracdna.evaluation.regions import choose_regions
from fracdna.model.checkpoint import description
from fracdna_prep.errors import InputError
from fracdna_prep.example import example_files
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval


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
        about = description(model) | {"recipe": {"data": {"length": 64}}}
        torch.save({"state_dict": state, "fracdna": about}, path)
        paths.append(path)
    return paths


def evaluate(checkpoints, prepared, output, *overrides):
    names = f"[{','.join(map(str, checkpoints))}]" if checkpoints else "null"
    return cli.run(
        ["evaluate", f"checkpoint={names}", f"prepared={prepared}", f"output={output}",
         "lengths=[64,256]", "target=32", "progress=false", "device=cpu", *overrides]
    )  # fmt: skip


def rows_of(output, name="table.csv"):
    return list(csv.DictReader((output / name).open()))


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
    proofs = {(entry["curve"], entry["bases_counted"], entry["coordinates"])
              for entry in result["scored"]}  # fmt: skip
    assert len(result["scored"]) == 4
    assert len(proofs) == 2
    everywhere = [row for row in rows if row["part"] == "all"]
    assert {(curve, str(bases)) for curve, bases, _ in proofs} == {
        (row["curve"], row["bases"]) for row in everywhere
    }
    tiling = [row for row in everywhere if row["curve"] == "tiling"]
    counts = {row["model"]: float(row["perplexity"]) for row in tiling if row["length"] == "256"}
    best = result["best_count_model"]
    assert best.startswith("markov-")
    assert f"{best:<11}" in printed
    assert "best count model" in printed
    assert counts[best] < counts["frac"]
    assert counts["frac"] > 4
    assert "frac is worse than a blind guess (4.0) at every length: train it longer" in printed
    for words in ("last 32 bases of each region", "perplexity in windows of 256", "GC ",
                  "frac in one pass over 256", "over a state emptied every 64 bases"):  # fmt: skip
        assert words in printed
    for name in ("perplexity", "fixed", "positions", "gains", "classes"):
        assert (output / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    samples = pq.read_table(output / "samples.parquet").to_pylist()
    assert len(samples) == 15 * 2 * 2 * 6 * result["regions"]["count"]
    row = next(r for r in tiling if r["model"] == "frac" and r["length"] == "256")
    point = ("frac", "tiling", 256)
    mine = [s for s in samples if (s["model"], s["curve"], s["length"]) == point]
    for part in ("all", "gc"):
        total = sum(sample["nll_nats"] for sample in mine if sample["part"] == part)
        assert total / int(row["bases"]) == pytest.approx(float(row["nll_nats"]))
    differences = {(d["model"], d["minus"]) for d in rows_of(output, "differences.csv")}
    assert differences == {("frac", "attention"), ("frac", best), ("attention", best)}
    assert {r["model"] for r in rows_of(output, "gains.csv")} == {"frac", "attention"}
    carried = rows_of(output, "positions.csv")
    assert sum(int(r["bases"]) for r in carried) == 2 * int(row["bases"])
    assert result["table"][0]["nll_nats"] == float(rows[0]["nll_nats"])


def test_count_models_need_no_network(checkpoints, prepared, tmp_path, capsys):
    """Without a checkpoint the tables of counts are scored alone, with the same figures."""
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    assert evaluate([], prepared, alone, "regions=3") == 0
    printed = capsys.readouterr().out
    assert "<- best count model" in printed
    assert "bits per base" not in printed
    assert evaluate(checkpoints[:1], prepared, beside, "regions=3") == 0
    expected = [row for row in rows_of(beside, "table.csv") if row["model"] != "frac"]
    assert rows_of(alone, "table.csv") == expected
    for option in ("markov=false", "curves=[carried]", "streams=[three]"):
        assert evaluate([], prepared, tmp_path / "refused", option) == 2
        assert "checkpoint= is not set" in capsys.readouterr().err
        assert not (tmp_path / "refused").exists()


def test_an_interrupted_evaluation_goes_on_where_it_was(
    checkpoints, prepared, tmp_path, monkeypatch
):
    """Finished cells are read, not computed: same table, and only the missing cell is scored."""
    whole, quick = tmp_path / "whole", ["markov=false", "curves=[tiling]", "regions=4"]
    assert evaluate(checkpoints, prepared, whole, *quick) == 0
    original, scored = evaluation.score_network, []

    def stop_at_third(*arguments, **options):
        scored.append(arguments[1].length)
        if len(scored) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    parts = tmp_path / "parts"
    monkeypatch.setattr(evaluation, "score_network", stop_at_third)
    assert evaluate(checkpoints, prepared, parts, *quick) == 130
    assert not (parts / "result.json").exists()
    assert evaluate(checkpoints, prepared, parts, *quick) == 0
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
        assert evaluate(checkpoints, tmp_path / name, output, "curves=[tiling]") == 0
        rows = [r for r in rows_of(output) if (r["curve"], r["part"]) == ("tiling", "all")]
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
    assert evaluate(checkpoints[:1], prepared, output, "curves=[tiling]") == 0
    monkeypatch.setattr(evaluation, "count_training_bases", None)
    assert evaluate(checkpoints[:1], prepared, output, "curves=[tiling]") == 0


def test_batch_bases_follow_the_device_and_cells_do_not_depend_on_them(
    checkpoints, prepared, tmp_path, monkeypatch
):
    """Another size reads what is finished; auto is a number in result.json."""
    output, quick = tmp_path / "results", ["markov=false", "regions=2"]
    assert evaluate(checkpoints[:1], prepared, output, *quick) == 0
    assert json.loads((output / "result.json").read_text())["batch_bases"] == 8192
    monkeypatch.setattr(evaluation, "score_network", lambda *_, **__: pytest.fail("not kept"))
    assert evaluate(checkpoints[:1], prepared, output, *quick, "batch_bases=100") == 0
    assert json.loads((output / "result.json").read_text())["batch_bases"] == 100


def test_a_class_without_a_scored_base_is_told(checkpoints, prepared, tmp_path, capsys):
    """A fixed curve counts its last bases alone; rows elsewhere and past ends are counted."""
    bed = tmp_path / "far.bed"
    bed.write_text("one\t5\t9\nthree\t9090\t9200\nchr22\t1\t2\n")
    options = ["markov=false", "regions=2", f"classes={{far: {bed}}}"]
    for curves, scored in (("tiling", 512), ("fixed", 64), ("fixed,carried", 64)):
        output = tmp_path / "results"
        assert evaluate(checkpoints[:1], prepared, output, *options, f"curves=[{curves}]") == 0
        assert (
            f"class far: 0 of {scored} scored bases inside; 1 contig not in the genome (chr22); "
            "1 row cut at contig ends\n"
        ) in capsys.readouterr().out


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
    plain = ["markov=false", "curves=[tiling]", "regions=4"]
    assert evaluate(checkpoints, prepared, output, *plain) == 0
    exact = {tuple(r.values())[:6]: r for r in csv.DictReader((output / "table.csv").open())}
    assert evaluate(checkpoints, prepared, output, *plain, "precision=bf16") == 0
    low = {tuple(r.values())[:6]: r for r in csv.DictReader((output / "table.csv").open())}
    assert exact.keys() == low.keys()
    for key, row in ((k, r) for k, r in exact.items() if r["model"] != "uniform"):
        assert float(low[key]["nll_nats"]) != float(row["nll_nats"])
        assert float(low[key]["nll_nats"]) == pytest.approx(float(row["nll_nats"]), rel=2e-2)


def test_classes_strands_and_a_contig_each(checkpoints, tmp_path, capsys):
    """Rows of the groups of every part add up to those of all, on both strands and on average."""
    (tmp_path / "g.fa").write_text(">a\n" + "ACGTtgca" * 100 + "\n>b\n" + "GGCAttac" * 50 + "\n")
    (tmp_path / "s.bed").write_text("a\t0\t800\ttest\nb\t0\t400\ttest\n")
    (tmp_path / "exons.bed").write_text("chra\t100\t300\nchrb\t0\t9\n")
    (tmp_path / "pairs.txt").write_text("chra a\nchrb b\n")
    arguments = [f"fasta={tmp_path / 'g.fa'}", f"intervals={tmp_path / 's.bed'}", "length=[64]"]
    assert cli.run(["prepare", *arguments, f"output={tmp_path / 'p'}", "progress=false"]) == 0
    output, classes = tmp_path / "results", f"classes={{exons: {tmp_path / 'exons.bed'}}}"
    options = ["markov=false", "strands=both", classes]
    assert evaluate(checkpoints[:1], tmp_path / "p", output, *options) == 2
    assert not output.exists()
    options.append(f"rename={tmp_path / 'pairs.txt'}")
    assert evaluate(checkpoints[:1], tmp_path / "p", output, *options) == 0
    rows = [r for r in rows_of(output) if (r["model"], r["curve"]) == ("frac", "tiling")]
    assert {r["strand"] for r in rows} == {"forward", "reverse", "average"}
    for strand in ("forward", "reverse", "average"):
        total = {"bases": 1024 * (1 + (strand == "average"))}
        mine = [r for r in rows if (r["strand"], r["length"]) == (strand, "64")]
        sums = {}
        for row in mine:
            bases, nats = sums.get(row["part"], (0, 0.0))
            added = int(row["bases"]), int(row["bases"]) * float(row["nll_nats"])
            sums[row["part"]] = bases + added[0], nats + added[1]
        assert set(sums) == {"all", "chromosome", "soft_mask", "exons", "gc"}
        for bases, nats in sums.values():
            assert bases == total["bases"]
            assert nats == pytest.approx(sums["all"][1])
        inside = next(r for r in mine if (r["part"], r["group"]) == ("exons", "inside"))
        assert int(inside["bases"]) == 209 * (1 + (strand == "average"))
    about = json.loads((output / "result.json").read_text())["classes"]["files"]["exons"]
    assert (about["rows"], about["bases_in_genome"]) == (2, 209)
    assert "class exons: 209 of 1,024 scored bases inside\n" in capsys.readouterr().out
    nats = {r["strand"]: r["nll_nats"] for r in rows if (r["part"], r["length"]) == ("all", "64")}
    assert len(set(nats.values())) == 3
    # finished parts of other classes are not those of these
    (tmp_path / "exons.bed").write_text("chra\t100\t200\n")
    assert evaluate(checkpoints[:1], tmp_path / "p", output, *options) == 0
    inside = {(r["strand"], r["bases"]) for r in rows_of(output)
              if (r["part"], r["group"]) == ("exons", "inside")}  # fmt: skip
    assert inside == {("forward", "100"), ("reverse", "100"), ("average", "200")}


def test_only_what_was_asked_for_is_read_and_drawn(checkpoints, prepared, tmp_path, capsys):
    """A fixed curve alone reads single windows; pictures of an earlier call do not stay."""
    output, few = tmp_path / "results", ["markov=false", "regions=2"]
    assert evaluate(checkpoints[:1], prepared, output, *few, "reset=128") == 0
    assert "emptied every 128 bases" in capsys.readouterr().out
    assert {r["reset_length"] for r in rows_of(output, "gains.csv")} == {"128"}
    assert evaluate(checkpoints[:1], prepared, output, *few, "curves=[fixed]") == 0
    assert {row["curve"] for row in rows_of(output)} == {"fixed"}
    assert {path.stem for path in output.glob("*.png")} == {"fixed", "classes"}
    assert rows_of(output, "gains.csv") == rows_of(output, "positions.csv") == []
    assert evaluate(checkpoints[:1], prepared, output, *few, "curves=[carried]", "reset=7") == 0
    assert "reset=, 7, does not divide the 256 bases" in capsys.readouterr().out
    assert {path.stem for path in output.glob("*.png")} <= {"positions"}
    assert rows_of(output) == []
    assert evaluate(checkpoints[:1], prepared, output, *few, "target=999") == 0
    assert "no length reaches target=999" in capsys.readouterr().out


def test_contigs_are_streamed_beside_the_curves_or_alone(checkpoints, prepared, tmp_path):
    """The same carried pass, over a whole contig; lengths=[] leaves the curves out."""
    output = tmp_path / "results"
    options = ["markov=false", "regions=2", "streams=[three]", "stream_block=4096"]
    assert evaluate(checkpoints[:1], prepared, output, *options, "batch_bases=4096") == 0
    found = json.loads((output / "result.json").read_text())["streams"]
    assert found["bases_by_split"] == {"three": {"train": 0, "valid": 0, "test": 9060, "none": 0}}
    assert rows_of(output)
    overrides = [f"checkpoint={checkpoints[0]}", f"prepared={prepared}", "streams=[three]",
                 "stream_block=4096", "batch_bases=4096", "progress=false", "device=cpu",
                 f"output={tmp_path / 'alone'}"]  # fmt: skip
    config = compose_configuration("evaluate", overrides)
    OmegaConf.update(config, "lengths", [])
    assert evaluation.evaluate(config) == 0
    result = json.loads((tmp_path / "alone" / "result.json").read_text())
    assert result["complete"] is True
    assert "table" not in result
    assert rows_of(tmp_path / "alone", "streams.csv") == rows_of(output, "streams.csv")


def test_a_folder_holds_one_evaluation_at_a_time(checkpoints, prepared, tmp_path, monkeypatch):
    """What another call left is gone, and nothing says complete while this one is at work."""
    output = tmp_path / "results"
    few = ["markov=false", "regions=2"]
    streams = ["streams=[three]", "stream_block=4096"]
    assert evaluate(checkpoints[:1], prepared, output, *few, *streams) == 0
    assert (output / "streams.csv").exists()
    assert evaluate(checkpoints[:1], prepared, output, *few, "curves=[tiling]") == 0
    assert not {"streams.csv", "streams.png", "gains.png", "fixed.png"} & {
        path.name for path in output.iterdir()
    }

    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "make_tables", stop)
    assert evaluate(checkpoints[1:], prepared, output, *few) == 130
    assert not (output / "result.json").exists()


@pytest.mark.parametrize("name", ["$x_{1$", "_hidden", "a & <b>"])
def test_any_name_can_be_drawn(checkpoints, prepared, tmp_path, name):
    few = ["markov=false", "regions=2", "streams=[three]", "stream_block=4096"]
    assert evaluate(checkpoints[:1], prepared, tmp_path / "x", *few, f"names=['{name}']") == 0
    assert {row["model"] for row in rows_of(tmp_path / "x")} == {name, "uniform"}


def test_a_split_of_n_alone_is_refused(tmp_path):
    fasta = tmp_path / "n.fa"
    fasta.write_text(f">c\n{'N' * 512}\n")
    store = GenomeStore.build(fasta, tmp_path / "store")
    with pytest.raises(InputError, match="nothing but N"):
        choose_regions(store, [Interval("c", 0, 512)], 256, count=9, max_n_fraction=1.0)


def test_the_bundled_genome_from_preparation_to_tables(checkpoints, tmp_path):
    """GRCh37 chromosome 20, its test split, with count models: order 0 is about 4."""
    example = example_files()
    arguments = [f"fasta={example.fasta}", f"intervals={example.splits_bed}", "split=bed"]
    output = tmp_path / "results"
    prepare = [*arguments, "length=[1024]", f"output={tmp_path / 'p'}", "progress=false"]
    assert cli.run(["prepare", *prepare]) == 0
    options = [
        "lengths=[256,1024]",
        "target=256",
        "regions=6",
        f"classes={{r: {example.regions_bed}}}",
    ]
    assert evaluate(checkpoints[:1], tmp_path / "p", output, *options) == 0
    rows = [r for r in rows_of(output) if (r["curve"], r["part"]) == ("tiling", "all")]
    nats = {(r["model"], r["length"]): float(r["nll_nats"]) for r in rows}
    assert {r["bases"] for r in rows} == {str(6 * 1024)}
    assert 1.3 < nats["markov-0", "256"] < 1.45
    assert nats["markov-0", "256"] == pytest.approx(nats["markov-0", "1024"])
    assert nats["markov-9", "1024"] < nats["markov-9", "256"] < nats["markov-0", "256"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lengths=[48,256]", "48 does not divide 256"),
        ("curves=[tilling]", "choose one or more of tiling, fixed, carried"),
        ("strands=reverse", "choose forward or both"),
        ("reset=1K", "reset=1K needs a whole number"),
        ("classes=exons.bed", "name each file"),
        ("classes={exons: missing.bed}", "missing.bed"),
        ("lengths=[65536]", "longest interval of this split has 9,100"),
        ("split=validation2", "holds the splits train, valid, test"),
        ("names=[markov-3,b]", "name of a reference line"),
        ("names=[a,a]", "two checkpoints are called 'a'"),
        ("names=[a]", "1 names for 2 checkpoints"),
        ("device=cuda:77", "device=cuda:77: PyTorch sees"),
        ("precision=fp8", "precision=fp8"),
        ("batch_bases=much", "batch_bases=much needs a whole number, or auto"),
        ("batch_bases=null", "batch_bases=null needs a whole number, or auto"),
        ("batch_bases=0", "batch_bases=0 must be at least 1"),
        ("output=null", "output= is not set"),
        ("prepared=null", "prepared= is not set"),
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
