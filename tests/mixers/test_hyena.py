import math

import pytest
import torch
from models import lively, model_config
from numerics import relative_error

from fracdna.mixers.hyena import Hyena, ImplicitFilter
from fracdna.model.checkpoint import build_model
from fracdna.training.optimizer import parameter_groups

WIDTH, WINDOW = 12, 30
FILTER = {"width": 16, "features": 5, "frequency": 10.0, "shift": 0.0}


def build(**options):
    torch.set_default_dtype(torch.float64)
    try:
        return lively(Hyena(WIDTH, **{"window": WINDOW, "filter_width": 16} | options))
    finally:
        torch.set_default_dtype(torch.float32)


def published_filter(weight, n, reach, features, shift):
    """Taps of all channels at one lag, from the equations alone."""
    bands = (features - 1) // 2
    frequencies = [1e-4 + i * (bands - 1 - 1e-4) / max(bands - 1, 1) for i in range(bands)]
    angle = 2 * math.pi * n / reach
    time = n / (reach - 1)
    z = [time, *(math.cos(f * angle) for f in frequencies)]
    z = torch.tensor(z + [-math.sin(f * angle) for f in frequencies], dtype=torch.float64)
    for layer in range(3):
        y = weight[f"filter.layers.{layer}.weight"] @ z + weight[f"filter.layers.{layer}.bias"]
        z = torch.sin(weight["filter.frequency"] * y)
    h = weight["filter.last.weight"] @ z
    for channel in range(WIDTH):
        slowest, fastest = math.log(100) / 1.5, math.log(100) / 0.3
        delta = slowest + (fastest - slowest) * channel / (WIDTH - 1)
        h[channel] = h[channel] * (math.exp(-time * delta) + shift)
    return h


def published_layer(layer, h, features=5, shift=0.0):
    """The layer's equations, one position after another; only the weights are the package's."""
    weight = {name: p.detach() for name, p in layer.named_parameters()}
    projected = h @ weight["in_projection.weight"].T + weight["in_projection.bias"]
    gates, inputs, outputs = [], [], []
    for t in range(h.shape[0]):
        mixed = weight["conv_bias"].clone()
        for w in range(3):
            if t - 2 + w >= 0:
                mixed = mixed + weight["conv_weight"][:, w] * projected[t - 2 + w]
        x0, x1, v = mixed.chunk(3)
        gates.append(x0)
        inputs.append(x1 * v)
    for t in range(h.shape[0]):
        y = weight["filter_bias"] * inputs[t]
        for lag in range(min(t, WINDOW) + 1):
            y = y + published_filter(weight, lag, WINDOW + 1, features, shift) * inputs[t - lag]
        out = weight["out_projection.weight"] @ (gates[t] * y)
        outputs.append(out + weight["out_projection.bias"])
    return torch.stack(outputs)


@pytest.mark.parametrize("form", ["chunk", "reference", "recurrent"])
def test_published_equations_hold_in_float64(form):
    """The whole layer against an independent loop, a window with BOS long."""
    layer = build(form=form)
    h = torch.randn(WINDOW + 1, WIDTH, dtype=torch.float64)
    assert relative_error(layer(h[None])[0], published_layer(layer, h)) < 1e-10


@pytest.mark.parametrize("options", [{"filter_shift": 0.05}, {"filter_features": 9}], ids=str)
def test_options_of_the_filter(options):
    layer = build(**options)
    h = torch.randn(20, WIDTH, dtype=torch.float64)
    expected = published_layer(
        layer, h, options.get("filter_features", 5), options.get("filter_shift", 0.0)
    )
    assert relative_error(layer(h[None])[0], expected) < 1e-10


def test_beyond_a_window_the_oldest_inputs_are_forgotten():
    """Longer sequences see what a window and BOS would: same taps, and none beyond."""
    layer = build()
    h = torch.randn(WINDOW + 25, WIDTH, dtype=torch.float64)
    expected = published_layer(layer, h)
    assert relative_error(layer(h[None])[0], expected) < 1e-10
    state, outputs = layer.initial_state(1), []
    for piece in h[None].split([40, 1, 14], dim=1):
        output, state = layer.step(piece, state)
        outputs.append(output)
    assert relative_error(torch.cat(outputs, 1)[0], expected) < 1e-10


def test_shorter_sequences_take_the_first_taps():
    """A filter belongs to the window: it is not stretched to the sequence."""
    filters = build().filter
    assert relative_error(filters(7), filters(WINDOW + 1)[:, :7]) < 1e-12


