import math

import post_loop
import pytest
import torch
from models import lively, model_config
from numerics import relative_error

from fracdna.mixers.gdn import GDN
from fracdna.model.checkpoint import build_model
from fracdna.training.optimizer import parameter_groups

SIZES = {"num_heads": 2, "key_width": 8, "value_width": 12}
POST = {"post": True, "post_length": 16}


def build(**options):
    torch.set_default_dtype(torch.float64)
    try:
        return lively(GDN(24, **SIZES | options))
    finally:
        torch.set_default_dtype(torch.float32)


def published_layer(layer, h, most_beta):
    """The layer's equations, one position after another; only the weights are the package's."""
    weight = {name: p.detach() for name, p in layer.named_parameters()}
    H, K, V = 2, 8, 12
    log_rates, eta = weight.get("A_log"), torch.zeros(H)
    if log_rates is None:
        log_rates, eta = post_loop.of_taper(weight, "taper", H, POST["post_length"])
    taps = weight["conv_weight"].shape[1]
    qkv = h @ weight["qkv_projection.weight"].T
    state, outputs = torch.zeros(H, K, V, dtype=torch.float64), []
    for t in range(h.shape[0]):
        mixed = sum(
            weight["conv_weight"][:, w] * qkv[t - taps + 1 + w]
            for w in range(taps)
            if t - taps + 1 + w >= 0
        )
        mixed = mixed / (1 + torch.exp(-mixed))
        logits = weight["dynamics.weight"] @ h[t]
        gate = weight["gate_projection.weight"] @ h[t]
        out = torch.zeros(H, V, dtype=torch.float64)
        for head in range(H):
            q = mixed[head * K : (head + 1) * K]
            k = mixed[(H + head) * K : (H + head + 1) * K]
            v = mixed[2 * H * K + head * V : 2 * H * K + (head + 1) * V]
            q, k = (y / torch.sqrt((y**2).sum() + 1e-6) for y in (q, k))
            beta = most_beta / (1 + torch.exp(-logits[head]))
            step = torch.log1p(torch.exp(logits[H + head] + weight["dt_bias"][head]))
            rate = torch.exp(log_rates[head]) * (t + 1) ** -eta[head]
            S = torch.exp(-rate * step) * state[head]
            state[head] = S + beta * torch.outer(k, v - S.T @ k)
            o = state[head].T @ q / math.sqrt(K)
            z = gate[head * V : (head + 1) * V]
            normed = weight["norm_weight"] * o / torch.sqrt((o**2).mean() + 1e-5)
            out[head] = normed * z / (1 + torch.exp(-z))
        outputs.append(weight["out_projection.weight"] @ out.flatten())
    return torch.stack(outputs)


@pytest.mark.parametrize(("negative", "most_beta"), [(False, 1.0), (True, 2.0)])
def test_published_equations_hold_in_float64(negative, most_beta):
    """The whole layer against an independent loop, in every form."""
    layer = build(negative_eigenvalues=negative)
    h = torch.randn(40, 24, dtype=torch.float64)
    expected = published_layer(layer, h, most_beta)
    for form in ("chunk", "reference", "recurrent"):
        layer.form = form
        assert relative_error(layer(h[None])[0], expected) < 1e-10


@pytest.mark.parametrize("form", ["chunk", "reference", "recurrent"])
@pytest.mark.parametrize("span", ["full", "strict"])
def test_equations_of_post_hold_in_float64(form, span):
    """Also beyond the length of training."""
    layer = build(form=form, post_span=span, **POST)
    h = torch.randn(40, 24, dtype=torch.float64)
    assert relative_error(layer(h[None])[0], published_layer(layer, h, 1.0)) < 1e-10


def test_rates_of_post_begin_at_the_length_of_training():
    """e^p from 1 to T, equally spaced logs, of the strict span T; time steps stay random."""
    sizes = SIZES | POST | {"num_heads": 4}
    layer = GDN(24, **sizes)
    rates = layer.taper.spectrum().exp()
    assert torch.allclose(rates, 16 ** torch.tensor([0, 1 / 3, 2 / 3, 1]))
    strict = GDN(24, **sizes, post_span="strict")
    assert torch.allclose(strict.taper.spectrum().exp(), torch.full((4,), 16.0))
    steps = torch.nn.functional.softplus(layer.dt_bias)
    assert steps.unique().numel() == 4
    assert (steps > 0.999e-3).all()
    assert (steps < 0.1001).all()


def test_post_trains_its_spectrum_without_decay():
    layer = GDN(24, **SIZES | POST)
    exempt = parameter_groups(layer, 0.1)[1]["params"]
    names = {name for name, p in layer.named_parameters() if any(p is e for e in exempt)}
    assert names == {"taper.base", "taper.gaps", "dt_bias", "norm_weight"}


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
        GDN(24, **SIZES, post=True)


def test_initial_rates_and_time_steps_have_the_published_distribution():
    """Rates uniform on (0, 16], time steps log-uniform on [1e-3, 0.1]: edges and quartiles."""
    layer = GDN(8, num_heads=20_000, key_width=1, value_width=1)
    quarters = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    rates = layer.A_log.exp().quantile(quarters)
    assert torch.allclose(rates, 16 * quarters, atol=0.25)
    assert torch.isfinite(layer.A_log).all()
    steps = torch.nn.functional.softplus(layer.dt_bias)
    assert steps.min() > 0.999e-3
    assert steps.max() < 0.1001
    positions = (steps.log10() + 3).quantile(quarters) / 2
    assert torch.allclose(positions, quarters, atol=0.02)


def test_zero_input_decays_by_the_initial_rate_and_time_step():
    layer = GDN(24, **SIZES)
    g = layer.log_decay(torch.zeros(1, 1, 2), torch.zeros(1))
    expected = -layer.A_log.exp() * torch.nn.functional.softplus(layer.dt_bias)
    assert torch.allclose(g[0, 0], expected)


def test_initial_weights_are_small_normals():
    layer = GDN(256, num_heads=4, key_width=64, value_width=128)
    for name in ("qkv_projection", "gate_projection", "dynamics", "out_projection"):
        weight = getattr(layer, name).weight
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert layer.conv_weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert (layer.norm_weight == 1).all()


def test_parameters_follow_the_formula():
    """2D HK + 3D HV + 2DH + 2H + 4 (2HK + HV) + V, the pre-norm's D apart."""
    D, H, K, V = 24, 2, 8, 12
    expected = 2 * D * H * K + 3 * D * H * V + 2 * D * H + 2 * H + 4 * (2 * H * K + H * V) + V
    assert sum(p.numel() for p in build().parameters()) == expected


def test_rates_time_steps_and_norms_do_not_decay():
    layer = GDN(24, **SIZES)
    exempt = parameter_groups(layer, 0.1)[1]["params"]
    names = {name for name, p in layer.named_parameters() if any(p is e for e in exempt)}
    assert names == {"A_log", "dt_bias", "norm_weight"}


def test_pads_neither_decay_nor_count():
    layer = build()
    x = torch.randn(2, 9, 24, dtype=torch.float64)
    _, state = layer.step(x, layer.initial_state(2), lengths=torch.tensor([0, 4]))
    _, alone = layer.step(x[1:, :4], layer.initial_state(1))
    assert state.count.tolist() == [0, 4]
    assert not state.memory[0].any()
    assert relative_error(state.memory[1:], alone.memory) < 1e-12


def test_options_are_words_on_the_command_line():
    model = build_model(model_config("gdn", "model.mixer.negative_eigenvalues=true"))
    assert model.backbone.blocks[0].mixer.most_beta == 2.0
