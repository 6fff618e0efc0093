import math

import post_loop
import pytest
import torch
from models import lively
from numerics import relative_error

from fracdna.mixers.gla import GLA
from fracdna.training.optimizer import parameter_groups

SIZES = {"num_heads": 2, "key_width": 8, "value_width": 12}
POST = {"post": True, "post_length": 16}


def build(**options):
    torch.set_default_dtype(torch.float64)
    try:
        return lively(GLA(24, **SIZES | options))
    finally:
        torch.set_default_dtype(torch.float32)


def published_decay(weight, x):
    """Of all key channels at one position."""
    logits = weight["decay_up.weight"] @ (weight["decay_down.weight"] @ x)
    return (1 / (1 + torch.exp(-logits - weight["decay_up.bias"]))) ** (1 / 16)


def post_decay(weight, x, t):
    """Likewise, under post, at position t = 1, 2, ..."""
    p, eta = post_loop.of_taper(weight, "tapered_gate.taper", 2, POST["post_length"])
    logits = weight["tapered_gate.projection.weight"] @ x + weight["tapered_gate.dt_bias"]
    rates = (torch.exp(p) * t**-eta).repeat_interleave(8)
    return torch.exp(-rates * torch.log1p(torch.exp(logits)))


def published_layer(layer, h):
    """The layer's equations, one position after another; only the weights are the package's."""
    weight = {name: p.detach() for name, p in layer.named_parameters()}
    H, K, V = 2, 8, 12
    state, outputs = torch.zeros(H, K, V, dtype=torch.float64), []
    for t, x in enumerate(h, start=1):
        q, k, v, z = (weight[f"{name}_projection.weight"] @ x for name in ("q", "k", "v", "gate"))
        decay = post_decay(weight, x, t) if layer.tapered_gate else published_decay(weight, x)
        out = torch.zeros(H, V, dtype=torch.float64)
        for head in range(H):
            keys, values = (slice(head * width, (head + 1) * width) for width in (K, V))
            state[head] = decay[keys, None] * state[head] + torch.outer(k[keys], v[values])
            o = state[head].T @ q[keys] / math.sqrt(K)
            normed = weight["norm_weight"] * o / torch.sqrt((o**2).mean() + 1e-5)
            out[head] = normed * z[values] / (1 + torch.exp(-z[values]))
        outputs.append(weight["out_projection.weight"] @ out.flatten())
    return torch.stack(outputs)


@pytest.mark.parametrize("form", ["chunk", "reference", "recurrent"])
def test_published_equations_hold_in_float64(form):
    """The whole layer against an independent loop."""
    layer = build(form=form)
    h = torch.randn(40, 24, dtype=torch.float64)
    assert relative_error(layer(h[None])[0], published_layer(layer, h)) < 1e-10


@pytest.mark.parametrize("form", ["chunk", "reference", "recurrent"])
@pytest.mark.parametrize("span", ["full", "strict"])
def test_equations_of_post_hold_in_float64(form, span):
    """Also beyond the length of training."""
    layer = build(form=form, post_span=span, **POST)
    h = torch.randn(40, 24, dtype=torch.float64)
    assert relative_error(layer(h[None])[0], published_layer(layer, h)) < 1e-10


def test_rates_of_post_begin_between_1_and_16():
    """e^p with equally spaced logs, of the strict span 16; time steps log-uniform by channel."""
    sizes = SIZES | POST | {"num_heads": 5, "key_width": 4000}
    gate = GLA(8, **sizes).tapered_gate
    assert torch.allclose(gate.taper.spectrum().exp(), torch.tensor([1.0, 2, 4, 8, 16]))
    strict = GLA(24, **SIZES | POST, post_span="strict").tapered_gate
    assert torch.allclose(strict.taper.spectrum().exp(), torch.full((2,), 16.0))
    quarters = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    steps = torch.nn.functional.softplus(gate.dt_bias)
    assert torch.allclose((steps.log10() + 3).quantile(quarters) / 2, quarters, atol=0.02)
    assert gate.projection.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_post_makes_the_gate_full():
    """HK D + H - 16 (D + HK) more."""
    D, H, K = 24, 2, 8
    count = lambda layer: sum(p.numel() for p in layer.parameters())  # noqa: E731
    assert count(build(**POST)) - count(build()) == H * K * D + H - 16 * (D + H * K)


