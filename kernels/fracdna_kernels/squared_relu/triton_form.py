"""squared_relu in one kernel each way, registered as operators of PyTorch."""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.registration import operator
from fracdna_kernels.triton_support import ceil_div, on_device_of, types

_LAUNCH = {"BLOCK": 4096, "num_warps": 8}  # 16 elements a thread, all loads in flight


def squared_relu_triton(x: Tensor) -> Tensor:
    """See squared_relu for shapes and meaning."""
    return _squared(x)


# compiled for counts that 16 divides and for others: with those, masks split every load
@triton.jit
def _forward_kernel(x, output, count, BLOCK: tl.constexpr, ACC: tl.constexpr):
    """BLOCK elements of count."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    place = tl.arange(0, BLOCK)
    inside = first + place < count
    y = tl.maximum(tl.load(x + first + place, mask=inside, other=0.0).to(ACC), 0.0)
    tl.store(output + first + place, y * y, mask=inside)


@triton.jit
def _backward_kernel(d_output, x, d_x, count, BLOCK: tl.constexpr, ACC: tl.constexpr):
    """The same of the gradient."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    place = tl.arange(0, BLOCK)
    inside = first + place < count
    y = tl.maximum(tl.load(x + first + place, mask=inside, other=0.0).to(ACC), 0.0)
    dy = tl.load(d_output + first + place, mask=inside, other=0.0).to(ACC)
    tl.store(d_x + first + place, 2.0 * y * dy, mask=inside)


@operator("squared_relu")
def _squared(x: Tensor) -> Tensor:
    """The output."""
    output = _like(x)
    if x.numel():
        with on_device_of(x):
            _forward_kernel[(ceil_div(x.numel(), _LAUNCH["BLOCK"]),)](
                x.contiguous(), output, x.numel(), ACC=types(x.dtype)["ACC"], **_LAUNCH
            )
    return output


@_squared.register_fake
def _like(x: Tensor) -> Tensor:
    """The output before it is computed."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@operator("squared_relu_backward")
def _backward(d_output: Tensor, x: Tensor) -> Tensor:
    """Gradient of x."""
    d_x = _gradient(d_output, x)
    if x.numel():
        with on_device_of(x):
            _backward_kernel[(ceil_div(x.numel(), _LAUNCH["BLOCK"]),)](
                d_output.contiguous(), x.contiguous(), d_x, x.numel(),
                ACC=types(x.dtype)["ACC"], **_LAUNCH,
            )  # fmt: skip
    return d_x


@_backward.register_fake
def _gradient(d_output: Tensor, x: Tensor) -> Tensor:
    """The gradient before it is computed."""
    return _like(x)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """What the backward pass needs."""
    ctx.save_for_backward(*inputs)


_squared.register_autograd(
    lambda ctx, d_output: _backward(d_output, *ctx.saved_tensors), setup_context=_save
)


def compile_cases() -> Iterator[Case]:
    """Both dtypes."""
    for kind in ("bf16", "fp32"):
        pointers = dict.fromkeys(("x", "output", "d_output", "d_x"), kind)
        constants = _LAUNCH | {"ACC": tl.float32}
        for kernel in (_forward_kernel, _backward_kernel):
            yield compile_case(kernel, pointers, constants, kind, divisible=("count",))
