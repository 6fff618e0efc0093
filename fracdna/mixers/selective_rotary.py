"""Rotary angles that the input moves, at a speed of its own for each head."""

import math

import torch
from torch import Tensor

from fracdna_kernels.shapes import sequence_of

STRETCH = 256  # positions that are summed up one after another, many stretches at once


def selective_angles(
    delta: Tensor, speed: Tensor, start: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> Tensor:
    """theta_t = theta_{t-1} + delta_t pi tanh(speed_t), modulo 2 pi.

    Args:
        delta: (batch, length, heads), time steps.
        speed: (batch, length, pairs), shared by the heads.
        start: (batch, heads, pairs), angles before the first position; None: zeros.
        cu_seqlens: (sequences + 1,) bounds of packed sequences, which start at 0.

    Returns:
        (batch, length, heads, pairs) in the dtype of delta. Outside the bounds the values mean
        nothing.

    Source: arXiv 2603.15569.
    """
    moved = delta[..., None] * (math.pi * torch.tanh(speed))[..., None, :]
    # float64: only differences of angles count, and float32 would lose theirs in a long sum
    angle = running_sum(moved.double())
    if start is not None:
        angle = angle + start[:, None]
    if cu_seqlens is not None:
        before = cu_seqlens.long()[sequence_of(cu_seqlens, delta.shape[1])]
        angle = angle - torch.nn.functional.pad(angle, (0, 0, 0, 0, 1, 0))[:, before]
    return torch.remainder(angle, 2 * math.pi).to(delta.dtype)


def running_sum(x: Tensor) -> Tensor:
    """x.cumsum(1), in stretches.

    PyTorch walks along an axis that is not the last in one thread for each of the others, which are
    few where a sequence is long; stretches walk side by side.

    Args:
        x: (batch, length, ...).
    """
    length = x.shape[1]
    if length <= STRETCH:
        return x.cumsum(1)
    padded = torch.nn.functional.pad(x, (0, 0) * (x.ndim - 2) + (0, -length % STRETCH))
    inside = padded.unflatten(1, (-1, STRETCH)).cumsum(2)
    ends = inside[:, :, -1].cumsum(1)
    before = torch.nn.functional.pad(ends[:, :-1], (0, 0) * (x.ndim - 2) + (1, 0))
    return (inside + before[:, :, None]).flatten(1, 2)[:, :length]


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
