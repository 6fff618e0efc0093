import math

import post_loop
import pytest
import torch
from models import lively
from numerics import relative_error

from fracdna.mixers.gla import GLA
from fracdna.mixers.retnet import RetNet
from fracdna.training.optimizer import parameter_groups

SIZES = {"num_heads": 3, "key_width": 8, "value_width": 12}
POST = {"post": True, "post_length": 16}


def build(**options):
    torch.set_default_dtype(torch.float64)
    try:
        return lively(RetNet(24, **SIZES | options))
    finally:
        torch.set_default_dtype(torch.float32)


def published_layer(layer, h, base):
    """The layer's equations, one position after another; only the weights are the package's."""
    weight = {name: p.detach() for name, p in layer.named_parameters()}
    H, K, V = 3, 8, 12

    def turned(y, t):
        out = y.clone()
        for i in range(K // 2):
            angle = t * base ** (-2 * i / K)
            out[i] = y[i] * math.cos(angle) - y[i + K // 2] * math.sin(angle)
            out[i + K // 2] = y[i] * math.sin(angle) + y[i + K // 2] * math.cos(angle)
        return out

    state, outputs = torch.zeros(H, K, V, dtype=torch.float64), []
    for t, x in enumerate(h):
        q, k, v, z = (weight[f"{name}_projection.weight"] @ x for name in ("q", "k", "v", "gate"))
        out = torch.zeros(H, V, dtype=torch.float64)
        for head in range(H):
            keys, values = (slice(head * width, (head + 1) * width) for width in (K, V))
            written = torch.outer(turned(k[keys], t), v[values])
            state[head] = (1 - 2.0 ** (-5 - head)) * state[head] + written
            o = state[head].T @ turned(q[keys], t) / math.sqrt(K)
            normed = weight["norm_weight"] * o / torch.sqrt((o**2).mean() + 1e-5)
            out[head] = normed * z[values] / (1 + torch.exp(-z[values]))
        outputs.append(weight["out_projection.weight"] @ out.flatten())
    return torch.stack(outputs)


@pytest.mark.parametrize("form", ["chunk", "reference", "recurrent"])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_published_equations_hold_in_float64(form, base):
    """The whole layer against an independent loop."""
    layer = build(form=form, rope_base=base)
    h = torch.randn(40, 24, dtype=torch.float64)
    assert relative_error(layer(h[None])[0], published_layer(layer, h, base)) < 1e-10


def post_layer(layer, h):
    """The layer's equations under post: no rotation, every key channel fades alone."""
    weight = {name: p.detach() for name, p in layer.named_parameters()}
    H, K, V = 3, 8, 12
    p, eta = post_loop.of_taper(weight, "tapered_gate.taper", H, POST["post_length"])
    state, outputs = torch.zeros(H, K, V, dtype=torch.float64), []
    for t, x in enumerate(h, start=1):
        q, k, v, z = (weight[f"{name}_projection.weight"] @ x for name in ("q", "k", "v", "gate"))
        logits = weight["tapered_gate.projection.weight"] @ x + weight["tapered_gate.dt_bias"]
        steps = torch.log1p(torch.exp(logits))
        out = torch.zeros(H, V, dtype=torch.float64)
        for head in range(H):
            keys, values = (slice(head * width, (head + 1) * width) for width in (K, V))
            decay = torch.exp(-torch.exp(p[head]) * t ** -eta[head] * steps[keys])
            state[head] = decay[:, None] * state[head] + torch.outer(k[keys], v[values])
            o = state[head].T @ q[keys] / math.sqrt(K)
            normed = weight["norm_weight"] * o / torch.sqrt((o**2).mean() + 1e-5)
            out[head] = normed * z[values] / (1 + torch.exp(-z[values]))
        outputs.append(weight["out_projection.weight"] @ out.flatten())
    return torch.stack(outputs)


@pytest.mark.parametrize("form", ["chunk", "reference", "recurrent"])
@pytest.mark.parametrize("span", ["full", "strict"])
def test_equations_of_post_hold_in_float64(form, span):
    """Also beyond the length of training."""
    layer = build(form=form, post_span=span, **POST)
    h = torch.randn(40, 24, dtype=torch.float64)
    assert relative_error(layer(h[None])[0], post_layer(layer, h)) < 1e-10


def test_post_makes_it_gla_with_post():
    """The same parameters by name, the same outputs; an odd key width is legal."""
    sizes = SIZES | POST | {"key_width": 7}
    layer, other = lively(RetNet(24, **sizes)), GLA(24, **sizes)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(2, 20, 24)
    assert torch.equal(layer(x), other(x))


def test_post_adds_a_full_gate():
    """HK (D + 1) + H more."""
    D, H, K, V = 24, 3, 8, 12
    expected = 2 * D * H * K + 3 * D * H * V + V + H * K * (D + 1) + H
    assert sum(p.numel() for p in build(**POST).parameters()) == expected


def test_post_trains_its_spectrum_and_time_steps_without_decay():
    layer = RetNet(24, **SIZES | POST)
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
        RetNet(24, **SIZES, post=True)


def test_heads_remember_for_doubling_lengths():
    """-1/g of 31.5, 63.5 and 127.5 positions, g_0 = -0.0317487, whatever the input."""
    layer = RetNet(24, **SIZES)
    g = layer.log_decay(torch.randn(2, 5, 24), torch.arange(5))
    assert g.shape == (2, 5, 3)
    assert (g == g[0, 0]).all()
    assert g[0, 0, 0].item() == pytest.approx(-0.0317487, abs=5e-8)
    assert (-1 / g[0, 0]).tolist() == pytest.approx([31.5, 63.5, 127.5], rel=1e-4)


def test_the_fixed_decay_is_no_weight():
    """It neither trains nor stands in checkpoints; the operator gets float32 from any model."""
    layer = RetNet(24, **SIZES)
    assert not any("decay" in name for name in layer.state_dict())
    assert layer.bfloat16().log_decay(torch.zeros(1, 1, 24), torch.arange(1)).dtype == torch.float32


def test_positions_go_on_from_the_state():
    """Turning q and k alike leaves products of one pass alone; across a cut the count decides."""
    layer = build()
    x = torch.randn(1, 12, 24, dtype=torch.float64)
    _, state = layer.step(x[:, :7], layer.initial_state(1))
    assert state.count.tolist() == [7]
    right = layer.step(x[:, 7:], state)[0]
    wrong = layer.step(x[:, 7:], state._replace(count=torch.tensor([0])))[0]
    whole = layer(x)[:, 7:]
    assert relative_error(right, whole) < 1e-12
    assert relative_error(wrong, whole) > 1e-3


def test_initial_weights_are_small_normals():
    layer = RetNet(256, num_heads=4, key_width=64, value_width=128, num_layers=8)
    for name, parameter in layer.named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
    assert (layer.norm_weight == 1).all()


def test_parameters_follow_the_formula():
    """2D HK + 3D HV + V, the norms and the MLP of the block apart."""
    D, H, K, V = 24, 3, 8, 12
    expected = 2 * D * H * K + 3 * D * H * V + V
    assert sum(p.numel() for p in build().parameters()) == expected


def test_the_norm_alone_does_not_decay():
    layer = RetNet(24, **SIZES)
    exempt = parameter_groups(layer, 0.1)[1]["params"]
    assert [name for name, p in layer.named_parameters() if any(p is e for e in exempt)] == [
        "norm_weight"
    ]


def test_an_odd_key_width_is_refused():
    with pytest.raises(ValueError, match="key_width=7 must be even"):
        RetNet(24, num_heads=2, key_width=7, value_width=8)
