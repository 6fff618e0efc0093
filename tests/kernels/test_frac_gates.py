import math

import pytest
import torch
from numerics import relative_error

from fracdna_kernels import frac_gates

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILED = DEVICE == "cuda"
# outputs u, read, write and gradients, by dtype of the logits; bfloat16 needs compiled kernels
TOLERANCES = {torch.float32: ((2e-6, 2e-6, 2e-6), 1e-5)}
if COMPILED:
    TOLERANCES[torch.bfloat16] = ((2e-6, 3e-3, 3e-3), 5e-3)
FUSED = {"form": "triton"}
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


def layer_inputs(dtype=torch.float32, heads=3, modes=MODES, batch=2, length=7, scale=1.5):
    """Leaves (dynamics, routes, dt_bias, gains) and the arguments that the layer makes of them.

    delta, alpha and lam are thirds of one tensor, the logits are halves of another.
    """
    routed = dtype if dtype == torch.bfloat16 else None
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    random = lambda kind, *shape: (  # noqa: E731
        (scale * torch.randn(shape)).to(DEVICE, kind).requires_grad_()
    )
    leaves = [
        random(exact, batch, length, 3 * heads),
        random(routed or exact, batch, length, 2, heads, modes),
        random(exact, heads),
        random(exact),
        random(exact),
    ]
    log_tau = torch.linspace(0, math.log(131072), modes, dtype=exact, device=DEVICE)
    return leaves, log_tau


def arguments(leaves, log_tau, fixed_alpha=False):
    dynamics, routes, dt_bias, read_gain, write_gain = leaves
    delta, alpha, lam = dynamics.chunk(3, -1)
    return {
        "delta": delta, "alpha": None if fixed_alpha else alpha, "lam": lam,
        "read_logits": routes[..., 0, :, :], "write_logits": routes[..., 1, :, :],
        "log_tau": log_tau, "dt_bias": dt_bias, "read_gain": read_gain, "write_gain": write_gain,
    }  # fmt: skip


def exact_copy(leaves, log_tau):
    return [x.detach().cpu().double().requires_grad_() for x in leaves], log_tau.cpu().double()


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    ("heads", "modes", "length", "options"),
    [
        (4, 16, 37, {}),
        (3, 8, 5, {"gain": "zoh"}),
        (1, 32, 7, {"fixed_alpha": True}),
        (5, 16, 1, {"read_prior": False, "write_prior": False}),
        (2, 11, 9, {"delta_range": (0.2, 0.9), "alpha_range": (0.3, 0.5), "lam_range": (1, 2)}),
        (200, 4, 2, {"write_prior": False}),
    ],
    ids=str,
)
def test_fused_gates_agree_with_float64(heads, modes, length, options, dtype):
    """Outputs and all gradients, from the strided views that the layer gives."""
    inputs = layer_inputs(dtype, heads, modes, length=length)
    exact = exact_copy(*inputs)
    fixed, options = options.get("fixed_alpha", False), dict(options)
    options.pop("fixed_alpha", None)
    expected = frac_gates(**arguments(*exact, fixed), **options)
    outputs = frac_gates(**arguments(*inputs, fixed), **options, **FUSED)
    limits, gradient_limit = TOLERANCES[dtype]
    for output, target, limit in zip(outputs, expected, limits, strict=True):
        assert relative_error(output.cpu(), target) < limit
    incoming = [torch.randn_like(x) for x in expected]
    targets = torch.autograd.grad(expected, exact[0], incoming)
    incoming = [g.to(x) for g, x in zip(incoming, outputs, strict=True)]
    found = torch.autograd.grad(outputs, inputs[0], incoming)
    for gradient, target in zip(found, targets, strict=True):
        # a gain's gradient is one number, a sum whose terms cancel: there is no mean to relate to
        limit = gradient_limit * (1 if target.ndim else 10)
        assert relative_error(gradient.cpu(), target) < limit


@pytest.mark.skipif(COMPILED, reason="float64 runs in the interpreter")
@pytest.mark.parametrize("gain", ["dc", "zoh"])
def test_fused_gate_gradients_pass_gradcheck(gain):
    leaves, log_tau = layer_inputs(torch.float64, heads=3, modes=5, batch=1, length=2, scale=0.7)
    call = lambda *x: frac_gates(**arguments(x, log_tau), gain=gain, **FUSED)  # noqa: E731
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


