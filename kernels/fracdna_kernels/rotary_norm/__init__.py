"""Norm, bias and turn of queries and keys, and their products, in one operator."""

from torch import Tensor

from fracdna_kernels.forms import check_exact, choose_form, without_autocast
from fracdna_kernels.fused import fused_refusal, lazily
from fracdna_kernels.rotary_norm.reference import rotary_norm_reference
from fracdna_kernels.shapes import check_shapes

FORMS = {
    "reference": rotary_norm_reference,
    "triton": lazily("fracdna_kernels.rotary_norm.triton_form", "rotary_norm_triton"),
}
WIDEST = 8192  # elements of all heads of a position; beyond, a thread would hold too many


def rotary_norm(
    queries: Tensor,
    keys: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    query_bias: Tensor,
    key_bias: Tensor,
    angle: Tensor,
    key_factor: Tensor | None = None,
    *,
    neighbours: bool = True,
    eps: float = 1e-5,
    form: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys that heads share, made each head's own: normed, shifted, half turned.

    With y_r = weight * x_r / rms(x_r) + bias_hr of every rank r, K / 4 pairs of the K coordinates
    of y turn by the head's angles; the other half stays.

    Args:
        queries: (B, T, R K), the ranks one after another.
        keys: (B, T, R K).
        query_weight: (K,).
        key_weight: (K,).
        query_bias: (H, R, K).
        key_bias: (H, R, K).
        angle: (B, T, H, K / 4), radians, the same for all ranks, in float32 or float64.
        key_factor: (B, T, H), what the keys that are returned are multiplied by, in float32 or
            float64; None: 1.
        neighbours: whether pairs are (2i, 2i + 1), else (i, i + K / 2), for i < K / 4.
        eps: added to the mean square.
        form: "auto", "reference" or "triton".

    Returns:
        q and k (B, T, R, H, K) in the dtype of queries, k times its factor, and the products
        q_r . k_s without the factor, (B, T, H, R, R) in float32 (float64 for float64 inputs).

    Raises:
        ValueError: axes that do not fit, K that is no multiple of 4, angles or factors in half
            precision, or a form that does not exist or cannot run.

    Source: Mamba-3, arXiv 2603.15569.
    """
    sizes = check_shapes(
        query_bias=(query_bias, "HRK"),
        key_bias=(key_bias, "HRK"),
        query_weight=(query_weight, "K"),
        key_weight=(key_weight, "K"),
        queries=(queries, "BTC"),
        keys=(keys, "BTC"),
        angle=(angle, "BTHP"),
        key_factor=(key_factor, "BTH"),
    )
    rank, width = sizes["R"], sizes["K"]
    if sizes["C"] != rank * width or 4 * sizes["P"] != width:
        raise ValueError(
            f"a rank of {rank} and a width of {width} need {rank * width} channels of queries and "
            f"angles of a quarter of the width, got {sizes['C']} and {sizes['P']}"
        )
    check_exact(angle=angle, key_factor=key_factor)
    inputs = (queries, keys, query_weight, key_weight, query_bias, key_bias, angle, key_factor)
    given = tuple(tensor for tensor in inputs if tensor is not None)
    refusal = _refusal(sizes["H"] * width, given)
    chosen = choose_form(form, tuple(FORMS), sizes["T"], given, refusal=refusal)
    with without_autocast(chosen, queries):
        return FORMS[chosen](*inputs, neighbours, eps)


def _refusal(elements: int, inputs: tuple[Tensor, ...]) -> str | None:
    """Why the fused kernels cannot take these inputs, or None."""
    if elements > WIDEST:
        return f"takes up to {WIDEST} elements of all heads, got {elements}"
    return next(filter(None, map(fused_refusal, inputs)), None)
