"""What folders are taken for, how they are told apart, and what is refused."""

import json
from pathlib import Path

import pytest

from fracdna import cli
from fracdna.report.folders import Evaluation, TrainingRun, distinct_names, open_folders
from fracdna.report.same_bases import by_bases
from fracdna_prep.errors import InputError


def test_folders_are_known_by_their_files(tmp_path, write_run, write_evaluation):
    run, results = write_run(tmp_path / "run"), write_evaluation(tmp_path / "res", {"run": 1.3})
    first, second = open_folders([str(run), str(results)], None)
    assert isinstance(first, TrainingRun)
    assert isinstance(second, Evaluation)
    assert (first.name, second.name) == ("run", "res")
    assert first.status == "complete, 120 steps"
    assert first.setting("data", "length") == 1024
    assert first.setting("data", "nothing", "at all") is None


def test_unfinished_ones_say_where_they_are(tmp_path, write_run):
    """A run without summary.json, one before its first row, an evaluation without result.json."""
    begun = write_run(tmp_path / "begun", complete=False)
    new = write_run(tmp_path / "new", complete=False)
    (new / "metrics.csv").unlink()
    partial = tmp_path / "partial"
    (partial / "cells").mkdir(parents=True)
    (partial / "regions.parquet").touch()
    (partial / "cells" / "one.npz").touch()
    opened = open_folders(list(map(str, (begun, new, partial))), None)
    assert [folder.status for folder in opened] == [
        "running or interrupted at step 120 of 120",
        "running or interrupted at step 0 of 120",
        "running or interrupted with 1 parts done",
    ]


def test_names_take_as_many_folders_as_they_need():
    names = distinct_names(list(map(Path, ("/x/a/frac", "/x/b/frac", "/y/b/frac", "/x/gdn"))))
    assert names == ["a/frac", "x/b/frac", "y/b/frac", "gdn"]


def test_given_names_must_be_as_many_and_different(tmp_path, write_run):
    runs = [str(write_run(tmp_path / name)) for name in "ab"]
    assert [f.name for f in open_folders(runs, ["x", "y"])] == ["x", "y"]
    for names in (["x"], ["x", "x"]):
        with pytest.raises(InputError, match="must be 2 different names"):
            open_folders(runs, names)


REFUSED = {
    "no folder": (lambda folder: ["nowhere"], "nowhere is not a folder"),
    "neither kind": (lambda folder: [str(folder / "empty")], "no metrics.csv or config.yaml"),
    "twice": (lambda folder: [str(folder / "run"), f"{folder}/empty/../run"], "named twice"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case, tmp_path, write_run, capsys):
    """One message that names the folder, exit code 2, nothing written."""
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "run")
    words, message = REFUSED[case]
    assert cli.run(["report", *words(tmp_path), f"output={tmp_path / 'page'}"]) == cli.REFUSED
    assert message in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


