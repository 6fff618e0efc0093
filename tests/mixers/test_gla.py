import math

import pytest
import torch
from models import lively
from numerics import relative_error

from fracdna.mixers.gla import GLA
from fracdna.training.optimizer import parameter_groups

SIZES = {"num_heads": 2, "key_width": 8, "value_width": 12}


def build(**options):
    torch.set_default_dtype(torch.float64)
    try:
        return lively(GLA(24, **SIZES | options))
    finally:
        torch.set_default_dtype(torch.float32)


def published_layer(layer, h):
    """The layer's equations, one position after another; only the weights are the package's."""
    weight = {name: p.detach() for name, p in layer.named_parameters()}
    H, K, V = 2, 8, 12
    state, outputs = torch.zeros(H, K, V, dtype=torch.float64), []
    for x in h:
        q, k, v, z = (weight[f"{name}_projection.weight"] @ x for name in ("q", "k", "v", "gate"))
        logits = weight["decay_up.weight"] @ (weight["decay_down.weight"] @ x)
        decay = (1 / (1 + torch.exp(-logits - weight["decay_up.bias"]))) ** (1 / 16)
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


def test_an_untrained_memory_lasts_23_positions():
    """Zero input: log sigmoid(0) / 16 = -0.0433217 in every channel."""
    g = GLA(24, **SIZES).log_decay(torch.zeros(1, 1, 24), None, None)
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


def test_autocast_does_not_round_the_decay():
    """A rate in bfloat16 would be wrong by 1 in 256, and so would every time scale."""
    layer = lively(GLA(24, **SIZES))
    x = torch.randn(2, 30, 24, dtype=torch.bfloat16)
    with torch.no_grad():
        exact = layer.log_decay(x.float(), None, None)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            g = layer.log_decay(x, None, None)
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
