"""The equations of frac_gates as written in the paper, in float32 or float64 log space.

B batch   T length   H heads   M modes
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fracdna_kernels.forms import accumulator

GAINS = ("dc", "zoh")


def frac_gates_reference(
    delta: Tensor,
    alpha: Tensor | None,
    lam: Tensor,
    read_logits: Tensor,
    write_logits: Tensor,
    log_tau: Tensor,
    dt_bias: Tensor,
    read_gain: Tensor,
    write_gain: Tensor,
    gain: str,
    read_prior: bool,
    write_prior: bool,
    delta_range: tuple[float, float],
    alpha_range: tuple[float, float],
    lam_range: tuple[float, float],
) -> tuple[Tensor, Tensor, Tensor]:
    """See frac_gates for shapes and meaning."""
    dtype = accumulator(delta)
    log_tau = log_tau.to(dtype)
    step = softplus(delta.to(dtype) + dt_bias.to(dtype)).clamp(*delta_range)
    order = torch.ones_like(step) if alpha is None else _between(alpha.to(dtype), alpha_range)
    strength = _between(lam.to(dtype), lam_range)
    # lam^(1/alpha) spans twelve decades at alpha = 0.1: only its logarithm is safe to form
    u = torch.exp(step.log() + strength.log() / order)
    prior = -order[..., None] * log_tau
    read = torch.sigmoid(read_gain).to(dtype) * read_logits.to(dtype)
    write = torch.sigmoid(write_gain).to(dtype) * write_logits.to(dtype)
    read = torch.softmax(read + prior if read_prior else read, dim=-1)
    write = torch.softmax(write + prior if write_prior else write, dim=-1)
    # expm1: for the slowest modes u/tau is near 1e-6, where 1 - exp keeps one or two digits
    charge = -torch.expm1(-u[..., None] * torch.exp(-log_tau))
    if gain == "zoh":
        charge = charge * log_tau.exp()
    out = read_logits.dtype
    return u, read.to(out), (write * charge).to(out)


def _between(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Map the real line into the bounds by a sigmoid."""
    low, high = bounds
    return low + (high - low) * torch.sigmoid(x)
