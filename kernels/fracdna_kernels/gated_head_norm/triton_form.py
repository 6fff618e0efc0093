"""gated_head_norm in one kernel each way, registered as operators of PyTorch.

A program takes tiles of one head: ROWS positions by the head's channels. Only the inputs are saved
for the backward pass, which computes everything again.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.forms import accumulator
from fracdna_kernels.registration import operator
from fracdna_kernels.triton_rows import (
    load_tile,
    looped_tile,
    partial_sums,
    rows_of,
    share_tiles,
    store_tile,
    summed,
    wide_tile,
)
from fracdna_kernels.triton_support import ceil_div, dense, on_device_of, types


def gated_head_norm_triton(
    x: Tensor,
    r: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor,
    bonus: Tensor,
    head_width: int,
    eps: float,
) -> Tensor:
    """See gated_head_norm for meaning; x, r, k and v are (B, T, D)."""
    return _norm(x, r, k, v, gate, weight, bias, bonus, head_width, eps)


@triton.jit
def _channels(pointer, column, SIZE: tl.constexpr, ACC: tl.constexpr):
    """A parameter of the head's channels in a row, zero beyond them."""
    return tl.load(pointer + column, mask=column < SIZE, other=0.0).to(ACC)[None, :]


@triton.jit
def _normed(x, inside, SIZE: tl.constexpr, EPS: tl.constexpr):
    """Rows without their mean over their standard deviation, and 1 over that."""
    x = tl.where(inside, x - (tl.sum(x, axis=1) / SIZE)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / SIZE + EPS)[:, None]
    return x * scale, scale


@triton.jit(do_not_specialize=["count"])
def _forward_kernel(
    x,
    r,
    k,
    v,
    gate,
    weight,
    bias,
    bonus,
    output,
    count,
    x_stride,
    r_stride,
    k_stride,
    v_stride,
    gate_stride,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    EPS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    ACC: tl.constexpr,
):
    """One tile; count positions in all."""
    first = tl.program_id(0) // HEADS * ROWS
    start = tl.program_id(0) % HEADS * SIZE
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (first + row < count)[:, None] & (column < SIZE)[None, :]
    read = load_tile(r + start, first, r_stride, row, column, inside, ACC)
    key = load_tile(k + start, first, k_stride, row, column, inside, ACC)
    value = load_tile(v + start, first, v_stride, row, column, inside, ACC)
    seen = tl.sum(read * key * _channels(bonus + start, column, SIZE, ACC), axis=1)[:, None]
    y = load_tile(x + start, first, x_stride, row, column, inside, ACC)
    y, _ = _normed(y, inside, SIZE, EPS)
    y = y * _channels(weight + start, column, SIZE, ACC)
    y += _channels(bias + start, column, SIZE, ACC) + seen * value
    y *= load_tile(gate + start, first, gate_stride, row, column, inside, ACC)
    store_tile(output + start, first, HEADS * SIZE, row, column, inside, y)


