"""A bank of exponential modes at fixed time scales, driven by one clock per head."""

import torch
from torch import Tensor

from fracdna_kernels.forms import check_exact, choose_form
from fracdna_kernels.frac_scan.chunk import frac_scan_chunk
from fracdna_kernels.frac_scan.recurrent import frac_scan_recurrent
from fracdna_kernels.frac_scan.reference import frac_scan_reference
from fracdna_kernels.shapes import check_packing, check_shapes

FORMS = {
    "reference": frac_scan_reference,
    "chunk": frac_scan_chunk,
    "recurrent": frac_scan_recurrent,
}


def frac_scan(
    values: Tensor,
    write: Tensor,
    read: Tensor,
    u: Tensor,
    log_tau: Tensor,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Power-law memory: S_t = exp(-u_t / tau) S_{t-1} + write_t values_t^T, o_t = read_t S_t.

    Inputs must be finite: a form that is parallel in time multiplies future values by zero, which
    does not remove what is not finite. Other sequences of a packed row stay untouched by it.

    Args:
        values: (B, T, H, V).
        write: (B, T, H, M), write weight times gain.
        read: (B, T, H, M).
        u: (B, T, H) float32 or float64, clock advance per position,
            at least 0; 0 with write 0 is a pad.
        log_tau: (M,), natural log of the time scales.
        initial_state: (N, H, M, V) float32; None starts empty.
        cu_seqlens: (N + 1,) int32 or int64 bounds of packed sequences, needs B = 1; None: N = B.
        form: "auto", "reference", "chunk" or "recurrent".

    Returns:
        o (B, T, H, V) in the dtype of values, and the final state (N, H, M, V) in float32 (float64
        for float64 inputs). Positions outside the bounds give 0.

    Raises:
        ValueError: axes that do not fit, a clock or state in half precision, or an unknown form.

    Source: arXiv 2609.36314 (FRAC); chunk algebra in docs/derivation.md.
    """
    sizes = check_shapes(
        values=(values, "BTHV"),
        write=(write, "BTHM"),
        read=(read, "BTHM"),
        u=(u, "BTH"),
        log_tau=(log_tau, "M"),
        initial_state=(initial_state, "NHMV"),
    )
    check_packing(sizes["B"], sizes["T"], cu_seqlens, initial_state)
    check_exact(u=u, log_tau=log_tau, initial_state=initial_state)
    inputs, packed = (values, write, read, u), cu_seqlens is not None
    chosen = choose_form(form, tuple(FORMS), sizes["T"], inputs, packed=packed)
    # the state path stays in float32: under autocast, slow modes would be rounded away in bf16
    with torch.autocast(values.device.type, enabled=False):
        return FORMS[chosen](values, write, read, u, log_tau, initial_state, cu_seqlens)
