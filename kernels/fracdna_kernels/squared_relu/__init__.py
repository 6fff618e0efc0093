"""The square of what is positive, whose backward pass keeps its input alone."""

from torch import Tensor

from fracdna_kernels.forms import choose_form, without_autocast
from fracdna_kernels.fused import fused_refusal, lazily
from fracdna_kernels.shapes import check_shapes
from fracdna_kernels.squared_relu.reference import squared_relu_reference

FORMS = {
    "reference": squared_relu_reference,
    "triton": lazily("fracdna_kernels.squared_relu.triton_form", "squared_relu_triton"),
}


def squared_relu(x: Tensor, *, form: str = "auto") -> Tensor:
    """max(x, 0)^2 in the dtype of x, also under autocast, which would square in float32.

    Args:
        x: (B, T, D).
        form: "auto", "reference" or "triton".

    Returns:
        (B, T, D).

    Raises:
        ValueError: other axes, or a form that does not exist or cannot run.
    """
    sizes = check_shapes(x=(x, "BTD"))
    chosen = choose_form(form, tuple(FORMS), sizes["T"], (x,), refusal=fused_refusal(x))
    with without_autocast(chosen, x):
        return FORMS[chosen](x)
