"""What RWKV-7 gives to dplr_delta_rule: keys, replacers, decays and mixed values in one pass."""

from torch import Tensor

from fracdna_kernels.dplr_gates.reference import dplr_gates_reference
from fracdna_kernels.forms import check_exact, choose_form, without_autocast
from fracdna_kernels.fused import lazily
from fracdna_kernels.rows import rows_refusal
from fracdna_kernels.shapes import check_shapes

FORMS = {
    "reference": dplr_gates_reference,
    "triton": lazily("fracdna_kernels.dplr_gates.triton_form", "dplr_gates_triton"),
}


def dplr_gates(
    k: Tensor,
    v: Tensor,
    rate_logits: Tensor,
    decay_logits: Tensor,
    removal_scale: Tensor,
    rate_scale: Tensor,
    *,
    head_width: int | None = None,
    decay_bias: Tensor | None = None,
    first_values: Tensor | None = None,
    share_logits: Tensor | None = None,
    lengths: Tensor | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Keys, values, replacers and log decays of a memory that replaces what it holds.

    With rate = sigmoid(rate_logits) and kappa = k removal_scale, of length 1 in each head:
    keys = k (1 + (rate - 1) rate_scale), a = -kappa, b = kappa rate,
    g = -exp(-1/2) sigmoid(decay_logits + decay_bias),
    values = v + (first_values - v) sigmoid(share_logits).

    Args:
        k: (B, T, D).
        v: (B, T, D).
        rate_logits: (B, T, D).
        decay_logits: (B, T, D) float32 or float64.
        removal_scale: (D,).
        rate_scale: (D,).
        head_width: channels of a head, H = D / head_width heads in channel order; None: all D.
        decay_bias: (D,), added to decay_logits; None adds nothing.
        first_values: (B, T, D); None: the values are v itself.
        share_logits: (B, T, D), given with first_values.
        lengths: (B,) valid positions of right-padded rows, whose pads get keys, b and g of 0, so
            that they change no memory; None: all.
        form: "auto", "reference" or "triton".

    Returns:
        keys, values, a and b (B, T, H, head_width) in the dtypes of k and v, and g in float32
        (float64 for float64 inputs), which is what arithmetic is in.

    Raises:
        ValueError: axes that do not fit, a head width that does not divide D, logits of the decay
            in half precision, first_values without share_logits or these without those, or a form
            that does not exist or cannot run.

    Source: Peng et al. 2025, RWKV-7, arXiv 2503.14456.
    """
    sizes = check_shapes(
        k=(k, "BTD"),
        v=(v, "BTD"),
        rate_logits=(rate_logits, "BTD"),
        decay_logits=(decay_logits, "BTD"),
        removal_scale=(removal_scale, "D"),
        rate_scale=(rate_scale, "D"),
        decay_bias=(decay_bias, "D"),
        first_values=(first_values, "BTD"),
        share_logits=(share_logits, "BTD"),
        lengths=(lengths, "B"),
    )
    check_exact(decay_logits=decay_logits)
    head_width = sizes["D"] if head_width is None else head_width
    if head_width < 1 or sizes["D"] % head_width:
        raise ValueError(f"head_width={head_width} does not divide {sizes['D']} channels")
    if (first_values is None) != (share_logits is None):
        raise ValueError("first_values and share_logits are given together or not at all")
    tensors = (
        k, v, rate_logits, decay_logits, removal_scale, rate_scale, decay_bias, first_values,
        share_logits,
    )  # fmt: skip
    inputs = tuple(tensor for tensor in tensors if tensor is not None)
    refusal = rows_refusal(head_width, *inputs)
    chosen = choose_form(form, tuple(FORMS), sizes["T"], inputs, refusal=refusal)
    with without_autocast(chosen, k):
        keys, values, a, b, g = FORMS[chosen](*tensors, lengths, head_width)
    keys, values, a, b, g = (y.unflatten(-1, (-1, head_width)) for y in (keys, values, a, b, g))
    return keys, values, a, b, g
