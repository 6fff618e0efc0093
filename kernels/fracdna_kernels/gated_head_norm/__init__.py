"""Norm of every head, bonus of the present position and gate in one operator."""

from torch import Tensor

from fracdna_kernels.forms import choose_form, without_autocast
from fracdna_kernels.fused import lazily
from fracdna_kernels.gated_head_norm.reference import gated_head_norm_reference
from fracdna_kernels.rows import rows_refusal
from fracdna_kernels.shapes import check_shapes

FORMS = {
    "reference": gated_head_norm_reference,
    "triton": lazily("fracdna_kernels.gated_head_norm.triton_form", "gated_head_norm_triton"),
}


def gated_head_norm(
    x: Tensor,
    r: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor,
    bonus: Tensor,
    *,
    eps: float = 1e-5,
    form: str = "auto",
) -> Tensor:
    """(weight layer_norm(x) + bias + (sum r k bonus) v) gate, norm and sum over each head.

    Args:
        x: (B, T, H, V), what was read from a memory.
        r: (B, T, H, V), what read it.
        k: (B, T, H, V), the key of the position itself.
        v: (B, T, H, V), its value.
        gate: (B, T, D), D = H V channels in the order of heads.
        weight: (D,) of the norm.
        bias: (D,) of the norm.
        bonus: (D,).
        eps: added to the variance.
        form: "auto", "reference" or "triton".

    Returns:
        (B, T, D) in the dtype of x; sums in float32 (float64 for float64 inputs).

    Raises:
        ValueError: axes that do not fit, or a form that does not exist or cannot run.

    Source: Peng et al. 2025, RWKV-7, arXiv 2503.14456.
    """
    sizes = check_shapes(x=(x, "BTHV"), r=(r, "BTHV"), k=(k, "BTHV"), v=(v, "BTHV"))
    flat = tuple(y.flatten(2) for y in (x, r, k, v))
    check_shapes(
        x=(flat[0], "BTD"),
        gate=(gate, "BTD"),
        weight=(weight, "D"),
        bias=(bias, "D"),
        bonus=(bonus, "D"),
    )
    inputs = (*flat, gate, weight, bias, bonus)
    refusal = rows_refusal(sizes["V"], *inputs)
    chosen = choose_form(form, tuple(FORMS), sizes["T"], inputs, refusal=refusal)
    with without_autocast(chosen, x):
        return FORMS[chosen](*inputs, sizes["V"], eps)
