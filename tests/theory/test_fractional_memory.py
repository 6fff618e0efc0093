"""The mathematics behind the bank of modes: formulas of docs/derivation.md, without any operator.

a order   b exponent of a power law   r rate   tau = 1/r   h spacing of log tau   t time
"""

import mpmath
import numpy as np
import pytest

MODES, TAU_MAX = 16, 131_072.0
SPACING = np.log(TAU_MAX) / (MODES - 1)
TAU = np.exp(SPACING * np.arange(MODES))
FINE = 0.02  # spacing at which the trapezoidal rule is exact in double precision


def digits(value, count=6):
    """Rounded to significant digits, as printed in the table of check values."""
    return float(f"{float(value):.{count}g}")


def mittag_leffler(a, z, b=1.0):
    """E_{a,b}(z) = sum_k z^k / Gamma(a k + b), with digits enough for its cancellation."""
    size = abs(z) ** (1 / a)
    with mpmath.workdps(30 + int(size)):
        a, z = mpmath.mpf(a), mpmath.mpf(z)
        enough = int((3 * size + 60) / a)
        return float(mpmath.fsum(z**k * mpmath.rgamma(a * k + b) for k in range(enough)))


def spectral_density(r, a, lam=1.0):
    """Weight of the rate r in the decay of order a."""
    weight = lam / np.pi * r ** (a - 1) * np.sin(a * np.pi)
    return weight / (r ** (2 * a) + 2 * lam * r**a * np.cos(a * np.pi) + lam**2)


def rule(integrand, spacing):
    """Untruncated trapezoidal rule in log r of a function of the rate."""
    r = np.exp(spacing * np.arange(-int(300 / spacing), int(60 / spacing)))
    return spacing * np.sum(r * integrand(r))


def decay(a, t, lam=1.0, spacing=FINE):
    """E_a(-lam t^a) by its spectral form; at the bank's own spacing, the bank without ends."""
    return rule(lambda r: np.exp(-r * t) * spectral_density(r, a, lam), spacing)


def impulse(a, t, lam=1.0):
    """t^{a-1} E_{a,a}(-lam t^a) by its spectral form."""
    return rule(lambda r: np.exp(-r * t) * r * spectral_density(r, a, lam) / lam, FINE)


def fractional_weights(a):
    """Read weights of the bank: the rule's coefficients at its sixteen time scales."""
    return SPACING / TAU * spectral_density(1 / TAU, a)


def power_law_weights(b):
    """The same for t^-b."""
    return SPACING * TAU**-b / float(mpmath.gamma(b))


def lumped(weights, b):
    """The last mode takes the weight of all the modes missing behind it."""
    return np.append(weights[:-1], weights[-1] / (1 - np.exp(-b * SPACING)))


def bank(weights, t):
    return np.sum(weights * np.exp(-t / TAU))