def test_fused_gates_stay_finite_at_the_corner_of_the_box():
    """u of 1e6 and 1e-10, saturated pre-activations: all is finite, no digit is lost."""
    leaves, log_tau = layer_inputs(heads=2, length=3)
    with torch.no_grad():
        leaves[0].copy_(torch.tensor([60.0, -60, -60, -60, 60, -60]).expand(2, 3, 6))
        leaves[2].zero_()
    outputs = frac_gates(**arguments(leaves, log_tau), **FUSED)
    exact = exact_copy(leaves, log_tau)
    expected = frac_gates(**arguments(*exact))
    for output, target in zip(outputs, expected, strict=True):
        assert torch.allclose(output.cpu().double(), target, rtol=1e-5, atol=1e-30)
    sum(x.sum() for x in outputs).backward()
    assert all(torch.isfinite(x.grad).all() for x in leaves)


def test_fused_gates_take_missing_and_expanded_gradients():
    """A loss on one output, whose gradient is one expanded number."""
    for number in range(3):
        leaves, log_tau = layer_inputs()
        exact = exact_copy(leaves, log_tau)
        frac_gates(**arguments(leaves, log_tau), **FUSED)[number].sum().backward()
        frac_gates(**arguments(*exact))[number].sum().backward()
        for fused, reference in zip(leaves, exact[0], strict=True):
            # a sum of softmax weights is constant: both gradients may be rounding noise
            target = torch.zeros(()) if reference.grad is None else reference.grad
            assert torch.allclose(fused.grad.cpu().double(), target.double(), rtol=1e-4, atol=3e-6)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)], ids=str)
def test_fused_gates_of_nothing_are_empty(shape):
    leaves, log_tau = layer_inputs(batch=shape[0], length=shape[1])
    outputs = frac_gates(**arguments(leaves, log_tau), **FUSED)
    assert [tuple(x.shape) for x in outputs] == [(*shape, 3), (*shape, 3, 16), (*shape, 3, 16)]
    sum(x.sum() for x in outputs).backward()
    assert all((x.grad == 0).all() for x in leaves)


def test_fused_gates_are_operators_of_pytorch():
    """Schema, fake kernels and autograd registration hold; compilation needs no break."""
    from fracdna_kernels.frac_gates import triton_form

    leaves, log_tau = layer_inputs(heads=2, modes=4, batch=1, length=3)
    inputs = list(arguments(leaves, log_tau).values())
    bounds = [1e-4, 1.0, 0.1, 0.9, 0.25, 4.0]
    torch.library.opcheck(triton_form._gates.registered, (*inputs, "dc", True, True, bounds))
    call = lambda *x: frac_gates(**arguments(x, log_tau), **FUSED)  # noqa: E731
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    outputs = compiled(*leaves)
    assert all(map(torch.equal, outputs, call(*leaves)))
    sum(x.square().sum() for x in outputs).backward()
    assert all(torch.isfinite(x.grad).all() for x in leaves)


def test_fused_gates_give_no_second_derivative():
    leaves, log_tau = layer_inputs()
    u = frac_gates(**arguments(leaves, log_tau), **FUSED)[0]
    (first,) = torch.autograd.grad(u.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


def test_fused_gates_repeat_bit_by_bit():
    leaves, log_tau = layer_inputs(length=200)
    results = []
    for _ in range(2):
        outputs = frac_gates(**arguments(leaves, log_tau), **FUSED)
        results.append([*outputs, *torch.autograd.grad(sum(x.sum() for x in outputs), leaves)])
    assert all(map(torch.equal, *results))


def test_learned_time_scales_take_the_reference():
    """The fused form has no gradient of log_tau: it says so, and "auto" does without it."""
    leaves, log_tau = layer_inputs()
    log_tau.requires_grad_()
    with pytest.raises(ValueError, match="log_tau needs a gradient"):
        frac_gates(**arguments(leaves, log_tau), **FUSED)
    frac_gates(**arguments(leaves, log_tau))[2].sum().backward()
    assert log_tau.grad.abs().sum() > 0
