"""Relative root-mean-square error allowed against the float64 reference, by dtype and quantity."""

import torch
from torch import Tensor

FORWARD = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 5e-3}
GRADIENT = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 1e-2}


def relative_error(value: Tensor, reference: Tensor) -> float:
    """RMS of the difference over RMS of the reference, absolute below 1e-6; NaN never passes."""
    value, reference = value.detach().double(), reference.detach().double()
    assert value.shape == reference.shape
    assert torch.isfinite(value).all(), "not finite"
    if reference.numel() == 0:
        return 0.0
    error = (value - reference).square().mean().sqrt()
    return float(error / reference.square().mean().sqrt().clamp(min=1e-6))
