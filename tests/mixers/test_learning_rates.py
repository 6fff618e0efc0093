"""Parameters that a mixer lets learn at a rate of their own."""

import csv

import pytest
import torch
from models import model_config, tiny_model

from fracdna import cli
from fracdna.model.checkpoint import build_model, load_model, model_hash
from fracdna.training.language_modelling import LanguageModelling
from fracdna.training.optimizer import build_optimizer, parameter_groups


def training(optimizer, lr, **options):
    model = build_model(model_config("rwkv7", "model.num_layers=2"))
    return LanguageModelling(
        model, optimizer=lambda groups: optimizer(groups, lr=lr, **options), weight_decay=0.1,
        steps=8, warmup=0.25, final=0.1,
    )  # fmt: skip


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def test_every_parameter_is_in_one_group():
    """In the order of the model, the common rate first, nothing twice."""
    model = tiny_model("rwkv7")
    groups = parameter_groups(model, 0.1)
    everything = [p for group in groups for p in group["params"]]
    assert len(everything) == len(set(everything)) == len(list(model.parameters()))
    order = {p: number for number, p in enumerate(model.parameters())}
    for group in groups:
        assert [order[p] for p in group["params"]] == sorted(order[p] for p in group["params"])


def test_what_does_not_train_is_in_no_group():
    model = tiny_model("rwkv7")
    for block in model.backbone.blocks:
        block.mixer.decay_bias.requires_grad_(False)
    assert [group["rate_factor"] for group in parameter_groups(model, 0.1)] == [1, 1]


def test_a_step_moves_by_the_rate_of_the_parameter():
    """Plain descent: by the rate times the gradient, twice that for the logits of the decay."""
    model = tiny_model("rwkv7")
    optimizer = build_optimizer(model, lambda groups: torch.optim.SGD(groups, lr=0.25), 0.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(torch.randint(7, 11, (1, 12))).square().mean().backward()
    optimizer.step()
    for name, p in model.named_parameters():
        rate = 0.5 if name.endswith("decay_bias") else 0.25
        if p.grad is not None:
            assert torch.allclose(p, before[name] - rate * p.grad), name


def test_factors_hold_at_every_step_of_the_schedule():
    """Through warm-up and cosine; the group of the common rate is the one that a run shows."""
    built = training(torch.optim.AdamW, 1e-3).configure_optimizers()
    optimizer, schedule = built["optimizer"], built["lr_scheduler"]["scheduler"]
    seen = []
    for _ in range(8):
        common, free, faster = rates(optimizer)
        assert free == common
        assert faster == pytest.approx(2 * common)
        seen.append(common)
        optimizer.step()
        schedule.step()
    assert max(seen) == 1e-3
    assert seen[0] == pytest.approx(0.5e-3)
    assert seen[-1] == pytest.approx(1e-4)


def test_factors_are_kept_in_what_a_checkpoint_keeps(tmp_path):
    """Plain values, and not applied a second time to a state that has them already."""
    first, second = (training(torch.optim.AdamW, 1e-3).configure_optimizers() for _ in range(2))
    for _ in range(3):
        first["optimizer"].step()
        first["lr_scheduler"]["scheduler"].step()
    parts = ("optimizer", first["optimizer"]), ("schedule", first["lr_scheduler"]["scheduler"])
    torch.save({name: part.state_dict() for name, part in parts}, tmp_path / "state.pt")
    kept = torch.load(tmp_path / "state.pt", weights_only=True)
    second["optimizer"].load_state_dict(kept["optimizer"])
    second["lr_scheduler"]["scheduler"].load_state_dict(kept["schedule"])
    for _ in range(4):
        assert rates(second["optimizer"]) == rates(first["optimizer"])
        for built in (first, second):
            built["optimizer"].step()
            built["lr_scheduler"]["scheduler"].step()


def test_a_resumed_run_goes_on_with_its_rates(prepared, tmp_path):
    """To the last bit of the weights, and the curve shows the common rate."""
    output = tmp_path / "run"
    words = [
        "train", f"data.prepared={prepared}", f"output={output}", "mixer=rwkv7", "data.length=64",
        "data.bases_per_step=128", "data.validation_bases=256", "model.num_layers=1", "steps=4",
        "validate_every=4", "checkpoint_every=2", "log_every=1", "progress=false",
        "schedule.warmup=0.5", "optimizer.lr=1e-3",
    ]  # fmt: skip
    assert cli.run(words) == 0
    last = output / "checkpoints" / "last.ckpt"
    whole = model_hash(load_model(last))
    with (output / "metrics.csv").open() as file:
        shown = [float(row["learning_rate"]) for row in csv.DictReader(file) if row["train_nll"]]
    assert max(shown) == pytest.approx(1e-3)
    (output / "checkpoints" / "step-00000002.ckpt").replace(last)
    assert cli.run([*words, "resume=true"]) == 0
    assert model_hash(load_model(last)) == whole
