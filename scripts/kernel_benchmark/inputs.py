"""Inputs of the operators as the layer makes them, on the device, the same for the same seed.

B rows   T positions   H heads   V value width   M modes   D channels
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

MODES = 16
TAU_RANGE = (1.0, 131072.0)
KINDS = ("initial gates", "spread", "jumps")
JUMP, PERIOD = 1e4, 1000


class Shape(NamedTuple):
    """Sizes of a scan."""

    B: int
    T: int
    H: int
    V: int

    @property
    def tokens(self) -> int:
        """Positions of all rows."""
        return self.B * self.T

    def __str__(self) -> str:
        return f"{self.B}x{self.T} {self.H}x{self.V}"


def time_scales(device: torch.device, modes: int = MODES) -> Tensor:
    """(M,) natural logarithms of a geometric ladder."""
    low, high = map(math.log, TAU_RANGE)
    return torch.linspace(low, high, modes, device=device)


def clock(kind: str, B: int, T: int, H: int, generator: torch.Generator) -> Tensor:
    """(B, T, H) float32 advances of a clock.

    initial gates: about 3.1, as an untrained layer gives (Delta ln 2, alpha 0.5, lambda 2.125).
    spread: exp(3 N(0, 1)), at most 1e6. jumps: U(0, 2), and 1e4 once in every 1,000 positions.
    """
    device = generator.device
    if kind == "spread":
        return _normal(B, T, H, generator=generator).mul_(3).exp_().clamp_(max=1e6)
    if kind == "jumps":
        u = torch.rand(B, T, H, generator=generator, device=device) * 2
        u[:, PERIOD // 2 :: PERIOD] = JUMP
        return u
    step, order, strength = (_normal(B, T, H, generator=generator).mul_(0.1) for _ in range(3))
    order = 0.1 + 0.8 * order.sigmoid()
    strength = 0.25 + 3.75 * strength.sigmoid()
    return torch.exp(softplus(step).log() + strength.log() / order)


def scan_inputs(
    shape: Shape, kind: str, generator: torch.Generator, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Tensor]:
    """Arguments of frac_scan: routing by a prior of order one half, writes times their gain."""
    B, T, H, V = shape
    log_tau = time_scales(generator.device)
    u = clock(kind, B, T, H, generator)
    write = _routing(B, T, H, log_tau, generator)
    write *= -torch.expm1(-u[..., None] * torch.exp(-log_tau))
    read = _routing(B, T, H, log_tau, generator)
    values = _normal(B, T, H, V, generator=generator, dtype=dtype)
    return {
        "values": values,
        "write": write.to(dtype),
        "read": read.to(dtype),
        "u": u,
        "log_tau": log_tau,
    }


def _routing(B: int, T: int, H: int, log_tau: Tensor, generator: torch.Generator) -> Tensor:
    """(B, T, H, M) positive weights that sum to one."""
    logits = _normal(B, T, H, len(log_tau), generator=generator).mul_(0.25)
    return torch.softmax(logits.sub_(0.5 * log_tau), dim=-1)


def gates_inputs(
    B: int, T: int, H: int, generator: torch.Generator, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Tensor]:
    """Arguments of frac_gates, views into what two projections give, as in the layer."""
    dynamics = _normal(B, T, 3 * H, generator=generator)  # this map stays in float32
    routes = _normal(B, T, 2, H, MODES, generator=generator, dtype=dtype)
    delta, alpha, lam = dynamics.chunk(3, dim=-1)
    return {
        "delta": delta,
        "alpha": alpha,
        "lam": lam,
        "read_logits": routes[..., 0, :, :],
        "write_logits": routes[..., 1, :, :],
        "log_tau": time_scales(generator.device),
        "dt_bias": 0.1 * _normal(H, generator=generator),
        "read_gain": torch.tensor(-1.0, device=generator.device),
        "write_gain": torch.tensor(-1.1, device=generator.device),
    }


def gated_norm_inputs(
    B: int, T: int, D: int, generator: torch.Generator, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Tensor]:
    """Arguments of gated_rms_norm with its skip; the gate is half of a projection."""
    x, values = (_normal(B, T, D, generator=generator, dtype=dtype) for _ in range(2))
    return {
        "x": x,
        "gate": _normal(B, T, 2 * D, generator=generator, dtype=dtype)[..., D:],
        "weight": 1 + 0.1 * _normal(D, generator=generator),
        "skip_values": values,
        "skip_factor": 0.1 * _normal(D, generator=generator),
    }


def add_norm_inputs(
    B: int, T: int, D: int, generator: torch.Generator, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Tensor]:
    """Arguments of add_rms_norm."""
    x, residual = (_normal(B, T, D, generator=generator, dtype=dtype) for _ in range(2))
    return {"x": x, "residual": residual, "weight": 1 + 0.1 * _normal(D, generator=generator)}


def convolution_inputs(
    B: int, T: int, D: int, generator: torch.Generator, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Tensor]:
    """Arguments of short_convolution with four taps; x is half of a projection."""
    return {
        "x": _normal(B, T, 2 * D, generator=generator, dtype=dtype)[..., :D],
        "weight": 0.5 * _normal(D, 4, generator=generator),
        "bias": 0.1 * _normal(D, generator=generator),
    }


def _normal(*size: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(size, generator=generator, device=generator.device, dtype=dtype)
