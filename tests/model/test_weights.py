"""Weights to hand on: a safetensors file and its JSON, which load_model opens like a checkpoint."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from models import tiny_model
from safetensors.torch import load_file, save_file

import fracdna
from fracdna.model.checkpoint import model_hash, read_checkpoint
from fracdna.model.heads import LanguageModel
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

BIAS = "backbone.blocks.0.mixer.dynamics.bias"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return tiny_model("frac")


@pytest.fixture
def saved(model, tmp_path):
    """Weights of version 1.5, a name with a dot of its own."""
    path = tmp_path / "frac-1.5.safetensors"
    fracdna.save_weights(model, path, about={"training_length": 64})
    return path


def facts_of(path):
    return path.with_suffix(".json")


def rewrite(path, **changes):
    """Change values of the JSON; None takes one away."""
    facts = json.loads(facts_of(path).read_text()) | changes
    facts = {name: value for name, value in facts.items() if value is not None}
    facts_of(path).write_text(json.dumps(facts))


def seal(path):
    """Make the JSON tell of the file as it is now."""
    rewrite(path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_float32_is_the_model_to_the_last_bit(model, tmp_path):
    path = tmp_path / "whole.safetensors"
    facts = fracdna.save_weights(model, path, dtype=torch.float32)
    loaded = fracdna.load_model(path)
    ids = torch.from_numpy(DNA.encode("ACGTNACCA"))[None]
    assert torch.equal(loaded(ids), model(ids))
    assert model_hash(loaded) == model_hash(model) == facts["model_hash"]
    assert not loaded.training
    assert loaded.config == model.config
    assert facts == json.loads(facts_of(path).read_text())


def test_bfloat16_is_rounded_once_and_float32_again(model, saved):
    """Half the bytes; loading gives the rounded weights, whose hash the JSON tells beforehand."""
    loaded = fracdna.load_model(saved)
    read = read_checkpoint(saved)["state_dict"]
    for name, weight in model.state_dict().items():
        rounded = weight.bfloat16().float()
        for tensor in (loaded.state_dict()[name], read[f"model.{name}"]):
            assert tensor.dtype == torch.float32
            assert torch.equal(tensor, rounded)
    facts = json.loads(facts_of(saved).read_text())
    assert facts["model_hash"] == model_hash(loaded) != model_hash(model)
    assert facts["parameters"] == sum(p.numel() for p in model.parameters())
    weights = sum(w.numel() for w in model.state_dict().values())
    assert saved.stat().st_size < 2.2 * weights
    assert {w.dtype for w in load_file(saved).values()} == {torch.bfloat16}


def test_writing_again_gives_the_same_files(model, saved, tmp_path):
    """Also from the loaded model: rounding what is rounded changes nothing."""
    about = {"training_length": 64}
    for number, source in enumerate((model, fracdna.load_model(saved))):
        path = tmp_path / str(number) / saved.name
        fracdna.save_weights(source, path, about=about)
        assert path.read_bytes() == saved.read_bytes()
        assert facts_of(path).read_bytes() == facts_of(saved).read_bytes()


def test_the_json_opens_them_too(saved):
    by_either = {model_hash(fracdna.load_model(path)) for path in (saved, facts_of(saved))}
    assert len(by_either) == 1


def test_others_may_read_what_the_folder_lets_them(saved, tmp_path):
    """Files to hand on have the permissions of any new file."""
    (tmp_path / "plain").touch()
    modes = {path.stat().st_mode for path in (tmp_path / "plain", saved, facts_of(saved))}
    assert len(modes) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "another"}, "not the JSON that"),
        ({"format": 99}, "format 99 is newer"),
        ({"format": None}, "format missing"),
        ({"format": 0}, "format missing or not"),
        ({"dtype": "int8"}, "dtype missing or not"),
        ({"sha256": None, "model": []}, "model, sha256 missing"),
        ({"sha256": "0" * 64}, "not the file that"),
        ({"vocabulary": list("ACGT")}, "vocabulary"),
        ({"vocabulary": []}, "vocabulary"),
        (
            {"model": {"d_model": 64}},
            r"frac-1\.5\.safetensors: model configuration cannot be built",
        ),
        ({"about": {"training_length": "long"}}, "training_length='long'"),
        ({"dtype": "float32"}, "bfloat16, where its JSON says float32"),
    ],
)
def test_a_json_that_tells_something_else_is_refused(saved, changes, message):
    rewrite(saved, **changes)
    with pytest.raises(InputError, match=message):
        fracdna.load_model(saved)


@pytest.mark.parametrize("place", ["model", "model_hash"])
def test_another_configuration_of_the_same_tensors_is_refused(saved, place):
    """The tensors fit it, and would compute something else."""
    config = json.loads(facts_of(saved).read_text())["model"]
    config["mixer"]["gain"] = "zoh"
    rewrite(saved, **{"model": {"model": config}, "model_hash": {"model_hash": "0" * 64}}[place])
    with pytest.raises(
        InputError, match=r"frac-1\.5\.safetensors: its configuration or vocabulary"
    ):
        fracdna.load_model(saved)


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_json_that_is_none_is_refused(saved, content):
    facts_of(saved).write_bytes(content)
    with pytest.raises(InputError, match=r"frac-1\.5\.json"):
        fracdna.load_model(saved)


@pytest.mark.parametrize("target", ["os.system", "fracdna.model.weights.write_weights", "x"])
def test_a_json_may_only_name_parts_of_models(saved, target):
    """As of a checkpoint: it is data, no road to other code."""
    config = json.loads(facts_of(saved).read_text())["model"]
    config["norm"]["_target_"] = target
    rewrite(saved, model=config)
    with pytest.raises(InputError, match="no part of a model"):
        fracdna.load_model(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(BIAS), f"Missing key.*{BIAS}"),
        (lambda w: w.update(other=w[BIAS].clone()), "Unexpected key.*other"),
        (lambda w: w.update({BIAS: w[BIAS][1:].clone()}), f"size mismatch for {BIAS}"),
        (lambda w: w.update({BIAS: w[BIAS].int()}), f"{BIAS} is torch.int32"),
        (lambda w: w.update({BIAS: w[BIAS].half()}), f"{BIAS} is torch.float16"),
    ],
)
def test_tensors_that_are_not_the_models_are_refused(saved, change, message):
    """Even where the hash is that of the file: nothing is left out, added or turned."""
    tensors = load_file(saved)
    change(tensors)
    save_file(tensors, saved)
    seal(saved)
    with pytest.raises(InputError, match=f"(?s){message}"):
        fracdna.load_model(saved)


def test_damage_is_refused(saved, model, tmp_path):
    """A turned bit, an end that is missing, the file of another model, and what is no such file."""
    whole = saved.read_bytes()
    fracdna.save_weights(tiny_model("frac"), tmp_path / "other.safetensors")
    turned = bytearray(whole)
    turned[-5] ^= 1
    for content in (turned, whole[:-100], b"", (tmp_path / "other.safetensors").read_bytes()):
        saved.write_bytes(content)
        with pytest.raises(InputError, match=r"not the file that frac-1\.5\.json tells of"):
            fracdna.load_model(saved)
    for content in (b"", b"\xff" * 40, whole[:-100]):
        saved.write_bytes(content)
        seal(saved)
        with pytest.raises(InputError, match="not a readable safetensors file"):
            fracdna.load_model(saved)


def test_one_file_without_the_other_is_refused(saved):
    """Whichever is asked for, the one that is missing is named."""
    for missing in (facts_of(saved), saved):
        content = missing.read_bytes()
        missing.unlink()
        for asked in (facts_of(saved), saved):
            with pytest.raises(InputError, match=f"{missing.name}: no such file"):
                fracdna.load_model(asked)
        missing.write_bytes(content)
    fracdna.load_model(saved)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("w.ckpt", {}, "ends in .safetensors"),
        ("w.safetensors", {"dtype": torch.float16}, "bfloat16 or float32"),
        ("w.safetensors", {"about": {"run": Path("here")}}, "plain finite values"),
        ("w.safetensors", {"about": {"perplexity": float("nan")}}, "plain finite values"),
        ("w.safetensors", {"about": {"training_length": 1.5}}, "training_length=1.5"),
        ("taken.safetensors", {}, "taken.json.*not replaced"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(
    model, tmp_path, name, options, message
):
    (tmp_path / "taken.json").write_text('{"name": "settings of something else"}')
    with pytest.raises(InputError, match=message):
        fracdna.save_weights(model, tmp_path / name, **options)
    assert names_in(tmp_path) == ["taken.json"]


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    broken = tiny_model("frac")
    broken.backbone.final_norm.weight.data[3] = float("nan")
    with pytest.raises(InputError, match=r"backbone\.final_norm\.weight is not finite"):
        fracdna.save_weights(broken, tmp_path / "w.safetensors")
    assert names_in(tmp_path) == []


def test_a_model_that_nobody_could_build_again_is_refused(model, tmp_path):
    """Weights without a configuration would be a file that nothing opens."""
    with pytest.raises(InputError, match="no configuration"):
        fracdna.save_weights(LanguageModel(model.backbone), tmp_path / "w.safetensors")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("method", ["write_bytes", "write_text"])
def test_interrupted_writing_leaves_what_was_there(model, saved, monkeypatch, method):
    """Half a file under a temporary name is removed; the old pair opens as before."""
    before, original = model_hash(fracdna.load_model(saved)), getattr(Path, method)

    def stop(path, content):
        original(path, content[: len(content) // 2])
        raise KeyboardInterrupt

    changed = tiny_model("frac")
    with monkeypatch.context() as patch:
        patch.setattr(Path, method, stop)
        for path in (saved, saved.with_name("new.safetensors")):
            with pytest.raises(KeyboardInterrupt):
                fracdna.save_weights(changed, path)
    assert names_in(saved.parent) == [facts_of(saved).name, saved.name]
    assert model_hash(fracdna.load_model(saved)) == before


def test_new_weights_under_an_old_json_are_refused(saved, monkeypatch):
    """Cut off between the two names the files do not agree, and say so; writing again mends it."""
    original = Path.replace

    def stop(path, target):
        if target.suffix == ".json":
            raise KeyboardInterrupt
        return original(path, target)

    changed = tiny_model("frac")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            fracdna.save_weights(changed, saved)
    assert names_in(saved.parent) == [facts_of(saved).name, saved.name]
    with pytest.raises(InputError, match="not the file that"):
        fracdna.load_model(saved)
    facts = fracdna.save_weights(changed, saved)
    assert model_hash(fracdna.load_model(saved)) == facts["model_hash"]
