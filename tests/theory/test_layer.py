"""The same mathematics through the project's own operators.

alpha order   lam strength   u clock advance   tau time scale of a mode   n positions since a write
"""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fracdna_kernels.frac_gates import frac_gates
from fracdna_kernels.frac_scan import frac_scan

MODES, TAU_MAX = 16, 131_072.0
LOG_TAU = torch.linspace(0, math.log(TAU_MAX), MODES, dtype=torch.float64)
TAU = LOG_TAU.exp()
GAINS = ["dc", "zoh"]


def digits(value, count=6):
    """Rounded to significant digits, as printed in the table of check values."""
    return float(f"{float(value):.{count}g}")


def constant(value, length=1):
    return torch.full((1, length, 1), value, dtype=torch.float64)


def scalar(value):
    return torch.tensor(value, dtype=torch.float64)


def gates(alpha, u, gain, *, length=1, log_tau=LOG_TAU, read_logits=None, **options):
    """Clock, read and write weights (1, length, 1, M) at a constant order and clock advance.

    Delta is 1, which is softplus(5) clamped to its upper bound, so that u = lam^(1/alpha); ranges
    of no width fix alpha and lam.
    """
    lam = u**alpha
    zeros = torch.zeros(1, length, 1, len(log_tau), dtype=torch.float64)
    return frac_gates(
        constant(5.0, length), constant(0.0, length),
        constant(0.0, length), zeros if read_logits is None else read_logits, zeros, log_tau,
        torch.zeros(1, dtype=torch.float64), scalar(math.inf), scalar(0.0), gain=gain,
        alpha_range=(alpha, alpha), lam_range=(lam, lam), **options,
    )  # fmt: skip


def scan(values, write, read, u, log_tau=LOG_TAU, initial_state=None):
    return frac_scan(values, write, read, u, log_tau, initial_state=initial_state, form="reference")


def impulse_response(alpha, gain, lags, u=1.0):
    """What is read n positions after a value of 1, for n = 0 .. lags - 1."""
    clock, read, write = gates(alpha, u, gain, length=lags)
    values = torch.zeros(1, lags, 1, 1, dtype=torch.float64)
    values[0, 0] = 1
    return scan(values, write, read, clock)[0][0, :, 0, 0]


def random_scan_inputs(seed, length=7, heads=2, width=3):
    """Values, write, read, u of several heads."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    axes = (1, length, heads)
    return draw(*axes, width) - 0.5, draw(*axes, MODES), draw(*axes, MODES), 3 * draw(*axes)


def test_the_layer_at_its_initial_gates():
    """Zero logits: Delta log 2, alpha .5, lam 2.125, u 3.12999; both softmaxes are the prior."""
    zeros = torch.zeros(1, 1, 1, MODES, dtype=torch.float64)
    u, read, write = frac_gates(
        constant(0.0), constant(0.0), constant(0.0), zeros, zeros, LOG_TAU,
        torch.zeros(1, dtype=torch.float64), scalar(-1.0), scalar(-1.09861),
    )  # fmt: skip
    assert digits(u) == 3.12999
    assert digits(TAU_MAX / u, 5) == 41_876
    assert_close(read, torch.softmax(-0.5 * LOG_TAU, 0)[None, None, None])
    assert_close(write, read * -torch.expm1(-u[..., None] / TAU), rtol=1e-13, atol=0)


def test_the_clock_factor_lam_to_the_one_over_alpha():
    """1877.54, 4.51562 and 2.31064 at lam 2.125; twelve decades over the layer's own ranges."""
    for alpha, factor in ((0.1, 1877.54), (0.5, 4.51562), (0.9, 2.31064)):
        u = gates(alpha, 2.125 ** (1 / alpha), "dc")[0]
        assert digits(u) == factor
    zeros = torch.zeros(1, 1, 1, MODES, dtype=torch.float64)
    for lam, delta, value in ((-50, 50, 9.54e-7), (50, 50, 1.05e6), (-50, -50, 9.54e-11)):
        u = frac_gates(
            constant(delta), constant(-50), constant(lam), zeros, zeros, LOG_TAU,
            torch.zeros(1, dtype=torch.float64), scalar(0.0), scalar(0.0),
        )[0]  # fmt: skip
        assert digits(u, 3) == value


