"""Published recipes: what they set, and the learning rates of a run that follows them."""

import pytest
import torch
from models import MIXERS, tiny_model

from fracdna.configuration import RECOMPUTED_FROM, compose_configuration, configs_folder
from fracdna.model.checkpoint import build_model, read_checkpoint
from fracdna.training.language_modelling import LanguageModelling
from fracdna.training.optimizer import schedule_factors, warmup_cosine
from fracdna_prep.errors import InputError

RECIPES = sorted(path.stem for path in (configs_folder() / "recipe").glob("*.yaml"))
# full rate, first rate, last rate, share of warm-up, betas, bases of a step
PUBLISHED = {
    "hyenadna": (6e-4, 1e-6, 6e-5, 0.01, [0.9, 0.999], 2**18),
    "hyenadna_warmup": (6e-4, 1e-6, 6e-5, 0.01, [0.9, 0.999], 2**18),
    "caduceus": (8e-3, 1e-6, 1e-4, 0.1, [0.9, 0.95], 2**20),
}


def recipe(name, *words):
    return compose_configuration("train", ["experiment=dna_7m", f"recipe={name}", *words])


def test_every_recipe_is_held_against_its_paper():
    assert set(PUBLISHED) == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_sets_what_was_published(name):
    """Rates by the step: the first, the one after the warm-up, the last; clipping and decay."""
    config = recipe(name, "steps=10000")
    full, first, last, warmup, betas, bases = PUBLISHED[name]
    start, final = schedule_factors(config.schedule, config.optimizer.lr)
    rates = [
        config.optimizer.lr
        * warmup_cosine(s, steps=10_000, warmup=config.schedule.warmup, final=final, start=start)
        for s in range(10_000)
    ]
    rising = round(warmup * 10_000)
    assert rates[0] == pytest.approx(first)
    assert rates[rising] == max(rates) == full
    assert rates[rising // 2] == pytest.approx((first + full) / 2)
    assert rates[-1] == pytest.approx(last)
    assert rates[(rising + 9_999) // 2] == pytest.approx((full + last) / 2, rel=1e-3)
    assert list(config.optimizer.betas) == betas
    assert config.optimizer.weight_decay == 0.1
    assert config.trainer.gradient_clip_val == 1.0
    assert config.data.bases_per_step == bases


def test_the_length_warm_up_is_hyenadnas():
    """1K x 256, 2K x 128, 4K x 64, 8K x 32, 16K x 16, 32K x 8, with its shares of the run."""
    config = recipe("hyenadna_warmup")
    lengths = [stage.length for stage in config.data.stages] + [config.data.length]
    steps = [stage.steps for stage in config.data.stages]
    steps.append(config.steps - sum(steps))
    assert [(n, config.data.bases_per_step // n) for n in lengths] == [
        (1024, 256), (2048, 128), (4096, 64), (8192, 32), (16384, 16), (32768, 8),
    ]  # fmt: skip
    assert [16 * count / config.steps for count in steps] == [2, 2, 2, 2, 4, 4]


@pytest.mark.parametrize("name", RECIPES)
def test_a_step_has_the_same_bases_at_every_length(name):
    """Up to 64K, for one device and for eight."""
    for length in (1024, 8192, 65536):
        config = recipe(name, f"data.length={length}", "data.stages=[]")
        assert config.data.bases_per_step == PUBLISHED[name][-1]
        assert config.data.bases_per_step % length == 0


def test_a_recipe_wins_over_the_experiment_and_a_word_over_the_recipe():
    words = ["experiment=dna_tiny", "recipe=caduceus"]
    assert compose_configuration("train", words).optimizer.lr == 8e-3
    assert compose_configuration("train", words).steps == 200
    assert compose_configuration("train", [*words, "optimizer.lr=1e-3"]).optimizer.lr == 1e-3


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"start_lr": None, "final": 0.1, "final_lr": None}, (None, 0.1)),
        ({"start_lr": 1e-4, "final": 0.1, "final_lr": None}, (0.1, 0.1)),
        ({"start_lr": 0.0, "final": 0.1, "final_lr": 5e-4}, (0.0, 0.5)),
    ],
)
def test_ends_of_a_schedule_are_rates_or_factors(schedule, expected):
    assert schedule_factors(schedule, 1e-3) == pytest.approx(expected)


def test_a_rate_of_zero_stays_zero():
    schedule = {"start_lr": 0.0, "final": 0.1, "final_lr": 0.0}
    assert schedule_factors(schedule, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["start_lr", "final_lr"])
def test_a_rate_above_the_full_one_is_refused(small_run, tmp_path, capsys, name):
    assert small_run("run", "steps=1", "optimizer.lr=1e-3", f"schedule.{name}=2e-3") == 2
    assert f"schedule.{name}=0.002 is above optimizer.lr=0.001" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_follows_its_recipe(small_run, tmp_path):
    """Through the engine: the first rate is the published one, the saved optimizer its own."""
    words = ["recipe=caduceus", "steps=11", "data.bases_per_step=1024", "checkpoint_every=1"]
    assert small_run("run", *words) == 0
    folder = tmp_path / "run" / "checkpoints"
    rates = [
        torch.load(folder / f"step-{step:08d}.ckpt", weights_only=True)["lr_schedulers"][0][
            "_last_lr"
        ][0]
        for step in (1, 10)
    ]
    assert rates == pytest.approx([8e-3, 1e-4])  # of the steps that follow
    saved = read_checkpoint(folder / "last.ckpt")["fracdna"]["recipe"]
    assert saved["optimizer"]["betas"] == [0.9, 0.95]
    assert saved["schedule"]["start_lr"] == 1e-6


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], False),
        ([f"data.length={RECOMPUTED_FROM}"], True),
        ([f"data.length={RECOMPUTED_FROM - 1}"], False),
        ([f"data.length={RECOMPUTED_FROM}", "model.activation_checkpointing=false"], False),
        (["model.activation_checkpointing=true"], True),
    ],
)
def test_long_windows_recompute_their_layers(words, expected):
    """A model is built with true or false, which its checkpoint keeps."""
    config = compose_configuration("train", words)
    assert config.model.activation_checkpointing is expected
    assert build_model(config.model).backbone.activation_checkpointing is expected


@pytest.mark.parametrize("value", ["sometimes", "1", "null"])
def test_other_words_for_activation_checkpointing_are_refused(value):
    with pytest.raises(InputError, match=f"activation_checkpointing={value}: choose auto, true"):
        compose_configuration("train", [f"model.activation_checkpointing={value}"])


@pytest.mark.parametrize("mixer", [m for m in MIXERS if m in ("frac", "attention", "gdn")])
def test_recomputed_layers_give_the_same_gradients(mixer):
    """Activation checkpointing changes memory, not training."""
    torch.manual_seed(0)
    kept = tiny_model(mixer).train()
    again = tiny_model(mixer, "model.activation_checkpointing=true").train()
    again.load_state_dict(kept.state_dict())
    batch = {"ids": torch.randint(7, 11, (2, 32))}
    for model in (kept, again):
        module = LanguageModelling(
            model, optimizer=torch.optim.AdamW, weight_decay=0.1, steps=1, warmup=0.0, final=1.0
        )
        module.training_step(batch, 0).backward()
    for one, two in zip(kept.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)
