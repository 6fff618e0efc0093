"""Every shipped configuration composes and builds."""

import shutil

import pytest
import torch
from models import MIXERS, model_config
from omegaconf import OmegaConf

from fracdna.configuration import compose_configuration, configs_folder, describe
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
        ("hyena", ["filter_rate_factor=nan"], "model.mixer.filter_rate_factor=nan needs a finite"),
        ("hyena", ["filter_rate_factor=inf"], "model.mixer.filter_rate_factor=inf needs a finite"),
        ("hyena", ["filter_width=0"], "model.mixer.filter_width=0 needs a whole number of at"),
        ("hyena", ["window=0"], "model.mixer.window=0 needs a whole number of at least 1"),
        ("mamba2", ["state_width=0"], "model.mixer.state_width=0 needs a whole number of at"),
        ("gla", ["key_width=0"], "model.mixer.key_width=0 needs a whole number of at least 1"),
        ("gdn", ["value_width=-3"], "model.mixer.value_width=-3 needs a whole number of at"),
        ("mamba3_mimo", ["rank=0"], "model.mixer.rank=0 needs a whole number of at least 1"),
        ("rwkv7", ["head_width=0"], "model.mixer.head_width=0 needs a whole number of at least 1"),
        ("frac", ["num_heads=0"], "model.mixer.num_heads=0 needs a whole number of at least 1"),
        ("interleaved", ["mixers.frac.num_modes=0"], "mixers.frac.num_modes=0 needs a whole"),
    ],
)
def test_options_of_a_mixer_that_make_no_sense_are_refused(mixer, words, message):
    config = model_config(mixer, *(f"model.mixer.{word}" for word in words))
    with pytest.raises(InputError, match=message):
        build_model(config)


@pytest.mark.parametrize(
    ("mixer", "word", "message"),
    [
        ("gdn", "+model.mixer.post=off", "model.mixer.post=off needs true or false"),
        ("gdn", "+model.mixer.post=true", "post needs the length of a training sequence"),
        ("gdn", "+model.mixer.psot=true", "model.mixer.psot cannot be built: GDN has no such"),
        ("frac", "+model.mixer.expand=2.5", "model.mixer.expand=2.5 needs a whole number"),
        ("frac", "+model.mixer.tau_range=5", "model.mixer.tau_range=5 needs a list of 2 numbers"),
        ("frac", "+model.mixer.tau_range=[1,2,3]", "needs a list of 2 numbers"),
        ("frac", "+model.mixer.tau_range=[1,nan]", "needs a list of 2 numbers"),
        ("frac", "+model.mixer.tau_range=[100,1]", r"tau_range=\(100, 1\) must rise"),
        ("attention", "+model.mixer.num_key_heads=0", "at least 1 or null"),
        ("attention", "model.mlp.width=0", "model.mlp.width=0 needs a whole number of at least 1"),
        ("hyena", "model.embedding_dropout=1.5", "embedding_dropout=1.5 must be at least 0 and"),
        ("hyena", "model.embedding_dropout=nan", "model.embedding_dropout=nan needs a finite"),
        ("gdn", "model.mixer=null", "model.mixer=null needs a part of a model.* mixer=gdn"),
        ("frac", "model.mlp=5", "model.mlp=5 needs a part of a model, with its _target_ or null"),
        ("frac", "model.num_layers=0", "model.num_layers=0 needs a whole number of at least 1"),
    ],
)
def test_options_are_held_against_what_a_part_takes(mixer, word, message):
    """Also those that no file sets: a signature says of which kind they are."""
    config = model_config(mixer, word)
    with pytest.raises(InputError, match=message):
        build_model(config)


def test_options_without_a_default_in_a_file_may_be_set():
    """With a plus; a whole number is a number, and null means what it means."""
    words = "+model.mixer.tau_range=[1.5,1000]", "+model.mixer.read_gain_init=-1"
    config = model_config("frac", *words)
    mixer = build_model(config).backbone.blocks[0].mixer
    assert mixer.log_tau.exp().max().item() == pytest.approx(1000)
    build_model(model_config("attention", "+model.mixer.num_key_heads=null", "model.mlp=null"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mixer=gdn model.mixer.negative_eigenvalues=off", "=off needs true or false"),
        ("mixer=post_gdn model.mixer.post=off", "model.mixer.post=off needs true or false"),
        ("mixer=post_gdn model.mixer.post_reset=no", "model.mixer.post_reset=no needs true or"),
        ("mixer=mamba3 model.mixer.output_norm=off", "model.mixer.output_norm=off needs true or"),
        ("mixer=attention model.mixer.qk_norm=no", "model.mixer.qk_norm=no needs true or false"),
        ("mixer=gdn model.mixer.key_width=32.5", "model.mixer.key_width=32.5 needs a whole number"),
        ("mixer=post_gdn model.mixer.post_length=256.5", "post_length=256.5 needs a whole number"),
        ("mixer=post_gdn model.mixer.post_length=abc", "post_length=abc needs a whole number"),
        ("mixer=post_gdn model.mixer.post_length=null", "post_length=null needs a whole number"),
        ("mixer=hyena model.mixer.filter_rate_factor=null", "factor=null needs a number"),
        ("mixer=hyena model.mixer.filter_rate_factor=abc", "factor=abc needs a number"),
        ("mixer=hyena model.embedding_dropout=null", "embedding_dropout=null needs a number"),
        ("experiment=dna_7m mixer=gla model.mixer.key_width=x", "key_width=x needs a whole number"),
    ],
)
def test_options_of_the_chosen_mixer_keep_the_kind_of_its_defaults(words, message):
    with pytest.raises(InputError) as refusal:
        compose_configuration("train", words.split())
    assert message in str(refusal.value)


