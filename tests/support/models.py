"""Tiny models for tests, built through the same door as training."""

import copy
import functools

import pytest
import torch
from omegaconf import OmegaConf

from fracdna.configuration import compose_configuration, configs_folder
from fracdna.model.checkpoint import build_model

# one for each kind of state: with a tail, a growing cache, both, a memory alone, tokens, angles
KINDS_OF_STATE = {"frac", "attention", "interleaved", "gla", "rwkv7", "mamba3"}
MIXERS = sorted(path.stem for path in (configs_folder() / "mixer").glob("*.yaml"))
# for what the contract of mixers promises already: every mixer, but most in the long run alone
CONSUMED = [
    pytest.param(name, marks=() if name in KINDS_OF_STATE else pytest.mark.slow) for name in MIXERS
]


# options that make another layer of a mixer, for what every mixer promises
VARIANTS = {
    "frac free_bank": ["model.mixer.free_bank=true"],
    # with steps so short that the bounds bind
    "frac rho_clamp": ["model.mixer.rho_clamp=true", "+model.mixer.delta_range=[1e-4,1e-2]"],
    "mamba3_mimo output_norm": ["model.mixer.output_norm=true"],
}


def model_config(mixer, *overrides, experiment="dna_tiny"):
    """The plain model configuration that the command line would build."""
    return copy.deepcopy(_composed(f"experiment={experiment}", f"mixer={mixer}", *overrides))


@functools.cache
def _composed(*arguments):
    return OmegaConf.to_container(compose_configuration("train", arguments).model, resolve=True)


def lively(module):
    """Move every parameter off its initial value, so that zeros and ones hide nothing."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter) * (0.1 + parameter.abs()))
    return module


def tiny_model(mixer, *overrides, dtype=torch.float32):
    """A dna_tiny model with parameters off their initial values, in evaluation mode."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = build_model(model_config(mixer, *overrides))
    finally:
        torch.set_default_dtype(default)
    return lively(model).eval()


def mixer_layers(mixer, dtype=torch.float32):
    """The distinct mixer modules of a tiny model: one for most, each kind for a hybrid.

    The mixer may be a name in VARIANTS.
    """
    model = tiny_model(mixer.split()[0], *VARIANTS.get(mixer, ()), dtype=dtype)
    layers = [block.mixer for block in model.backbone.blocks]
    return list({type(layer): layer for layer in layers}.values())
