"""The running sum of selective_angles, in PyTorch."""

import math

import torch
from torch import Tensor

STRETCH = 256  # positions that are summed up one after another, many stretches at once


def selective_angles_reference(delta: Tensor, speed: Tensor, start: Tensor | None) -> Tensor:
    """See selective_angles for shapes and meaning."""
    moved = math.pi * torch.tanh(speed.double())
    angle = running_sum(delta.double()[..., None] * moved[..., None, :])
    if start is not None:
        angle = angle + start.double()[:, None]
    return (angle - 2 * math.pi * torch.round(angle / (2 * math.pi))).to(delta.dtype)


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
