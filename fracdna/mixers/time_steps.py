"""Initial time steps of layers whose decay is exp(-rate * softplus(projection + bias))."""

import math

import torch
from torch import Tensor


def time_step_bias(
    count: int, *, shortest: float = 1e-3, longest: float = 0.1, floor: float = 1e-4
) -> Tensor:
    """Biases whose softplus is log-uniform between two time steps.

    Args:
        count: how many to draw.
        shortest: lowest time step.
        longest: highest time step.
        floor: no time step is below it, whatever the other two.

    Returns:
        (count,) in the default dtype.

    Source: state-spaces/mamba; arXiv 2405.21060.
    """
    low, high = math.log(shortest), math.log(longest)
    return inverse_softplus(torch.exp(low + (high - low) * torch.rand(count)).clamp(min=floor))


def inverse_softplus(y: Tensor) -> Tensor:
    """The x with softplus(x) = y > 0, without overflow for large y or cancellation for small."""
    return y + torch.log(-torch.expm1(-y))
