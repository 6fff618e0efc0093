"""Folders: what is written comes back to the last bit, and anything else is refused."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from models import tiny_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

import fracdna
from fracdna import cli, hf
from fracdna.model.checkpoint import model_hash, read_checkpoint
from fracdna.model.identity import tensor_hashes
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

NORM = "model.backbone.final_norm.weight"
PACKAGE = Path(fracdna.__file__).parent
DOORS = [AutoModelForCausalLM.from_pretrained, AutoModel.from_pretrained, fracdna.load_model]


def rewrite(folder, **changes):
    """Change values of config.json; None takes one away."""
    path = folder / "config.json"
    facts = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in facts.items() if v is not None}))


def edit(folder, change):
    """Change the tensors of a folder."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def imported(path):
    """First parts of the modules that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in names}


@torch.inference_mode()
def test_a_round_trip_changes_no_bit(network, model, tmp_path, draw):
    """Case 25: logits, hidden states, the hash of the model and that of every tensor."""
    model.save_pretrained(tmp_path)
    ids = draw(2, 33)
    back, trunk = (
        AutoModelForCausalLM.from_pretrained(tmp_path),
        AutoModel.from_pretrained(tmp_path),
    )
    assert isinstance(back, hf.FracdnaForCausalLM)
    assert not back.training
    assert torch.equal(back(ids).logits, network(ids))
    assert torch.equal(trunk(ids).last_hidden_state, network.backbone(ids))
    loaded = fracdna.load_model(tmp_path)
    assert torch.equal(loaded(ids), network(ids))
    assert model_hash(loaded) == back.config.model_hash == model_hash(network)
    expected = tensor_hashes(network.state_dict())
    assert tensor_hashes(back.model.state_dict()) == back.config.tensor_hashes == expected


@pytest.mark.parametrize("mixer", ["frac", "retnet", "hyena"], indirect=True)
@torch.inference_mode()
def test_bfloat16_is_rounded_once(model, tmp_path, draw):
    """Loaded in bfloat16, rounded in memory, or stored so: the same bits, and the dtype stays."""
    model.save_pretrained(tmp_path / "whole")
    low = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype=torch.bfloat16)
    expected = low(draw(2, 33)).logits
    assert low.dtype == expected.dtype == torch.bfloat16
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path / "whole").to(torch.bfloat16)
    low.save_pretrained(tmp_path / "low")
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "low")
    for other in (rounded, stored):
        assert other.dtype == torch.bfloat16
        assert torch.equal(other(draw(2, 33)).logits, expected)
    exact = AutoModelForCausalLM.from_pretrained(tmp_path / "low", dtype="float32")
    assert exact.dtype == torch.float32
    assert model_hash(exact.model) == model_hash(fracdna.load_model(tmp_path / "low"))


@pytest.mark.parametrize("options", [[], ["model.mixer.free_bank=true"]])
@torch.inference_mode()
def test_time_scales_are_never_rounded(options, tmp_path, draw):
    """FRAC's operators take them in float32, whether they are learned or in no file at all."""
    network = tiny_model("frac", *options)
    hf.wrap(network).save_pretrained(tmp_path)
    for dtype in (torch.bfloat16, torch.float16):
        low = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        for given, block in zip(network.backbone.blocks, low.model.backbone.blocks, strict=True):
            assert torch.equal(block.mixer.log_tau, given.mixer.log_tau)
            assert block.mixer.in_projection.weight.dtype == dtype
        assert low(draw(1, 9)).logits.isfinite().all()


@torch.inference_mode()
def test_shards_are_one_model(frac, tmp_path, draw):
    """Several files with their index, through both doors."""
    frac.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    for load in DOORS[::2]:
        loaded = load(tmp_path)
        ids = draw(1, 20)
        assert torch.equal(getattr(loaded, "model", loaded)(ids), frac.model(ids))
    next(iter(tmp_path.glob("model-00002-*"))).unlink()
    with pytest.raises(InputError, match="model-00002-of"):
        fracdna.load_model(tmp_path)


def test_the_trunk_alone_is_the_whole_model(networks, tmp_path, draw):
    """The head has no weights of its own, so what AutoModel saves predicts too."""
    hf.wrap(networks("frac")).save_pretrained(tmp_path / "whole")
    AutoModel.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "trunk")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "trunk")
    assert torch.equal(back(draw(1, 9)).logits, networks("frac")(draw(1, 9)))
    assert model_hash(fracdna.load_model(tmp_path / "trunk")) == model_hash(networks("frac"))


def missing(tensors):
    del tensors[NORM]


def renamed(tensors):
    tensors["model.backbone.last_norm.weight"] = tensors.pop(NORM)


def changed(tensors):
    tensors[NORM][3] += 1e-6


@pytest.mark.parametrize("load", DOORS)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (missing, ["missing: backbone.final_norm.weight"]),
        (renamed, ["missing: backbone.final_norm", "unknown: backbone.last_norm.weight"]),
        (changed, ["with other values: backbone.final_norm.weight"]),
    ],
)
def test_tensors_that_are_not_those_saved_are_refused(saved, load, change, words):
    """Case 25: a tensor that is lost, renamed or changed is named, and no model comes out."""
    edit(saved, change)
    with pytest.raises(InputError) as refused:
        load(saved)
    assert all(word in str(refused.value) for word in words)


