"""What the kernels of all operators are compiled with."""

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from fracdna_kernels.fused import interpreted

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)

INTERPRETED = interpreted()  # read when kernels are defined, as Triton does

_AS_IT_IS = nullcontext()
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.float64: tl.float64}


def ceil_div(size: int, part: int) -> int:
    """Parts that cover a size; Triton's own takes ten times as long outside kernels."""
    return -(-size // part)


def padded_size(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def dense(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The same without gaps, where there is one: kernels step through memory by sizes alone."""
    return tuple(None if x is None else x.contiguous() for x in tensors)


@cache
def types(dtype: torch.dtype) -> dict[str, tl.dtype]:
    """ACC, in which sums and states are kept, and OPERAND, to which factors of a dot are rounded.

    The interpreter multiplies the bits of bfloat16, so there its operands stay in ACC.
    """
    exact = tl.float64 if dtype == torch.float64 else tl.float32
    return {"ACC": exact, "OPERAND": exact if INTERPRETED else _TYPES[dtype]}


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Makes the device of a tensor, on which kernels are to run, the current one."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return _AS_IT_IS
    return torch.cuda.device(x.get_device())


@triton.jit
def product(a, b, OPERAND: tl.constexpr, ACC: tl.constexpr):
    """a @ b with operands rounded to OPERAND and exact products summed in ACC."""
    return tl.dot(a.to(OPERAND), b.to(OPERAND), input_precision="ieee", out_dtype=ACC)


@triton.jit
def exact_product(a, b, OPERAND: tl.constexpr, ACC: tl.constexpr):
    """a @ b of numbers in ACC, nearly as exact as ACC also where other products are not."""
    if OPERAND == ACC:
        return product(a, b, ACC, ACC)
    else:
        # three products of rounded halves, on matrix units
        return tl.dot(a, b, input_precision="tf32x3", out_dtype=ACC)


@triton.jit
def charge(x):
    """1 - exp(-x) and exp(-x) for x >= 0; a series where the difference would cancel."""
    y = tl.minimum(x, 0.5)
    series = 1 / 5040 - y * (1 / 40320)
    series = 1 / 720 - series * y
    series = 1 / 120 - series * y
    series = 1 / 24 - series * y
    series = 1 / 6 - series * y
    series = 1 / 2 - series * y
    series = 1.0 - series * y
    kept = tl.exp2(x * -LOG2E)
    return tl.where(x < 0.5, series * y, 1.0 - kept), kept
