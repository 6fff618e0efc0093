import csv
import json
import multiprocessing

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torch.testing import assert_close

from fracdna import cli, load_model
from fracdna.benchmarks import probe_run, small_training, sweep
from fracdna.benchmarks.heavy_tail import NEGATIVE, POSITIVE, HeavyTail
from fracdna.benchmarks.heavy_tail_test import StreamTest
from fracdna.benchmarks.networks import network_config
from fracdna.benchmarks.small_training import Recipe, train_small, validation_nll
from fracdna.benchmarks.stream_reading import Reading, StreamReader
from fracdna.configuration import configs_folder
from fracdna.model.carried import state_tensors
from fracdna.model.checkpoint import build_model
from fracdna.outcomes import NotFinite

SIZE = {"size": "probe_tiny", "d_model": 32}
TASK = HeavyTail(0.1, "dense", 40)
LINES = ["task.length=40", "task.lengths=[40,100]", "task.steps=2", "task.batch=2",
         "task.validation=3", "task.streams=6", "segment=32", "progress=false"]  # fmt: skip


def network(words="frac", task=TASK):
    torch.manual_seed(0)
    return build_model(network_config(words, task, SIZE)).eval()


def reading(**changes):
    fixed = {"precision": torch.float32, "segment": 32, "batch_positions": 64}
    return Reading(**(fixed | {"growing_limit": 1000} | changes))


def rows_of(test, model, done=None, **changes):
    parts = list(test.run(model, reading(**changes), done or {}, lambda _: None))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def run(output, *words):
    return cli.run(["benchmark", "preset=smoke", *LINES, *words, f"output={output}"])


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


SIZES = ("probe_tiny", "probe", "probe_large", "recall_16k", "recall_32k", "recall_64k")


@pytest.mark.parametrize("size", SIZES)
def test_mixers_of_a_size_have_one_width_and_depth(size):
    """And the same options as in the size of another kind, but for an MLP."""
    files = {path.stem: path for path in (configs_folder() / "size" / size).glob("*.yaml")}
    assert {"frac", "attention", "gdn", "mamba2", "mamba3", "post_mamba2", "rwkv7"} <= set(files)
    numbers = {name: yaml.safe_load(path.read_text()) for name, path in files.items()}
    assert len({(given["d_model"], given["num_layers"]) for given in numbers.values()}) == 1
    for name, given in numbers.items():
        known = yaml.safe_load(
            (configs_folder() / "size" / "dna_tiny" / f"{name}.yaml").read_text()
        )
        assert set(given) == set(known) - {"mlp"}
        assert set(given["mixer"]) == set(known["mixer"])


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_every_mixer_of_a_size_builds_without_an_mlp(size):
    for path in (configs_folder() / "size" / size).glob("*.yaml"):
        config = network_config(path.stem, TASK, {"size": size, "d_model": None})  # builds it
        assert config["mlp"] is None


@pytest.mark.slow
@pytest.mark.parametrize(("size", "scalars"), [("16k", 16384), ("32k", 32768), ("64k", 65536)])
def test_memories_of_associative_recall_are_of_one_size(size, scalars):
    """d^2 / heads numbers a layer, tails of convolutions and FRAC, which is given more, aside."""
    for mixer in ("gdn", "gla", "retnet", "post_gla", "post_gdn", "mamba2", "mamba3", "rwkv7"):
        options = {"size": f"recall_{size}", "d_model": None}
        model = build_model(network_config(mixer, TASK, options))
        memories = [
            max(part.numel() for part in state_tensors(state)) for state in model.initial_state(1)
        ]
        assert memories == [scalars, scalars], mixer


@pytest.mark.parametrize("mixer", ["frac", "attention", "post_mamba2", "rwkv7"])
def test_segments_and_batches_change_nothing(mixer):
    """Whole, in segments of several sizes, alone or together: the same states at the places."""
    model = network(mixer)
    ids = torch.randint(0, 3, (3, 70), generator=torch.Generator().manual_seed(1))
    places = [0, 31, 32, 69]
    with torch.inference_mode():
        whole = model.backbone(ids)[:, places]
    for segment in (7, 32, 100):
        read = []
        reader = StreamReader(model.backbone, reading(segment=segment), read.append)
        together = reader.hidden_at(ids, places)
        alone = torch.cat([reader.hidden_at(row[None], places) for row in ids])
        assert_close(together, whole, rtol=0, atol=1e-5)
        assert_close(alone, whole, rtol=0, atol=1e-5)
        assert sum(read) == 2 * ids.numel()


def test_networks_whose_state_grows_read_whole_streams_up_to_a_limit():
    test = StreamTest(TASK, (40, 100), 2)
    assert set(rows_of(test, network("attention"), growing_limit=50)["length"]) == {40}
    assert set(rows_of(test, network("frac"), growing_limit=50)["length"]) == {40, 100}


