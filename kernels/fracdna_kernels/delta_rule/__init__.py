"""A memory that corrects what it stores: the gated delta rule and its form for each key channel."""

import torch
from torch import Tensor

from fracdna_kernels.delta_rule.chunk import delta_rule_chunk, dplr_delta_rule_chunk
from fracdna_kernels.delta_rule.launches import MOST_KEYS, MOST_VALUES
from fracdna_kernels.delta_rule.recurrent import delta_rule_recurrent, dplr_delta_rule_recurrent
from fracdna_kernels.delta_rule.reference import delta_rule_reference, dplr_delta_rule_reference
from fracdna_kernels.forms import accumulator, check_exact, choose_form, without_autocast
from fracdna_kernels.fused import fused_refusal, lazily
from fracdna_kernels.shapes import check_packing, check_shapes

FORMS = {
    "reference": delta_rule_reference,
    "chunk": delta_rule_chunk,
    "recurrent": delta_rule_recurrent,
    "triton": lazily("fracdna_kernels.delta_rule.triton_chunk", "delta_rule_triton"),
}
DPLR_FORMS = {
    "reference": dplr_delta_rule_reference,
    "chunk": dplr_delta_rule_chunk,
    "recurrent": dplr_delta_rule_recurrent,
    "triton": lazily("fracdna_kernels.delta_rule.triton_dplr", "dplr_delta_rule_triton"),
}
NORM_EPS = 1e-6  # of public Gated DeltaNet code; a key of zeros stays zero

__all__ = ["DPLR_FORMS", "FORMS", "delta_rule", "dplr_delta_rule"]


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    *,
    scale: float = 1.0,
    l2norm: bool = False,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Gated delta rule: S = exp(g) S; S = S + k (beta (v - S^T k))^T; o = scale S^T q.

    Keys must not be longer than 1, or the memory grows with every correction: l2norm sees to it.
    Inputs must be finite; other sequences of a packed row stay untouched by what is not.

    Args:
        q: (B, T, H, K).
        k: (B, T, H, K).
        v: (B, T, H, V).
        beta: (B, T, H), from 0 to 1, or to 2: the share of the error that is corrected.
        g: (B, T, H) float32 or float64, log decay per position, at most 0;
            0 with beta 0 is a pad.
        scale: factor on the output.
        l2norm: divide queries and keys by their length over K first.
        initial_state: (N, H, K, V) float32; None starts empty.
        cu_seqlens: (N + 1,) int32 or int64 bounds of packed sequences, needs B = 1; None: N = B.
        form: "auto", "reference", "chunk", "recurrent" or "triton", which takes keys of up to 128
            channels.

    Returns:
        o (B, T, H, V) in the dtype of v, and the final state (N, H, K, V) in float32 (float64 for
        float64 inputs). Positions outside the bounds give 0.

    Raises:
        ValueError: axes that do not fit, a gate or state in half precision, an unknown form, or
            form "triton" where it cannot run, with the reason.

    Source: Yang et al. 2024, Gated Delta Networks, arXiv 2412.06464.
    """
    sizes = check_shapes(
        q=(q, "BTHK"),
        k=(k, "BTHK"),
        v=(v, "BTHV"),
        beta=(beta, "BTH"),
        g=(g, "BTH"),
        initial_state=(initial_state, "NHKV"),
    )
    inputs = (q, k, v, beta, g)
    chosen = _checked_form(form, tuple(FORMS), sizes, inputs, initial_state, cu_seqlens)
    # the state path stays in float32: in bfloat16 a slow decay would be no decay
    with without_autocast(chosen, v):
        if l2norm:
            q, k = (_unit_length(x.to(accumulator(v))) for x in (q, k))
        return FORMS[chosen](q, k, v, beta, g, scale, initial_state, cu_seqlens)


def dplr_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    *,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Diagonal plus low rank: S = diag(exp(g)) S + b (S^T a)^T + k v^T; o = scale S^T q.

    What a reads is the state before the decay. RWKV-7 is a = -kappa, b = kappa eta with keys kappa
    of length 1; delta_rule is a = -exp(g) k, b = beta k, with beta k in the place of k. Inputs must
    be finite; other sequences of a packed row stay untouched by what is not.

    Args:
        q: (B, T, H, K).
        k: (B, T, H, K).
        v: (B, T, H, V).
        a: (B, T, H, K), reads what is to be replaced.
        b: (B, T, H, K), writes in its place.
        g: (B, T, H, K) float32 or float64, log decay per position and key channel, at most 0;
            0 with k and b 0 is a pad.
        scale: factor on the output.
        initial_state: (N, H, K, V) float32; None starts empty.
        cu_seqlens: (N + 1,) int32 or int64 bounds of packed sequences, needs B = 1; None: N = B.
        form: "auto", "reference", "chunk", "recurrent" or "triton"; the last takes at most 128 key
            channels.

    Returns:
        o (B, T, H, V) in the dtype of v, and the final state (N, H, K, V) in float32 (float64 for
        float64 inputs). Positions outside the bounds give 0.

    Raises:
        ValueError: axes that do not fit, a gate or state in half precision, an unknown form, or
            form "triton" where it cannot run, with the reason.

    Source: Peng et al. 2025, RWKV-7, arXiv 2503.14456.
    """
    sizes = check_shapes(
        q=(q, "BTHK"),
        k=(k, "BTHK"),
        v=(v, "BTHV"),
        a=(a, "BTHK"),
        b=(b, "BTHK"),
        g=(g, "BTHK"),
        initial_state=(initial_state, "NHKV"),
    )
    inputs = (q, k, v, a, b, g)
    chosen = _checked_form(form, tuple(DPLR_FORMS), sizes, inputs, initial_state, cu_seqlens)
    with without_autocast(chosen, v):
        return DPLR_FORMS[chosen](*inputs, scale, initial_state, cu_seqlens)


def _checked_form(
    form: str,
    available: tuple[str, ...],
    sizes: dict[str, int],
    inputs: tuple[Tensor, ...],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> str:
    """Check what both operators have in common and choose the form; q, k, v first and g last."""
    v, g = inputs[2], inputs[-1]
    if not v.is_floating_point():
        raise ValueError(f"v needs a floating-point dtype, got {v.dtype}")
    check_packing(sizes["B"], sizes["T"], cu_seqlens, initial_state, v.device)
    check_exact(g=g, initial_state=initial_state)
    return choose_form(
        form,
        available,
        sizes["T"],
        inputs,
        packed=cu_seqlens is not None,
        refusal=_refusal(v, sizes["K"], scalar=g.ndim == 3),
    )


def _refusal(v: Tensor, K: int, *, scalar: bool) -> str | None:
    """Why the fused forms cannot take these inputs; that of one gate a head holds whole values."""
    if K > MOST_KEYS:
        return f"takes keys of at most {MOST_KEYS} channels, got {K}; use form='chunk'"
    if scalar and v.shape[-1] > MOST_VALUES:
        return f"takes values of at most {MOST_VALUES} columns, got {v.shape[-1]}; use form='chunk'"
    return fused_refusal(v)


def _unit_length(x: Tensor) -> Tensor:
    """x over its Euclidean length along the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS)
