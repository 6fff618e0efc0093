import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fracdna import cli
from fracdna.benchmarks.associative_recall import AssociativeRecall, Kind, RecallTest
from fracdna.benchmarks.networks import network_config
from fracdna.benchmarks.stream_reading import Reading
from fracdna.data.objectives import IGNORED
from fracdna.model.checkpoint import build_model
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError

KIND = Kind(100, 8)


def task(**changes):
    return AssociativeRecall(**({"kinds": (KIND,), "vocabulary_rows": 128} | changes))


def pairs_of(ids, pairs, passes=1):
    """Keys, values and what stands behind the beginning, read off a sequence."""
    shown = ids[: 2 * pairs * passes]
    for number in range(1, passes):
        again = shown[2 * pairs * number : 2 * pairs * (number + 1)]
        assert again == shown[: 2 * pairs]
    return shown[0 : 2 * pairs : 2], shown[1 : 2 * pairs : 2], ids[2 * pairs * passes :]


@pytest.mark.parametrize("filler", ["random", "zero", "clean"])
@pytest.mark.parametrize("passes", [1, 3])
def test_every_key_is_asked_for_once_and_its_value_is_not_read_there(filler, passes):
    """The law of the generator, recomputed from what a model reads."""
    made = task(filler=filler, passes=passes).sequences(KIND, "test 1", torch.arange(50))
    for ids, places, targets, lags in zip(*(part.tolist() for part in made), strict=True):
        keys, values, rest = pairs_of(ids, 8, passes)
        assert len(set(keys)) == len(set(values)) == 8
        assert 1 <= min(keys) < max(keys) < 64 <= min(values) < max(values) < 128
        assert [ids[place] for place in places] == keys
        assert targets == values
        start = 16 * passes
        assert all((place - start) % 2 == 0 and place >= start for place in places)
        assert lags == [place - (start - 16 + 2 * n) for n, place in enumerate(places)]
        filled = [token for at, token in enumerate(rest, start) if at not in places]
        if filler == "zero":
            assert set(filled) == {0}
        elif filler == "clean":
            assert not set(filled) & set(keys)


def test_filler_is_uniform_over_what_it_may_be():
    """Random filler repeats keys by chance, clean filler never, and nothing else is left out."""
    for filler, expected in (("random", 8 / 128), ("clean", 0.0)):
        made = task(filler=filler).sequences(KIND, "test 1", torch.arange(400))
        ids, keys = made.ids, made.ids[:, :16:2]
        filled = torch.ones_like(ids, dtype=torch.bool)
        filled[:, :16] = False
        filled.scatter_(1, made.places, False)
        is_key = (ids[:, :, None] == keys[:, None]).any(-1)
        # 30,400 tokens: a standard deviation of at most .0014
        assert abs(float(is_key[filled].double().mean()) - expected) < 0.006
        counts = ids[filled].bincount(minlength=128).double()
        # each of 128 ids about 238 times, clean keys about 221 times
        assert 150 < float(counts.min()) <= float(counts.max()) < 330


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_slots_are_drawn_by_their_weights(power):
    """The first key's slot has the law i^(power - 1); the others are drawn from what is left."""
    made = task(power=power).sequences(KIND, "test 1", torch.arange(4000))
    slots = (made.places - 16) // 2  # of 42
    weights = torch.arange(1, 43).double() ** (power - 1)
    expected = weights / weights.sum()
    shares = slots[:, 0].bincount(minlength=42) / 4000
    assert float((shares - expected).abs().max()) < 0.03  # four standard deviations at 0.23
    assert all(len(set(row)) == 8 for row in slots.tolist())
    second = torch.tensor([
        float((expected / (1 - expected[first])).index_fill(0, torch.tensor(first), 0.0)[0])
        for first in slots[:, 0].tolist()
    ])  # fmt: skip
    assert abs(float((slots[:, 1] == 0).double().mean() - second.mean())) < 0.03


def test_samples_depend_on_their_number_alone():
    kinds = (Kind(64, 4), Kind(100, 8))
    several = task(kinds=kinds)
    numbers = torch.tensor([5, 0, 11, 8])
    whole = several.examples("valid", 0, numbers)
    for place, number in enumerate(numbers):
        alone = several.examples("valid", 0, number[None])
        for part, other in zip(whole, alone, strict=True):
            assert part[place].equal(other[0])


def test_kinds_take_turns_and_shorter_ones_are_padded():
    kinds = (Kind(64, 4), Kind(100, 8))
    ids, places, targets = task(kinds=kinds).examples("valid", 0, torch.arange(6))
    assert ids.shape == (6, 100)
    for row in range(6):
        length, pairs = kinds[row % 2]
        assert int((targets[row] != IGNORED).sum()) == pairs
        assert int(places[row].max()) < length
        assert (ids[row, length:] == 0).all()


