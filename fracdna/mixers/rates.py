"""Rates of decay from logits."""

import torch
from torch import Tensor
from torch.nn.functional import softplus


def rational(x: Tensor) -> Tensor:
    """1 + x for x >= 0 and 1 / (1 - x) below: positive, smooth, and slow to vanish."""
    return torch.where(x >= 0, 1 + x, 1 / (1 - x.clamp(max=0)))


LEAST_RATE = 1e-4  # of every mode, so that no memory is forever
RATES = {"softplus": softplus, "rational": rational}
