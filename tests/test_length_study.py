"""The length study: plan, records, evaluations of several calls, page, and a tiny one in full."""

import csv
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from matplotlib import rcParams
from matplotlib.figure import Figure
from models import tiny_model

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import run_length_study
from length_study import page, pictures, tables
from length_study.evaluations import Cell, Evaluations, Key
from length_study.plan import Study
from length_study.records import Records, record_of, seconds_before

from fracdna import cli
from fracdna.configuration import compose_configuration
from fracdna.model.checkpoint import build_model, description
from fracdna.outcomes import INTERRUPTED
from fracdna.training.curve import CurvePoint, TrainingCurve
from fracdna_prep.errors import InputError
from fracdna_prep.example import example_files
from fracdna_prep.files import exclusive_lock

SHIPPED = Study(run_length_study.STUDY)
RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "dna_length_study"
SIZE = 7.0e6
DIVERGES = 1.0e30  # learning rate

TINY = {
    "common": {
        "experiment": "dna_tiny", "data.length": 64, "data.bases_per_step": 128,
        "data.validation_bases": 128, "model.num_layers": 1,
    },
    "rates": [0.01, DIVERGES], "further_rates": [],
    "stages": {
        "grid": {"steps": 2, "validate_every": 2}, "final": {"steps": 4, "validate_every": 2},
    },
    "first_seed": 7, "validation": "two", "test": "three", "width": 256,
    "lengths_of_classes": [64, 256], "order": ["frac", "attention"], "ablation_rate": 0.01,
    "networks": {
        "frac": {"options": {"mixer": "frac"}, "speed": 3.0},
        "attention": {"options": {"mixer": "attention"}, "speed": 3.0},
        "frac_zoh": {"options": {"mixer": "frac", "model.mixer.gain": "zoh"}, "speed": 3.0},
    },
}  # fmt: skip


def written(path, **changed):
    path.write_text(yaml.safe_dump(TINY | changed, sort_keys=False))
    return path


@pytest.fixture
def tiny(tmp_path):
    return Study(written(tmp_path / "study.yaml"))


def record(study, network, stage, rate, nll=1.2, seed=None, **more):
    """A record as training would leave it."""
    run = study.run(network, stage, rate, seed)
    points = [{"step": 2, "bases": 256, "nll_nats": nll, "counted": 128}]
    about = {
        "network": network, "stage": stage, "rate": rate, "seed": run.seed, "commit": "c",
        "command": f"fracdna {' '.join(run.command('p', 'o'))}", "validation": points,
        "diverged": False, "median_bases_per_second": 2e6,
    }  # fmt: skip
    return {run.name: about | more}


def graded(study, network, *nats):
    """Records of a grid; None diverged."""
    records = {}
    for rate, nll in zip(study.rates, nats, strict=True):
        gone = {"validation": [], "diverged": True} if nll is None else {}
        records |= record(study, network, "grid", rate, nll, **gone)
    return records


def refused(capsys, *words):
    """What is said of a refused command."""
    assert run_length_study.main(list(map(str, words))) == 2
    return capsys.readouterr().err


# plan


def test_a_run_has_a_name_and_a_command():
    run = SHIPPED.run("frac_tau8k", "final", 0.001, 5)
    assert run.name == "frac_tau8k-final-0.001-5"
    words = run.command("prepared", "here")
    assert words[0] == "train"
    assert {
        "experiment=dna_7m", "mixer=frac", "+model.mixer.tau_range=[1,8192]", "seed=5",
        "optimizer.lr=0.001", "steps=3072", "data.prepared=prepared", "output=here",
    } <= set(words)  # fmt: skip
    assert run.bases == 3072 * 131072
    assert run.seconds == pytest.approx(run.bases / 3e6)


@pytest.mark.parametrize("name", SHIPPED.variants)
def test_a_variant_has_the_size_of_the_others(name):
    """Every variant composes to another FRAC of 7.0 million parameters, within 3 %."""
    first, other = (
        compose_configuration("train", SHIPPED.run(network, "grid", 0.001).options).model
        for network in ("frac", name)
    )
    assert other != first
    with torch.device("meta"):
        count = sum(weight.numel() for weight in build_model(other).parameters())
    assert abs(count / SIZE - 1) < 0.03


