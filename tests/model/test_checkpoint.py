import subprocess
import sys

import pytest
import torch
from models import model_config, tiny_model

from fracdna import cli
from fracdna.model.checkpoint import (
    build_model,
    description,
    load_model,
    model_hash,
    read_checkpoint,
)
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA


@pytest.fixture
def saved(tmp_path):
    """A checkpoint as training writes it, and its model."""
    model = tiny_model("frac")
    path = tmp_path / "model.ckpt"
    state = {f"model.{name}": weight for name, weight in model.state_dict().items()}
    torch.save({"state_dict": state, "fracdna": description(model) | {"recipe": {}}}, path)
    return path, model


def rewrite(path, change):
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)


def test_reload_gives_equal_logits(saved):
    """Case 21, first half: save, reload, the same logits on ACGT."""
    path, model = saved
    ids = torch.from_numpy(DNA.encode("ACGT"))[None]
    loaded = load_model(path)
    assert torch.equal(loaded(ids), model(ids))
    assert model_hash(loaded) == model_hash(model)
    assert not loaded.training


def test_another_vocabulary_is_refused(saved, tmp_path, capsys):
    """Case 21, second half: two ids swapped would change the meaning of every input; exit 2."""
    path, _ = saved

    def swap(content):
        symbols = content["fracdna"]["vocabulary"]
        symbols[7], symbols[8] = symbols[8], symbols[7]

    rewrite(path, swap)
    with pytest.raises(InputError, match="vocabulary"):
        load_model(path)
    output = tmp_path / "results"
    arguments = [f"checkpoint={path}", f"prepared={tmp_path}", f"output={output}"]
    assert cli.run(["evaluate", *arguments]) == 2
    assert "vocabulary" in capsys.readouterr().err
    assert not output.exists()


def test_an_older_and_shorter_vocabulary_is_extended(saved):
    """Ids that keep their meaning load; only the reverse is refused."""
    path, _ = saved
    rewrite(path, lambda content: content["fracdna"]["vocabulary"].pop())
    load_model(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["fracdna"].update(format=99), "newer"),
        (lambda c: c.pop("fracdna"), "not a fracdna checkpoint"),
        (lambda c: c["state_dict"].popitem(), "do not fit"),
        (lambda c: c["fracdna"].clear(), "not a fracdna checkpoint"),
        (lambda c: c.pop("state_dict"), "not a fracdna checkpoint"),
        (lambda c: c["fracdna"].update(format="x"), "not a fracdna checkpoint"),
        (lambda c: c["fracdna"].update(vocabulary=[]), "vocabulary"),
        (lambda c: c["fracdna"]["model"].update(_target_="os.system"), "special keys"),
        (lambda c: c["fracdna"]["model"].update(d_modell=3), "cannot be built"),
    ],
)
def test_damaged_content_is_refused_with_the_reason(saved, change, message):
    path, _ = saved
    rewrite(path, change)
    with pytest.raises(InputError, match=message):
        load_model(path)


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "fracdna.cli.run",
        "fracdna.doctor.os.system",
        "fracdna.evaluation.regions.Path.write_text",
        "fracdna.model.checkpoint.importlib.import_module",
        "fracdna.model.checkpoint.instantiate",
        "fracdna.model.checkpoint.load_model",
        "fracdna.model.checkpoint.save_weights",
        "fracdna.model.weights.write_weights",
        "fracdna.mixers.frac.linear",
        "fracdna.mixers.nothing.Here",
    ],
)
def test_a_checkpoint_may_only_name_parts_of_models(saved, target):
    """A checkpoint is data: no attribute walk reaches a function that does anything else."""
    path, _ = saved
    rewrite(path, lambda content: content["fracdna"]["model"]["norm"].update(_target_=target))
    with pytest.raises(InputError, match="no part of a model"):
        load_model(path)


def test_identity_covers_what_the_weights_compute():
    """Equal weights under another gain are another model; how training spends memory is not."""
    torch.manual_seed(0)
    dc = tiny_model("frac")
    for override, same in (
        ("model.mixer.gain=zoh", False),
        ("+model.mixer.tau_range=[1,64]", False),
        ("model.activation_checkpointing=true", True),
    ):
        other = tiny_model("frac", override)
        other.load_state_dict(dc.state_dict())
        assert (model_hash(other) == model_hash(dc)) == same
    changed = tiny_model("frac")
    changed.load_state_dict(dc.state_dict())
    changed.backbone.final_norm.weight.data[0] += 1
    assert model_hash(changed) != model_hash(dc)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 half a zip"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    path = tmp_path / "x.ckpt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.ckpt"):
        read_checkpoint(path)
    with pytest.raises(InputError, match="no such checkpoint"):
        read_checkpoint(tmp_path / "missing.ckpt")


def test_code_in_a_checkpoint_is_never_run(tmp_path):
    """A pickle that would call a function is refused, not opened."""
    path = tmp_path / "evil.ckpt"
    torch.save({"fracdna": {"format": 1}, "x": subprocess.Popen}, path)
    with pytest.raises(InputError, match="not a readable checkpoint"):
        load_model(path)


def test_training_checkpoints_hold_plain_values(prepared, tmp_path):
    """Case 24: a fitted checkpoint loads with weights_only=True: plain values only."""
    output = tmp_path / "run"
    arguments = [
        f"data.prepared={prepared}", f"output={output}", "steps=2", "validate_every=1",
        "data.length=64", "data.bases_per_step=128", "data.validation_bases=128", "progress=false",
    ]  # fmt: skip
    assert cli.run(["train", *arguments]) == 0
    for name in ("best", "last"):
        content = torch.load(output / "checkpoints" / f"{name}.ckpt", weights_only=True)
        assert set(content["fracdna"]) == {"format", "model", "vocabulary", "recipe"}
        assert type(content["fracdna"]["model"]) is dict
        load_model(output / "checkpoints" / f"{name}.ckpt")


def test_parameter_names_are_pinned():
    """Renaming a parameter breaks every saved model: do it only with a new format."""
    names = {n.split(".", 3)[-1] for n in tiny_model("frac").state_dict() if ".blocks.0." in n}
    assert names == {
        "mixer_norm.weight", "mixer.conv_weight", "mixer.conv_bias", "mixer.dt_bias",
        "mixer.read_gain", "mixer.write_gain", "mixer.skip", "mixer.norm_weight",
        "mixer.in_projection.weight", "mixer.dynamics.weight", "mixer.dynamics.bias",
        "mixer.routes.weight", "mixer.out_projection.weight",
    }  # fmt: skip
    names = {n.split(".", 3)[-1] for n in tiny_model("attention").state_dict() if ".blocks.0." in n}
    assert names == {
        "mixer_norm.weight", "mlp_norm.weight", "mixer.q_projection.weight",
        "mixer.k_projection.weight", "mixer.v_projection.weight", "mixer.out_projection.weight",
        "mlp.gate_projection.weight", "mlp.up_projection.weight", "mlp.down_projection.weight",
    }  # fmt: skip


def test_building_does_not_touch_the_configuration_it_is_given():
    config = model_config("frac")
    copy = repr(config)
    model = build_model(config)
    assert repr(config) == copy
    assert model.config == config


def test_load_model_and_save_weights_are_the_python_doors():
    """They exist without importing torch before they are used, and safetensors until it is."""
    code = (
        "import sys, fracdna\n"
        "assert 'torch' not in sys.modules\n"
        "assert callable(fracdna.load_model) and callable(fracdna.save_weights)\n"
        "assert 'safetensors' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
