import math

import pytest
import torch
from models import lively, model_config
from numerics import relative_error

from fracdna.mixers.frac import Frac
from fracdna.model.checkpoint import build_model
from fracdna.training.optimizer import parameter_groups

SIZES = {"num_heads": 2, "num_modes": 16}
PUBLISHED = {"fixed_alpha": False, "read_prior": True, "write_prior": True}
# of a free bank, but for its time scales
WITHOUT = {"fixed_alpha": True, "read_prior": False, "write_prior": False}


def build(**options):
    torch.set_default_dtype(torch.float64)
    try:
        return lively(Frac(24, **SIZES | options))
    finally:
        torch.set_default_dtype(torch.float32)


def decay_and_charge(u, tau, gain, clamp):
    """What modes keep and, but for their weights, what they write."""
    rho, charge = torch.exp(-u / tau), -torch.expm1(-u / tau)
    if clamp:
        rho = rho.clamp(1e-6, 1 - 1e-6)
        charge = 1 - rho
    return rho, charge * (tau if gain == "zoh" else 1)


def published_layer(layer, h, *, gain, fixed_alpha, read_prior, write_prior, clamp=False):
    """The layer's equations, one position after another, from the paper alone.

    Nothing of the package is called: only the weights are taken from it.
    """
    weight = {name: p.detach() for name, p in layer.named_parameters()}
    H, V, M = layer.num_heads, layer.value_width, layer.num_modes
    E, taps = weight["conv_weight"].shape
    taus = [math.exp(i * math.log(131072.0) / (M - 1)) for i in range(M)]
    tau = torch.tensor(taus, dtype=torch.float64).expand(H, M)
    if "log_tau" in weight:
        tau = torch.exp(weight["log_tau"])
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
        y, v = torch.zeros(H, V, dtype=torch.float64), xc.view(H, V)
        for head in range(H):
            prior = -alpha[head] * torch.log(tau[head])
            gates = [1 / (1 + torch.exp(-weight[n])) for n in ("read_gain", "write_gain")]
            rr = gates[0] * routes[head * M : (head + 1) * M]
            rw = gates[1] * routes[(H + head) * M : (H + head + 1) * M]
            c = torch.exp(rr + (prior if read_prior else 0))
            w = torch.exp(rw + (prior if write_prior else 0))
            c, w = c / c.sum(), w / w.sum()
            rho, charge = decay_and_charge(u[head], tau[head], gain, clamp)
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
    flags = PUBLISHED | ablation
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


def scattered(layer):
    """A head whose clock is slower than the least decay of slow modes, and a fast one."""
    slow_and_fast = torch.tensor([[-5.0, 5.0], [-4.0, -4.0], [-3.0, 3.0]])
    with torch.no_grad():
        rows = slow_and_fast if layer.has_alpha else slow_and_fast[::2]
        layer.dynamics.bias.copy_(rows.flatten())
    return layer


@pytest.mark.parametrize("form", ["chunk", "reference", "recurrent"])
@pytest.mark.parametrize("gain", ["dc", "zoh"])
@pytest.mark.parametrize("clamp", [False, True])
def test_equations_of_a_free_bank_hold_in_float64(gain, clamp, form):
    """Time scales of each head; neither alpha nor priors."""
    layer = scattered(build(gain=gain, free_bank=True, rho_clamp=clamp, form=form))
    h = torch.randn(40, 24, dtype=torch.float64)
    expected = published_layer(layer, h, gain=gain, clamp=clamp, **WITHOUT)
    # the loop takes what is written from 1 - rho, which has lost six digits
    assert relative_error(layer(h[None])[0], expected) < (1e-8 if clamp else 1e-12)


@pytest.mark.parametrize("gain", ["dc", "zoh"])
@pytest.mark.parametrize("ablation", [{}, {"read_prior": False, "write_prior": False}], ids=str)
def test_bounds_of_the_release_hold_in_float64(gain, ablation):
    """rho in [1e-6, 1 - 1e-6], where both bounds bind; without them the layer differs."""
    layer = scattered(build(gain=gain, rho_clamp=True, **ablation))
    h = torch.randn(40, 24, dtype=torch.float64)
    expected = published_layer(layer, h, gain=gain, clamp=True, **PUBLISHED | ablation)
    assert relative_error(layer(h[None])[0], expected) < 1e-8
    inputs = torch.zeros(1, 1, 48, dtype=torch.float64)
    g = layer.gates(layer.dynamics(inputs), inputs)[0]
    assert g.max().item() == pytest.approx(-1.0000005e-6)
    assert g.min().item() == pytest.approx(-13.815511)
    free = published_layer(layer, h, gain=gain, **PUBLISHED | ablation)
    assert relative_error(layer(h[None])[0], free) > 1e-7