def test_a_test_goes_on_with_the_streams_that_are_missing():
    test, model = StreamTest(TASK, (40, 100), 5), network()
    whole = rows_of(test, model)
    rest = rows_of(test, model, {"100": {0, 1, 3}})
    kept = np.isin(whole["index"], [2, 4])
    for name, values in whole.items():
        np.testing.assert_array_equal(values[kept], rest[name]) if name in ("index", "set") else (
            np.testing.assert_allclose(values[kept], rest[name], atol=1e-6)
        )


def test_labels_that_a_model_cannot_tell_apart_are_worth_a_half():
    model, test = network(), StreamTest(TASK, (40,), 5)
    with torch.no_grad():
        rows = model.backbone.embedding.weight
        rows[POSITIVE] = rows[NEGATIVE]
    found = rows_of(test, model)
    assert set(found["correct"]) == {0.5}
    assert set(found["tied"]) == {1.0}


def test_an_answer_that_is_not_finite_ends_the_test_with_its_stream():
    model, test = network("attention"), StreamTest(TASK, (40,), 5)
    first = next(
        n for n in range(5) if test.streams_of(test.spans()[0], [n], torch.device("cpu"))[0].sum()
    )
    with torch.no_grad():
        model.backbone.embedding.weight[1:3] = torch.nan  # what events are read as
    with pytest.raises(NotFinite, match=f"stream {first} of the test is NaN"):
        rows_of(test, model)


def recipe(**changes):
    fixed = {"rate": 1e-2, "seed": 1, "steps": 3, "batch": 4, "weight_decay": 0.1}
    return Recipe(**(fixed | {"warmup": 0.02, "final": 0.1, "clip": 1.0} | changes))


def trained(changes, task=TASK, words="attention"):
    model = network(words, task)
    losses = train_small(model, task, recipe(**changes), torch.float32, lambda _: None)
    return losses, model


def test_training_depends_on_its_seed_alone(monkeypatch):
    """Not on how many steps' samples are made together; another seed sees other samples."""
    losses, model = trained({"steps": 5})
    monkeypatch.setattr(small_training, "AHEAD", 2)
    again, other = trained({"steps": 5})
    assert losses == again
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
    assert trained({"steps": 5, "seed": 2})[0] != losses


def test_a_model_learns_what_it_is_trained_on():
    """With so steep weights the newest event decides alone, and a few steps find it."""
    steep = HeavyTail(5.0, "dense", 24, event_rate=0.5, first_dense=4)
    before = validation_nll(network("frac", steep), steep, 64, torch.float32, 4096)
    _, model = trained({"steps": 30, "batch": 16}, steep, "frac")
    after = validation_nll(model, steep, 64, torch.float32, 4096)
    assert before > 1.5
    assert after < 0.5  # a guess between the labels costs log 2, 0.69


def test_a_loss_that_is_not_finite_ends_training_with_its_samples():
    with pytest.raises(NotFinite, match=r"step 2 \(samples 4 to 7\)"):
        trained({"rate": 1e38})


@pytest.mark.slow
def test_smoke(tmp_path):
    """The preset as it is: all files, whole, with what the picture and any statistic need."""
    output = tmp_path / "smoke"
    assert cli.run(["benchmark", "preset=smoke", "progress=false", f"output={output}"]) == 0
    result = json.loads((output / "result.json").read_text())
    assert result["complete"] is True
    assert result["positions_trained"] == 150 * 32 * 64
    (run_,) = result["runs"]
    model = load_model(output / "runs" / run_["folder"] / "model.safetensors")
    assert run_["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert run_["state_scalars"] == model.backbone.state_size()
    assert run_["last_loss"] < run_["losses"][0] - 0.5
    rows = table(output / "table.csv")
    assert {int(row["length"]) for row in rows} == {64, 128, 256, 512, 1024}
    assert {row["name"] for row in rows if row["kind"] == "oracle"} >= {"counter"}
    samples = pq.read_table(output / "samples.parquet").to_pandas()
    of_frac = [row for row in rows if row["kind"] == "network"]
    for row in of_frac:
        correct = samples[samples["length"] == int(row["length"])]["correct"]
        assert float(row["accuracy"]) == pytest.approx(correct.mean())
        assert float(row["accuracy_low"]) <= float(row["accuracy"]) <= float(row["accuracy_high"])
    assert (output / "plot.png").stat().st_size > 10_000


def test_a_sweep_tries_rates_and_repeats_the_best_and_is_never_computed_twice(
    tmp_path, monkeypatch, capsys
):
    """One seed at every rate, further seeds at the best; then the same call reads all of it."""
    words = ["task.mixers=[attention,'frac mixer.gain=zoh']", "task.learning_rates=[1e-5,1e-2]",
             "task.seeds=[1,2,3]", "task.labels=[final]"]  # fmt: skip
    assert run(tmp_path, *words) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["runs"]) == 2 * (2 + 2)
    for name in ("attention", "frac mixer.gain=zoh"):
        of_network = [found for found in result["runs"] if found["network"] == name]
        first = [found for found in of_network if found["seed"] == 1]
        best = min(first, key=lambda found: found["validation_nll"])["learning_rate"]
        assert {f["learning_rate"] for f in of_network if f["seed"] > 1} == {best}
    for row in table(tmp_path / "summary.csv"):
        of_row = [
            float(r["accuracy"]) for r in table(tmp_path / "table.csv")
            if (r["name"], r["length"], r["chosen"]) == (row["name"], row["length"], "True")
        ]  # fmt: skip
        assert len(of_row) == int(row["seeds"]) == 3
        assert float(row["accuracy"]) == pytest.approx(np.mean(of_row))
        assert [float(row["lowest"]), float(row["highest"])] == [min(of_row), max(of_row)]
    for row in table(tmp_path / "differences.csv"):
        assert (row["name"], row["against"]) == ("frac mixer.gain=zoh", "attention")
        means = {r["name"]: float(r["accuracy"]) for r in table(tmp_path / "summary.csv")
                 if r["length"] == row["length"]}  # fmt: skip
        both = means[row["name"]] - means[row["against"]]
        assert float(row["difference"]) == pytest.approx(both)
    printed = capsys.readouterr().out
    monkeypatch.setattr(sweep, "execute", lambda *_: pytest.fail("computed again"))
    assert run(tmp_path, *words) == 0
    assert capsys.readouterr().out == printed