def test_an_epoch_holds_every_sample_once_in_an_order_of_its_own():
    small = task(examples_per_kind=7, kinds=(Kind(64, 4), Kind(100, 8)))
    epochs = [small.examples("train", 1, torch.arange(n, n + 14)).ids for n in (0, 14)]
    assert not epochs[0].equal(epochs[1])
    assert len(epochs[0].unique(dim=0)) == 14
    assert len(torch.cat(epochs).unique(dim=0)) == 14
    # a batch that lies across the border of two epochs
    across = small.examples("train", 1, torch.arange(10, 18)).ids
    assert across.equal(torch.cat([epochs[0][10:], epochs[1][:4]]))


def test_training_validation_and_test_share_no_sequence():
    made = task(examples_per_kind=300)
    splits = [made.examples("train", 1, torch.arange(300)).ids,
              made.examples("train", 2, torch.arange(300)).ids,
              made.examples("valid", 0, torch.arange(300)).ids,
              made.sequences(KIND, "test 1", torch.arange(300)).ids]  # fmt: skip
    assert len(torch.cat(splits).unique(dim=0)) == 1200


def test_the_narrowest_sequences_are_made():
    """Every slot is taken where pairs fill a sequence."""
    made = task(kinds=(Kind(16, 4),)).sequences(Kind(16, 4), "test 1", torch.arange(20))
    assert made.places.sort(dim=1).values.tolist() == [[8, 10, 12, 14]] * 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": (Kind(64, 17),)}, "17 pairs shown 1 times and asked for need 68 positions"),
        ({"passes": 6}, "8 pairs shown 6 times and asked for need 112 positions"),
        ({"vocabulary_rows": 100}, "task.vocabulary_rows=100 must be above the length 100"),
        ({"filler": "none"}, "task.filler=none: choose one of random, zero, clean"),
        ({"power": 0.0}, "task.power=0.0 must be above 0"),
    ],
)
def test_what_has_no_room_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        task(**changes)


def read(model, **changes):
    test = RecallTest(task(), (("a", KIND), ("b", Kind(64, 4))), 5)
    fixed = {"precision": torch.float32, "segment": 32, "batch_positions": 210}
    reading = Reading(**(fixed | {"growing_limit": 1000} | changes))
    parts = list(test.run(model, reading, {"b 64 4": {1, 3}}, lambda _: None))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_rows_of_a_test_are_those_of_each_sequence_alone():
    """In any batch; what is done already is left out; queries are counted at their lags."""
    model = build_model(network_config("frac", task(), {"size": "recall_16k", "d_model": 32}))
    together, alone = read(model.eval()), read(model.eval(), batch_positions=1)
    assert together["index"].tolist() == [0, 1, 2, 3, 4, 0, 2, 4]
    for name, values in together.items():
        if values.dtype.kind == "f":
            assert_close(torch.tensor(values), torch.tensor(alone[name]), rtol=0, atol=1e-5)
        else:
            assert values.tolist() == alone[name].tolist()
    asked = sum(values for name, values in together.items() if name.startswith("asked_lag"))
    right = sum(values for name, values in together.items() if name.startswith("right_lag"))
    assert asked.tolist() == together["pairs"].tolist() == [8] * 5 + [4] * 3
    assert np.allclose(right / asked, together["correct"])
    with torch.no_grad():
        model.backbone.final_norm.weight.fill_(torch.nan)
    with pytest.raises(NotFinite, match="sequence 0 of 100 positions"):
        read(model)


@pytest.mark.slow
def test_smoke(tmp_path):
    """The preset as it is: accuracies by length, and by lag, whose counts add up."""
    words = ["task=associative_recall", "preset=smoke", "progress=false", f"output={tmp_path}"]
    assert cli.run(["benchmark", *words]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["complete"] is True
    assert [row["length"] for row in result["table"]] == [32, 64, 96]
    (run,) = result["runs"]
    assert run["last_loss"] < run["losses"][0] - 1
    for row in result["table"]:
        assert row["accuracy"] > 1.5 / 64  # a guess among the values
        assert 0 <= row["accuracy_lag_4"] <= 1
    assert (tmp_path / "plot.png").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task.training=[{length: 64}]"], "needs a list of length and pairs"),
        (["task.training=[{length: 8, pairs: 4}]"], "4 pairs shown 1 times"),
        (["task.capacity=null"], "nothing to test"),
        (["task.persist=60"], "60 pairs shown 1 times"),
        (["task.decay=never"], "task.decay=never: choose epochs or cosine"),
        (["task.fillers=[blank]"], "task.filler=blank"),
        (["preset=zoology", "task=heavy_tail"], "preset/zoology/heavy_tail"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path, capsys, words, message):
    start = ["benchmark", "task=associative_recall", "preset=smoke"]
    assert cli.run([*start, *words, f"output={tmp_path / 'none'}"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
