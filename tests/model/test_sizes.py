"""Every size of every mixer has the parameters and the state that methods give it."""

import pytest
from models import model_config

from fracdna.configuration import configs_folder
from fracdna.model.checkpoint import build_model

PARAMETERS = {
    ("dna_7m", "frac"): 7_035_662,
    ("dna_7m", "attention"): 7_020_800,
    ("dna_tiny", "frac"): 139_112,
    ("dna_tiny", "attention"): 165_440,
}
# recurrent memory and convolution tail of one layer: 16 E + 3 E; keys and values of one position
STATES = {
    ("dna_7m", "frac"): 15 * (8192 + 3 * 512),
    ("dna_7m", "attention"): 8 * 512,
    ("dna_tiny", "frac"): 4 * (2048 + 3 * 128),
    ("dna_tiny", "attention"): 4 * 128,
}
MIXERS = sorted(path.stem for path in (configs_folder() / "mixer").glob("*.yaml"))
SIZES = sorted(path.stem for path in (configs_folder() / "size").glob("*.yaml"))


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_has_a_row_in_every_size(mixer, size):
    assert (configs_folder() / "size" / size / f"{mixer}.yaml").is_file()


@pytest.mark.parametrize(("size", "mixer"), PARAMETERS, ids=str)
def test_parameters_and_state_are_those_of_methods(size, mixer):
    model = build_model(model_config(mixer, experiment=size))
    assert count(model) == PARAMETERS[size, mixer]
    assert model.backbone.state_size() == STATES[size, mixer]


@pytest.mark.parametrize("mixer", MIXERS)
def test_seven_million_means_within_three_percent(mixer):
    assert abs(count(build_model(model_config(mixer, experiment="dna_7m"))) / 7e6 - 1) < 0.03


@pytest.mark.parametrize(
    "override",
    ["model.mixer.gain=zoh", "model.mixer.fixed_alpha=true", "model.mixer.num_modes=8"],
)
def test_options_and_ablations_of_frac_are_words_on_the_command_line(override):
    model = build_model(model_config("frac", override))
    key, value = override.removeprefix("model.mixer.").split("=")
    assert str(model.config["mixer"][key]).lower() == value
