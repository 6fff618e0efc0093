"""The equations of dplr_gates."""

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fracdna_kernels.forms import accumulator

FASTEST = math.exp(-0.5)  # log decay per position at most
NORM_EPS = 1e-12  # length below which a key is not made longer


def dplr_gates_reference(
    k: Tensor,
    v: Tensor,
    rate_logits: Tensor,
    decay_logits: Tensor,
    removal_scale: Tensor,
    rate_scale: Tensor,
    decay_bias: Tensor | None,
    first_values: Tensor | None,
    share_logits: Tensor | None,
    lengths: Tensor | None,
    head_width: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See dplr_gates for shapes and meaning; outputs are (B, T, D)."""
    dtype = accumulator(k)
    exact, rate = k.to(dtype), torch.sigmoid(rate_logits.to(dtype))
    removal = (exact * removal_scale.to(dtype)).unflatten(-1, (-1, head_width))
    removal = normalize(removal, dim=-1, eps=NORM_EPS).flatten(-2)
    keys = exact * (1 + (rate - 1) * rate_scale.to(dtype))
    logits = decay_logits.to(dtype)
    logits = logits if decay_bias is None else logits + decay_bias.to(dtype)
    b, g = removal * rate, -FASTEST * torch.sigmoid(logits)
    if lengths is not None:
        valid = (torch.arange(k.shape[1], device=k.device) < lengths[:, None])[..., None]
        keys, b, g = (torch.where(valid, y, 0.0) for y in (keys, b, g))
    values = v
    if first_values is not None:
        share = torch.sigmoid(share_logits.to(dtype))
        values = torch.lerp(v.to(dtype), first_values.to(dtype), share).to(v.dtype)
    return keys.to(k.dtype), values, (-removal).to(k.dtype), b.to(k.dtype), g
