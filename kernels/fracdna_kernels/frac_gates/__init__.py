"""FRAC's clock and its read and write weights."""

from torch import Tensor

from fracdna_kernels.forms import choose_form, without_autocast
from fracdna_kernels.frac_gates.reference import GAINS, frac_gates_reference
from fracdna_kernels.fused import fused_refusal, lazily
from fracdna_kernels.shapes import check_shapes

FORMS = {
    "reference": frac_gates_reference,
    "triton": lazily("fracdna_kernels.frac_gates.triton_form", "frac_gates_triton"),
}


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
    form: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """The clock u = Delta lam^(1/alpha) and routing over modes by a prior -alpha log tau.

    Args:
        delta: (B, T, H), pre-activation of the step Delta.
        alpha: (B, T, H), pre-activation of the fractional order; None fixes alpha at 1.
        lam: (B, T, H), pre-activation of the relaxation strength lambda.
        read_logits: (B, T, H, M), residual added to the read prior.
        write_logits: (B, T, H, M), residual added to the write prior.
        log_tau: (M,), natural log of the time scales; gets no gradient from the form "triton".
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
        form: "auto", "reference" or "triton".

    Returns:
        u (B, T, H) in float32 (float64 for float64 inputs), read and write (B, T, H, M) in the
        dtype of read_logits, the write weights times their gain.

    Raises:
        ValueError: axes that do not fit, an unknown gain, or a form that does not exist or cannot
            run.

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
    inputs = (delta, lam, read_logits, write_logits)
    refusal = _refusal(*inputs, log_tau=log_tau)
    chosen = choose_form(form, tuple(FORMS), delta.shape[1], inputs, refusal=refusal)
    with without_autocast(chosen, delta):
        return FORMS[chosen](
            delta, alpha, lam, read_logits, write_logits, log_tau, dt_bias, read_gain, write_gain,
            gain, read_prior, write_prior, delta_range, alpha_range, lam_range,
        )  # fmt: skip


def _refusal(*tensors: Tensor, log_tau: Tensor) -> str | None:
    """Why the fused kernels cannot run, or None."""
    if log_tau.requires_grad:
        return "log_tau needs a gradient, which it has no kernel for; use form='reference'"
    for tensor in tensors:
        refusal = fused_refusal(tensor)
        if refusal is not None:
            return refusal
    return None
