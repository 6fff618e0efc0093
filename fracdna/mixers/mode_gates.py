"""FRAC's gates where every mode decays by itself: time scales by head, or bounds on a decay."""

import math

import torch
from torch import Tensor

from fracdna_kernels import frac_gates

# of u/tau: exp(-u/tau) stays 1e-6 away from 1 and from 0, as in anasiri/frac-ssm
BOUNDS = -math.log1p(-1e-6), -math.log(1e-6)


def mode_gates(
    dynamics: tuple[Tensor, Tensor | None, Tensor],
    read_logits: Tensor,
    write_logits: Tensor,
    log_tau: Tensor,
    dt_bias: Tensor,
    read_gain: Tensor,
    write_gain: Tensor,
    *,
    gain: str,
    read_prior: bool,
    write_prior: bool,
    clamp: bool,
    **ranges: tuple[float, float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Log decay and routing of every mode, for decay_attention; letters are those of frac_gates.

    Args:
        dynamics: delta, alpha (None fixes it at 1) and lam, (B, T, H) each.
        read_logits: (B, T, H, M).
        write_logits: (B, T, H, M).
        log_tau: (M,), or (H, M) without priors, which share their time scales.
        dt_bias: (H,).
        read_gain: scalar.
        write_gain: scalar.
        gain: "dc" or "zoh".
        read_prior: as in frac_gates.
        write_prior: likewise.
        clamp: keep exp(-u/tau) within [1e-6, 1 - 1e-6], also for the gain; where that binds,
            nothing flows back to u and tau.
        **ranges: delta_range, alpha_range and lam_range.

    Returns:
        g = -u/tau (B, T, H, M) in float32 (float64 for float64 inputs), read and write (B, T, H, M)
        in the dtype of read_logits, the write weights times their gain.
    """
    # without priors the operator needs time scales for its gain alone, and that is not used
    common = log_tau if log_tau.ndim == 1 else log_tau[0].detach()
    u, read, _ = frac_gates(
        *dynamics, read_logits, write_logits, common, dt_bias, read_gain, write_gain,
        read_prior=read_prior, write_prior=write_prior, **ranges,
    )  # fmt: skip
    # weights as if to read, so that they have no gain yet
    _, write, _ = frac_gates(
        *dynamics, write_logits, write_logits, common, dt_bias, write_gain, write_gain,
        read_prior=write_prior, write_prior=write_prior, **ranges,
    )  # fmt: skip
    log_tau = log_tau.to(u.dtype)
    rates = u[..., None] * torch.exp(-log_tau)
    if clamp:
        rates = rates.clamp(*BOUNDS)
    # expm1: for the slowest modes u/tau is near 1e-6, where 1 - exp keeps one or two digits
    charge = -torch.expm1(-rates)
    if gain == "zoh":
        charge = charge * torch.exp(log_tau)
    return -rates, read, (write * charge).to(write.dtype)
