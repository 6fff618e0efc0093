"""FRAC's clock and its read and write weights."""

import torch
from torch import Tensor

from fracdna_kernels.frac_gates.reference import GAINS, frac_gates_reference
from fracdna_kernels.shapes import check_shapes


def frac_gates(
    delta: Tensor,
    alpha: Tensor | None,
    lam: Tensor,
    read_logits: Tensor,
    write_logits: Tensor,
    log_tau: Tensor,
    dt_bias: Tensor,
    read_gain: Tensor,
    write_gain: Tensor,
    *,
    gain: str = "dc",
    read_prior: bool = True,
    write_prior: bool = True,
    delta_range: tuple[float, float] = (1e-4, 1.0),
    alpha_range: tuple[float, float] = (0.1, 0.9),
    lam_range: tuple[float, float] = (0.25, 4.0),
) -> tuple[Tensor, Tensor, Tensor]:
    """The clock u = Delta lam^(1/alpha) and routing over modes by a prior -alpha log tau.

    Args:
        delta: (B, T, H), pre-activation of the step Delta.
        alpha: (B, T, H), pre-activation of the fractional order; None fixes alpha at 1.
        lam: (B, T, H), pre-activation of the relaxation strength lambda.
        read_logits: (B, T, H, M), residual added to the read prior.
        write_logits: (B, T, H, M), residual added to the write prior.
        log_tau: (M,), natural log of the time scales.
        dt_bias: (H,), added to delta.
        read_gain: scalar, its sigmoid scales the read residual.
        write_gain: scalar, its sigmoid scales the write residual.
        gain: "dc": 1 - exp(-u/tau), each mode has unit constant response; "zoh": tau times that,
            the exact zero-order hold.
        read_prior: add the prior to the read logits.
        write_prior: add the prior to the write logits.
        delta_range: bounds of Delta, clamped.
        alpha_range: bounds of alpha, by a sigmoid.
        lam_range: bounds of lambda, by a sigmoid.

    Returns:
        u (B, T, H) in float32 (float64 for float64 inputs), read and write (B, T, H, M) in the
        dtype of read_logits, the write weights times their gain.

    Raises:
        ValueError: axes that do not fit, or an unknown gain.

    Source: arXiv 2609.36314 (FRAC); docs/derivation.md.
    """
    check_shapes(
        delta=(delta, "BTH"),
        alpha=(alpha, "BTH"),
        lam=(lam, "BTH"),
        read_logits=(read_logits, "BTHM"),
        write_logits=(write_logits, "BTHM"),
        log_tau=(log_tau, "M"),
        dt_bias=(dt_bias, "H"),
        read_gain=(read_gain, ""),
        write_gain=(write_gain, ""),
    )
    if gain not in GAINS:
        raise ValueError(f"gain={gain!r} is unknown; use one of {GAINS}")
    with torch.autocast(delta.device.type, enabled=False):
        return frac_gates_reference(
            delta, alpha, lam, read_logits, write_logits, log_tau, dt_bias, read_gain, write_gain,
            gain, read_prior, write_prior, delta_range, alpha_range, lam_range,
        )  # fmt: skip
