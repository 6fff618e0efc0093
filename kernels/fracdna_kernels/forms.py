"""Forms of an operator and how one is chosen.

reference: the recurrence token by token, the ground truth      chunk: parallel in time, any device
recurrent: the update for decoding                              triton: fused GPU kernels
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_AS_IT_IS = nullcontext()


def choose_form(
    form: str,
    available: tuple[str, ...],
    length: int,
    inputs: tuple[Tensor, ...],
    *,
    packed: bool = False,
    refusal: str | None = None,
) -> str:
    """Resolve "auto" to a form that exists; a form asked for by name is never replaced.

    Args:
        form: "auto" or the name of a form.
        available: forms that the operator has.
        length: positions of the input.
        inputs: differentiable inputs; a single position without gradients takes "recurrent".
        packed: several sequences share a row, which no decoder does.
        refusal: why the form "triton" cannot take these inputs; None: it can.

    Raises:
        ValueError: a form that the operator lacks (the message lists those it has), or "triton"
            where it cannot run, with the reason.
    """
    fused = "triton" in available and refusal is None
    if form == "auto":
        if fused and inputs[0].device.type == "cuda":
            return "triton"
        needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        if "recurrent" in available and length == 1 and not (needs_grad or packed):
            return "recurrent"
        return "chunk" if "chunk" in available else "reference"
    if form not in available:
        raise ValueError(f"form={form!r} does not exist here; choose auto or one of {available}")
    if form == "triton" and not fused:
        raise ValueError(f"form='triton' cannot run: {refusal}")
    return form


def without_autocast(form: str, x: Tensor) -> AbstractContextManager[object]:
    """Keeps autocast from rounding what a form computes; kernels of Triton know of no autocast.

    Args:
        form: that is about to run.
        x: one of its inputs.
    """
    if form == "triton" or not torch.is_autocast_enabled(x.device.type):
        return _AS_IT_IS
    return torch.autocast(x.device.type, enabled=False)


def check_exact(**tensors: Tensor | None) -> None:
    """Refuse half precision where it would lose what slow modes change in one step.

    Raises:
        ValueError: a tensor that is neither float32 nor float64.
    """
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} needs float32 or float64, got {tensor.dtype}")


def accumulator(values: Tensor) -> torch.dtype:
    """The dtype of states and sums: float64 for float64 inputs, else float32."""
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def dtype_for_the_next_layer(x: Tensor) -> torch.dtype:
    """What a linear map would compute in."""
    device = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype
