"""The equations of gated_head_norm."""

from torch import Tensor
from torch.nn.functional import layer_norm

from fracdna_kernels.forms import accumulator


def gated_head_norm_reference(
    x: Tensor,
    r: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor,
    bonus: Tensor,
    head_width: int,
    eps: float,
) -> Tensor:
    """See gated_head_norm for meaning; x, r, k and v are (B, T, D)."""
    dtype = accumulator(x)
    heads = (-1, head_width)
    normed = layer_norm(x.to(dtype).unflatten(-1, heads), (head_width,), eps=eps).flatten(-2)
    seen = (r.to(dtype) * k.to(dtype) * bonus.to(dtype)).unflatten(-1, heads).sum(-1, keepdim=True)
    present = (seen * v.to(dtype).unflatten(-1, heads)).flatten(-2)
    read = weight.to(dtype) * normed + bias.to(dtype) + present
    return (read * gate.to(dtype)).to(x.dtype)