@pytest.mark.parametrize("a", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize(("t", "lam"), [(0.1, 1.0), (1.0, 1.0), (3.0, 2.0), (20.0, 0.5)])
def test_the_decay_is_a_mix_of_exponentials(a, t, lam):
    """Spectral form = series, for the decay and for the impulse response; all weights positive."""
    assert decay(a, t, lam) == pytest.approx(mittag_leffler(a, -lam * t**a), rel=1e-10)
    series = t ** (a - 1) * mittag_leffler(a, -lam * t**a, b=a)
    assert impulse(a, t, lam) == pytest.approx(series, rel=1e-10)
    assert np.all(spectral_density(np.geomspace(1e-9, 1e9, 100), a, lam) > 0)


@pytest.mark.parametrize(("a", "lam", "t"), [(0.5, 1.0, 2.0), (0.7, 1.3, 1.0), (0.3, 0.8, 4.0)])
def test_the_decay_solves_the_fractional_equation(a, lam, t):
    """Caputo's derivative of the decay is -lam times the decay.

    Each half of the integral has one singular end, which a power of the variable removes.
    """
    nodes, weights = np.polynomial.legendre.leggauss(60)

    def integral(integrand, end):
        return (
            end
            / 2
            * sum(w * integrand(end * (x + 1) / 2) for x, w in zip(nodes, weights, strict=True))
        )

    def early(z):  # s = z^(1/a)
        s = z ** (1 / a)
        return (t - s) ** -a * -lam * impulse(a, s, lam) * s ** (1 - a) / a

    def late(z):  # t - s = z^(1/(1-a))
        return -lam * impulse(a, t - z ** (1 / (1 - a)), lam) / (1 - a)

    half = t / 2
    derivative = integral(early, half**a) + integral(late, half ** (1 - a))
    derivative /= float(mpmath.gamma(1 - a))
    assert derivative == pytest.approx(-lam * decay(a, t, lam), rel=1e-6)


@pytest.mark.parametrize("a", [0.3, 0.5, 0.7, 0.9])
def test_the_weights_sum_to_one_and_the_impulse_is_the_slope(a):
    """At time 0 nothing is forgotten; lam times the impulse response is minus the derivative."""
    assert decay(a, 0.0, lam=1.7) == pytest.approx(1, rel=1e-7)
    step = 1e-4
    slope = (decay(a, 5 + step, 1.7) - decay(a, 5 - step, 1.7)) / (2 * step)
    assert 1.7 * impulse(a, 5.0, 1.7) == pytest.approx(-slope, rel=1e-6)


@pytest.mark.parametrize("a", [0.3, 0.5, 0.7])
def test_the_tails_are_power_laws(a):
    """t^-a / (lam Gamma(1-a)) and a t^(-1-a) / (lam^2 Gamma(1-a)), up to a relative t^-a."""
    t, lam = 1e15, 1.3
    gamma = float(mpmath.gamma(1 - a))
    assert decay(a, t, lam) == pytest.approx(t**-a / (lam * gamma), rel=2 * t**-a)
    expected = a * t ** (-1 - a) / (lam**2 * gamma)
    assert impulse(a, t, lam) == pytest.approx(expected, rel=4 * t**-a)


def test_order_one_half_has_a_closed_form():
    """E_.5(-sqrt t) = e^t erfc(sqrt t)."""
    for t in (0.1, 1.0, 30.0):
        closed = mpmath.exp(t) * mpmath.erfc(mpmath.sqrt(t))
        assert decay(0.5, t) == pytest.approx(float(closed), rel=1e-12)


def test_the_strength_only_scales_time():
    """E_a(-lam t^a) = E_a(-(lam^(1/a) t)^a): the factor in the clock."""
    for a, lam in ((0.3, 0.25), (0.5, 2.125), (0.9, 4.0)):
        clock = lam ** (1 / a)
        assert decay(a, 7.0, lam) == pytest.approx(decay(a, clock * 7.0), rel=1e-12)


@pytest.mark.parametrize("b", [0.1, 0.5, 1.0, 2.0])
def test_a_power_law_is_a_mix_of_exponentials(b):
    """t^-b = (1/Gamma(b)) times the integral of r^b e^(-rt) over log r."""
    for t in (1.0, 50.0):
        mixed = rule(lambda r, t=t: r ** (b - 1) * np.exp(-r * t), FINE) / float(mpmath.gamma(b))
        assert mixed == pytest.approx(t**-b, rel=1e-11)


def test_values_of_the_decay():
    """Check values: by the series, by erfc, and by the spectral form."""
    assert digits(mittag_leffler(0.5, -1)) == digits(decay(0.5, 1)) == 0.427584
    assert digits(mittag_leffler(0.3, -1)) == digits(decay(0.3, 1)) == 0.456594
    assert digits(mittag_leffler(0.7, -1)) == digits(decay(0.7, 1)) == 0.399612
    assert digits(mittag_leffler(0.7, -2 * 3**0.7)) == digits(decay(0.7, 3, 2)) == 0.0915668
    assert digits(mittag_leffler(0.9, -(10**0.9))) == digits(decay(0.9, 10)) == 0.0172594
    assert digits(mittag_leffler(0.3, -(100**0.3))) == digits(decay(0.3, 100)) == 0.167180
    assert digits(mittag_leffler(0.7, -(100**0.7))) == digits(decay(0.7, 100)) == 0.0137389
    for t, value in ((10, 0.170578), (100, 0.0561410), (10_000, 0.00564161)):
        closed = mpmath.exp(t) * mpmath.erfc(mpmath.sqrt(t))
        assert digits(closed) == digits(decay(0.5, t)) == value


def test_values_of_the_impulse_response():
    """Check values, by the series where it converges in reasonable time."""
    assert digits(mittag_leffler(0.5, -1, 0.5)) == digits(impulse(0.5, 1)) == 0.136606
    assert digits(impulse(0.5, 100)) == 2.77966e-4
    series = 10**-0.3 * mittag_leffler(0.7, -(10**0.7), 0.7)
    assert digits(series) == digits(impulse(0.7, 10)) == 0.00608369


def test_values_of_the_bank():
    """Sixteen modes of order one half: weights, decay, and the error of the missing tail."""
    assert digits(SPACING) == 0.785567
    assert digits(np.exp(SPACING)) == 2.19365
    weights = fractional_weights(0.5)
    assert digits(weights.sum()) == 0.561078
    assert (digits(weights[0]), digits(weights[15])) == (0.125027, 6.90677e-4)
    assert digits(SPACING / np.pi * TAU_MAX**-0.5) == 6.90682e-4
    times = np.array([10, 100, 1000, 10_000])
    of_bank = np.array([bank(weights, t) for t in times])
    exact = np.array([decay(0.5, t) for t in times])
    assert [digits(x) for x in of_bank] == [0.169141, 0.0547050, 0.0163989, 0.00422905]
    assert [digits(100 * x, 3) for x in of_bank / exact - 1] == [-0.842, -2.56, -8.04, -25.0]
    with_tail = np.array([bank(lumped(weights, 0.5), t) for t in times])
    assert [digits(x, 2) for x in with_tail / exact - 1] == [-5.0e-6, -2.5e-5, -4.9e-4, -1.5e-2]
    of_bank = bank(fractional_weights(0.7), 1000)
    assert digits(of_bank) == 0.00260011
    assert digits(100 * (of_bank / decay(0.7, 1000) - 1), 3) == -2.70


def test_the_read_weights_follow_the_prior():
    """c_m is tau^-a beyond the knee, up to the factor 1 / (1 + 2 tau^-a cos(pi a) + tau^-2a)."""
    for a in (0.3, 0.5, 0.7):
        prior = SPACING * np.sin(a * np.pi) / np.pi * TAU**-a
        knee = 1 / (1 + 2 * TAU**-a * np.cos(np.pi * a) + TAU ** (-2 * a))
        np.testing.assert_allclose(fractional_weights(a), prior * knee, rtol=1e-12)
        small = spectral_density(1e12, a) * 1e12  # tau = 1e-12: rising with tau instead
        assert small == pytest.approx(np.sin(a * np.pi) / np.pi * 1e-12**a, rel=1e-3)


@pytest.mark.parametrize(
    ("a", "largest", "estimate"),
    [(0.5, 9.9e-6, 7.0e-6), (0.7, 1.6e-4, 4.2e-5), (0.8, 4.5e-3, 3.7e-3), (0.9, 0.14, 0.12)],
)
def test_error_of_the_rule_without_ends(a, largest, estimate):
    """The largest relative error over t = 1..1e4, beside 2 exp(-2 pi s / h)."""
    times = np.geomspace(1, 1e4, 401)
    error = [decay(a, t, spacing=SPACING) / decay(a, t) - 1 for t in times]
    assert digits(np.abs(error).max(), 2) == largest
    strip = min(np.pi / 2, np.pi * (1 - a) / a)
    assert digits(2 * np.exp(-2 * np.pi * strip / SPACING), 2) == estimate


@pytest.mark.parametrize(
    ("b", "ripple"), [(0.1, 8.02209e-7), (0.5, 9.89034e-6), (1, 4.95775e-5), (2, 3.99622e-4)]
)
def test_ripple_of_a_power_law(b, ripple):
    """A geometric bank without ends gives t^-b times 1 + a wave in log t of this amplitude."""
    harmonic = mpmath.gamma(b + 2j * mpmath.pi / SPACING)
    assert digits(2 * abs(harmonic) / mpmath.gamma(b)) == ripple
    times = np.exp(np.linspace(0, SPACING, 65))  # one period of the wave
    wave = [
        rule(lambda r, t=t: r ** (b - 1) * np.exp(-r * t), SPACING) * t**b / mpmath.gamma(b) - 1
        for t in times
    ]
    assert float(max(wave)) == pytest.approx(ripple, rel=5e-3)
    assert float(min(wave)) == pytest.approx(-ripple, rel=5e-3)


@pytest.mark.parametrize(("b", "factor"), [(0.1, 13.2362), (0.5, 3.07858), (1.0, 1.83777)])
def test_the_lumped_tail_restores_what_the_bank_lacks(b, factor):
    """The modes missing above tau_max add h/(e^(bh)-1) tau_max^-b/Gamma(b) while t is small."""
    weights = power_law_weights(b)
    assert digits(lumped(weights, b)[-1] / weights[-1]) == factor
    missing = SPACING / np.expm1(b * SPACING) * TAU_MAX**-b / float(mpmath.gamma(b))
    assert lumped(weights, b).sum() - weights.sum() == pytest.approx(missing, rel=1e-10)
    # The endless rule of the same spacing has the same ripple; terms of order t / tau_max remain.
    endless = rule(lambda r: r ** (b - 1) * np.exp(-50 * r), SPACING) / float(mpmath.gamma(b))
    assert endless - bank(weights, 50) == pytest.approx(missing, rel=1e-3)


@pytest.mark.parametrize("a", [0.3, 0.5, 0.7])
def test_what_the_fractional_bank_lacks(a):
    """The same missing tail for the decay of order a, up to the knee's factor at tau_max."""
    lacking = decay(a, 50, spacing=SPACING) - bank(fractional_weights(a), 50)
    missing = SPACING / np.expm1(a * SPACING) * np.sin(a * np.pi) / np.pi * TAU_MAX**-a
    assert lacking == pytest.approx(missing, rel=1e-3 + 2 * TAU_MAX**-a)


def test_values_of_a_truncated_power_law():
    """At b = .1 and t = 1000 the bank lacks most of the kernel; one factor brings it back."""
    weights, exact = power_law_weights(0.1), 1000**-0.1
    assert digits(100 * (bank(weights, 1000) / exact - 1), 3) == -62.0
    assert digits(100 * (bank(lumped(weights, 0.1), 1000) / exact - 1), 2) == -0.44
