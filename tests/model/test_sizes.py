"""Every size of every mixer has the parameters and the state that methods give it."""

import pytest
from models import MIXERS, model_config

from fracdna.configuration import configs_folder
from fracdna.model.checkpoint import build_model

PARAMETERS = {
    ("dna_7m", "frac"): 7_035_662,
    ("dna_7m", "attention"): 7_020_800,
    ("dna_tiny", "frac"): 139_112,
    ("dna_tiny", "attention"): 165_440,
    ("dna_7m", "gla"): 7_071_488,
    ("dna_tiny", "gla"): 171_840,
    ("dna_7m", "retnet"): 6_956_288,
    ("dna_tiny", "retnet"): 206_656,
    ("dna_7m", "mamba2"): 6_985_832,
    ("dna_tiny", "mamba2"): 112_624,
    ("dna_7m", "mamba3"): 7_139_312,
    ("dna_tiny", "mamba3"): 112_608,
    ("dna_7m", "mamba3_mimo"): 6_849_952,
    ("dna_tiny", "mamba3_mimo"): 124_384,
    ("dna_7m", "gdn"): 6_905_064,
    ("dna_tiny", "gdn"): 137_808,
    ("dna_7m", "rwkv7"): 6_974_208,
    ("dna_tiny", "rwkv7"): 198_592,
    ("dna_7m", "hyena"): 7_075_840,
    ("dna_tiny", "hyena"): 155_904,
    # a fixed bias of the time step: H less in every layer
    ("dna_7m", "post_mamba2"): 6_985_832 - 15 * 8,
    ("dna_tiny", "post_mamba2"): 112_624 - 4 * 4,
    ("dna_7m", "post_gdn"): 6_905_064,
    ("dna_tiny", "post_gdn"): 137_808,
    ("dna_7m", "post_gla"): 7_087_904,
    ("dna_tiny", "post_gla"): 173_896,
    ("dna_7m", "post_retnet"): 6_991_136,
    ("dna_tiny", "post_retnet"): 223_304,
    # a bias of the map from the input to the decay: D more in every layer
    ("dna_7m", "post_rwkv7"): 6_974_208 + 8 * 256,
    ("dna_tiny", "post_rwkv7"): 198_592 + 4 * 64,
}
# recurrent memory and convolution tail of one layer: 16 E + 3 E; keys and values of one position
STATES = {
    ("dna_7m", "frac"): 15 * (8192 + 3 * 512),
    ("dna_7m", "attention"): 8 * 512,
    ("dna_tiny", "frac"): 4 * (2048 + 3 * 128),
    ("dna_tiny", "attention"): 4 * 128,
    ("dna_7m", "gla"): 8 * 8192,
    ("dna_tiny", "gla"): 4 * 1024,
    ("dna_7m", "retnet"): 8 * 32_768,
    ("dna_tiny", "retnet"): 4 * 4096,
    ("dna_7m", "mamba2"): 15 * (65_536 + 3 * 768),
    ("dna_tiny", "mamba2"): 4 * (2048 + 3 * 160),
    ("dna_7m", "mamba3"): 15 * (65_536 + 1024 + 512 + 256),
    ("dna_tiny", "mamba3"): 4 * (2048 + 64 + 128 + 16),
    ("dna_7m", "mamba3_mimo"): 10 * (65_536 + 4096 + 512 + 256),
    ("dna_tiny", "mamba3_mimo"): 4 * (2048 + 128 + 128 + 16),
    ("dna_7m", "gdn"): 13 * (32_768 + 3 * 1024),
    ("dna_tiny", "gdn"): 4 * (4096 + 3 * 256),
    ("dna_7m", "rwkv7"): 8 * (16_384 + 2 * 256),
    ("dna_tiny", "rwkv7"): 4 * (2048 + 2 * 64),
    ("dna_7m", "hyena"): 8 * (8192 * 256 + 2 * 768),
    ("dna_tiny", "hyena"): 4 * (1024 * 64 + 2 * 192),
    ("dna_7m", "post_mamba2"): 15 * (65_536 + 3 * 768),
    ("dna_tiny", "post_mamba2"): 4 * (2048 + 3 * 160),
    ("dna_7m", "post_gdn"): 13 * (32_768 + 3 * 1024),
    ("dna_tiny", "post_gdn"): 4 * (4096 + 3 * 256),
    ("dna_7m", "post_gla"): 8 * 8192,
    ("dna_tiny", "post_gla"): 4 * 1024,
    ("dna_7m", "post_retnet"): 8 * 32_768,
    ("dna_tiny", "post_retnet"): 4 * 4096,
    ("dna_7m", "post_rwkv7"): 8 * (16_384 + 2 * 256),
    ("dna_tiny", "post_rwkv7"): 4 * (2048 + 2 * 64),
}
SIZES = sorted(path.stem for path in (configs_folder() / "size").glob("*.yaml"))


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("size", [size for size in SIZES if size.startswith("dna_")])
@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_has_a_row_in_every_size_of_dna(mixer, size):
    """Synthetic tasks have rows of the mixers that they compare."""
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
