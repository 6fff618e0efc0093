"""The equations of gated_rms_norm."""

from torch import Tensor
from torch.nn.functional import silu

from fracdna_kernels.forms import accumulator

ORDERS = ("gate_first", "norm_first")


def gated_rms_norm_reference(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    gate_bias: float,
    values: Tensor | None,
    factor: Tensor | None,
    order: str,
    group_size: int,
    eps: float,
) -> Tensor:
    """See gated_rms_norm for shapes and meaning."""
    dtype = accumulator(x)
    y = x.to(dtype)
    if values is not None:
        y = y + factor.to(dtype) * values.to(dtype)
    gate = silu(gate.to(dtype) + gate_bias)
    if order == "gate_first":
        y = y * gate
    groups = y.unflatten(-1, (-1, group_size))
    scale = (groups.square().mean(-1, keepdim=True) + eps).rsqrt()
    shared = weight.shape[0] == group_size  # one weight for every group
    weight = weight.to(dtype) if shared else weight.to(dtype).unflatten(0, (-1, group_size))
    out = (weight * groups * scale).flatten(-2)
    return (out * gate if order == "norm_first" else out).to(x.dtype)
