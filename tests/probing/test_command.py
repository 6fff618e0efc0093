"""`fracdna probe` from its command line to its files."""

import copy
import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import fracdna
from fracdna import __version__
from fracdna.embedding import pooled_states
from fracdna.embedding.options import EmbeddingOptions
from fracdna.model.checkpoint import build_model, model_hash
from fracdna.probing import command, regressions
from fracdna.probing.networks import open_networks
from fracdna_prep.vocabulary import DNA

FAST = ("seeds=[0,1]", "l2=[0.001,0.1]", "max_k=2")


def read_table(folder):
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {(row["model"], row["metric"]): row for row in rows}


def read_result(folder):
    return json.loads((folder / "result.json").read_text())


def test_a_planted_motif_is_found_and_shuffled_labels_are_not(
    probe, checkpoint, planted, write_table, tmp_path
):
    """The smoke test: accuracy above 95 %; with shuffled labels nothing but chance."""
    rows = planted(300)
    labels = np.random.default_rng(0).permutation([label for _, label in rows])
    shuffled = [(text, label) for (text, _), label in zip(rows, labels, strict=True)]
    for name, content in (("motif", rows), ("shuffled", shuffled)):
        write_table(tmp_path / f"{name}_train.csv", content[:200])
        write_table(tmp_path / f"{name}_test.csv", content[200:])
        words = (f"checkpoint={checkpoint}", f"dataset={tmp_path / name}", "seeds=[0]")
        assert probe(*words, "untrained=false", "max_k=3", output=name) == 0
    found, chance = (read_table(tmp_path / name) for name in ("motif", "shuffled"))
    assert float(found["tiny", "accuracy"]["value"]) > 0.95
    assert float(found["k-mers", "accuracy"]["value"]) > 0.95
    assert abs(float(found["GC and length", "mcc"]["value"])) < 0.3
    for model in ("tiny", "k-mers"):
        assert abs(float(chance[model, "mcc"]["value"])) < 0.25


def test_what_is_written(probe, checkpoint, model, small_set, tmp_path, capsys):
    """Files, rows of each, provenance; the majority is a line of ties."""
    words = (f"checkpoint={checkpoint}", f"dataset={small_set}", *FAST)
    assert probe(*words, pictures=True) == 0
    out = tmp_path / "out"
    names = {path.name for path in out.iterdir()}
    assert names == {
        "result.json", "table.csv", "differences.csv", "samples.parquet", "duplicates.csv",
        "dropped.csv", "metrics.png", "roc.png", "vectors", "fits",
    }  # fmt: skip
    models = ["majority", "GC and length", "k-mers", "tiny, untrained", "tiny"]
    table, result = read_table(out), read_result(out)
    assert list(dict.fromkeys(name for name, _ in table)) == models
    assert len(table) == 5 * 5
    assert float(table["majority", "mcc"]["ties"]) == 16
    assert {row["train_rows"] for row in table.values()} == {"24"}
    assert result["complete"] is True
    assert result["networks"]["tiny"]["model_hash"] == model_hash(model)
    assert result["networks"]["tiny"]["version"] == __version__
    assert set(result["models"]) == set(models)
    assert len(result["models"]["k-mers"]["k"]) == 2
    assert result["rows"]["test"] == {"0": 8, "1": 8}
    assert len(result["differences"]) == 4 * 5
    samples = pq.read_table(out / "samples.parquet").to_pylist()
    assert len(samples) == (1 + 4 * 2) * 16
    assert all(sum(row["probabilities"]) == pytest.approx(1) for row in samples)
    assert {row["seed"] for row in samples if row["model"] == "tiny"} == {0, 1}
    assert {row["seed"] for row in samples if row["model"] == "majority"} == {None}
    by_hand = [row["predicted"] == row["label"] for row in samples if row["model"] == "tiny"]
    assert np.mean(by_hand) == pytest.approx(float(table["tiny", "accuracy"]["value"]))
    printed = capsys.readouterr().out
    assert "no test row repeats" in printed
    assert "tiny - tiny, untrained: MCC " in printed
    assert "tiny - majority" not in printed