@triton.jit(do_not_specialize=["count", "tiles"])
def _backward_kernel(
    d_output,
    x,
    r,
    k,
    v,
    gate,
    weight,
    bias,
    bonus,
    d_x,
    d_r,
    d_k,
    d_v,
    d_gate,
    d_parameters,
    count,
    tiles,
    d_output_stride,
    x_stride,
    r_stride,
    k_stride,
    v_stride,
    gate_stride,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    EPS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    ACC: tl.constexpr,
):
    """`tiles` tiles one after the other, and their part of the sums for the parameters."""
    program = tl.program_id(0) // HEADS
    start = tl.program_id(0) % HEADS * SIZE
    first = program * tiles * ROWS
    D: tl.constexpr = HEADS * SIZE
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    w = _channels(weight + start, column, SIZE, ACC)
    offset = _channels(bias + start, column, SIZE, ACC)
    extra = _channels(bonus + start, column, SIZE, ACC)
    d_weight = tl.zeros([ROWS, WIDTH], ACC)
    d_bias = tl.zeros([ROWS, WIDTH], ACC)
    d_bonus = tl.zeros([ROWS, WIDTH], ACC)
    for _ in tl.range(0, tiles, num_stages=STAGES):
        inside = (first + row < count)[:, None] & (column < SIZE)[None, :]
        dy = load_tile(d_output + start, first, d_output_stride, row, column, inside, ACC)
        read = load_tile(r + start, first, r_stride, row, column, inside, ACC)
        key = load_tile(k + start, first, k_stride, row, column, inside, ACC)
        value = load_tile(v + start, first, v_stride, row, column, inside, ACC)
        passed = load_tile(gate + start, first, gate_stride, row, column, inside, ACC)
        y = load_tile(x + start, first, x_stride, row, column, inside, ACC)
        y, scale = _normed(y, inside, SIZE, EPS)
        both = read * key
        seen = tl.sum(both * extra, axis=1)[:, None]
        opened = dy * (y * w + offset + seen * value)
        store_tile(d_gate + start, first, D, row, column, inside, opened)
        dy *= passed
        store_tile(d_v + start, first, D, row, column, inside, dy * seen)
        d_seen = tl.sum(dy * value, axis=1)[:, None]
        d_bonus += d_seen * both
        store_tile(d_r + start, first, D, row, column, inside, d_seen * key * extra)
        store_tile(d_k + start, first, D, row, column, inside, d_seen * read * extra)
        d_weight += dy * y
        d_bias += dy
        dy *= w
        mean = (tl.sum(dy, axis=1) / SIZE)[:, None]
        dy = scale * (dy - mean - y * (tl.sum(dy * y, axis=1) / SIZE)[:, None])
        store_tile(d_x + start, first, D, row, column, inside, dy)
        first += ROWS
    programs = (tl.num_programs(0) // HEADS).to(tl.int64)
    sums = d_parameters + program.to(tl.int64) * D + start + column
    tl.store(sums, tl.sum(d_weight, axis=0), mask=column < SIZE)
    tl.store(sums + programs * D, tl.sum(d_bias, axis=0), mask=column < SIZE)
    tl.store(sums + 2 * programs * D, tl.sum(d_bonus, axis=0), mask=column < SIZE)


def _constants(x: Tensor, head_width: int, eps: float) -> dict[str, Any]:
    """What both kernels are compiled for."""
    heads = x.shape[-1] // head_width
    return {"HEADS": heads, "SIZE": head_width, "EPS": eps, "ACC": types(accumulator(x))["ACC"]}


@operator("gated_head_norm")
def _norm(
    x: Tensor,
    r: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor,
    bonus: Tensor,
    head_width: int,
    eps: float,
) -> Tensor:
    """The output."""
    output = _output(x, r, k, v, gate, weight, bias, bonus, head_width, eps)
    tile, constants = wide_tile(head_width), _constants(x, head_width, eps)
    count = x.shape[0] * x.shape[1]
    programs = ceil_div(count, tile["ROWS"]) * constants["HEADS"]
    if programs:
        streams, strides = zip(*map(rows_of, (x, r, k, v, gate)), strict=True)
        with on_device_of(x):
            _forward_kernel[(programs,)](
                *streams, *dense(weight, bias, bonus), output, count, *strides, **constants, **tile
            )
    return output


@_norm.register_fake
def _output(
    x: Tensor,
    r: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor,
    bonus: Tensor,
    head_width: int,
    eps: float,
) -> Tensor:
    """The output before it is computed."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@operator("gated_head_norm_backward")
def _backward(
    d_output: Tensor,
    x: Tensor,
    r: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor,
    bonus: Tensor,
    head_width: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, r, k, v and gate, and sums (3, D) for weight, bias and bonus."""
    given = (x, r, k, v, gate)
    gradients = _streams(*given)
    tile, constants = looped_tile(head_width), _constants(x, head_width, eps)
    count, heads = x.shape[0] * x.shape[1], constants["HEADS"]
    programs, each = share_tiles(ceil_div(count, tile["ROWS"]), heads)
    parts = partial_sums(3, programs, x.shape[-1], like=x)
    if programs:
        streams, strides = zip(*map(rows_of, (d_output, *given)), strict=True)
        with on_device_of(x):
            _backward_kernel[(programs * heads,)](
                *streams, *dense(weight, bias, bonus), *gradients, parts, count, each, *strides,
                **constants, **tile,
            )  # fmt: skip
    return (*gradients, summed(parts))


@_backward.register_fake
def _gradients(
    d_output: Tensor,
    x: Tensor,
    r: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor,
    bonus: Tensor,
    head_width: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients before they are computed."""
    return *_streams(x, r, k, v, gate), x.new_empty(3, x.shape[-1], dtype=accumulator(x))


def _streams(*inputs: Tensor) -> list[Tensor]:
    """Gradients of what belongs to positions before they are computed."""
    return [torch.empty_like(y, memory_format=torch.contiguous_format) for y in inputs]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """What the backward pass needs."""
    *tensors, head_width, eps = inputs
    ctx.save_for_backward(*tensors)
    ctx.options = head_width, eps


def _norm_gradients(ctx: Any, d_output: Tensor) -> Any:
    """For every argument of _norm."""
    *gradients, sums = _backward(d_output, *ctx.saved_tensors, *ctx.options)
    parameters = zip(sums, ctx.saved_tensors[5:], strict=True)
    return *gradients, *(total.to(y.dtype) for total, y in parameters), None, None


_norm.register_autograd(_norm_gradients, setup_context=_save)


def compile_cases() -> Iterator[Case]:
    """Heads of common widths and one that leaves some of its tile empty, in both dtypes."""
    streams = ("x", "r", "k", "v", "gate")
    narrow = (*streams, "output", "d_output", *(f"d_{name}" for name in streams))
    exact = ("weight", "bias", "bonus", "d_parameters")
    for width, kind in product((16, 64, 80, 128, 256), ("bf16", "fp32")):
        pointers = dict.fromkeys(narrow, kind) | dict.fromkeys(exact, "fp32")
        constants = {"HEADS": 4, "SIZE": width, "EPS": 1e-5, "ACC": tl.float32}
        label = f"V={width} {kind}"
        yield compile_case(_forward_kernel, pointers, constants | wide_tile(width), label)
        yield compile_case(_backward_kernel, pointers, constants | looped_tile(width), label)