@pytest.mark.parametrize("gain", GAINS)
def test_values_of_the_prior(gain):
    """softmax(-.5 log tau) at modes 0, 8 and 15, whatever the gain."""
    _, read, _ = gates(0.5, 1.0, gain)
    assert [digits(read[0, 0, 0, m]) for m in (0, 8, 15)] == [0.325432, 0.0140537, 8.98887e-4]


@pytest.mark.parametrize(
    ("gain", "printed"),
    [("dc", [0.0899010, 0.00122555, 1.34728e-7]), ("zoh", [0.143443, 0.0128479, 1.34070e-4])],
)
def test_values_of_the_impulse_response(gain, printed):
    """At alpha .5 and u 1, read 0, 10 and 1000 positions after the write."""
    response = impulse_response(0.5, gain, 1001)
    assert [digits(response[n]) for n in (0, 10, 1000)] == printed


@pytest.mark.parametrize(
    ("gain", "alpha", "slope"),
    [("dc", 0.3, -1.5835), ("dc", 0.5, -1.9794), ("dc", 0.7, -2.3754), ("zoh", 0.3, -0.6036),
     ("zoh", 0.5, -0.9908), ("zoh", 0.7, -1.3857), ("zoh", 0.1, -0.2655)],
)  # fmt: skip
def test_slopes_of_the_impulse_response(gain, alpha, slope):
    """Between n = 10 and 1000: near -(1 + 2 alpha) for dc and near -2 alpha for zoh."""
    response = impulse_response(alpha, gain, 1001)
    measured = float(torch.log(response[1000] / response[10])) / math.log(100)
    assert round(measured, 4) == slope
    assert measured == pytest.approx(-2 * alpha - (gain == "dc"), abs=0.07)


def test_a_prior_on_one_side_only_saves_one_alpha():
    """Slopes near -(1 + alpha) for dc and -alpha for zoh when only the read side has the prior."""
    for gain, expected in (("dc", -1.5), ("zoh", -0.5)):
        clock, read, write = gates(0.5, 1.0, gain, length=1001, write_prior=False)
        values = torch.zeros(1, 1001, 1, 1, dtype=torch.float64)
        values[0, 0] = 1
        response = scan(values, write, read, clock)[0][0, :, 0, 0]
        slope = float(torch.log(response[1000] / response[10])) / math.log(100)
        assert slope == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(
    ("u", "tau", "dc", "zoh"),
    [(3.0, TAU_MAX, 2.28879e-5, 2.99997), (0.5, 10.0, 0.0487706, 0.487706)],
)
def test_values_of_the_gain(u, tau, dc, zoh):
    """With a single mode the write weight is the gain; zoh writes at most min(u, tau)."""
    log_tau = torch.tensor([math.log(tau)], dtype=torch.float64)
    for gain, printed in (("dc", dc), ("zoh", zoh)):
        assert digits(gates(0.5, u, gain, log_tau=log_tau)[2]) == printed
    assert zoh <= min(u, tau)


@pytest.mark.parametrize("u", [1e-6, 0.3, 3.0, 1e4])
def test_zoh_is_dc_times_tau_row_by_row(u):
    """Write weights, hence states: S_zoh = tau S_dc."""
    clock, read, write_dc = gates(0.6, u, "dc", length=5)
    _, _, write_zoh = gates(0.6, u, "zoh", length=5)
    values = random_scan_inputs(0, length=5, heads=1)[0]
    state_dc = scan(values, write_dc, read, clock)[1]
    state_zoh = scan(values, write_zoh, read, clock)[1]
    assert_close(state_zoh, TAU[:, None] * state_dc, rtol=1e-12, atol=0)