def test_the_best_rate_is_that_of_the_lowest_validation():
    """It is open until the grid has ended; what diverged is never the best."""
    study = SHIPPED
    records = graded(study, "gdn", 1.3, 1.1, None)
    assert study.best_rate("gdn", records) == 0.002
    assert not study.at_border("gdn", 0.002, records)
    assert study.at_border("gdn", 0.001, records)
    assert study.at_border("gdn", 0.004, records)
    assert study.runs(study.task("gdn:final:9"), records) == [study.run("gdn", "final", 0.002, 9)]
    records.pop("gdn-grid-0.004-2222")
    assert study.best_rate("gdn", records) is None
    assert study.runs(study.task("gdn:final"), records) == []
    with pytest.raises(InputError, match="gdn diverged at all rates"):
        study.best_rate("gdn", graded(study, "gdn", None, None, None))


def test_a_further_rate_counts_where_it_was_tried():
    """It is never required, may be the best, and moves the border."""
    study = SHIPPED
    assert [run.rate for run in study.grid("gdn")] == [0.001, 0.002, 0.004]
    records = graded(study, "gdn", 1.1, 1.2, 1.3)
    assert study.best_rate("gdn", records) == 0.001
    worse = records | record(study, "gdn", "grid", 0.0005, 1.15)
    assert study.best_rate("gdn", worse) == 0.001
    assert not study.at_border("gdn", 0.001, worse)
    better = records | record(study, "gdn", "grid", 0.0005, 1.05)
    assert study.best_rate("gdn", better) == 0.0005
    assert study.at_border("gdn", 0.0005, better)
    names = [run.name for run in study.runs(study.task("gdn:grid:5e-4"), records)]
    assert names == ["gdn-grid-0.0005-2222"]


def test_a_task_may_be_one_point_of_the_grid():
    names = [run.name for run in SHIPPED.runs(SHIPPED.task("frac_h8:grid:1e-3"), {})]
    assert names == ["frac_h8-grid-0.001-2222"]
    assert len(SHIPPED.runs(SHIPPED.task("frac_h8:grid"), {})) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lstm:grid", "networks are frac, frac_zoh"),
        ("frac", "a task is NETWORK:grid"),
        ("frac:long", "a task is NETWORK:grid"),
        ("frac:grid:0.003", "has the rates 0.00025, 0.0005, 0.001, 0.002, 0.004"),
        ("frac:final:one", "one is no number"),
        ("frac:final:1:2", "1:2 is no number"),
    ],
)
def test_another_task_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        SHIPPED.task(text)


def test_a_final_run_needs_its_grid_before_it():
    tasks = [SHIPPED.task(text) for text in ("frac:grid:0.001", "frac:grid:0.002", "frac:final")]
    with pytest.raises(InputError, match=r"no record of frac-grid-0\.004-2222"):
        SHIPPED.check_order(tasks, {})
    SHIPPED.check_order(tasks, record(SHIPPED, "frac", "grid", 0.004))
    with pytest.raises(InputError, match="name frac:grid before it"):
        SHIPPED.check_order([SHIPPED.task("frac:final"), SHIPPED.task("frac:grid")], {})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"order": ["frac", "lstm"]}, "describe under networks"),
        ({"ablation_rate": 0.5}, "none of the rates"),
        (
            {"stages": TINY["stages"] | {"grid": {"steps": 3, "validate_every": 2}}},
            "does not end with a validation",
        ),
        (
            {"stages": TINY["stages"] | {"grid": {"steps": 3, "validate_every": 0}}},
            "does not end with a validation",
        ),
        ({"stages": {"grid": TINY["stages"]["grid"]}}, "cannot be read as a study: .*final"),
        ({"common": {"experiment": "dna_tiny"}}, r"cannot be read as a study: .*data\.length"),
        ({"rates": ["fast"]}, "cannot be read as a study: .*fast"),
        ({"networks": None}, "cannot be read as a study"),
        (
            {"networks": TINY["networks"] | {"frac": {"options": {"mixer": "frac"}, "speed": 0}}},
            "cannot be read as a study: .*zero",
        ),
    ],
)
def test_a_study_that_contradicts_itself_is_refused(changed, message, tmp_path):
    with pytest.raises(InputError, match=message):
        Study(written(tmp_path / "study.yaml", **changed))


def test_a_file_that_is_no_study_is_refused(tmp_path):
    (tmp_path / "part.yaml").write_text("rates: [0.1]\n")
    with pytest.raises(InputError, match="lacks ablation_rate, common"):
        Study(tmp_path / "part.yaml")
    (tmp_path / "empty.yaml").touch()
    with pytest.raises(InputError, match="lacks ablation_rate, common"):
        Study(tmp_path / "empty.yaml")
    with pytest.raises(InputError, match="cannot be read as a study"):
        Study(tmp_path / "missing.yaml")


# records


