"""A bank of exponential modes at fixed time scales, driven by one clock per head."""

import torch
from torch import Tensor

from fracdna_kernels.forms import check_exact, choose_form, without_autocast
from fracdna_kernels.frac_scan.chunk import frac_scan_chunk
from fracdna_kernels.frac_scan.launches import CHUNK, plan_bytes
from fracdna_kernels.frac_scan.recurrent import frac_scan_recurrent
from fracdna_kernels.frac_scan.reference import frac_scan_reference
from fracdna_kernels.fused import fused_refusal, lazily
from fracdna_kernels.shapes import check_packing, check_shapes

FORMS = {
    "reference": frac_scan_reference,
    "chunk": frac_scan_chunk,
    "recurrent": frac_scan_recurrent,
    "triton": lazily("fracdna_kernels.frac_scan.triton_chunk", "frac_scan_triton"),
}
MOST_MODES = 32  # of the form "triton"

__all__ = ["FORMS", "frac_scan", "plan_bytes"]


def frac_scan(
    values: Tensor,
    write: Tensor,
    read: Tensor,
    u: Tensor,
    log_tau: Tensor,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    segment_length: int | None = None,
    inplace_state: bool = False,
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
        segment_length: positions that form "triton" takes in one piece where it cuts sequences, a
            multiple of 32; with a given number a sequence gives the same bits alone, packed or in
            any batch. None: chosen from the sizes, so that a GPU is filled.
        inplace_state: write the final state into initial_state, which is returned; for decoding,
            without gradients.
        form: "auto", "reference", "chunk", "recurrent" or "triton".

    Returns:
        o (B, T, H, V) in the dtype of values, and the final state (N, H, M, V) in float32 (float64
        for float64 inputs). Positions outside the bounds give 0.

    Raises:
        ValueError: axes that do not fit, a clock or state in half precision, an unknown form, or
            form "triton" where it cannot run, with the reason.

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
    if not values.is_floating_point():
        raise ValueError(f"values needs a floating-point dtype, got {values.dtype}")
    check_packing(sizes["B"], sizes["T"], cu_seqlens, initial_state, values.device)
    check_exact(u=u, log_tau=log_tau, initial_state=initial_state)
    _check_options(segment_length, initial_state, inplace_state)
    inputs, packed = (values, write, read, u), cu_seqlens is not None
    refusal = _refusal(values, write, read, log_tau)
    chosen = choose_form(form, tuple(FORMS), sizes["T"], inputs, packed=packed, refusal=refusal)
    # the state path stays in float32: under autocast, slow modes would be rounded away in bf16
    with without_autocast(chosen, values):
        arguments = (values, write, read, u, log_tau, initial_state, cu_seqlens)
        if chosen == "triton":
            output, final = FORMS[chosen](*arguments, segment_length, inplace_state)
        else:
            output, final = FORMS[chosen](*arguments)
    if inplace_state and final is not initial_state:
        final = initial_state.copy_(final)
    return output, final


def _check_options(segment_length: int | None, state: Tensor | None, inplace_state: bool) -> None:
    """Refuse pieces that cut chunks, and an update in place that autograd would have to undo."""
    if segment_length is not None and (segment_length <= 0 or segment_length % CHUNK):
        raise ValueError(
            f"segment_length needs a positive multiple of {CHUNK}, got {segment_length}"
        )
    if not inplace_state:
        return
    if state is None:
        raise ValueError("inplace_state needs an initial_state to write into")
    if torch.is_grad_enabled():
        raise ValueError("inplace_state is for decoding: call under torch.no_grad()")


def _refusal(values: Tensor, write: Tensor, read: Tensor, log_tau: Tensor) -> str | None:
    """Why the fused form cannot take these inputs."""
    if log_tau.shape[0] > MOST_MODES:
        return f"takes at most {MOST_MODES} modes, got {log_tau.shape[0]}; use form='chunk'"
    if log_tau.requires_grad:
        return "gives no gradient for log_tau; use form='chunk'"
    if torch.float16 in (values.dtype, write.dtype, read.dtype):
        return "float16 loses what slow modes write (1e-6 is subnormal there); use bfloat16"
    return next(filter(None, map(fused_refusal, (values, write, read))), None)
