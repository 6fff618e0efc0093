"""The equation of gated_rms_norm."""

from torch import Tensor
from torch.nn.functional import silu

from fracdna_kernels.forms import accumulator


def gated_rms_norm_reference(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    gate_bias: float,
    skip: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """See gated_rms_norm for shapes and meaning."""
    dtype = accumulator(x)
    y = x.to(dtype)
    if skip is not None:
        values, factor = skip
        y = y + factor.to(dtype) * values.to(dtype)
    y = y * silu(gate.to(dtype) + gate_bias)
    scale = (y.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (weight.to(dtype) * y * scale).to(x.dtype)