def test_records_are_those_of_the_study(tiny, tmp_path):
    """Options that do not make another run may differ; a default may be said or not."""
    records = Records(tmp_path / "runs.json")
    records.add(record(tiny, "frac", "grid", 0.01))
    again = Records(tmp_path / "runs.json")
    assert again == records
    again.check(tiny)
    (name,) = again
    again[name]["command"] += " data.workers=3 optimizer.weight_decay=0.1"
    again.check(tiny)
    again[name]["command"] += " optimizer.weight_decay=0.2"
    with pytest.raises(InputError, match=r"optimizer\.weight_decay: 0\.2 there, 0\.1 now"):
        again.check(tiny)


def test_records_of_another_study_are_refused(tiny, tmp_path, capsys, prepared):
    output = tmp_path / "output"
    records = Records(output / "runs.json")
    records.add(record(tiny, "frac", "grid", 0.01))
    longer = {"grid": {"steps": 6, "validate_every": 2}, "final": TINY["stages"]["final"]}
    other = written(tmp_path / "longer.yaml", stages=longer)
    words = ["train", "frac:grid", "--prepared", prepared, "--output", output, "--study", other]
    assert "steps: 2 there, 6 now" in refused(capsys, *words)
    assert not (output / "runs").exists()
    fewer = {name: it for name, it in TINY["networks"].items() if name != "frac_zoh"}
    records.add(record(tiny, "frac_zoh", "grid", 0.01))
    with pytest.raises(InputError, match="the study has no frac_zoh grid"):
        records.check(Study(written(tmp_path / "fewer.yaml", networks=fewer)))
    (output / "runs.json").write_text("{")
    with pytest.raises(InputError, match="holds no records"):
        Records(output / "runs.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda records, name: [records[name]], "holds no records by name"),
        (lambda records, name: {name: 1}, "grid-0.01-7 is no record of a run"),
        (lambda records, name: records[name].pop("command") and records, "is no record of a run"),
        (lambda records, name: records[name].update(seed="7") or records, "is no record of a run"),
        (lambda records, name: records[name]["validation"].clear() or records, "a last validation"),
        (
            lambda records, name: (
                records[name]["validation"][0].update(nll_nats=float("nan")) or records
            ),
            "a last validation that is a number",
        ),
    ],
)
def test_what_is_no_record_is_refused(tiny, tmp_path, capsys, change, message):
    """By the page too, which would else show nothing, or an earlier validation, as the end."""
    records = record(tiny, "frac", "grid", 0.01)
    (name,) = records
    path = tmp_path / "r" / "runs.json"
    path.parent.mkdir()
    path.write_text(json.dumps(change(records, name)))
    words = ["page", "--results", path.parent, "--study", written(tmp_path / "study.yaml")]
    assert message in refused(capsys, *words)
    path.unlink()
    path.mkdir()
    assert "holds no records" in refused(capsys, *words)


def test_a_run_without_a_number_at_its_end_has_diverged(tiny, tmp_path):
    """Its last weights are useless, whatever an earlier validation was."""
    curve = TrainingCurve(tmp_path / "metrics.csv")
    curve.add(CurvePoint(2, 256, 0.2, 4.5, validation_nll=1.5, validation_bases=128))
    about = {"diverged": False}
    run = tiny.run("frac", "grid", 0.01)
    assert not record_of(run, tmp_path, about)["diverged"]
    curve.add(CurvePoint(4, 512, 0.4, 6.5, validation_nll=float("nan"), validation_bases=128))
    assert record_of(run, tmp_path, about)["diverged"]


def test_a_run_that_diverged_leaves_a_record(tiny, tmp_path):
    """At once, without any row, or after a validation that is no number."""
    run = tiny.run("frac", "grid", 0.01)
    about = {"diverged": True, "seconds": 3.0, "gibibytes": None, "commit": "c"}
    at_once = record_of(run, tmp_path / "none", about)
    assert (at_once["steps"], at_once["validation"], at_once["training"]) == (0, [], [])
    assert run_length_study.told(run, at_once) == (
        "frac-grid-0.01-7: 3 s; validation perplexity none; diverged"
    )
    assert seconds_before(tmp_path / "none") == 0
    curve = TrainingCurve(tmp_path / "metrics.csv")
    curve.add(CurvePoint(1, 128, 0.1, 2.5, bases_per_second=100.0, train_nll=2.0))
    curve.add(CurvePoint(2, 256, 0.2, 4.5, validation_nll=1.5, validation_bases=128))
    curve.add(CurvePoint(4, 512, 0.4, 6.5, validation_nll=float("nan"), validation_bases=128))
    later = record_of(run, tmp_path, about)
    assert later["steps"] == 4
    assert later["training"] == [[128, 2.0]]
    assert later["median_bases_per_second"] == 100.0
    point = {"step": 2, "bases": 256, "nll_nats": 1.5, "counted": 128}
    assert later["validation"] == [point]
    assert seconds_before(tmp_path) == 6.5