def test_vectors_are_those_of_embed_whatever_stands_beside_them(
    probe, checkpoint, model, planted, write_table, tmp_path, monkeypatch
):
    """Each row alone, for the chosen layer, pooling and strand; long neighbours pad the others."""
    train = [(text[: 40 - number], label) for number, (text, label) in enumerate(planted(12))]
    write_table(tmp_path / "set_train.csv", train)
    write_table(tmp_path / "set_test.csv", planted(4, 5))
    seen = {}
    fit_all = regressions.fit_all

    def spy(features, *arguments, **options):
        seen.update(features)
        return fit_all(features, *arguments, **options)

    monkeypatch.setattr("fracdna.probing.contest.fit_all", spy)
    words = (f"checkpoint={checkpoint}", f"dataset={tmp_path / 'set'}", "layer=1")
    assert probe(*words, "pooling=centre", "strand=average", "batch_bases=500", *FAST) == 0
    options = EmbeddingOptions(layer=1, pooling="centre", strand="average")
    for row, (text, _) in enumerate(train):
        alone = pooled_states(model, [DNA.encode(text)], options)[0]
        np.testing.assert_allclose(seen["tiny"].values[row], alone, atol=1e-5)


def test_an_untrained_network_has_the_initial_weights_of_its_seed(checkpoint, model):
    """As training begins with; other weights than the network's, the same for the same seed."""
    one, two, other = (open_networks([str(checkpoint)], None, seed)[1] for seed in (3, 3, 4))
    assert model_hash(one.model) == model_hash(two.model)
    assert len({model_hash(m) for m in (one.model, other.model, model)}) == 3
    with torch.random.fork_rng():
        torch.manual_seed(3)
        assert model_hash(build_model(model.config)) == model_hash(one.model)


def test_networks_of_one_configuration_share_an_untrained_one(
    probe, checkpoint, small_set, tmp_path
):
    """Names keep them apart; the same weights differ by nothing."""
    both = f"checkpoint=[{checkpoint},{checkpoint}]"
    assert probe(both, f"dataset={small_set}", *FAST) == 2
    assert probe(both, "names=[a,b]", f"dataset={small_set}", *FAST) == 0
    models = read_result(tmp_path / "out")["models"]
    assert list(models)[3:] == ["a, untrained", "a", "b"]
    rows = read_result(tmp_path / "out")["differences"]
    assert {r["difference"] for r in rows if (r["model"], r["other"]) == ("b", "a")} == {0.0}


def test_a_second_call_computes_nothing_again(
    probe, checkpoint, small_set, tmp_path, monkeypatch, capsys
):
    """Neither vectors nor fits; other strengths fit anew on the same vectors."""
    words = (f"checkpoint={checkpoint}", f"dataset={small_set}")
    assert probe(*words, *FAST) == 0
    first = (tmp_path / "out" / "table.csv").read_bytes()
    fitted = []
    fit = regressions.fit_path
    monkeypatch.setattr(regressions, "fit_path", lambda *a: fitted.append(a) or fit(*a))
    monkeypatch.setattr(
        "fracdna.embedding.states.Embedder._read", lambda *_: pytest.fail("a pass of the model")
    )
    assert probe(*words, *FAST) == 0
    assert fitted == []
    assert (tmp_path / "out" / "table.csv").read_bytes() == first
    assert "40 of 40 vectors are there" in capsys.readouterr().out
    assert probe(*words, *FAST, "l2=[0.5]") == 0
    assert len(fitted) == 2 * (2 + 1 + 2)