DAMAGED = {
    "result.json": ('{"models"', "not JSON"),
    "table.csv": ("model,length,bases,perplexity\na,1024,9,3.7\n", "no finite value of nll_nats"),
    "gains.csv": ("model,context_from,gain_nats\na,many,0.1\n", "cannot be read as a table"),
    "streams.csv": (f"model,contig\na,{'x' * 200_000}\n", "cannot be read as a table"),
    "positions.csv": ("model,context_from,bases,perplexity\na,4,9,nan\n", "line 2"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused_by_name(name, tmp_path, write_evaluation, capsys):
    results = write_evaluation(tmp_path / "results", {"a": 1.3})
    text, message = DAMAGED[name]
    (results / name).write_text(text)
    assert cli.run(["report", str(results), f"output={tmp_path / 'page'}"]) == cli.REFUSED
    error = capsys.readouterr().err
    assert name in error
    assert message in error


def test_a_report_takes_no_folder_that_it_is_about(tmp_path, write_run, capsys):
    """Its pictures would replace those that are there."""
    run = write_run(tmp_path / "run")
    assert cli.run(["report", str(run), f"output={run}"]) == cli.REFUSED
    assert "one of the folders that the report is about" in capsys.readouterr().err


def opened(*folders):
    return open_folders(list(map(str, folders)), None)


def test_evaluations_of_the_same_bases_are_one(tmp_path, write_evaluation):
    """Their networks stand together, count models once; other bases stay apart."""
    first = write_evaluation(tmp_path / "first", {"a": 1.30})
    second = write_evaluation(tmp_path / "second", {"b": 1.28})
    third = write_evaluation(tmp_path / "third", {"a": 1.1}, manifest="other")
    both, other = by_bases(opened(first, second, third), [])
    assert both.models(references=True) == ["a", "b", "markov-2"]
    assert [row["model"] for row in both.ranking(1024)] == ["b", "a"]
    assert len(both.rows("table", model="markov-2", part="all", length=1024)) == 1
    assert list(other.networks) == ["a"]


def retold(folder, **changes):
    """The folder with other values in its result.json."""
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_other_last_bases_stand_in_a_chart_of_their_own(tmp_path, write_evaluation):
    """The fixed curve of 2,048 bases is not about those of 1,024."""
    first = write_evaluation(tmp_path / "first", {"a": 1.30})
    second = write_evaluation(tmp_path / "second", {"b": 1.28})
    retold(second, config={"target": 2048})
    assert [list(x.networks) for x in by_bases(opened(first, second), [])] == [["a"], ["b"]]
    retold(second, config={"target": 1024})
    assert len(by_bases(opened(first, second), [])) == 1


def test_classes_of_one_name_from_two_files_are_told_apart(tmp_path, write_evaluation):
    folders = []
    for name, bases in (("first", 10), ("second", 20), ("third", 10)):
        folder = write_evaluation(tmp_path / name, {name: 1.30})
        files = {"exons": {"file": f"{bases}.bed", "bases_in_genome": bases}}
        folders.append(retold(folder, classes={"files": files}))
    (same,) = by_bases(opened(*folders), [])
    rows = [row for row in same.rows("table", group="inside") if row["model"] in same.networks]
    parts = {row["model"]: row["part"] for row in rows if row["part"] != "soft_mask"}
    assert parts == {"first": "exons", "second": "exons (second)", "third": "exons"}


def test_a_contig_streamed_twice_is_counted_once(tmp_path, write_evaluation):
    """Also where the second evaluation summed up other blocks."""
    first = write_evaluation(tmp_path / "first", {"a": 1.30})
    (alone,) = by_bases(opened(first), [])
    again = write_evaluation(tmp_path / "again", {"a": 1.30})
    lines = (again / "streams.csv").read_text().splitlines()
    names = lines[0].split(",")
    halves = []
    for line in lines[1:]:
        row = dict(zip(names, line.split(","), strict=True))
        halves.append(",".join((row | {"start": str(int(row["start"]) + 1)}).values()))
    (again / "streams.csv").write_text("\n".join([lines[0], *halves]) + "\n")
    (both,) = by_bases(opened(first, again), [])
    assert both.tables["streams"] == alone.tables["streams"]


def test_an_evaluation_that_was_begun_again_is_not_complete(tmp_path, write_evaluation):
    folder = write_evaluation(tmp_path / "a", {"a": 1.3})
    assert opened(folder)[0].status == "complete"
    assert "interrupted" in opened(retold(folder, complete=False))[0].status


@pytest.mark.parametrize(
    ("name", "value"),
    [("models", None), ("models", {"a": 3}), ("regions", [1]), ("genome", {}), ("classes", "x"),
     ("classes", {"files": {"exons": 1}}), ("without_gains", None), ("config", 5)],
)  # fmt: skip
def test_values_of_another_kind_are_refused_by_name(
    tmp_path, write_evaluation, capsys, name, value
):
    folder = retold(write_evaluation(tmp_path / "a", {"a": 1.3}), **{name: value})
    assert cli.run(["report", str(folder), f"output={tmp_path / 'page'}"]) == cli.REFUSED
    error = capsys.readouterr().err
    assert "result.json" in error
    assert f"the value of {name!r} is damaged" in error


def test_one_name_for_two_models_is_told_apart(tmp_path, write_evaluation):
    """By the evaluation's name, in every table; the same weights stay one."""
    first = write_evaluation(tmp_path / "first", {"a": 1.30})
    again = write_evaluation(tmp_path / "again", {"a": 1.30})
    other = write_evaluation(tmp_path / "other", {"a": 1.25})
    (same,) = by_bases(opened(first, again, other), [])
    assert list(same.networks) == ["a", "a (other)"]
    for table in ("positions", "gains", "streams"):
        assert {row["model"] for row in same.tables[table]} == {"a", "a (other)"}
    assert same.compared("a (other)", "a", 1024)["nll_nats"] == pytest.approx(-0.05)


def test_a_network_is_called_after_its_run(tmp_path, write_run, write_evaluation):
    """So that both have one colour, also where the run's name had to be made longer."""
    runs = [write_run(tmp_path / name / "frac") for name in "xy"]
    results = write_evaluation(tmp_path / "results", {"frac": 1.3})
    content = json.loads((results / "result.json").read_text())
    content["models"]["frac"]["checkpoint"] = str(runs[1] / "checkpoints" / "best.ckpt")
    (results / "result.json").write_text(json.dumps(content))
    found = opened(*runs, results)
    (same,) = by_bases(found[2:], found[:2])
    assert list(same.networks) == ["y/frac"]


def test_differences_are_turned_as_asked(tmp_path, write_evaluation):
    """a minus b is kept; b minus a is its negative with the ends exchanged."""
    (same,) = by_bases(opened(write_evaluation(tmp_path / "r", {"a": 1.30, "b": 1.33})), [])
    row = same.difference("b", "a", 2048)
    assert row["nll_nats"] == pytest.approx(0.032048)
    assert (row["low"], row["high"]) == pytest.approx((0.031048, 0.033048))
    assert same.difference("a", "nothing", 2048) is None


def test_an_earlier_folder_is_read(tmp_path, write_evaluation):
    """table.csv with a column for contigs, differences in result.json alone, no other tables."""
    results = tmp_path / "old"
    results.mkdir()
    rows = [f"{m},{c},1024,900,{x},2,3.7,,,3.7" for m, c, x in
            (("a", "all", 1.3), ("a", "chr1", 1.29), ("markov-2", "all", 1.4))]  # fmt: skip
    columns = "model,contig,length,bases,nll_nats,bits_per_base,perplexity,perplexity_low"
    header = f"{columns},perplexity_high,perplexity_acgt"
    (results / "table.csv").write_text("\n".join([header, *rows]))
    pair = {"model": "a", "minus": "markov-2", "length": 1024, "nll_nats": -0.1}
    result = {"models": {"a": {"weights": "w"}}}
    result["differences"] = [pair | {"low": None, "high": None}]
    (results / "result.json").write_text(json.dumps(result))
    (same,) = by_bases(opened(results), [])
    assert same.lengths == [1024]
    assert same.compared("a", "markov-2", 1024)["nll_nats"] == -0.1
    assert [row["group"] for row in same.rows("table", part="chromosome")] == ["chr1"]
    assert cli.run(["report", str(results), f"output={tmp_path / 'page'}"]) == cli.FINE
    assert "0.1000 nats per base below" in (tmp_path / "page" / "index.html").read_text()