def test_post_trains_its_spectrum_and_time_steps_without_decay():
    layer = GLA(24, **SIZES | POST)
    exempt = parameter_groups(layer, 0.1)[1]["params"]
    names = {name for name, p in layer.named_parameters() if any(p is e for e in exempt)}
    gate = {f"tapered_gate.{name}" for name in ("dt_bias", "taper.base", "taper.gaps")}
    assert names == {"norm_weight", *gate}


def test_post_starts_from_the_position_in_the_state():
    layer = build(**POST)
    x = torch.randn(2, 12, 24, dtype=torch.float64)
    _, state = layer.step(x[:, :7], layer.initial_state(2))
    onward = layer.step(x[:, 7:], state)[0]
    assert relative_error(onward, layer(x)[:, 7:]) < 1e-12
    elsewhere = layer.step(x[:, 7:], state._replace(count=state.count + 50))[0]
    assert relative_error(elsewhere, onward) > 1e-4


def test_post_without_a_length_is_refused():
    with pytest.raises(ValueError, match="post_length=None"):
        GLA(24, **SIZES, post=True)


def test_an_untrained_memory_lasts_23_positions():
    """Zero input: log sigmoid(0) / 16 = -0.0433217 in every channel."""
    g = GLA(24, **SIZES).log_decay(torch.zeros(1, 1, 24), torch.arange(1))
    assert g.shape == (1, 1, 2, 8)
    assert torch.allclose(g, torch.tensor(-0.0433217), atol=5e-8)


def test_initial_weights_are_small_normals_and_zeros():
    layer = GLA(256, num_heads=4, key_width=64, value_width=64, num_layers=8)
    for name, parameter in layer.named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
            assert parameter.mean().item() == pytest.approx(0, abs=1e-3), name
    assert not layer.decay_up.bias.any()
    assert (layer.norm_weight == 1).all()


@pytest.mark.parametrize("post", [False, True])
def test_autocast_does_not_round_the_decay(post):
    """A rate in bfloat16 would be wrong by 1 in 256, and so would every time scale."""
    layer = lively(GLA(24, **SIZES, post=post, post_length=16))
    x = torch.randn(2, 30, 24, dtype=torch.bfloat16)
    with torch.no_grad():
        exact = layer.log_decay(x.float(), torch.arange(30))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            g = layer.log_decay(x, torch.arange(30))
    assert g.dtype == torch.float32
    assert relative_error(g, exact) < 1e-6


def test_parameters_follow_the_formula():
    """2D HK + 3D HV + 16 (D + HK) + HK + V, the norms and the MLP of the block apart."""
    D, H, K, V = 24, 2, 8, 12
    expected = 2 * D * H * K + 3 * D * H * V + 16 * (D + H * K) + H * K + V
    assert sum(p.numel() for p in build().parameters()) == expected


def test_the_norm_and_the_bias_do_not_decay():
    layer = GLA(24, **SIZES)
    exempt = parameter_groups(layer, 0.1)[1]["params"]
    names = {name for name, p in layer.named_parameters() if any(p is e for e in exempt)}
    assert names == {"decay_up.bias", "norm_weight"}


def test_pads_neither_fade_the_memory_nor_count():
    layer = build()
    x = torch.randn(2, 9, 24, dtype=torch.float64)
    _, state = layer.step(x, layer.initial_state(2), lengths=torch.tensor([0, 4]))
    _, alone = layer.step(x[1:, :4], layer.initial_state(1))
    assert state.count.tolist() == [0, 4]
    assert not state.memory[0].any()
    assert relative_error(state.memory[1:], alone.memory) < 1e-12
