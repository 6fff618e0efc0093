"""Inputs of frac_scan over the whole test matrix, and comparison with its reference."""

import math

import torch
from numerics import FORWARD, GRADIENT, relative_error

from fracdna_kernels import frac_scan

LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 63, 70]
BOUNDS = [
    [0, 15],
    [0, 0, 16],
    [0, 1, 100, 130],
    [0, 0, 0],
    [0, 64, 64, 128],
    [0, 0, 40, 90],
    [0, 65],
    [7, 7, 80, 100],
]
LONG_BOUNDS = [0, 1, 100, 300, 1200, 2048]


def clocks(kind: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The clock advances of the test matrix, float64."""
    u = torch.rand(shape, dtype=torch.float64)
    kinds = {
        "zero": lambda: torch.zeros_like(u),
        "uniform": lambda: 2 * u,
        "fast": lambda: 20 + u,
        "slow": lambda: 1e-2 * u,
        "spread": lambda: torch.exp(3 * torch.randn(shape, dtype=torch.float64)),
        "huge": lambda: torch.full_like(u, 1e6),
    }
    if kind in kinds:
        return kinds[kind]()
    u[:, {"jump first": 0, "jump middle": shape[1] // 2, "jump last": -1}[kind]] = 1e4
    return u


KINDS = [
    "zero", "uniform", "fast", "slow", "spread", "jump first", "jump middle", "jump last", "huge",
]  # fmt: skip


def make(length, *, batch=2, heads=3, modes=16, width=8, kind="uniform", sequences=None):
    """Inputs of frac_scan in float64, a non-empty initial state with them."""
    shape = (batch, length, heads)
    return {
        "values": torch.randn(*shape, width, dtype=torch.float64),
        "write": torch.rand(*shape, modes, dtype=torch.float64),
        "read": torch.rand(*shape, modes, dtype=torch.float64),
        "u": clocks(kind, shape),
        "initial_state": torch.randn(sequences or batch, heads, modes, width, dtype=torch.float64),
    }


def log_tau(modes=16, slowest=2.0**17):
    return torch.linspace(0, math.log(slowest), modes, dtype=torch.float64)


def run(inputs, form, dtype, device="cpu", **options):
    """Outputs and gradients of a loss on output and final state, by name.

    The clock and the state stay in float32 where dtype is bfloat16.
    """
    kept = torch.promote_types(dtype, torch.float32)
    exact = {"u": kept, "initial_state": kept}
    inputs = {
        name: x.to(device, exact.get(name, dtype)).requires_grad_() for name, x in inputs.items()
    }
    tau = options.pop("log_tau", log_tau(inputs["write"].shape[-1])).to(device, kept)
    if options.get("cu_seqlens") is not None:
        options["cu_seqlens"] = options["cu_seqlens"].to(device)
    output, state = frac_scan(
        inputs["values"], inputs["write"], inputs["read"], inputs["u"], tau,
        initial_state=inputs["initial_state"], form=form, **options,
    )  # fmt: skip
    weight = torch.arange(1, output.numel() + 1, dtype=torch.float64).view_as(output).cos()
    pairs = [(output, weight.to(output)), (state, (2 * state).detach())]
    # an output that no sequence reaches depends on nothing
    outputs, incoming = zip(*[pair for pair in pairs if pair[0].requires_grad], strict=True)
    gradients = torch.autograd.grad(
        outputs, list(inputs.values()), incoming, materialize_grads=True
    )
    result = {"output": output, "final_state": state}
    return result | {f"d{name}": g for name, g in zip(inputs, gradients, strict=True)}


def rounded(inputs, dtype):
    """Inputs that bfloat16 holds exactly where a form will see bfloat16."""
    kept = ("u", "initial_state")
    return {
        name: x.float().double() if name in kept else x.to(dtype).double()
        for name, x in inputs.items()
    }


def assert_same(result, reference, dtype, slack=1.0):
    """Every quantity within its tolerance, times a slack that the caller has a reason for."""
    for name, expected in reference.items():
        table = GRADIENT if name.startswith("d") else FORWARD
        error = relative_error(result[name].cpu(), expected)
        assert error <= slack * table[dtype], f"{name}: {error:.1e}"