def test_what_is_published_is_of_the_shipped_study(tmp_path):
    """Its records and evaluations are read, and fill its page; a second time changes nothing."""
    records = Records(RESULTS / "runs.json")
    records.check(SHIPPED)
    evaluations = Evaluations(RESULTS, SHIPPED)
    assert evaluations.networks[:3] == ["frac", "frac_zoh", "attention"]
    copy = tmp_path / "page.md"
    shutil.copy(RESULTS.with_suffix(".md"), copy)
    filled = tables.all_tables(SHIPPED, records, evaluations)
    page.fill(copy, filled)
    first = copy.read_text()
    page.fill(copy, filled)
    assert copy.read_text() == first
    assert filled["perplexity"] in first


# training


@pytest.fixture(scope="module")
def trained(prepared, tmp_path_factory):
    """A study trained by the command line: a rate that works and one that diverges."""
    folder = tmp_path_factory.mktemp("study")
    study = written(folder / "study.yaml")
    words = ["--prepared", str(prepared), "--output", str(folder), "--study", str(study)]
    words += ["--commit", "c0ffee"]
    tasks = ["frac:grid", "frac:final", "frac_zoh:grid:0.01"]
    assert run_length_study.main(["train", *tasks, *words]) == 0
    return folder, words


def test_a_study_is_trained_and_knows_what_diverged(trained):
    records = json.loads((trained[0] / "runs.json").read_text())
    diverged = f"frac-grid-{DIVERGES:g}-7"
    assert set(records) == {
        "frac-grid-0.01-7", diverged, "frac-final-0.01-7", "frac_zoh-grid-0.01-7",
    }  # fmt: skip
    assert [name for name, it in records.items() if it["diverged"]] == [diverged]
    final = records["frac-final-0.01-7"]
    assert [point["step"] for point in final["validation"]] == [2, 4]
    assert 1 < final["validation"][-1]["nll_nats"] < 4
    assert final["median_bases_per_second"] > 0
    assert final["commit"] == "c0ffee"
    assert "model.num_layers=1" in final["command"].split()
    json.dumps(records, allow_nan=False)


def test_what_has_a_record_is_not_trained_again(trained, monkeypatch, capsys):
    """Other runs are; one that does not fit into the time is left out, and what depends on it."""
    _, words = trained
    trains = []
    monkeypatch.setattr(run_length_study, "train", lambda config: trains.append(config) or 0)
    assert run_length_study.main(["train", "frac:grid", "frac:final", *words]) == 0
    assert trains == []
    tasks = ["attention:grid", "attention:final"]
    assert run_length_study.main(["train", *tasks, "--seconds", "1", *words]) == 0
    assert trains == []
    printed = capsys.readouterr().out
    assert "attention-grid-0.01-7: left out" in printed
    assert "attention:final: left out, its grid is not complete" in printed


def test_an_interrupted_run_has_no_record_and_goes_on(trained, monkeypatch, capsys):
    folder, words = trained
    before = (folder / "runs.json").read_text()
    configs = []
    monkeypatch.setattr(
        run_length_study, "train", lambda config: configs.append(config) or INTERRUPTED
    )
    assert run_length_study.main(["train", "frac:final:8", "attention:grid", *words]) == INTERRUPTED
    assert [(config.seed, config.resume) for config in configs] == [(8, True)]
    assert (folder / "runs.json").read_text() == before
    assert "frac-final-0.01-8: interrupted, the same command goes on" in capsys.readouterr().err


def test_training_is_refused_before_any_work(trained, tmp_path, capsys):
    _, (_, prepared, _, output, *words) = trained
    train = ["train", "--output", output, *words, "--prepared"]
    assert "no such folder" in refused(capsys, *train, tmp_path / "missing", "frac:grid")
    assert "networks are frac" in refused(capsys, *train, prepared, "frac:grid", "lstm:grid")
    assert "no record of attention-grid" in refused(capsys, *train, prepared, "attention:final")