def test_a_tensor_that_transformers_initialises_anew_is_refused(saved, monkeypatch):
    """Case 25: right in the file, other values in the model, and no message."""

    def initialise(model, is_quantized):
        torch.nn.init.normal_(model.model.backbone.embedding.weight)

    monkeypatch.setattr(hf.FracdnaForCausalLM, "_initialize_missing_keys", initialise)
    with pytest.raises(InputError, match=r"other values: backbone\.embedding\.weight"):
        AutoModelForCausalLM.from_pretrained(saved)


def test_a_tensor_of_another_shape_is_refused_even_where_transformers_would_go_on(saved):
    """ignore_mismatched_sizes makes new weights, which are not those that were saved."""
    edit(saved, lambda tensors: tensors.update({NORM: torch.ones(3)}))
    with pytest.raises(InputError, match=r"backbone\.final_norm\.weight"):
        AutoModelForCausalLM.from_pretrained(saved, ignore_mismatched_sizes=True)


@pytest.mark.parametrize("load", DOORS[::2])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_hash": None}, "lacks model_hash"),
        ({"tensor_hashes": None}, "lacks tensor_hashes"),
        ({"model_hash": "0" * 64}, "another configuration or vocabulary"),
        ({"format": 2}, "upgrade fracdna"),
        ({"about": {"training_length": "long"}}, "training_length"),
    ],
)
def test_a_config_that_does_not_tell_of_its_weights_is_refused(saved, load, changes, message):
    rewrite(saved, **changes)
    with pytest.raises(InputError, match=message):
        load(saved)


@pytest.mark.parametrize("load", DOORS[::2])
def test_another_network_or_alphabet_around_the_weights_is_refused(saved, load):
    """Case 21: the same tensors would compute something else."""
    facts = json.loads((saved / "config.json").read_text())
    mixer = facts["model"]["mixer"]
    rewrite(saved, model=facts["model"] | {"mixer": mixer | {"gain": "zoh"}})
    with pytest.raises(InputError, match="another configuration"):
        load(saved)
    symbols = facts["vocabulary"]
    symbols[7], symbols[8] = symbols[8], symbols[7]
    rewrite(saved, model=facts["model"], vocabulary=symbols)
    with pytest.raises(InputError, match="vocabulary"):
        load(saved)


def test_an_older_alphabet_is_renewed_when_a_model_is_saved_again(networks, tmp_path):
    """Ids that were added since then change nothing, and the new folder has the new symbols."""
    model = hf.wrap(networks("frac"))
    model.config.vocabulary = DNA.symbols[:-1]
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["vocabulary"] == list(DNA.symbols)
    assert fracdna.load_model(tmp_path).backbone.d_model == model.config.hidden_size


@pytest.mark.parametrize(
    ("config", "message"),
    [(None, "a folder without config.json"), ({"model_type": "mamba"}, "model_type 'mamba'")],
)
def test_other_folders_are_refused_with_the_remedy(tmp_path, config, message):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        fracdna.load_model(tmp_path)


def test_weights_that_cannot_be_told_apart_are_not_written(frac, tmp_path):
    """NaN, and doubles, which float32 does not hold."""
    network = tiny_model("frac")
    network.backbone.final_norm.weight.data[0] = torch.nan
    with pytest.raises(InputError, match=r"final_norm\.weight is not finite"):
        hf.wrap(network).save_pretrained(tmp_path / "x")
    with pytest.raises(InputError, match="float64: weights are kept in float32"):
        hf.wrap(tiny_model("attention", dtype=torch.float64)).save_pretrained(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_checkpoint_becomes_a_folder_that_every_verb_opens(checkpoint, tmp_path):
    """Weights, tokenizer and facts of the training; the command reads it as a checkpoint."""
    folder = tmp_path / "exported"
    hf.export(checkpoint, folder)
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    known = model_hash(fracdna.load_model(checkpoint))
    assert model_hash(fracdna.load_model(folder)) == known
    assert read_checkpoint(folder)["fracdna"]["about"]["training_length"] == 64
    assert isinstance(AutoTokenizer.from_pretrained(folder), hf.FracdnaTokenizer)
    assert AutoConfig.from_pretrained(folder).about["bases_per_step"] == 128
    fasta = tmp_path / "g.fa"
    told = [f"checkpoint={folder}", "prompt=ACGT", "length=5", f"output={fasta}", "progress=false"]
    assert cli.run(["generate", *told]) == 0
    assert f"model={known[:12]}" in fasta.read_text()


def test_a_folder_becomes_weights_again(saved, frac, tmp_path):
    """From the folder and from the model in memory: both doors of the way back."""
    for number, network in enumerate((fracdna.load_model(saved), frac.model)):
        path = tmp_path / f"{number}.safetensors"
        fracdna.save_weights(network, path, dtype=torch.float32)
        assert model_hash(fracdna.load_model(path)) == model_hash(frac.model)


def test_refused_exports_leave_nothing(checkpoint, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    for arguments, message in [
        ((checkpoint, taken), "is there already"),
        ((tmp_path / "none.ckpt", tmp_path / "new"), "no such checkpoint"),
        ((checkpoint, tmp_path / "new", torch.float64), "choose torch.float32"),
    ]:
        kwargs = {"dtype": arguments[2]} if len(arguments) == 3 else {}
        with pytest.raises(InputError, match=message):
            hf.export(*arguments[:2], **kwargs)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["taken", "tiny.ckpt"]


def test_nothing_but_this_package_waits_for_transformers(monkeypatch):
    """No other module imports it, so load_model opens a folder without; here the remedy is told."""
    inside = {path for path in PACKAGE.rglob("*.py") if "transformers" in imported(path)}
    assert inside
    assert {path.parent for path in inside} == {PACKAGE / "hf"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fracdna\[hf\]'"):
        importlib.reload(hf)
