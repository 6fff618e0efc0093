"""A narrow linear map of bfloat16 rows in full precision."""

from torch import Tensor

from fracdna_kernels.exact_linear.reference import exact_linear_reference
from fracdna_kernels.forms import choose_form, without_autocast
from fracdna_kernels.fused import fused_refusal, lazily
from fracdna_kernels.shapes import check_shapes

FORMS = {
    "reference": exact_linear_reference,
    "triton": lazily("fracdna_kernels.exact_linear.triton_form", "exact_linear_triton"),
}
MOST_OUTPUTS = 64  # more are an ordinary product of matrices, which needs no kernel of its own


def exact_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    tap: bool = False,
    form: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """y = x weight^T + bias for a few outputs, as if x had been converted to float32 first.

    Autocast does not round it. With tap, x is handed through: whatever else consumes x should take
    the returned one, so that its gradient arrives here and is added while that of x is written.

    Args:
        x: (B, T, D).
        weight: (O, D).
        bias: (O,); None adds nothing.
        tap: return x too.
        form: "auto", "reference" or "triton".

    Returns:
        y (B, T, O) in float32 (float64 for float64 x); with tap, x and y.

    Raises:
        ValueError: axes that do not fit, or a form that does not exist or cannot run.
    """
    sizes = check_shapes(x=(x, "BTD"), weight=(weight, "OD"), bias=(bias, "O"))
    inputs = tuple(tensor for tensor in (x, weight, bias) if tensor is not None)
    refusal = _refusal(sizes["O"], inputs)
    chosen = choose_form(form, tuple(FORMS), sizes["T"], inputs, refusal=refusal)
    with without_autocast(chosen, x):
        return FORMS[chosen](x, weight, bias, tap)


def _refusal(outputs: int, inputs: tuple[Tensor, ...]) -> str | None:
    """Why the fused kernels cannot take these inputs, or None."""
    if not 1 <= outputs <= MOST_OUTPUTS:
        return f"takes 1 to {MOST_OUTPUTS} outputs, got {outputs}"
    return next(filter(None, map(fused_refusal, inputs)), None)