# evaluations


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Two networks and counts on the bundled DNA, each for itself, and all in one call."""
    folder = tmp_path_factory.mktemp("evaluated")
    example = example_files()
    prepare = [
        f"fasta={example.fasta}", f"intervals={example.splits_bed}", "split=bed", "length=[256]",
        f"output={folder / 'p'}", "progress=false",
    ]  # fmt: skip
    assert cli.run(["prepare", *prepare]) == 0
    for name, mixer in (("frac", "frac"), ("attention", "attention"), ("other", "frac")):
        model = tiny_model(mixer, "model.num_layers=1")
        state = {f"model.{key}": weight for key, weight in model.state_dict().items()}
        about = description(model) | {"recipe": {"data": {"length": 64}}}
        torch.save({"state_dict": state, "fracdna": about}, folder / f"{name}.ckpt")

    def evaluate(output, files, names=None, *options):
        words = [f"checkpoint=[{','.join(str(folder / f'{file}.ckpt') for file in files)}]"]
        words += [f"names=[{','.join(names or files)}]"]
        common = {
            "prepared": folder / "p", "output": folder / output, "lengths": "[64,256]",
            "target": 32, "regions": 6, "markov": "false", "progress": "false", "device": "cpu",
            "classes": f"{{r: {example.regions_bed}}}",
        }  # fmt: skip
        common |= dict(option.split("=") for option in options)
        words = (words if files else []) + [f"{key}={value}" for key, value in common.items()]
        with pytest.MonkeyPatch.context() as patch:
            # pictures of evaluations are not what is joined
            patch.setattr(Figure, "savefig", lambda figure, path, **_: Path(path).touch())
            assert cli.run(["evaluate", *words]) == 0
        return folder / output

    evaluate("one", ["frac"])
    evaluate("two", ["attention"])
    evaluate("counts", [], None, "markov=true")
    evaluate("both", ["frac", "attention"], None, "markov=true")
    evaluate.folder = folder
    return evaluate


def joined(folder, study, *evaluations):
    found = Evaluations(folder, study)
    for evaluation in evaluations:
        found.add(evaluation)
    found.write()
    return Evaluations(folder, study)


def test_joined_evaluations_differ_as_those_of_one_call(evaluated, tiny, tmp_path):
    """Value and interval of every paired difference, of classes and of the best counts too."""
    folder = evaluated.folder
    known = joined(tmp_path / "r", tiny, folder / "two", folder / "counts", folder / "one")
    assert known.networks == ["frac", "attention"]
    assert known.count_models == [f"markov-{order}" for order in range(13)]
    compared, kinds = 0, set()
    for row in csv.DictReader((folder / "both" / "differences.csv").open()):
        place = int(row["length"]), row["curve"], (row["part"], row["group"])
        first, second = (known.cell(row[name], *place) for name in ("model", "minus"))
        if row["curve"] == "fixed" and row["part"] != "all":
            assert first is None
            continue
        expected = [float(row[name]) for name in ("nll_nats", "low", "high") if row[name]]
        mean = first.minus(second)
        found = [value for value in mean if value is not None]
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
        compared, kinds = compared + 1, kinds | {row["part"], row["minus"]}
    assert compared > 20
    assert {"all", "r", "gc", "attention", known.best_counts} <= kinds


def test_without_counts_and_records_the_page_has_what_there_is(evaluated, tmp_path, capsys):
    """Empty cells and sentences where something is unknown; pictures of what is known."""
    results, study = tmp_path / "r", written(tmp_path / "study.yaml")
    words = ["--results", str(results), "--study", str(study)]
    one = evaluated.folder / "one"
    assert run_length_study.main(["add", str(one), *words]) == 0
    names = ("networks", "differences", "counts", "rates", "carried", "classes")
    places = "\n".join(f"<!-- table {name} -->\n<!-- end -->" for name in names)
    results.with_suffix(".md").write_text(places)
    assert run_length_study.main(["page", *words]) == 0
    text = results.with_suffix(".md").read_text()
    assert text.count(tables.NOTHING) == 3
    assert "| `frac` | " in text
    assert " |  |  |  |  |  |  |\n" in text
    assert "emptied every 64," in text
    assert "| all | 1,536 | " in text
    drawn = {path.name for path in results.glob("*.png")}
    assert {"perplexity.png", "fixed.png", "classes.png", "gains.png"} <= drawn
    assert (
        "without a place there: ablation, close, commands, fixed, perplexity"
        in capsys.readouterr().out
    )


def test_other_weights_by_the_same_name_are_refused(evaluated, tiny, tmp_path):
    """They may be called another seed, or take the place of the first."""
    folder = evaluated.folder
    known = joined(tmp_path / "r", tiny, folder / "one", folder / "two")
    other = evaluated("again", ["other"], ["frac"])
    seed = evaluated("seed", ["other"], ["frac@8"])
    before = known.cell("frac", 64).mean
    with pytest.raises(InputError, match=r"frac in .* has other weights"):
        known.add(other)
    assert known.cell("frac", 64).mean == before
    known.add(seed)
    assert known.networks == ["frac", "frac@8", "attention"]
    assert known.cell("frac@8", 64).mean != before
    assert "| `frac@8` |" in tables.by_length(known, "tiling")
    known.add(other, replace=True)
    assert known.cell("frac", 64).mean == known.cell("frac@8", 64).mean
    assert len({key for key in known.cells if key.model == "attention"}) > 10


@pytest.mark.parametrize(
    ("names", "option", "message"),
    [
        (["lstm"], "regions=6", "lstm is no network of the study"),
        (["frac@one"], "regions=6", "frac@one is no network"),
        (["frac"], "regions=5", "scored other bases"),
        (["frac"], "target=16", "scored other bases"),
        (["frac"], "lengths=[64,128]", "regions of 128 bases, the study has regions of 256"),
    ],
)
def test_evaluations_of_something_else_are_refused(
    names, option, message, evaluated, tiny, tmp_path
):
    known = joined(tmp_path / "r", tiny, evaluated.folder / "two")
    other = evaluated(tmp_path.name, ["frac"], names, option)
    with pytest.raises(InputError, match=message):
        known.add(other)


def test_passes_over_wider_regions_are_joined_alone(evaluated, tiny, tmp_path):
    """Their cells are of other bases and stay out."""
    known = joined(tmp_path / "r", tiny, evaluated.folder / "one")
    cells = set(known.cells)
    known.add(evaluated("wide", ["frac"], None, "lengths=[64,512]"), carried=True)
    assert set(known.cells) == cells
    assert {int(row["span"]) for row in known.carried} == {256, 512}
    known.write()
    table = tables.carried(tiny, Evaluations(known.folder, tiny))
    assert "| `frac` | 256 | 6 | 128 to 255 |" in table
    assert "| `frac` | 512 | 6 | 256 to 511 |" in table


def test_a_folder_without_a_complete_evaluation_is_refused(tiny, tmp_path, capsys):
    known = Evaluations(tmp_path, tiny)
    with pytest.raises(InputError, match="no complete evaluation"):
        known.add(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(InputError, match="give its command again"):
        known.add(tmp_path)
    (tmp_path / "networks.json").write_text(json.dumps({"bases": {}, "models": {}}))
    with pytest.raises(InputError, match="holds no evaluations of a study"):
        Evaluations(tmp_path, tiny)
    assert "nothing to add" in refused(capsys, "add", "--results", tmp_path)
    missing = ["add", "--results", tmp_path, "--records", tmp_path / "none.json"]
    assert "no such file" in refused(capsys, *missing)


def _turned(path):
    table = pq.read_table(path)
    nats = table["nll_nats"].to_numpy().copy()
    nats[3] = np.nan
    place = table.column_names.index("nll_nats")
    pq.write_table(table.set_column(place, "nll_nats", pa.array(nats)), path)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("samples.parquet", Path.unlink, "is damaged, copy it again"),
        ("samples.parquet", lambda path: path.write_bytes(b"PAR1"), "is damaged, copy it again"),
        ("samples.parquet", _turned, "has nats that are no numbers"),
        ("gains.csv", Path.unlink, "is damaged, copy it again"),
        (
            "gains.csv",
            lambda path: path.write_text(path.read_text()[:-9]),
            "gains.csv is not whole",
        ),
        ("gains.csv", lambda path: path.write_text(""), "gains.csv is not whole"),
        ("result.json", lambda path: path.write_text("[1]"), "no complete evaluation of regions"),
        (
            "result.json",
            lambda path: path.write_text('{"complete": true, "regions": {"width": 256}}'),
            "no complete evaluation of regions",
        ),
    ],
)
def test_a_damaged_evaluation_is_refused(name, damage, message, evaluated, tiny, tmp_path):
    """Copied in part, of an older version, or of weights that gave no numbers."""
    folder = tmp_path / "damaged"
    shutil.copytree(evaluated.folder / "one", folder)
    damage(folder / name)
    with pytest.raises(InputError, match=message):
        Evaluations(tmp_path / "r", tiny).add(folder)


@pytest.mark.parametrize(
    ("name", "text"), [("networks.json", "{}"), ("networks.json", "[]"), ("carried.csv", "a\n1\n")]
)
def test_damaged_results_are_refused(name, text, evaluated, tiny, tmp_path):
    joined(tmp_path / "r", tiny, evaluated.folder / "one")
    (tmp_path / "r" / name).write_text(text)
    with pytest.raises(InputError, match="holds no evaluations of a study"):
        Evaluations(tmp_path / "r", tiny)


def test_one_process_adds_at_a_time(tmp_path, capsys):
    """What the other one adds would be lost."""
    study, records = written(tmp_path / "study.yaml"), tmp_path / "runs.json"
    Records(records).add(record(Study(study), "frac", "grid", 0.01))
    words = ["add", "--results", tmp_path / "r", "--study", study, "--records", records]
    with exclusive_lock(tmp_path / "r" / ".lock"):
        assert "another process works on" in refused(capsys, *words)
    assert not (tmp_path / "r" / "runs.json").exists()


def test_networks_that_are_equal_differ_by_nothing(evaluated, tiny, tmp_path):
    """Also in the table of pairs, and both are the best of a grid."""
    twin = evaluated("twin", ["frac"], ["attention"])
    known = joined(tmp_path / "r", tiny, evaluated.folder / "one", twin)
    rows = tables.differences(tiny, known).splitlines()[2:]
    assert rows == ["| `attention` | +0.00 [+0.00, +0.00] | +0.00 [+0.00, +0.00] |"]
    records = graded(tiny, "frac", 1.2, 1.2)
    assert tables.rates(tiny, records).count("**3.3201**") == 2
    assert tiny.best_rate("frac", records) == 0.01


def test_another_record_of_a_known_run_is_refused(tmp_path, capsys):
    study = written(tmp_path / "study.yaml")
    words = ["--results", tmp_path / "r", "--study", study, "--records", tmp_path / "runs.json"]
    for nll, expected in ((1.2, 0), (1.2, 0), (1.3, 2)):
        Records(tmp_path / "runs.json").add(record(Study(study), "frac", "grid", 0.01, nll))
        assert run_length_study.main(["add", *map(str, words)]) == expected
    assert "other records of frac-grid-0.01-7" in capsys.readouterr().err
    assert run_length_study.main(["add", "--replace", *map(str, words)]) == 0
    (kept,) = Records(tmp_path / "r" / "runs.json").values()
    assert kept["validation"][-1]["nll_nats"] == 1.3


# tables and pictures


def test_the_table_of_rates_marks_the_best_and_the_border():
    records = graded(SHIPPED, "frac", 1.3, 1.1, None) | graded(SHIPPED, "gdn", 1.0, 1.1, 1.2)
    records |= record(SHIPPED, "frac_h8", "grid", 0.001)
    _, _, *rows = tables.rates(SHIPPED, records).splitlines()
    assert rows == [
        f"| `frac` | {np.exp(1.3):.4f} | **{np.exp(1.1):.4f}** | diverged |",
        f"| `gdn` | **{np.exp(1.0):.4f}** (border) | {np.exp(1.1):.4f} | {np.exp(1.2):.4f} |",
    ]
    records |= record(SHIPPED, "gdn", "grid", 0.0005, 1.05)
    head, _, frac, gdn = tables.rates(SHIPPED, records).splitlines()
    assert head == "| network | 0.0005 | 0.001 | 0.002 | 0.004 |"
    assert frac.startswith(f"| `frac` |  | {np.exp(1.3):.4f} |")
    assert f"| **{np.exp(1.0):.4f}** |" in gdn


def test_the_table_of_the_ablation_stands_variants_beside_the_first():
    records = record(SHIPPED, "frac", "grid", 0.001, 1.1)
    records |= record(SHIPPED, "frac_h8", "grid", 0.001, 1.0975)
    records |= record(SHIPPED, "frac_m32", "grid", 0.001, diverged=True)
    records |= record(SHIPPED, "frac_tau8k", "grid", 0.001, 1.1)
    records |= record(SHIPPED, "frac_routes", "grid", 0.002)
    _, _, *rows = tables.ablation(SHIPPED, records).splitlines()
    assert rows == [
        f"| `frac` |  | {np.exp(1.1):.4f} |  | 2.00 |",
        f"| `frac_tau8k` | `model.mixer.tau_range=[1,8192]` | {np.exp(1.1):.4f} | +0.00 | 2.00 |",
        "| `frac_h8` | `model.mixer.num_heads=8`, `model.num_layers=13` | "
        f"{np.exp(1.0975):.4f} | -2.50 | 2.00 |",
        "| `frac_m32` | `model.mixer.num_modes=32`, `model.num_layers=13` | diverged |  | 2.00 |",
    ]


def test_a_network_has_the_record_of_its_seed():
    """Of two rates the one with the better validation; none where there is none."""
    records = record(SHIPPED, "frac", "final", 0.001, 1.2)
    records |= record(SHIPPED, "frac", "final", 0.002, 1.1)
    records |= record(SHIPPED, "frac", "final", 0.001, 1.0, seed=3)
    assert tables.final_record(SHIPPED, "frac", records)["rate"] == 0.002
    assert tables.final_record(SHIPPED, "frac@3", records)["validation"][-1]["nll_nats"] == 1.0
    assert tables.final_record(SHIPPED, "frac@4", records) is None
    assert tables.final_record(SHIPPED, "gdn", records) is None


@pytest.fixture
def known(tmp_path):
    """Three networks, of which the Transformer breaks down beyond the training length."""
    known = Evaluations(tmp_path / "none", SHIPPED)
    for name, nats in {"attention": 1.16, "frac": 1.14, "frac@5": 1.15, "hyena": 1.3}.items():
        known.facts["models"][name] = {"parameters": 1, "state_scalars": 1}
        for length in (4096, 8192, 65536):
            more = 0.2 if (name, length) == ("attention", 65536) else 0.0
            cell = Cell(np.array([nats + more, nats + more]), np.array([1, 1]))
            for group in (("all", "all"), ("exons", "inside")):
                known.cells[Key(name, "tiling", *group, length)] = cell
    return known


def test_close_pairs_are_those_that_are_close_at_the_training_length(known):
    """Whatever they are elsewhere; the first of the study has its own table."""
    assert tables.close_pairs(SHIPPED, known) == tables.NOTHING
    for name in ("gdn", "mamba2"):
        for length, nats in {8192: 1.299, 65536: 1.31}.items():
            cell = Cell(np.array([nats, nats]), np.array([1, 1]))
            known.cells[Key(name, "tiling", "all", "all", length)] = cell
            known.facts["models"][name] = {"parameters": 1, "state_scalars": 1}
    _, _, *rows = tables.close_pairs(SHIPPED, known).splitlines()
    assert [row.split(" | ")[0] for row in rows] == [
        "| `mamba2` less `gdn`", "| `hyena` less `gdn`", "| `hyena` less `mamba2`",
    ]  # fmt: skip
    assert rows[1].split(" | ")[1:] == ["", "+1.00 [+1.00, +1.00]", "-10.00 [-10.00, -10.00] |"]


def test_a_network_has_one_color_in_all_pictures(known, tmp_path, monkeypatch):
    """Of further seeds a paler one; what leaves a picture says so in the legend."""
    seen = {}

    def look(path, lines, **_):
        colors = [style["color"] for style in rcParams["axes.prop_cycle"]]
        for name, color in zip([*lines], colors, strict=True):
            label = name if isinstance(lines, dict) else name.name
            seen.setdefault(path.name, {})[label] = color

    monkeypatch.setattr(pictures, "draw_lines", look)
    monkeypatch.setattr(pictures, "draw_points", look)
    records = record(SHIPPED, "frac", "final", 0.001)
    records |= record(SHIPPED, "frac", "final", 0.001, seed=5)
    records |= record(SHIPPED, "mamba2", "final", 0.001, validation=[], diverged=True)
    drawn = pictures.draw_all(tmp_path / "p", SHIPPED, records, known)
    assert {path.name for path in drawn} == {
        "training.png", "speed.png", "rates.png", "perplexity.png", "differences.png",
        "classes.png",
    }  # fmt: skip
    assert set(seen["perplexity.png"]) == {
        "frac", "frac@5", "attention, above from 64K on", "hyena, above throughout",
    }  # fmt: skip
    colors = {}
    for lines in seen.values():
        for label, color in lines.items():
            colors.setdefault(label.partition(",")[0], set()).add(color)
    assert all(len(found) == 1 for found in colors.values())
    assert len(set.union(*colors.values())) == len(colors) == 4


def test_classes_are_drawn_where_every_network_works(known):
    assert pictures.longest_unbroken(SHIPPED, known) == 8192
    key = Key("attention", "tiling", "all", "all", 65536)
    known.cells[key] = known.cells[key._replace(length=8192)]
    assert pictures.longest_unbroken(SHIPPED, known) == 65536


# page


def test_a_page_gets_its_tables_and_keeps_its_prose(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(
        "a\n<!-- table one -->\nold\n<!-- end -->\nb\n<!-- table two -->\n<!-- end -->\n"
    )
    given = {"one": "| 1 \\1 |", "two": "2", "three": "3"}
    assert page.fill(path, given) == ["three"]
    expected = (
        "a\n<!-- table one -->\n| 1 \\1 |\n<!-- end -->\nb\n<!-- table two -->\n2\n<!-- end -->\n"
    )
    assert path.read_text() == expected
    page.fill(path, given)
    assert path.read_text() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table four -->\n<!-- end -->", "asks for the tables four"),
        ("<!-- table one -->\n<!-- table one -->\n<!-- end -->", "lacks its `<!-- end -->`"),
    ],
)
def test_a_page_that_cannot_be_filled_is_refused_and_kept(text, message, tmp_path):
    path = tmp_path / "page.md"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        page.fill(path, {"one": "1"})
    assert path.read_text() == text
    with pytest.raises(InputError, match="no such page"):
        page.fill(tmp_path / "missing.md", {"one": "1"})
