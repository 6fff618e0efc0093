"""Time scales of layers as they are set, and the picture of them."""

import math

import pytest
import torch
from matplotlib.image import imread
from models import MIXERS, model_config, tiny_model
from numerics import relative_error

from fracdna.benchmarks.spectrum import decay_spectra, draw_spectra, spectra_figure
from fracdna.mixers.post import TaperedSpectrum
from fracdna.model.checkpoint import build_model
from fracdna_prep.errors import InputError

POST = [name for name in MIXERS if name.startswith("post_")]
T = 256
# p of the slowest and of the fastest channel; RWKV-7: its logits
ENDS = {
    "post_mamba2": (-math.log(0.05 * T), -math.log(0.05)),
    "post_gdn": (0.0, math.log(T)),
    "post_gla": (0.0, math.log(16)),
    "post_retnet": (0.0, math.log(16)),
    "post_rwkv7": (-math.log(math.exp(-0.5) * T - 1), 0.5),
}


def untrained(mixer, *overrides):
    return build_model(model_config(mixer, f"data.length={T}", *overrides))


@pytest.mark.parametrize("name", POST)
def test_every_spectrum_of_post_begins_equally_spaced(name):
    """p itself, before the random time steps; the logits of RWKV-7. Exponents stay in [0, 1]."""
    tapers = [part for part in untrained(name).modules() if isinstance(part, TaperedSpectrum)]
    assert len(tapers) == 4
    for taper in tapers:
        p = taper.spectrum()
        assert torch.allclose(p, torch.linspace(*ENDS[name], len(p)), atol=2e-5)
        eta = taper.exponents(p)
        assert (eta[0], eta[-1]) == (1, 0)
        assert (eta.diff() <= 0).all()


@pytest.mark.parametrize("name", MIXERS)
def test_time_scales_are_those_of_a_sequence_of_zeros(name):
    """What is left of a memory after a position with input 0, at several places of a sequence."""
    model = tiny_model(name)
    times = torch.tensor([1, 5, 40])
    for block in model.backbone.blocks:
        scales = block.mixer.time_scales(times)
        if scales is None:
            assert name in ("attention", "hyena", "interleaved")
            continue
        assert scales.shape[0] == 3
        assert (scales > 0).all()
        if "rwkv7" in name:  # its norms and what it removes are in the way: see below
            continue
        zeros = torch.zeros(1, 1, model.backbone.d_model)
        for time, expected in zip(times.tolist(), torch.exp(-1 / scales), strict=True):
            empty = block.mixer.initial_state(1)
            if "count" in empty._fields:
                empty = empty._replace(count=torch.tensor([time - 1]))
            full = empty._replace(memory=torch.ones_like(empty.memory))
            kept, new = (block.mixer.step(zeros, s)[1].memory for s in (full, empty))
            left = (kept - new)[0, :, :, 0]
            assert relative_error(left, expected.view(len(left), -1).expand_as(left)) < 1e-5


def test_time_scales_of_rwkv7_are_those_of_its_logits():
    """e^(1/2) / sigmoid(p - eta log t + bias)."""
    mixer = tiny_model("post_rwkv7").backbone.blocks[1].mixer
    p = mixer.taper.spectrum()
    logits = p - mixer.taper.exponents(p) * math.log(40) + mixer.decay.bias
    expected = math.exp(0.5) * (1 + torch.exp(-logits))
    assert relative_error(mixer.time_scales(torch.tensor([40]))[0], expected) < 1e-5


def test_untrained_time_scales_of_frac_are_geometric():
    """tau over the clock of zeros, 3.12999: from 0.319 to 41,876 positions in every head."""
    spectra = decay_spectra(untrained("frac"))
    assert [s.layer for s in spectra] == [1, 2, 3, 4]
    for spectrum in spectra:
        assert (spectrum.mixer, spectrum.times) == ("Frac", (1,))
        scales = spectrum.scales[0].view(16, 2)
        assert torch.equal(scales[:, 0], scales[:, 1])
        assert scales[0, 0].item() == pytest.approx(41_876, rel=1e-4)
        assert torch.allclose(scales[:-1] / scales[1:], torch.tensor(2.19365), atol=1e-4)


@pytest.mark.parametrize(("name", "panels"), [("frac", 1), ("post_mamba2", 3), ("interleaved", 1)])
def test_the_picture_shows_the_time_scales_of_the_layers(tmp_path, name, panels):
    """A panel for each time, a line for each layer that fades, and a PNG with something on it."""
    model = tiny_model(name, f"data.length={T}")
    spectra = decay_spectra(model)
    figure = spectra_figure(spectra, "title")
    drawn = [axes for axes in figure.axes if axes.lines]
    assert len(drawn) == panels
    fading = [b.mixer for b in model.backbone.blocks if type(b.mixer).__name__ != "Attention"]
    for axes, time in zip(drawn, (1, T, 16 * T), strict=False):
        assert axes.get_yscale() == "log"
        assert len(axes.lines) == len(fading)
        for line, mixer in zip(axes.lines, fading, strict=True):
            expected = mixer.time_scales(torch.tensor([time]))[0].sort(descending=True).values
            shown = torch.tensor(line.get_ydata(), dtype=torch.float64).sort(descending=True).values
            assert relative_error(shown, expected) < 1e-6
    path = tmp_path / "spectra.png"
    draw_spectra(path, spectra, title="title")
    pixels = imread(path)
    assert pixels.shape[0] > 300
    assert pixels[..., :3].std() > 0.01


def test_a_model_without_rates_has_no_spectrum():
    with pytest.raises(InputError, match="no layer of this model fades by rates"):
        decay_spectra(tiny_model("attention"))
    with pytest.raises(InputError, match=r"times=\[0\]"):
        decay_spectra(tiny_model("frac"), [0])