def test_zoh_is_dc_with_read_logits_raised_by_log_tau():
    """Reading zoh with logits l is Z times reading dc with l + log tau, Z = sum softmax(l) tau."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(1, 9, 1, MODES, generator=generator, dtype=torch.float64)
    values = random_scan_inputs(2, length=9, heads=1)[0]
    clock, read, write = gates(0.6, 0.7, "zoh", length=9, read_logits=logits)
    output = scan(values, write, read, clock)[0]
    Z = (read * TAU).sum(-1, keepdim=True)
    _, raised, write = gates(0.6, 0.7, "dc", length=9, read_logits=logits + LOG_TAU)
    assert_close(output, Z * scan(values, write, raised, clock)[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("gain", GAINS)
def test_a_held_value_solves_the_modes_exactly(gain):
    """x(u) = e^(-u/tau) x(0) + integral over the step of e^(-(u-s)/tau) v, by tau for dc.

    The integral is taken by Gauss and Legendre's rule on pieces of the step.
    """
    u, held = 2.5, 0.8
    nodes, weights = np.polynomial.legendre.leggauss(20)
    starts = np.arange(0, u, 0.5)[:, None]
    times = torch.tensor(starts + 0.25 * (nodes + 1)).reshape(-1, 1)
    rule = torch.tensor(np.tile(0.25 * weights, len(starts)))
    integral = rule @ torch.exp(-(u - times) / TAU)
    start = torch.linspace(-1, 1, MODES, dtype=torch.float64)
    clock, read, write = gates(0.5, u, gain, read_prior=False, write_prior=False)
    values = torch.full((1, 1, 1, 1), held * MODES, dtype=torch.float64)  # uniform: 1/M each
    state = scan(values, write, read, clock, initial_state=start[None, None, :, None])[1]
    expected = torch.exp(-u / TAU) * start + held * integral / (TAU if gain == "dc" else 1)
    assert_close(state[0, 0, :, 0], expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("gain", GAINS)
def test_a_constant_input_settles_at_one_or_at_tau(gain):
    """Unit response of each mode to a constant 1: 1 for dc, tau for zoh."""
    log_tau = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    clock, read, write = gates(
        0.5, 0.5, gain, length=400, log_tau=log_tau, read_prior=False, write_prior=False
    )
    values = torch.full((1, 400, 1, 1), 3.0, dtype=torch.float64)  # uniform: 1/3 each
    state = scan(values, write, read, clock, log_tau)[1][0, 0, :, 0]
    assert_close(state, torch.ones_like(log_tau) if gain == "dc" else log_tau.exp())


def test_a_dense_bank_follows_the_fractional_equation():
    """D^a x = -lam x + lam v, v held over each step, gives E(nu) - E((n+1)u) for dc and c_m.

    With zoh the same read weights give the integral of the decay E over the step. At a = 1/2 and
    lam = 1, E(t) = e^t erfc(sqrt t), whose integral is E(t) - 1 + 2 sqrt(t / pi).
    """
    spacing, u, steps = 0.15, 0.25, 40
    log_tau = torch.arange(-30, 50, spacing, dtype=torch.float64)
    r = torch.exp(-log_tau)
    read = spacing * r.sqrt() / (math.pi * (r + 1))  # h r K(r)
    times = torch.arange(steps + 1, dtype=torch.float64) * u
    decay = times.exp() * torch.erfc(times.sqrt())
    integral = decay - 1 + 2 * (times / math.pi).sqrt()
    expected = {"dc": -decay.diff(), "zoh": integral.diff()}
    values = torch.zeros(1, steps, 1, 1, dtype=torch.float64)
    values[0, 0] = len(log_tau)  # uniform write weights, 1 / M each
    for gain in GAINS:
        clock, _, write = gates(0.5, u, gain, length=steps, log_tau=log_tau, write_prior=False)
        output = scan(values, write, read.expand_as(write), clock, log_tau)[0]
        assert_close(output[0, :, 0, 0], expected[gain], rtol=1e-6, atol=1e-9)


def test_a_stopped_clock_changes_nothing():
    """u = 0 leaves the state as it is; both gains vanish with u, so nothing is written."""
    values, _, read, u = random_scan_inputs(3)
    start = torch.randn(1, 2, MODES, 3, dtype=torch.float64)
    state = scan(values, torch.zeros_like(read), read, 0 * u, initial_state=start)[1]
    assert torch.equal(state, start)
    for gain in GAINS:
        assert gates(0.5, 1e-30, gain)[2].max() < 1e-29


def test_a_clock_without_end_forgets_all_and_writes_in_full():
    """u -> infinity: decay 0, and a gain of 1 for dc and of tau for zoh."""
    values, write, read, u = random_scan_inputs(4, length=1)
    start = torch.randn(1, 2, MODES, 3, dtype=torch.float64)
    state = scan(values, write, read, torch.full_like(u, 1e9), initial_state=start)[1]
    assert torch.equal(state, write[:, 0, :, :, None] * values[:, 0, :, None, :])
    prior = torch.softmax(-0.5 * LOG_TAU, 0)
    assert_close(gates(0.5, 1e9, "dc")[2][0, 0, 0], prior, rtol=1e-13, atol=0)
    assert_close(gates(0.5, 1e9, "zoh")[2][0, 0, 0], prior * TAU, rtol=1e-13, atol=0)


def test_clock_advances_add():
    """Without input, two steps u1 and u2 leave what one step of u1 + u2 leaves."""
    values, write, read, u = random_scan_inputs(5, length=2)
    start = torch.randn(1, 2, MODES, 3, dtype=torch.float64)
    nothing = torch.zeros_like(write)
    two = scan(values, nothing, read, u, initial_state=start)[1]
    total = u.sum(1, keepdim=True)
    one = scan(values[:, :1], nothing[:, :1], read[:, :1], total, initial_state=start)[1]
    assert_close(two, one, rtol=1e-13, atol=0)


def test_only_the_ratio_of_clock_and_time_scales_counts():
    """(u, tau) -> (s u, s tau) leaves the scan and the dc gain as they are."""
    values, write, read, u = random_scan_inputs(6)
    shift = math.log(3.7)
    for one, other in zip(
        scan(values, write, read, u),
        scan(values, write, read, 3.7 * u, log_tau=LOG_TAU + shift),
        strict=True,
    ):
        assert_close(one, other, rtol=1e-12, atol=1e-14)
    assert_close(
        gates(0.5, 0.9, "dc")[2], gates(0.5, 0.9 * 3.7, "dc", log_tau=LOG_TAU + shift)[2],
        rtol=1e-12, atol=0,
    )  # fmt: skip


def test_the_scan_is_linear_attention_with_decays_of_rank_one():
    """With g = -u / tau as a decay per key: S_t = diag(e^g) S_{t-1} + k v^T, o = q S."""
    values, write, read, u = random_scan_inputs(7)
    output, final = scan(values, write, read, u)
    g = -u[..., None] / TAU
    for head in range(2):
        causal = torch.zeros(7, 7, dtype=torch.float64)
        for i in range(7):
            for j in range(i + 1):
                decay = torch.exp(g[0, j + 1 : i + 1, head].sum(0))
                causal[i, j] = (read[0, i, head] * write[0, j, head] * decay).sum()
        assert_close(output[0, :, head], causal @ values[0, :, head], rtol=1e-12, atol=1e-14)
        until_end = [torch.exp(g[0, j + 1 :, head].sum(0)) for j in range(7)]
        expected = (write[0, :, head] * torch.stack(until_end)).T @ values[0, :, head]
        assert_close(final[0, head], expected, rtol=1e-12, atol=1e-14)
