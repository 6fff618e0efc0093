"""Linear attention whose memory decays, by one rate per head or by one per key channel."""

from torch import Tensor

from fracdna_kernels.decay_attention.chunk import decay_attention_chunk
from fracdna_kernels.decay_attention.launches import WIDEST
from fracdna_kernels.decay_attention.recurrent import decay_attention_recurrent
from fracdna_kernels.decay_attention.reference import decay_attention_reference
from fracdna_kernels.forms import check_exact, choose_form, without_autocast
from fracdna_kernels.fused import fused_refusal, lazily
from fracdna_kernels.shapes import check_packing, check_shapes

FORMS = {
    "reference": decay_attention_reference,
    "chunk": decay_attention_chunk,
    "recurrent": decay_attention_recurrent,
    "triton": lazily("fracdna_kernels.decay_attention.triton_chunk", "decay_attention_triton"),
}


def decay_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Linear attention that forgets: S_t = exp(g_t) S_{t-1} + k_t v_t^T, o_t = scale q_t S_t.

    With a rank axis every position writes R pairs, S_t = exp(g_t) S_{t-1} + sum_r k_tr v_tr^T, and
    reads them all R times, o_tr = scale q_tr S_t. A pad is k = 0 and g = 0: v = 0 alone would still
    let the memory decay. Inputs must be finite.

    Args:
        q: (B, T, G, K) or (B, T, G, R, K); G divides H, and head h takes row h // (H / G).
        k: like q.
        v: (B, T, H, V) or (B, T, H, R, V).
        g: (B, T, H), or (B, T, H, K) without a rank axis, float32 or float64: log decay, natural
            log per position, at most 0.
        scale: factor on the output.
        initial_state: (N, H, K, V) float32; None starts empty.
        cu_seqlens: (N + 1,) int32 or int64 bounds of packed sequences, needs B = 1; None: N = B.
        form: "auto", "reference", "chunk", "recurrent" or "triton"; the last takes no rank axis and
            at most 256 keys.

    Returns:
        o, shaped and typed like v, and the final state (N, H, K, V) in float32 (float64 for float64
        inputs). Positions outside the bounds give 0.

    Raises:
        ValueError: axes that do not fit, a decay or state in half precision, an unknown form, or
            form "triton" where it cannot run, with the reason.

    Source: Gated Linear Attention, arXiv 2312.06635 (per key); Transformers are SSMs, arXiv
        2405.21060 (per head); Mamba-3, arXiv 2603.15569 (rank axis).
    """
    rank = "R" if v.ndim == 5 else ""
    per_key = "K" if g.ndim == 4 and not rank else ""
    sizes = check_shapes(
        v=(v, f"BTH{rank}V"),
        k=(k, f"BTG{rank}K"),
        q=(q, f"BTG{rank}K"),
        g=(g, f"BTH{per_key}"),
        initial_state=(initial_state, "NHKV"),
    )
    if not sizes["G"] or sizes["H"] % sizes["G"]:
        raise ValueError(
            f"the heads of v must be a multiple of those of q and k, got {sizes['H']} in v "
            f"{tuple(v.shape)} and {sizes['G']} in k {tuple(k.shape)}"
        )
    if not v.is_floating_point():
        raise ValueError(f"v needs a floating-point dtype, got {v.dtype}")
    check_packing(sizes["B"], sizes["T"], cu_seqlens, initial_state, v.device)
    check_exact(g=g, initial_state=initial_state)
    chosen = choose_form(
        form,
        tuple(FORMS),
        sizes["T"],
        tuple(x for x in (q, k, v, g, initial_state) if x is not None),
        packed=cu_seqlens is not None,
        refusal=_refusal(q, k, v),
    )
    with without_autocast(chosen, v):
        output, final = FORMS[chosen](q, k, v, g, scale, initial_state, cu_seqlens)
        return output.to(v.dtype), final


def _refusal(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why a fused form cannot take these inputs."""
    if v.ndim == 5:
        return "takes no rank axis; use form='chunk'"
    if k.shape[-1] > WIDEST:
        return f"takes at most {WIDEST} keys, got {k.shape[-1]}; use form='chunk'"
    return next(filter(None, map(fused_refusal, (v, q, k))), None)
