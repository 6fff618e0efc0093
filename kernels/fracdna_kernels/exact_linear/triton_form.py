"""exact_linear in one kernel each way, registered as operators of PyTorch.

Matrix units multiply bfloat16 and sum in float32. A factor in float32 is cut into bfloat16 pieces
of ever smaller size, three for the output (24 bits, all of float32) and two for gradients (16
bits), whose products are summed from the smallest. These units cut sums off instead of rounding
them, so no long sum is left to them: each block's products are added to it outside. Factors stand
so that no product has 64 rows or more, of which Triton would make others on Hopper.

T positions   D channels   OUTPUTS of the map   BO, BD, ROWS padded tile sizes
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fracdna_kernels.forms import accumulator
from fracdna_kernels.pieces import tile_width
from fracdna_kernels.registration import operator
from fracdna_kernels.triton_rows import (
    load_tile,
    optional_rows,
    partial_sums,
    rows_of,
    store_tile,
    summed,
)
from fracdna_kernels.triton_support import ceil_div, on_device_of, product, types

PROGRAMS = 528  # at most, of the backward: four on each multiprocessor of an H200


def exact_linear_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None, tap: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """See exact_linear for shapes and meaning."""
    if not tap:
        return _linear(x, weight, bias)
    if not torch.is_grad_enabled():  # no gradient will come back
        return x, _linear(x, weight, bias)
    return _Tapped.apply(x, weight, bias)


@triton.jit
def _cut(x):
    """The leading 8 bits of float32, which bfloat16 holds, and the rest, exactly; x = both.

    By a mask: conversions to bfloat16 and back run at a quarter of the speed.
    """
    head = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return head, x - head


@triton.jit
def _inside(valid, channel, count, EVEN: tl.constexpr):
    """Which elements exist; EVEN: those of a valid row all do."""
    if EVEN:
        return valid[:, None]
    else:
        return valid[:, None] & (channel < count)[None, :]


@triton.jit
def _twice(a, rest, b, OPERAND: tl.constexpr, ACC: tl.constexpr):
    """(a + rest) @ b, the small part first."""
    sums = product(rest, b, OPERAND, ACC)
    return tl.dot(a.to(OPERAND), b.to(OPERAND), sums, input_precision="ieee", out_dtype=ACC)


@triton.jit(do_not_specialize=["count"])
def _forward_kernel(
    x,
    weight,
    bias,
    output,
    count,
    x_stride,
    D: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BD: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    CUT: tl.constexpr,
    ACC: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """ROWS positions, computed as (outputs, positions); CUT: weights are multiplied in pieces."""
    first = tl.program_id(0) * ROWS
    row, channel, o = tl.arange(0, ROWS), tl.arange(0, BD), tl.arange(0, BO)
    valid = first + row < count
    x += first.to(tl.int64) * x_stride
    even: tl.constexpr = D % BD == 0
    sums = tl.zeros([BO, ROWS], ACC)
    if bias is not None:
        sums += tl.load(bias + o, mask=o < OUTPUTS, other=0.0).to(ACC)[:, None]
    for start in tl.range(0, D, BD, num_stages=STAGES):
        place = o[:, None] * D + start + channel[None, :]
        inside = _inside(o < OUTPUTS, channel, D - start, even)
        w = tl.load(weight + place, mask=inside, other=0.0).to(ACC)
        place = row[:, None] * x_stride + start + channel[None, :]
        inside = _inside(valid, channel, D - start, even)
        values = tl.load(x + place, mask=inside, other=0.0)
        values = tl.trans(values.to(OPERAND))
        if not CUT:
            sums += product(w, values, OPERAND, ACC)
        else:
            head, rest = _cut(w)
            middle, rest = _cut(rest)
            block = _twice(middle, rest, values, OPERAND, ACC)
            head = head.to(OPERAND)
            sums += tl.dot(head, values, block, input_precision="ieee", out_dtype=ACC)
    store_tile(
        output, first, OUTPUTS, row, o, valid[:, None] & (o < OUTPUTS)[None, :], tl.trans(sums)
    )


@triton.jit(do_not_specialize=["count", "tiles"])
def _backward_kernel(
    d_output,
    d_other,
    x,
    weight,
    d_x,
    d_parameters,
    count,
    tiles,
    other_stride,
    x_stride,
    D: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BD: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    CUT: tl.constexpr,
    ACC: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """BD channels of `tiles` tiles of positions, and their part of the sums for the parameters."""
    blocks: tl.constexpr = (D + BD - 1) // BD
    program = tl.program_id(0) // blocks
    start = tl.program_id(0) % blocks * BD
    first = program * tiles * ROWS
    row, o = tl.arange(0, ROWS), tl.arange(0, BO)
    channel = start + tl.arange(0, BD)
    mask = (o < OUTPUTS)[:, None] & (channel < D)[None, :]
    place = o[:, None] * D + channel[None, :]
    w = tl.load(weight + place, mask=mask, other=0.0).to(ACC)
    if CUT:
        w, w_rest = _cut(w)
        w_rest = w_rest.to(OPERAND)
    w = w.to(OPERAND)
    d_weight = tl.zeros([BO, BD], ACC)
    d_bias = tl.zeros([ROWS, BO], ACC)
    for _ in tl.range(0, tiles, num_stages=STAGES):
        valid = first + row < count
        inside = valid[:, None] & (channel < D)[None, :]
        dy = load_tile(
            d_output, first, OUTPUTS, row, o, valid[:, None] & (o < OUTPUTS)[None, :], ACC
        )
        values = load_tile(x, first, x_stride, row, channel, inside, OPERAND)
        d_bias += dy
        if not CUT:
            dx = product(dy, w, OPERAND, ACC)
            d_weight += product(tl.trans(dy), values, OPERAND, ACC)
        else:
            dy, rest = _cut(dy)
            dx = product(dy, w_rest, OPERAND, ACC)
            dx = tl.dot(rest.to(OPERAND), w, dx, input_precision="ieee", out_dtype=ACC)
            dx = tl.dot(dy.to(OPERAND), w, dx, input_precision="ieee", out_dtype=ACC)
            d_weight += _twice(tl.trans(dy), tl.trans(rest), values, OPERAND, ACC)
        if d_other is not None:
            dx += load_tile(d_other, first, other_stride, row, channel, inside, ACC)
        store_tile(d_x, first, D, row, channel, inside, dx)
        first += ROWS
    sums = d_parameters + program.to(tl.int64) * (OUTPUTS * D + OUTPUTS)
    tl.store(sums + place, d_weight, mask=mask)
    if start == 0:
        tl.store(sums + OUTPUTS * D + o, tl.sum(d_bias, axis=0), mask=o < OUTPUTS)


@cache
def _tile(D: int, outputs: int, dtype: torch.dtype, *, backward: bool) -> dict[str, Any]:
    """Tile sizes, compile-time types and launch options of a kernel."""
    half = dtype == torch.bfloat16
    constants = _launch(D, outputs, half, backward) | types(dtype)
    return constants | {"D": D, "OUTPUTS": outputs, "CUT": half}


def _launch(D: int, outputs: int, half: bool, backward: bool) -> dict[str, int]:
    """What is chosen by size; float32 is multiplied without matrix units, in small tiles."""
    padded = tile_width(outputs)
    few = padded < 64
    if backward:
        widest, rows, stages = (128 if few else 32, 32, 3) if half else (32, 32, 2)
    else:
        widest, rows, stages = (32, 128 if few else 64, 4) if half else (16, 64 if few else 32, 2)
    options = {
        "BD": min(widest, tile_width(D)),
        "BO": padded,
        "ROWS": rows,
        "STAGES": stages,
        # with four, Triton would compute 64 rows of bfloat16 by HGMMA
        "num_warps": 2 if half and not few else 4,
    }
    if half and backward and padded == 16 and D % 16 == 0:
        options["maxnreg"] = 128  # so that four programs fit on a multiprocessor
    return options


@operator("exact_linear")
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The output."""
    output = _output(x, weight, bias)
    tile = _tile(x.shape[-1], len(weight), x.dtype, backward=False)
    count = x.shape[0] * x.shape[1]
    if count:
        x, x_stride = rows_of(x)
        with on_device_of(x):
            _forward_kernel[(ceil_div(count, tile["ROWS"]),)](
                x, weight.contiguous(), None if bias is None else bias.contiguous(), output,
                count, x_stride, **tile,
            )  # fmt: skip
    return output