def test_damaged_fits_are_fitted_again(probe, small_set, tmp_path):
    """Half a file, and a file of something else."""
    assert probe(f"dataset={small_set}", *FAST) == 0
    first = (tmp_path / "out" / "table.csv").read_bytes()
    for number, path in enumerate(sorted((tmp_path / "out" / "fits").iterdir())):
        path.write_bytes(b"nothing" if number % 2 else path.read_bytes()[:200])
    assert probe(f"dataset={small_set}", *FAST) == 0
    assert (tmp_path / "out" / "table.csv").read_bytes() == first


def test_repeats_are_told_and_removed_on_request(probe, planted, write_table, tmp_path, capsys):
    """Counted in table and JSON, listed in a file; removal leaves the test alone."""
    train, test = planted(24, 1), planted(8, 2)
    flipped = DNA.decode(DNA.reverse_complement(DNA.encode(train[3][0])))
    write_table(tmp_path / "set_train.csv", train)
    write_table(tmp_path / "set_test.csv", [*test, train[0], (flipped, "1")])
    words = (f"dataset={tmp_path / 'set'}", *FAST)
    assert probe(*words) == 0
    assert "2 of 10 test rows repeat" in capsys.readouterr().out
    assert probe(*words, "dedup=true", output="clean") == 0
    for name, rows, removed in (("out", "24", "0"), ("clean", "22", "2")):
        row = read_table(tmp_path / name)["k-mers", "mcc"]
        known = (
            row["train_rows"],
            row["test_rows"],
            row["test_rows_repeated"],
            row["repeats_removed"],
        )
        assert known == (rows, "10", "2", removed)
        assert read_result(tmp_path / name)["leakage"]["test_rows_in_train_reverse_complement"] == 1
        with (tmp_path / name / "duplicates.csv").open() as file:
            listed = list(csv.DictReader(file))
        assert [(r["test_row"], r["row"], r["kind"]) for r in listed] == [
            ("set_test.csv:10", "set_train.csv:2", "exact"),
            ("set_test.csv:11", "set_train.csv:5", "reverse_complement"),
        ]


def test_rows_that_are_left_out_end_with_exit_code_1(probe, planted, write_table, tmp_path, capsys):
    write_table(tmp_path / "set_train.csv", [*planted(24, 1), ("AC GT", "1")])
    write_table(tmp_path / "set_test.csv", planted(8, 2))
    assert probe(f"dataset={tmp_path / 'set'}", *FAST) == 1
    assert "1 row left out, not_dna" in capsys.readouterr().out
    dropped = (tmp_path / "out" / "dropped.csv").read_text().splitlines()
    assert dropped[1:] == ["set_train.csv:26,train,1,not_dna"]


def test_three_classes_have_no_roc_curve(probe, random_letters, write_table, tmp_path):
    rows = [(random_letters(30, [9, n]), f"class{n % 3}") for n in range(45)]
    path = write_table(tmp_path / "set.csv", rows)
    assert probe(f"dataset={path}", *FAST, pictures=True) == 0
    assert not (tmp_path / "out" / "roc.png").exists()
    assert read_result(tmp_path / "out")["rows"]["test"] == dict.fromkeys(
        ("class0", "class1", "class2"), 3
    )


def test_intervals_of_a_genome(probe, checkpoint, store, tmp_path):
    """A labelled BED divided by position, with names that differ."""
    starts = range(0, 3960, 60)
    rows = [f"1\t{s}\t{s + 40}\t{'AT' if n % 2 else 'GC'}\t0\t-" for n, s in enumerate(starts)]
    path = tmp_path / "set.bed"
    path.write_text("\n".join(rows) + "\n")
    words = (f"dataset={path}", f"genome={store.directory}", "test_regions=[1:3001-4000]")
    assert probe(*words, *FAST) == 2
    words = (*words, f"checkpoint={checkpoint}", "rename=chr_prefix", "untrained=false")
    # whoever asks for regions has no problem with rows elsewhere
    assert probe(*words, *FAST, "train_regions=[1:101-3000]") == 0
    result = read_result(tmp_path / "out")
    assert result["genome_checksum"] == store.checksum
    assert result["divided_by"] == "regions"
    assert result["left_out"] == {"elsewhere": 2}
    assert result["leakage"]["test_intervals_overlapping_others"] == 0
    samples = pq.read_table(tmp_path / "out" / "samples.parquet").to_pylist()
    assert samples[0]["region"] == "1:3001-3040:-"