def test_a_default_that_follows_another_option_may_be_a_value():
    """${data.length} is a number, and no text."""
    config = compose_configuration("train", ["mixer=post_gdn", "model.mixer.post_length=300"])
    assert config.model.mixer.post_length == 300


@pytest.mark.parametrize("mixer", ["gdn", "mamba2", "rwkv7"])
def test_without_post_its_file_is_that_of_the_mixer(mixer):
    """As docs/mixers.md says: the same parameters with the same initial values."""
    weights = []
    for words in ([mixer], [f"post_{mixer}", "model.mixer.post=false"]):
        torch.manual_seed(0)
        weights.append(build_model(model_config(*words)).state_dict())
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_an_experiment_does_not_change_what_an_option_may_be(tmp_path, monkeypatch):
    shutil.copytree(FOLDER, tmp_path / "configs")
    monkeypatch.setenv("FRACDNA_CONFIGS", str(tmp_path / "configs"))
    (tmp_path / "configs/experiment/mine.yaml").write_text("# @package _global_\nsteps: many\n")
    with pytest.raises(InputError, match="steps=many needs a whole number"):
        compose_configuration("train", ["experiment=mine"])


def test_a_mixer_without_its_numbers_says_which_file_to_create(tmp_path, monkeypatch):
    shutil.copytree(FOLDER, tmp_path / "configs")
    monkeypatch.setenv("FRACDNA_CONFIGS", str(tmp_path / "configs"))
    shutil.copy(FOLDER / "mixer/gdn.yaml", tmp_path / "configs/mixer/mine.yaml")
    with pytest.raises(InputError, match=r"mixer=mine: create .*configs/size/dna_tiny/mine\.yaml"):
        compose_configuration("train", ["mixer=mine"])


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
        ("optimizer.lr=inf", "optimizer.lr=inf must be at least 0 and finite"),
        ("length=5", "did you mean data.length?"),
        ("mixr=gdn", "did you mean mixer?"),
        ("model.mixr.gain=zoh", "did you mean model.mixer.gain?"),
        ("model.mixer=gdn", "model.mixer.num_heads=2, or all with mixer=gdn"),
        ("schedule=5", "set one, as in schedule.warmup=0.02"),
        ("schedule=null", "set one, as in schedule.warmup=0.02"),
        ("data.length={a: 5}", "data.length is one value and takes no options"),
        ("mixer=[gdn,frac]", "mixer=[gdn,frac]: choose one of mixer=attention|frac|gdn"),
        ("mixer=gdn,frac", "mixer=gdn,frac: choose one of mixer=attention|frac|gdn"),
        ("mixer=null", "mixer=null: choose one of mixer=attention|frac|gdn"),
        ("recipe=mine", "recipe/mine"),
        ("logger=paper", "logger/paper"),
        ("recipe=null", "recipe=null: choose one of recipe=caduceus|hyenadna"),
        ("logger.mode=offline", "no option 'logger.mode'"),
        ("compile=null", "compile=null needs true or false"),
        ("data.bases_per_batch=some", "=some needs a whole number, or auto"),
        ("data.bases_per_batch=0.5", "=0.5 needs a whole number, or auto"),
        ("schedule.start_lr=low", "schedule.start_lr=low needs a number"),
        ("schedule.final_lr=-1", "schedule.final_lr=-1 must be at least 0"),
        ("schedule.start_lr=inf", "schedule.start_lr=inf must be at least 0 and finite"),
        ("data.stages=null", "data.stages=null needs a list of length and steps"),
        ("data.stages=[{length: 64}]", "data.stages=[{length: 64}] needs a list of length and"),
        ("data.stages=[{length: 64, steps: 1.5}]", "steps: 1.5}] needs a list of length and"),
        ("data.stages=[{length: 64, steps: true}]", "steps: true}] needs a list of length and"),
        ("data.stages=[64]", '"data.stages=[{length: 1000, steps: 1000}]"'),
    ],
)
def test_a_wrong_word_is_refused_with_the_remedy(override, message):
    with pytest.raises(InputError) as refusal:
        compose_configuration("train", [override])
    assert message in str(refusal.value)


def test_hints_are_about_the_files_that_are_chosen():
    """An option of another mixer is not suggested; those that there are stand in its place."""
    with pytest.raises(InputError) as refusal:
        compose_configuration("train", ["mixer=gdn", "model.mixer.gain=zoh"])
    message = str(refusal.value)
    assert "did you mean" not in message
    assert "model.mixer has key_width, negative_eigenvalues, num_heads, value_width;" in message
    assert "+model.mixer.gain=VALUE" in message
    assert "`fracdna train mixer=gdn --help`" in message
    with pytest.raises(InputError, match=r"did you mean model\.mixer\.negative_eigenvalues\?"):
        compose_configuration("train", ["mixer=gdn", "model.mixer.negative_eigenvalue=true"])


def test_help_shows_the_files_that_a_chosen_file_builds_on():
    """The recipe with a length warm-up is another one with stages."""
    text = describe("train", ["recipe=hyenadna_warmup", "logger=wandb"])
    for line in ("- {length: 16384, steps: 2500}", "betas: [0.9, 0.999]", "mode: online"):
        assert line in text
    assert "recipe=caduceus|hyenadna|hyenadna_warmup\n  # none unless chosen" in describe("train")


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
    words = ["recipe=caduceus", "schedule.final_lr=null", "data.bases_per_batch=null"]
    assert compose_configuration("train", words).schedule.final_lr is None
    assert compose_configuration("prepare", ["intervals=null"]).intervals is None
