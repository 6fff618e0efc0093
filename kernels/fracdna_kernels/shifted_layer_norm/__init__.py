"""A layer norm, and mixtures of every position with the one before it, in one operator."""

import torch
from torch import Tensor

from fracdna_kernels.forms import choose_form, dtype_for_the_next_layer, without_autocast
from fracdna_kernels.fused import lazily
from fracdna_kernels.rows import rows_refusal
from fracdna_kernels.shapes import check_packing, check_shapes
from fracdna_kernels.shifted_layer_norm.reference import shifted_layer_norm_reference

FORMS = {
    "reference": shifted_layer_norm_reference,
    "triton": lazily("fracdna_kernels.shifted_layer_norm.triton_form", "shifted_layer_norm_triton"),
}
MOST_SHARES = 6  # mixtures of one launch


def shifted_layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shares: Tensor,
    *,
    addend: Tensor | None = None,
    last: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    lengths: Tensor | None = None,
    eps: float = 1e-5,
    out_dtype: torch.dtype | None = None,
    form: str = "auto",
) -> tuple[Tensor, ...]:
    """y_e = n_t + (n_{t-1} - n_t) shares_e for every e, n = layer norm of x + addend.

    Before the first position of a sequence stands `last`, or zeros.

    Args:
        x: (B, T, D).
        weight: (D,) of the norm.
        bias: (D,) of the norm.
        shares: (E, D), shares of the position before.
        addend: (B, T, D), added to x without rounding the sum; None adds nothing.
        last: (B, D), what the last call returned; None: nothing has been seen.
        cu_seqlens: (N + 1,) int32 or int64 bounds of packed sequences, each of which starts afresh;
            needs B = 1 and no `last`.
        lengths: (B,) valid positions of right-padded rows; None: all.
        eps: added to the variance.
        out_dtype: of the mixtures. None: that of autocast where it is on, so that the linear maps
            which follow need not cast, and else that of x; float64 stays float64.
        form: "auto", "reference" or "triton", which takes up to 6 shares.

    Returns:
        E mixtures (B, T, D), and n at the last valid position of each row, (B, D) in float32
        (float64 for float64 inputs), as is all arithmetic; without valid positions it is `last`.

    Raises:
        ValueError: axes or bounds that do not fit, `last` for packed sequences, or a form that does
            not exist or cannot run.
    """
    sizes = check_shapes(
        x=(x, "BTD"),
        weight=(weight, "D"),
        bias=(bias, "D"),
        shares=(shares, "ED"),
        addend=(addend, "BTD"),
        last=(last, "BD"),
        lengths=(lengths, "B"),
    )
    check_packing(sizes["B"], sizes["T"], cu_seqlens, None, x.device)
    if cu_seqlens is not None and last is not None:
        raise ValueError("packed sequences (cu_seqlens) start afresh and take no last position")
    given = (x, weight, bias, shares, addend, last)
    inputs = tuple(tensor for tensor in given if tensor is not None)
    refusal = rows_refusal(sizes["D"], *inputs) or _refusal(sizes["E"])
    chosen = choose_form(form, tuple(FORMS), sizes["T"], inputs, refusal=refusal)
    starts = None if cu_seqlens is None else _starts(cu_seqlens, sizes["T"])
    dtype = out_dtype or dtype_for_the_next_layer(x)
    with without_autocast(chosen, x):
        return FORMS[chosen](x, weight, bias, shares, addend, last, starts, lengths, eps, dtype)


def _refusal(count: int) -> str | None:
    """Why the fused form cannot mix in that many ways, or None."""
    return None if 1 <= count <= MOST_SHARES else f"mixes in 1 to {MOST_SHARES} ways, got {count}"


def _starts(cu_seqlens: Tensor, length: int) -> Tensor:
    """(length,) true where a packed sequence begins."""
    begins = torch.zeros(length + 1, dtype=torch.bool, device=cu_seqlens.device)
    return begins.index_fill(0, cu_seqlens.long(), True)[:-1]
