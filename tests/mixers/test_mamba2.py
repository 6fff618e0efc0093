import math

import post_loop
import pytest
import torch
from models import lively, model_config
from numerics import relative_error
from torch.nn.functional import softplus

from fracdna.mixers.mamba2 import Mamba2
from fracdna.model.checkpoint import build_model
from fracdna.training.optimizer import parameter_groups

SIZES = {"num_heads": 4, "state_width": 8}
POST = {"post": True, "post_length": 16}
QUARTERS = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])


def build(**options):
    torch.set_default_dtype(torch.float64)
    try:
        return lively(Mamba2(12, **SIZES | options))
    finally:
        torch.set_default_dtype(torch.float32)


def published_layer(layer, h, groups):
    """The layer's equations, one position after another; only the weights are the package's."""
    weight = {name: p.detach() for name, p in layer.named_parameters()}
    E, H, V, N = 24, 4, 6, 8
    log_rates, eta = weight.get("A_log"), torch.zeros(H)
    if log_rates is None:
        log_rates, eta = post_loop.of_taper(weight, "taper", H, POST["post_length"])
    dt_bias = weight.get("dt_bias", math.log(math.expm1(0.05)))
    taps = weight["conv_weight"].shape[1]
    inputs = h @ weight["in_projection.weight"].T
    state, outputs = torch.zeros(H, N, V, dtype=torch.float64), []
    for t in range(h.shape[0]):
        mixed = weight["conv_bias"].clone()
        for w in range(taps):
            if t - taps + 1 + w >= 0:
                mixed = mixed + weight["conv_weight"][:, w] * inputs[t - taps + 1 + w]
        mixed = mixed / (1 + torch.exp(-mixed))
        x, B, C = mixed[:E], mixed[E : E + groups * N], mixed[E + groups * N :]
        steps = torch.log1p(torch.exp(weight["dt_projection.weight"] @ h[t] + dt_bias))
        z = weight["gate_projection.weight"] @ h[t]
        y = torch.zeros(E, dtype=torch.float64)
        for head in range(H):
            group = head * groups // H
            keys, values = (slice(n * w, (n + 1) * w) for n, w in ((group, N), (head, V)))
            rate = torch.exp(log_rates[head]) * (t + 1) ** -eta[head]
            decay = torch.exp(-rate * steps[head])
            state[head] = decay * state[head] + steps[head] * torch.outer(B[keys], x[values])
            y[values] = state[head].T @ C[keys] + weight["skip"][head] * x[values]
        y = y * z / (1 + torch.exp(-z))
        for group in range(groups):
            part = slice(group * E // groups, (group + 1) * E // groups)
            y[part] = y[part] / torch.sqrt((y[part] ** 2).mean() + 1e-5)
        outputs.append(weight["out_projection.weight"] @ (weight["norm_weight"] * y))
    return torch.stack(outputs)


@pytest.mark.parametrize("form", ["chunk", "reference", "recurrent"])
@pytest.mark.parametrize("groups", [1, 2])
def test_published_equations_hold_in_float64(form, groups):
    """The whole layer against an independent loop."""
    layer = build(form=form, num_groups=groups)
    h = torch.randn(40, 12, dtype=torch.float64)
    assert relative_error(layer(h[None])[0], published_layer(layer, h, groups)) < 1e-10


@pytest.mark.parametrize("form", ["chunk", "reference", "recurrent"])
@pytest.mark.parametrize("span", ["full", "strict"])
def test_equations_of_post_hold_in_float64(form, span):
    """Also beyond the length of training."""
    layer = build(form=form, post_span=span, **POST)
    h = torch.randn(40, 12, dtype=torch.float64)
    assert relative_error(layer(h[None])[0], published_layer(layer, h, 1)) < 1e-10


def test_rates_of_post_begin_at_the_length_of_training():
    """e^p 0.05 from 1/T to 1, equally spaced logs; of the strict span 1. The bias is -2.97063."""
    layer = Mamba2(12, **SIZES | POST)
    rates = layer.taper.spectrum().exp() * 0.05
    assert torch.allclose(rates, 16 ** torch.tensor([-1, -2 / 3, -1 / 3, 0]))
    strict = Mamba2(12, **SIZES | POST, post_span="strict")
    assert torch.allclose(strict.taper.spectrum().exp() * 0.05, torch.ones(4))
    assert layer.dt_bias == pytest.approx(-2.97063, abs=5e-6)


def test_post_trains_its_spectrum_without_decay_and_no_bias_of_the_time_step():
    layer = Mamba2(12, **SIZES | POST)
    exempt = parameter_groups(layer, 0.1)[1]["params"]
    names = {name for name, p in layer.named_parameters() if any(p is e for e in exempt)}
    assert names == {"taper.base", "taper.gaps", "skip", "norm_weight", "conv_bias"}


def test_post_starts_from_the_position_in_the_state():
    layer = build(**POST)
    x = torch.randn(2, 12, 12, dtype=torch.float64)
    _, state = layer.step(x[:, :7], layer.initial_state(2))
    onward = layer.step(x[:, 7:], state)[0]
    assert relative_error(onward, layer(x)[:, 7:]) < 1e-12
    elsewhere = layer.step(x[:, 7:], state._replace(count=state.count + 50))[0]
    assert relative_error(elsewhere, onward) > 1e-4


def test_the_length_of_training_is_part_of_the_model():
    config = model_config("post_mamba2", "data.length=512", "model.mixer.post_span=strict")
    assert config["mixer"]["post_length"] == 512
    taper = build_model(config).backbone.blocks[0].mixer.taper
    assert (taper.length, taper.gaps) == (512, None)


def test_post_without_a_length_is_refused():
    with pytest.raises(ValueError, match="post_length=None"):
        Mamba2(12, **SIZES, post=True)


def test_initial_rates_and_time_steps_have_the_published_distribution():
    """Rates uniform on [1, 16], time steps log-uniform on [1e-3, 0.1]: edges and quartiles."""
    layer = Mamba2(2, num_heads=20_000, state_width=1, expand=10_000)
    rates = layer.A_log.exp()
    assert torch.allclose((rates.quantile(QUARTERS) - 1) / 15, QUARTERS, atol=0.02)
    steps = softplus(layer.dt_bias)
    assert torch.allclose((steps.log10() + 3).quantile(QUARTERS) / 2, QUARTERS, atol=0.02)
    # drawn apart: one head's rate says nothing of its time step
    assert abs(torch.corrcoef(torch.stack([rates, steps]))[0, 1].item()) < 0.03


def test_initial_weights_are_uniform_by_their_inputs():
    """Within 1 / sqrt(inputs), of the output map further by sqrt(layers); skip and norm are 1."""
    layer = Mamba2(256, num_heads=8, num_layers=16)
    bounds = {
        "gate_projection.weight": 1 / 16,
        "in_projection.weight": 1 / 16,
        "dt_projection.weight": 1 / 16,
        "out_projection.weight": 512**-0.5 / 4,
        "conv_weight": 0.5,
        "conv_bias": 0.5,
    }
    for name, bound in bounds.items():
        parameter = layer.get_parameter(name)
        assert bound * 0.98 < parameter.abs().max().item() <= bound * 1.0001, name
        assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name
    assert (layer.skip == 1).all()
    assert (layer.norm_weight == 1).all()


def test_parameters_follow_the_formula():
    """3DE + 2DN G + DH + 6E + 10N G + 3H, the pre-norm's D apart."""
    D, E, H, N = 12, 24, 4, 8
    for groups in (1, 2):
        expected = 3 * D * E + 2 * D * N * groups + D * H + 6 * E + 10 * N * groups + 3 * H
        assert sum(p.numel() for p in build(num_groups=groups).parameters()) == expected


def test_rates_time_steps_skip_norm_and_biases_do_not_decay():
    layer = Mamba2(12, **SIZES)
    exempt = parameter_groups(layer, 0.1)[1]["params"]
    names = {name for name, p in layer.named_parameters() if any(p is e for e in exempt)}
    assert names == {"A_log", "dt_bias", "skip", "norm_weight", "conv_bias"}


def test_autocast_does_not_round_the_time_step():
    """It is in the exponent of the decay over all later positions."""
    seen = []
    layer = lively(Mamba2(12, **SIZES))
    decay = layer.log_decay
    layer.log_decay = lambda delta, *rest: seen.append(delta) or decay(delta, *rest)
    x = torch.randn(2, 30, 12).bfloat16()
    with torch.no_grad():
        layer(x.float())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(x)
    assert seen[1].dtype == torch.float32
    assert relative_error(seen[1], seen[0]) < 1e-6


def test_pads_neither_decay_nor_count():
    layer = build()
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    _, state = layer.step(x, layer.initial_state(2), lengths=torch.tensor([0, 4]))
    _, alone = layer.step(x[1:, :4], layer.initial_state(1))
    assert state.count.tolist() == [0, 4]
    assert not state.memory[0].any()
    assert relative_error(state.memory[1:], alone.memory) < 1e-12


def test_heads_and_groups_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="num_heads=5 must divide the inner width 24"):
        Mamba2(12, num_heads=5)
    with pytest.raises(ValueError, match="num_groups=3"):
        Mamba2(12, num_heads=4, num_groups=3)