@_linear.register_fake
def _output(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The output before it is computed."""
    batch, length, _ = x.shape
    shape = (batch, length, weight.shape[0])
    return torch.empty(shape, dtype=accumulator(x), device=x.device)


@operator("exact_linear_backward")
def _backward(
    d_output: Tensor, d_other: Tensor | None, x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradient of x, d_other included, and the sums for weight and bias in one vector."""
    D, outputs = x.shape[-1], len(weight)
    tile = _tile(D, outputs, x.dtype, backward=True)
    count = x.shape[0] * x.shape[1]
    blocks = ceil_div(D, tile["BD"])
    tiles = ceil_div(count, tile["ROWS"])
    each = max(1, ceil_div(tiles, max(1, PROGRAMS // blocks)))
    programs = ceil_div(tiles, each)
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    parts = partial_sums(1, programs, outputs * D + outputs, like=x)
    if programs:
        x, x_stride = rows_of(x)
        d_other, other_stride = optional_rows(d_other)
        with on_device_of(x):
            _backward_kernel[(programs * blocks,)](
                d_output.contiguous(), d_other, x, weight.contiguous(), d_x, parts, count, each,
                other_stride, x_stride, **tile,
            )  # fmt: skip
    return d_x, summed(parts)[0]


@_backward.register_fake
def _gradients(
    d_output: Tensor, d_other: Tensor | None, x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients before they are computed."""
    sums = weight.numel() + weight.shape[0]
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return d_x, x.new_empty(sums, dtype=accumulator(x))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """What the backward pass needs."""
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _linear_gradients(
    ctx: Any, d_output: Tensor, d_other: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """For every argument of _linear."""
    x, weight = ctx.saved_tensors
    d_x, sums = _backward(d_output, d_other, x, weight)
    d_weight = sums[: weight.numel()].view_as(weight).to(weight.dtype)
    d_bias = None if ctx.bias_dtype is None else sums[weight.numel() :].to(ctx.bias_dtype)
    return d_x, d_weight, d_bias


_linear.register_autograd(_linear_gradients, setup_context=_save)


class _Tapped(torch.autograd.Function):
    """x itself and its map; an operator must not return what it was given, a function may."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """See exact_linear."""
        _save(ctx, (x, weight, bias), x)
        same = x.view_as(x)
        if not ctx.needs_input_grad[0]:
            ctx.mark_non_differentiable(same)
        return same, _linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, d_x: Tensor, d_output: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """For every argument of forward."""
        return _linear_gradients(ctx, d_output, d_x)


def compile_cases() -> Iterator[tuple[object, dict, dict, dict]]:
    """Every shipped kernel with its launch, for compilation without a device.

    Yields:
        kernel, types of its run-time arguments, compile-time arguments, compiler options.
    """
    sizes = ((512, 12), (512, 32), (512, 64), (100, 3))
    for name, (D, outputs) in ((n, size) for n in ("bf16", "fp32") for size in sizes):
        half = name == "bf16"
        exact = {"ACC": tl.float32, "OPERAND": tl.bfloat16 if half else tl.float32}
        exact |= {"D": D, "OUTPUTS": outputs, "CUT": half}
        for kernel in (_forward_kernel, _backward_kernel):
            launch = _launch(D, outputs, half, kernel is _backward_kernel)
            options = {key: launch.pop(key) for key in ("num_warps", "maxnreg") if key in launch}
            options["label"] = f"D={D} OUTPUTS={outputs} {name}"
            strides = ["x_stride", "other_stride"] if D % 16 == 0 else []
            options["divisible"] = [key for key in strides if key in kernel.arg_names]
            constants = exact | launch
            rest = [key for key in kernel.arg_names if key not in constants]
            signature = {key: _ARGUMENTS.get(key, "i32").format(name=name) for key in rest}
            yield kernel, signature, constants, options


_ARGUMENTS = dict.fromkeys(("x", "d_other", "d_x"), "*{name}") | dict.fromkeys(
    ("weight", "bias", "output", "d_output", "d_parameters"), "*fp32"
)
