"""Skip, gate and normalise in one operator."""

import torch
from torch import Tensor

from fracdna_kernels.gated_rms_norm.reference import gated_rms_norm_reference
from fracdna_kernels.shapes import check_shapes


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    *,
    gate_bias: float = 0.0,
    skip: tuple[Tensor, Tensor] | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """y = (x + D values) silu(gate + gate_bias), then weight * y / rms(y): gate before norm.

    Args:
        x: (B, T, D).
        gate: (B, T, D), pre-activation.
        weight: (D,).
        gate_bias: constant added to the gate's pre-activation.
        skip: (values (B, T, D), factor (D,)), added to x as factor * values; None adds nothing.
        eps: added to the mean square.

    Returns:
        (B, T, D) in the dtype of x; sums in float32 (float64 for float64 inputs).

    Raises:
        ValueError: axes that do not fit.
    """
    values, factor = skip if skip is not None else (None, None)
    check_shapes(
        x=(x, "BTD"), gate=(gate, "BTD"), weight=(weight, "D"),
        skip_values=(values, "BTD"), skip_factor=(factor, "D"),
    )  # fmt: skip
    with torch.autocast(x.device.type, enabled=False):
        return gated_rms_norm_reference(x, gate, weight, gate_bias, skip, eps)
