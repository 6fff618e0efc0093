import math

import pytest
import torch
from models import lively
from numerics import relative_error

from fracdna.mixers.frac import Frac

SIZES = {"num_heads": 2, "num_modes": 16}


def build(**options):
    torch.set_default_dtype(torch.float64)
    try:
        return lively(Frac(24, **SIZES | options))
    finally:
        torch.set_default_dtype(torch.float32)


def published_layer(layer, h, *, gain, fixed_alpha, read_prior, write_prior):
    """The layer's equations, one position after another, from the paper alone.

    Nothing of the package is called: only the weights are taken from it.
    """
    weight = {name: p.detach() for name, p in layer.named_parameters()}
    H, V, M = layer.num_heads, layer.value_width, layer.num_modes
    E, taps = weight["conv_weight"].shape
    taus = [math.exp(i * math.log(131072.0) / (M - 1)) for i in range(M)]
    tau = torch.tensor(taus, dtype=torch.float64)
    xz = h @ weight["in_projection.weight"].T
    state, outputs = torch.zeros(H, M, V, dtype=torch.float64), []
    for t in range(h.shape[0]):
        x, z = xz[t, :E], xz[t, E:]
        window = torch.zeros(E, dtype=torch.float64)
        for w in range(taps):
            source = t - taps + 1 + w
            if source >= 0:
                window = window + weight["conv_weight"][:, w] * xz[source, :E]
        xc = window + weight["conv_bias"]
        xc = xc / (1 + torch.exp(-xc))
        dyn = weight["dynamics.weight"] @ x + weight["dynamics.bias"]
        step = torch.log1p(torch.exp(dyn[:H] + weight["dt_bias"])).clamp(1e-4, 1.0)
        if fixed_alpha:
            alpha, lam_logit = torch.ones(H, dtype=torch.float64), dyn[H:]
        else:
            alpha, lam_logit = 0.1 + 0.8 / (1 + torch.exp(-dyn[H : 2 * H])), dyn[2 * H :]
        lam = 0.25 + 3.75 / (1 + torch.exp(-lam_logit))
        u = step * lam ** (1 / alpha)
        routes = weight["routes.weight"] @ xc
        y = torch.zeros(H, V, dtype=torch.float64)
        v = xc.view(H, V)
        for head in range(H):
            prior = -alpha[head] * torch.log(tau)
            gates = [1 / (1 + torch.exp(-weight[n])) for n in ("read_gain", "write_gain")]
            rr = gates[0] * routes[head * M : (head + 1) * M]
            rw = gates[1] * routes[(H + head) * M : (H + head + 1) * M]
            c = torch.exp(rr + (prior if read_prior else 0))
            w = torch.exp(rw + (prior if write_prior else 0))
            c, w = c / c.sum(), w / w.sum()
            rho = torch.exp(-u[head] / tau)
            charge = -torch.expm1(-u[head] / tau) * (tau if gain == "zoh" else 1)
            state[head] = rho[:, None] * state[head] + (w * charge)[:, None] * v[head]
            y[head] = (c[:, None] * state[head]).sum(0) + weight["skip"][head] * v[head]
        gated = y.flatten() * z / (1 + torch.exp(-z))
        normed = gated / torch.sqrt((gated**2).mean() + 1e-6)
        outputs.append(weight["out_projection.weight"] @ (weight["norm_weight"] * normed))
    return torch.stack(outputs)


@pytest.mark.parametrize("gain", ["dc", "zoh"])
@pytest.mark.parametrize(
    "ablation",
    [{}, {"fixed_alpha": True}, {"read_prior": False}, {"write_prior": False}],
    ids=["full", "alpha1", "no_read_prior", "no_write_prior"],
)
def test_published_equations_hold_in_float64(gain, ablation):
    """The whole layer against an independent loop, to 1e-12 of its size."""
    torch.manual_seed(3)
    flags = {"fixed_alpha": False, "read_prior": True, "write_prior": True} | ablation
    layer = build(gain=gain, **flags)
    h = torch.randn(40, 24, dtype=torch.float64)
    expected = published_layer(layer, h, gain=gain, **flags)
    for form in ("chunk", "reference", "recurrent"):
        layer.form = form
        assert relative_error(layer(h[None])[0], expected) < 1e-12


@pytest.mark.parametrize("modes", [8, 16, 32])
def test_modes_span_the_same_range(modes):
    """The ratio follows from M: 5.38360, 2.19365 and 1.46245 for 1..131072."""
    log_tau = build(num_modes=modes).log_tau
    ratio = {8: 5.38360, 16: 2.19365, 32: 1.46245}[modes]
    assert torch.allclose(log_tau.diff().exp(), torch.tensor(ratio, dtype=torch.float64), atol=5e-6)
    assert log_tau[0].item() == 0
    assert log_tau[-1].item() == pytest.approx(math.log(131072))


def test_initial_clock_is_the_published_one():
    """Zero input: Delta = log 2, alpha = 0.5, lam = 2.125, u = 3.12999, routed by the prior."""
    layer = Frac(24, **SIZES)
    zeros = torch.zeros(1, 1, 48)
    u, read, _ = layer.gates(layer.dynamics(zeros), zeros)
    assert torch.allclose(u, torch.tensor(3.12999), atol=1e-5)
    for mode, weight in ((0, 0.325432), (8, 0.0140537), (15, 8.98887e-4)):
        assert read[0, 0, 0, mode].item() == pytest.approx(weight, rel=1e-5)
    assert layer.read_gain.item() == -1
    assert layer.write_gain.item() == pytest.approx(-1.09861, abs=1e-5)


def test_parameters_follow_the_formula():
    """3DE + 7E + 3EH + 4H + 2EHM + 2, the pre-norm's D apart; alpha1 drops its H outputs."""
    D, E, H, M = 24, 48, 2, 16
    count = lambda layer: sum(p.numel() for p in layer.parameters())  # noqa: E731
    assert count(build()) == 3 * D * E + 7 * E + 3 * E * H + 4 * H + 2 * E * H * M + 2
    assert count(build()) - count(build(fixed_alpha=True)) == E * H + H


def test_heads_must_divide_the_inner_width():
    with pytest.raises(ValueError, match="num_heads=5 does not divide"):
        Frac(24, num_heads=5)