def test_filters_fade_by_the_published_rates():
    """At the end of a window by e^-3.07011 in the first channel to e^-15.3506 in the last."""
    filters = ImplicitFilter(WIDTH, 100, **FILTER).double()
    with torch.no_grad():
        for layer in filters.layers:
            layer.weight.zero_()  # the network answers alike everywhere
            layer.bias.fill_(0.1)
    taps = filters(100)
    fading = -torch.log(taps[:, -1] / taps[:, 0])
    assert fading[0].item() == pytest.approx(3.07011, rel=1e-5)
    assert fading[-1].item() == pytest.approx(15.3506, rel=1e-5)
    assert torch.allclose(fading.diff(), fading.diff()[0])


def test_filters_are_not_rounded_by_autocast():
    """The sines multiply by 10: what bfloat16 leaves of their arguments would be another filter."""
    filters = lively(ImplicitFilter(WIDTH, 100, **FILTER))
    exact = filters(100)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(filters(100), exact)


def test_initial_values():
    """Normals of 0.02, smaller into the stream; one frequency; the convolution's own bounds."""
    layer = Hyena(256, window=100, num_layers=8)
    for name in ("in_projection", "filter.layers.0", "filter.layers.1", "filter.last"):
        part = layer.get_submodule(name)
        assert part.weight.std().item() == pytest.approx(0.02, rel=0.15)
        assert part.bias is None or not part.bias.any()
    assert layer.out_projection.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert (layer.filter.frequency == 10).all()
    assert layer.filter_bias.std().item() == pytest.approx(1, rel=0.2)
    for parameter in (layer.conv_weight, layer.conv_bias):
        assert parameter.abs().max() <= 3**-0.5
        assert parameter.std().item() == pytest.approx(1 / 3, rel=0.1)


def test_parameters_follow_the_formula():
    """4D^2 + 17D + WD + 2W^2 + (e + 4) W; both norms (4D) and the MLP are the block's."""
    D, W, e = WIDTH, 16, 5
    expected = 4 * D * D + 17 * D + W * D + 2 * W * W + (e + 4) * W
    assert sum(p.numel() for p in build().parameters()) == expected


def test_filters_do_not_decay():
    layer = build()
    decayed = parameter_groups(layer, 0.1)[0]["params"]
    names = {name for name, p in layer.named_parameters() if any(p is d for d in decayed)}
    assert names == {"in_projection.weight", "conv_weight", "out_projection.weight"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window=0"),
        ({"window": 9, "filter_features": 4}, "features=4 must be odd"),
        ({"window": 9, "filter_features": 1}, "features=1 must be odd"),
    ],
)
def test_impossible_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Hyena(16, **options)


def test_filters_are_as_long_as_the_training_windows():
    """The window follows data.length, also in a checkpoint's plain configuration."""
    config = model_config("hyena", "data.length=512")
    assert config["mixer"]["window"] == 512
    mixer = build_model(config).backbone.blocks[0].mixer
    assert mixer.filter.reach == 513
    assert model_config("hyena", "model.mixer.window=77")["mixer"]["window"] == 77


def test_large_pads_do_not_leak_through_the_transform():
    """A spectrum mixes all positions: rounding of a pad of 1e5 would drown every valid output."""
    layer = lively(Hyena(WIDTH, window=WINDOW, filter_width=16))
    x = torch.randn(1, 20, WIDTH)
    x[:, 12:] = 1e5
    padded, _ = layer.step(x, layer.initial_state(1), lengths=torch.tensor([12]))
    alone, _ = layer.step(x[:, :12], layer.initial_state(1))
    assert relative_error(padded[:, :12], alone) < 1e-5


def test_the_network_of_the_filters_may_learn_at_a_rate_of_its_own():
    """Its weights, biases and frequency, and nothing else; as published they share the rate."""
    layer = Hyena(24, window=16, filter_rate_factor=0.5)
    names = {name for name, _ in layer.named_parameters() if name.startswith("filter.")}
    assert layer.learning_rate_factors == dict.fromkeys(names, 0.5)
    *common, own = parameter_groups(layer, 0.1)
    assert {group["rate_factor"] for group in common} == {1.0}
    assert (own["rate_factor"], own["weight_decay"], len(own["params"])) == (0.5, 0.0, len(names))
    assert len(parameter_groups(Hyena(24, window=16), 0.1)) == 2
    with pytest.raises(ValueError, match="filter_rate_factor=-1 must be at least 0"):
        Hyena(24, window=16, filter_rate_factor=-1)
    for factor in (math.nan, math.inf):
        with pytest.raises(ValueError, match="must be at least 0 and finite"):
            Hyena(24, window=16, filter_rate_factor=factor)
    factor = "model.mixer.filter_rate_factor=0.5"
    assert model_config("hyena", factor)["mixer"]["filter_rate_factor"] == 0.5
