"""Every shipped configuration composes and builds."""

import pytest
from models import MIXERS, model_config
from omegaconf import OmegaConf

from fracdna.configuration import compose_configuration, configs_folder
from fracdna.model.checkpoint import build_model
from fracdna_prep.errors import InputError

FOLDER = configs_folder()
EXPERIMENTS = sorted(path.stem for path in (FOLDER / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("verb", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_every_verb_composes(verb):
    assert OmegaConf.to_container(compose_configuration(verb), resolve=True)


@pytest.mark.parametrize(
    ("mixer", "words", "message"),
    [
        ("frac", ["free_bank=true", "fixed_alpha=true"], "free_bank=true has neither alpha nor"),
        ("frac", ["free_bank=true", "write_prior=false"], "free_bank=true has neither alpha nor"),
        ("hyena", ["filter_rate_factor=-1.0"], "filter_rate_factor=-1.0 must be at least 0"),
    ],
)
def test_options_of_a_mixer_that_make_no_sense_are_refused(mixer, words, message):
    config = model_config(mixer, *(f"model.mixer.{word}" for word in words))
    with pytest.raises(InputError, match=message):
        build_model(config)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("mixer", MIXERS)
def test_every_experiment_builds_with_every_mixer(experiment, mixer):
    config = compose_configuration("train", [f"experiment={experiment}", f"mixer={mixer}"])
    model = OmegaConf.to_container(config.model, resolve=True)
    assert build_model(model).backbone.d_model == model["d_model"]
    assert config.data.bases_per_step % config.data.length == 0


def test_an_experiment_wins_over_the_defaults_and_a_word_over_the_experiment():
    assert compose_configuration("train", ["experiment=dna_7m"]).steps == 10_000
    assert compose_configuration("train", ["experiment=dna_7m", "steps=5"]).steps == 5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stepz=3", "no option 'stepz'; did you mean steps"),
        ("model.mixer.gian=zoh", "no option 'model.mixer.gian'"),
        ("steps=many", "steps=many needs a whole number"),
        ("resume=7", "resume=7 needs true or false"),
        ("optimizer.lr=fast", "optimizer.lr=fast needs a number"),
        ("mixer=mamba9", "mamba9"),
        ("steps=0", "steps=0 must be at least 1"),
        ("steps=null", "steps=null needs a whole number"),
        ("cuda_graphs='???'", "cuda_graphs=??? needs a value"),
        ("optimizer.lr=nan", "optimizer.lr=nan must be at least 0"),
        ("optimizer.betas=[0.9,2]", "must be at least 0 and at most 1"),
        ("optimizer.betas=high", "needs a list"),
        ("schedule.warmup=2", "at most 1"),
        ("output=", "output= needs text"),
        ("output=[a,b]", "needs text"),
        ("output=a=b", "quote values"),
        ("output=a,b", "bare comma"),
        ("data.prepared=5", "data.prepared=5 needs text"),
        ("data.bases_per_batch=abc", "needs a whole number"),
        ("data.bases_per_batch=-4", "must be at least 1"),
        ("steps", "steps"),
    ],
)
def test_a_wrong_word_is_refused_with_the_remedy(override, message):
    with pytest.raises(InputError) as refusal:
        compose_configuration("train", [override])
    assert message in str(refusal.value)


def test_configs_folder_can_be_named(monkeypatch, tmp_path):
    monkeypatch.setenv("FRACDNA_CONFIGS", str(FOLDER))
    assert configs_folder() == FOLDER
    monkeypatch.setenv("FRACDNA_CONFIGS", str(tmp_path / "none"))
    with pytest.raises(InputError, match="FRACDNA_CONFIGS"):
        configs_folder()


@pytest.mark.parametrize(
    ("verb", "override"),
    [
        ("evaluate", "lengths=abc"),
        ("evaluate", "lengths=[256.5]"),
        ("evaluate", "lengths=null"),
        ("evaluate", "regions=abc"),
        ("evaluate", "names=[1]"),
        ("evaluate", "checkpoint=5"),
        ("evaluate", "max_n_fraction=2"),
        ("embed", "regions=5"),
        ("embed", "layer=null"),
        ("embed", "genome=[a,b]"),
        ("prepare", "fasta=5"),
        ("prepare", "length=[a]"),
    ],
)
def test_other_verbs_refuse_other_kinds(verb, override):
    with pytest.raises(InputError, match=override.split("=")[0]):
        compose_configuration(verb, [override])


def test_a_single_value_is_a_list_of_one():
    assert compose_configuration("evaluate", ["lengths=256"]).lengths == [256]


def test_null_stays_where_it_means_something():
    config = compose_configuration("train", ["trainer.gradient_clip_val=null"])
    assert config.trainer.gradient_clip_val is None
    assert compose_configuration("prepare", ["intervals=null"]).intervals is None