def same_with_gradients(one, other, shared):
    """Two layers agree in outputs and in gradients of the parameters that both have."""
    x = torch.randn(2, 70, 24, dtype=torch.float64)
    assert relative_error(one(x), other(x)) < 1e-12
    for layer in (one, other):
        layer(x).square().sum().backward()
    for name in shared:
        gradients = (layer.get_parameter(name).grad for layer in (one, other))
        assert relative_error(*gradients) < 1e-9, name


@pytest.mark.parametrize("gain", ["dc", "zoh"])
def test_a_bank_of_the_common_time_scales_is_the_scan_without_alpha_and_priors(gain):
    bank, scan = build(gain=gain, free_bank=True), build(gain=gain, **WITHOUT)
    weights = scan.state_dict() | {"log_tau": scan.log_tau.expand(2, 16)}
    bank.load_state_dict(weights)
    same_with_gradients(bank, scan, dict(scan.named_parameters()))
    assert bank.log_tau.grad.abs().max() > 0


@pytest.mark.parametrize("gain", ["dc", "zoh"])
def test_bounds_that_do_not_bind_change_nothing(gain):
    """Clocks between 0.132 and 13.8, as at first."""
    bounded, scan = build(gain=gain, rho_clamp=True), build(gain=gain)
    bounded.load_state_dict(scan.state_dict())
    same_with_gradients(bounded, scan, dict(scan.named_parameters()))


def test_nothing_flows_back_through_a_bound():
    """A mode at a bound learns nothing of the clock, nor of its time scale."""
    layer = build(free_bank=True, rho_clamp=True)
    with torch.no_grad():
        layer.log_tau[:, :8] = 30.0  # of a life that no clock makes shorter than the bound
    layer(torch.randn(1, 20, 24, dtype=torch.float64)).square().sum().backward()
    assert (layer.log_tau.grad[:, :8] == 0).all()
    assert (layer.log_tau.grad[:, 8:] != 0).any()


def test_a_free_bank_begins_log_uniform_and_does_not_decay():
    """Of every layer, head and mode apart, over the range of the fixed one."""
    bank = Frac(24, num_heads=48, num_modes=256, free_bank=True)
    quarters = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    spread = bank.log_tau.detach().flatten() / math.log(131072)
    assert torch.allclose(spread.quantile(quarters), quarters, atol=0.02)
    assert bank.log_tau.unique().numel() > 12_000
    decayed, exempt = (group["params"] for group in parameter_groups(bank, 0.1))
    assert any(p is bank.log_tau for p in exempt)
    assert not any(p is bank.log_tau for p in decayed)


def test_a_free_bank_has_the_parameters_of_alpha1_and_its_time_scales():
    count = lambda layer: sum(p.numel() for p in layer.parameters())  # noqa: E731
    assert count(build(free_bank=True)) == count(build(fixed_alpha=True)) + 2 * 16
    assert count(build(rho_clamp=True)) == count(build())


def test_time_scales_of_bounded_modes_are_bounded():
    """No mode outlives a million positions, and none of a bank is left out."""
    times = torch.tensor([1])
    layer = build(free_bank=True, rho_clamp=True)
    with torch.no_grad():
        layer.log_tau[:, 0] = 30.0
    scales = layer.time_scales(times)
    assert scales.shape == (1, 32)
    assert scales.max().item() == pytest.approx(1e6, rel=1e-5)


@pytest.mark.parametrize("ablation", WITHOUT.items(), ids=str)
def test_a_free_bank_refuses_ablations_of_what_it_has_not(ablation):
    with pytest.raises(ValueError, match="free_bank=true has neither alpha nor priors"):
        Frac(24, **SIZES, free_bank=True, **dict([ablation]))


@pytest.mark.parametrize("name", ["tau_range", "alpha_range", "lam_range", "delta_range"])
@pytest.mark.parametrize("bounds", [(100, 1), (0, 1), (-1, 1), (1, math.inf), (math.nan, 1)])
def test_ranges_rise_from_above_zero(name, bounds):
    with pytest.raises(ValueError, match=rf"{name}=\(.*\) must rise from above 0"):
        Frac(24, **SIZES, **{name: bounds})


def test_bank_and_bounds_are_words_on_the_command_line():
    words = ("model.mixer.free_bank=true", "model.mixer.rho_clamp=true", "model.mixer.gain=zoh")
    mixer = build_model(model_config("frac", *words)).backbone.blocks[0].mixer
    assert mixer.log_tau.shape == (2, 16)
    assert mixer.rho_clamp