def test_an_interrupted_run_goes_on_where_it_was(tmp_path, monkeypatch):
    """The trained model and the streams that were tested are kept; the numbers are the same."""
    words = ["task.mixers=[attention]", "batch_positions=200"]
    assert run(tmp_path / "whole", *words) == 0
    test_run = StreamTest.run

    def interrupted(*given):
        for number, columns in enumerate(test_run(*given)):
            if number == 2:
                raise KeyboardInterrupt
            yield columns

    with monkeypatch.context() as patch:
        patch.setattr(StreamTest, "run", interrupted)
        assert run(tmp_path / "cut", *words) == 130
    assert not (tmp_path / "cut" / "result.json").exists()
    monkeypatch.setattr(probe_run, "train_small", lambda *_: pytest.fail("trained again"))
    read = []
    monkeypatch.setattr(
        StreamTest, "run", lambda *given: (read.append(c) or c for c in test_run(*given))
    )
    assert run(tmp_path / "cut", *words) == 0
    assert 0 < sum(len(set(columns["index"])) for columns in read) < 6
    both = [pq.read_table(tmp_path / name / "samples.parquet").to_pandas().sort_values(
        ["index", "length"], ignore_index=True) for name in ("whole", "cut")]  # fmt: skip
    assert both[0].equals(both[1])


def test_a_run_that_diverges_is_told_and_does_not_stop_the_others(tmp_path, capsys):
    words = ["task.mixers=[attention]", "task.learning_rates=[1e-3,1e38]", "task.seeds=[1,2]"]
    assert run(tmp_path, *words) == 1
    assert "learning_rate=1e+38" in capsys.readouterr().err
    result = json.loads((tmp_path / "result.json").read_text())
    assert [(r["learning_rate"], r["seed"], r["status"] == "fine") for r in result["runs"]] == [
        (1e-3, 1, True), (1e38, 1, False), (1e-3, 2, True),
    ]  # fmt: skip


@pytest.mark.slow
def test_processes_find_what_one_finds(tmp_path):
    """Two at once, each a run of its own; none is left afterwards."""
    words = ["task.mixers=[attention,frac]", "task.seeds=[1,2]"]
    assert run(tmp_path / "one", *words) == 0
    assert run(tmp_path / "two", *words, "jobs=2") == 0
    assert multiprocessing.active_children() == []
    one, two = (pq.read_table(tmp_path / name / "samples.parquet") for name in ("one", "two"))
    assert one.equals(two)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task.mixers=[fracc]"], "task.mixers, 'fracc': "),
        (["task.mixers=['frac mixer.gian=zoh']"], "did you mean model.mixer.gain?"),
        (["task.mixers=['frac mixer.gain=best']"], "gain=best"),
        (["task.mixers=[hyena]"], "size=probe_tiny has no numbers for mixer=hyena"),
        (["task.mixers=[frac,frac]"], "names one twice"),
        (["task.labels=[most]"], "task.labels=most: choose final or dense"),
        (["task.seeds=[-1]"], "task.seeds=[-1] must be at least 0"),
        (["task.learning_rates=[fast]"], "needs a list"),
        (["task.events=count", "task.lengths=[10]"], "too short for task.event_count=26"),
        (["jobs=0"], "jobs=0 must be at least 1"),
        (["precision=fp8"], "precision=fp8: choose one of"),
        (["preset=huge"], "preset/huge"),
        (["task=memory"], "memory"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(tmp_path, capsys, words, message):
    assert run(tmp_path / "none", *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_an_output_is_needed(capsys):
    assert cli.run(["benchmark", "preset=smoke"]) == 2
    assert "output= is missing" in capsys.readouterr().err
