import math

import pytest
import torch
from numerics import relative_error
from torch.nn.functional import silu

from fracdna_kernels import frac_gates, gated_rms_norm

MODES = 16
LOG_TAU = torch.linspace(0, math.log(131072), MODES, dtype=torch.float64)


def gate_inputs(scale=3.0):
    head, modes = (2, 7, 3), (2, 7, 3, MODES)
    random = lambda *shape: scale * torch.randn(shape, dtype=torch.float64)  # noqa: E731
    return {
        "delta": random(*head), "alpha": random(*head), "lam": random(*head),
        "read_logits": random(*modes), "write_logits": random(*modes), "log_tau": LOG_TAU,
        "dt_bias": random(3), "read_gain": random(), "write_gain": random(),
    }  # fmt: skip


@pytest.mark.parametrize("gain", ["dc", "zoh"])
def test_gates_follow_the_published_equations(gain):
    """Each equation written again, scalar by scalar, with Python's own functions."""
    inputs = gate_inputs()
    u, read, write = frac_gates(**inputs, gain=gain)
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    for b, t, h in [(0, 0, 0), (1, 6, 2), (0, 3, 1)]:
        d, a, lam = (inputs[name][b, t, h].item() for name in ("delta", "alpha", "lam"))
        step = min(max(math.log1p(math.exp(d + inputs["dt_bias"][h].item())), 1e-4), 1.0)
        order, strength = 0.1 + 0.8 * sigmoid(a), 0.25 + 3.75 * sigmoid(lam)
        clock = step * strength ** (1 / order)
        assert u[b, t, h].item() == pytest.approx(clock, rel=1e-12)
        taus = LOG_TAU.exp().tolist()
        for weights, name, factor in ((read, "read", None), (write, "write", gain)):
            scale = sigmoid(inputs[f"{name}_gain"].item())
            logits = [
                scale * inputs[f"{name}_logits"][b, t, h, m].item() - order * math.log(taus[m])
                for m in range(MODES)
            ]
            total = sum(math.exp(x - max(logits)) for x in logits)
            for m, x in enumerate(logits):
                expected = math.exp(x - max(logits)) / total
                if factor is not None:
                    expected *= -math.expm1(-clock / taus[m])
                if factor == "zoh":
                    expected *= taus[m]
                assert weights[b, t, h, m].item() == pytest.approx(expected, rel=1e-11, abs=1e-300)


def test_corner_of_the_gate_box_stays_finite_in_float32():
    """lam^(1/alpha) reaches 1e6 and 1e-6: no overflow, and slow modes still write."""
    inputs = {n: x.float() for n, x in gate_inputs().items()}
    for alpha, lam, bound in ((-60.0, 60.0, 1.05e6), (-60.0, -60.0, 9.6e-11)):
        inputs["delta"] = torch.full_like(inputs["delta"], -60.0 if lam < 0 else 60.0)
        inputs["alpha"] = torch.full_like(inputs["alpha"], alpha)
        inputs["lam"] = torch.full_like(inputs["lam"], lam)
        inputs["dt_bias"] = torch.zeros(3)
        u, read, write = frac_gates(**inputs)
        assert u.max().item() == pytest.approx(bound, rel=0.02)
        assert torch.isfinite(read).all()
        assert torch.isfinite(write).all()
        assert (write > 0).any(-1).all()


def test_gate_gradients_pass_gradcheck():
    inputs = gate_inputs(scale=0.7)
    names = [name for name in inputs if name != "log_tau"]
    leaves = [inputs[name].requires_grad_() for name in names]
    for gain in ("dc", "zoh"):
        call = lambda *x, g=gain: frac_gates(  # noqa: E731
            **dict(zip(names, x, strict=True)), log_tau=LOG_TAU, gain=g
        )
        assert torch.autograd.gradcheck(call, leaves)


def test_ablations_remove_exactly_one_thing():
    inputs = gate_inputs()
    u, read, write = frac_gates(**inputs)
    no_read = frac_gates(**inputs, read_prior=False)
    no_write = frac_gates(**inputs, write_prior=False)
    assert torch.equal(no_read[0], u)
    assert torch.equal(no_read[2], write)
    assert torch.equal(no_write[1], read)
    assert not torch.allclose(no_read[1], read)
    assert not torch.allclose(no_write[2], write)
    fixed, _, _ = frac_gates(**inputs | {"alpha": None})
    step = torch.nn.functional.softplus(inputs["delta"] + inputs["dt_bias"]).clamp(1e-4, 1)
    assert relative_error(fixed, step * (0.25 + 3.75 * torch.sigmoid(inputs["lam"]))) < 1e-14


def test_unknown_gain_is_refused():
    with pytest.raises(ValueError, match="gain='foh'"):
        frac_gates(**gate_inputs(), gain="foh")


def test_gated_norm_gates_before_it_normalises():
    """out = weight * t / rms(t), t = (x + D values) silu(gate + bias)."""
    x, gate, values = (torch.randn(2, 5, 8, dtype=torch.float64) for _ in range(3))
    weight, factor = (torch.randn(8, dtype=torch.float64) for _ in range(2))
    out = gated_rms_norm(x, gate, weight, gate_bias=0.3, skip=(values, factor), eps=1e-6)
    t = (x + factor * values) * silu(gate + 0.3)
    expected = weight * t / torch.sqrt((t * t).mean(-1, keepdim=True) + 1e-6)
    assert relative_error(out, expected) < 1e-14
    plain = gated_rms_norm(x, gate, weight)
    assert relative_error(plain, gated_rms_norm(x, gate, weight, skip=(values, 0 * factor))) == 0
    low = gated_rms_norm(x.bfloat16(), gate.bfloat16(), weight.float())
    assert low.dtype == torch.bfloat16
    assert relative_error(low, plain) < 1e-2
