"""Residual add and the norm after it in one operator."""

import torch
from torch import Tensor

from fracdna_kernels.add_rms_norm.reference import add_rms_norm_reference
from fracdna_kernels.forms import choose_form, dtype_for_the_next_layer, without_autocast
from fracdna_kernels.fused import lazily
from fracdna_kernels.rows import rows_refusal
from fracdna_kernels.shapes import check_shapes

FORMS = {
    "reference": add_rms_norm_reference,
    "triton": lazily("fracdna_kernels.add_rms_norm.triton_form", "add_rms_norm_triton"),
}


def add_rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    *,
    eps: float = 1e-6,
    out_dtype: torch.dtype | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor]:
    """stream = x + residual, normed = weight * stream / rms(stream).

    Args:
        x: (B, T, D), what a layer adds to the stream.
        residual: (B, T, D), the stream before it; None: the stream is x itself.
        weight: (D,).
        eps: added to the mean square.
        out_dtype: dtype of normed. None: that of autocast where it is on, so that the linear map
            which follows need not cast, and else that of x; float64 stays float64.
        form: "auto", "reference" or "triton".

    Returns:
        normed (B, T, D) in out_dtype, and the stream (B, T, D) in the wider dtype of x and
        residual; with residual None it is x. Sums in float32 (float64 for float64 inputs).

    Raises:
        ValueError: axes that do not fit, or a form that does not exist or cannot run.
    """
    check_shapes(x=(x, "BTD"), residual=(residual, "BTD"), weight=(weight, "D"))
    inputs = (x, weight) if residual is None else (x, weight, residual)
    refusal = rows_refusal(x.shape[-1], *inputs)
    chosen = choose_form(form, tuple(FORMS), x.shape[1], inputs, refusal=refusal)
    dtype = out_dtype or dtype_for_the_next_layer(x)
    with without_autocast(chosen, x):
        return FORMS[chosen](x, residual, weight, eps, dtype)