REFUSED = {
    "no set": ([], "train= is missing"),
    "two sets": (["dataset={set}", "train=a.csv"], "name it one way"),
    "method": (["dataset={set}", "method=svm"], "linear, finetune"),
    "pooling": (["dataset={set}", "pooling=none"], "one vector for each sequence"),
    "layer": (["dataset={set}", "checkpoint={model}", "layer=9"], "layer=9"),
    "seeds": (["dataset={set}", "seeds=[0,0]"], "each once"),
    "strength": (["dataset={set}", "l2=[0.0]"], "above 0"),
    "share": (["dataset={set}", "test_share=1.0"], "test_share=1.0"),
    "genome of letters": (["dataset={set}", "genome=somewhere"], "holds letters"),
    "nothing to compare": (["dataset={set}", "baselines=false"], "nothing is left"),
    "names": (["dataset={set}", "checkpoint={model}", "names=[a,b]"], "2 names for 1"),
    "no such set": (["dataset=nowhere/tf_0"], "nowhere/tf_0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_before_any_work(case, probe, checkpoint, small_set, tmp_path, capsys):
    """Exit code 2, a message that names the value, and nothing written."""
    words, message = REFUSED[case]
    filled = [word.format(set=small_set, model=checkpoint) for word in words]
    assert probe(*filled) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_package_names_its_extra(probe, small_set, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert probe(f"dataset={small_set}") == 2
    assert "pip install 'fracdna[probe]'" in capsys.readouterr().err


def test_a_vector_that_is_no_number_names_its_row(probe, model, small_set, tmp_path, capsys):
    """Exit code 1; the line of the table that has the sequence."""
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.backbone.final_norm.weight.mul_(1e38)
    fracdna.save_weights(broken, tmp_path / "broken.safetensors", dtype=torch.float32)
    words = (f"checkpoint={tmp_path / 'broken.safetensors'}", f"dataset={small_set}", *FAST)
    assert probe(*words, "untrained=false") == 1
    assert "train.csv:2: the vector of broken" in capsys.readouterr().err


def test_an_interrupted_probe_goes_on(probe, checkpoint, small_set, tmp_path, monkeypatch, capsys):
    """Ctrl-C ends with 130; what is finished is kept, and the end is that of an unbroken run."""
    words = (f"checkpoint={checkpoint}", f"dataset={small_set}", *FAST)
    assert probe(*words, output="whole") == 0
    fitted, fit = [], regressions.fit_path

    def interrupted(*arguments):
        if len(fitted) == 3:
            raise KeyboardInterrupt
        fitted.append(arguments)
        return fit(*arguments)

    monkeypatch.setattr(regressions, "fit_path", interrupted)
    assert probe(*words) == 130
    assert not (tmp_path / "out" / "result.json").exists()
    monkeypatch.setattr(regressions, "fit_path", lambda *a: fitted.append(a) or fit(*a))
    assert probe(*words) == 0
    assert len(fitted) == 2 * (1 + 2 + 2)
    assert "40 of 40 vectors are there" in capsys.readouterr().out
    tables = [(tmp_path / name / "table.csv").read_bytes() for name in ("out", "whole")]
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_fits_in_several_processes_are_the_same(probe, small_set, tmp_path):
    assert probe(f"dataset={small_set}", *FAST) == 0
    assert probe(f"dataset={small_set}", *FAST, "jobs=2", output="two") == 0
    tables = [(tmp_path / name / "table.csv").read_bytes() for name in ("out", "two")]
    assert tables[0] == tables[1]
