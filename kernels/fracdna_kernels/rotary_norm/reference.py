"""The equations of rotary_norm."""

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from fracdna_kernels.forms import accumulator


def rotary_norm_reference(
    queries: Tensor,
    keys: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    query_bias: Tensor,
    key_bias: Tensor,
    angle: Tensor,
    key_factor: Tensor | None,
    neighbours: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See rotary_norm for shapes and meaning."""
    dtype = accumulator(queries)
    turn = angle.to(dtype)[..., None, :]

    def placed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        _, rank, width = bias.shape
        x = x.to(dtype).unflatten(-1, (1, rank, width))
        normed = rms_norm(x, (width,), weight.to(dtype), eps) + bias.to(dtype)
        return turn_half(normed, turn, neighbours=neighbours)

    q, k = placed(queries, query_weight, query_bias), placed(keys, key_weight, key_bias)
    products = q @ k.mT
    if key_factor is not None:
        k = k * key_factor.to(dtype)[..., None, None]
    q, k = (y.transpose(2, 3).to(queries.dtype) for y in (q, k))
    return q, k, products


def turn_half(x: Tensor, angle: Tensor, *, neighbours: bool) -> Tensor:
    """Turn K/4 pairs of the K coordinates of vectors; the other half stays.

    Args:
        x: (..., K), K a multiple of 4.
        angle: (..., K/4), axes before the last as in x or 1.
        neighbours: whether pairs are (2i, 2i + 1), else (i, i + K/2), for i < K/4.
    """
    sine, cosine = torch.sin(angle), torch.cos(angle)
    if neighbours:
        turning, still = x.chunk(2, dim=-1)
        first, second = turning.unflatten(-1, (-1, 2)).unbind(-1)
    else:
        first, still, second, still_too = x.chunk(4, dim=-1)
    turned = first * cosine - second * sine, first * sine + second * cosine
    if neighbours:
        return torch.cat([torch.stack(turned, dim=-1).flatten(-2), still], dim=-1)
    return torch.cat([turned[0], still, turned[1], still_too], dim=-1)
