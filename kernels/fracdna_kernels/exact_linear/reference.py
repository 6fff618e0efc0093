"""The equations of exact_linear."""

from torch import Tensor
from torch.nn.functional import linear

from fracdna_kernels.forms import accumulator


def exact_linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, tap: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """See exact_linear for shapes and meaning."""
    dtype = accumulator(x)
    y = linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    return (x, y) if tap else y
