"""gated_rms_norm in one kernel each way, registered as operators of PyTorch.

A program takes tiles of one group: ROWS positions by the group's channels. Beside the inputs,
1 / rms of each row is all that the backward pass gets; it computes the rest again.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import WIDTHS, Case, compile_case
from fracdna_kernels.forms import accumulator
from fracdna_kernels.registration import operator
from fracdna_kernels.triton_rows import (
    load_tile,
    looped_tile,
    optional_rows,
    partial_sums,
    rows_of,
    share_tiles,
    sigmoid,
    store_tile,
    summed,
    wide_tile,
)
from fracdna_kernels.triton_support import ceil_div, on_device_of, types


def gated_rms_norm_triton(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    gate_bias: float,
    values: Tensor | None,
    factor: Tensor | None,
    order: str,
    group_size: int,
    eps: float,
) -> Tensor:
    """See gated_rms_norm for shapes and meaning."""
    return _norm(x, gate, weight, gate_bias, values, factor, order, group_size, eps)[0]


@triton.jit
def _channels(pointer, start, column, SIZE: tl.constexpr, ACC: tl.constexpr):
    """A parameter of the group's channels, zero beyond them."""
    return tl.load(pointer + start + column, mask=column < SIZE, other=0.0).to(ACC)


@triton.jit(do_not_specialize=["count"])
def _forward_kernel(
    x,
    gate,
    weight,
    values,
    factor,
    output,
    rstd,
    count,
    x_stride,
    gate_stride,
    values_stride,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    SHARED: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    BIAS: tl.constexpr,
    EPS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    ACC: tl.constexpr,
):
    """One tile; count positions in all, SHARED: one weight for every group."""
    group = tl.program_id(0) % GROUPS
    first = tl.program_id(0) // GROUPS * ROWS
    start = group * SIZE
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    valid = first + row < count
    inside = valid[:, None] & (column < SIZE)[None, :]
    y = load_tile(x + start, first, x_stride, row, column, inside, ACC)
    g = load_tile(gate + start, first, gate_stride, row, column, inside, ACC) + BIAS
    if values is not None:
        v = load_tile(values + start, first, values_stride, row, column, inside, ACC)
        y += v * _channels(factor, start, column, SIZE, ACC)[None, :]
    g *= sigmoid(g)
    if GATE_FIRST:
        y *= g
    scale = tl.rsqrt(tl.sum(y * y, axis=1) / SIZE + EPS)
    tl.store(rstd + (first + row).to(tl.int64) * GROUPS + group, scale, mask=valid)
    y *= scale[:, None] * _channels(weight, 0 if SHARED else start, column, SIZE, ACC)[None, :]
    if not GATE_FIRST:
        y *= g
    store_tile(output + start, first, GROUPS * SIZE, row, column, inside, y)


@triton.jit(do_not_specialize=["count", "tiles"])
def _backward_kernel(
    x,
    gate,
    weight,
    values,
    factor,
    rstd,
    d_output,
    d_x,
    d_gate,
    d_values,
    d_parameters,
    count,
    tiles,
    x_stride,
    gate_stride,
    values_stride,
    d_output_stride,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    SHARED: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    ACC: tl.constexpr,
):
    """`tiles` tiles one after the other, and their part of the sums for weight and factor."""
    group = tl.program_id(0) % GROUPS
    program = tl.program_id(0) // GROUPS
    first = program * tiles * ROWS
    start = group * SIZE
    D: tl.constexpr = GROUPS * SIZE
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    w = _channels(weight, 0 if SHARED else start, column, SIZE, ACC)[None, :]
    if values is not None:
        f = _channels(factor, start, column, SIZE, ACC)[None, :]
    d_weight = tl.zeros([ROWS, WIDTH], ACC)
    d_factor = tl.zeros([ROWS, WIDTH], ACC)
    for _ in tl.range(0, tiles, num_stages=STAGES):
        valid = first + row < count
        inside = valid[:, None] & (column < SIZE)[None, :]
        y = load_tile(x + start, first, x_stride, row, column, inside, ACC)
        g = load_tile(gate + start, first, gate_stride, row, column, inside, ACC) + BIAS
        dn = load_tile(d_output + start, first, d_output_stride, row, column, inside, ACC)
        place = (first + row).to(tl.int64) * GROUPS + group
        scale = tl.load(rstd + place, mask=valid, other=0.0)[:, None]
        if values is not None:
            v = load_tile(values + start, first, values_stride, row, column, inside, ACC)
            y += v * f
        s = sigmoid(g)
        silu = g * s
        slope = s + silu * (1.0 - s)
        if GATE_FIRST:
            normed = y * silu * scale
            d_weight += dn * normed
            h = dn * w
            dy = scale * (h - normed * (tl.sum(normed * h, axis=1) / SIZE)[:, None])
            dg = dy * y * slope
            dx = dy * silu
        else:
            normed = y * scale
            weighted = dn * normed
            d_weight += weighted * silu
            dg = weighted * w * slope
            h = dn * w * silu
            dx = scale * (h - normed * (tl.sum(normed * h, axis=1) / SIZE)[:, None])
        store_tile(d_gate + start, first, D, row, column, inside, dg)
        store_tile(d_x + start, first, D, row, column, inside, dx)
        if values is not None:
            d_factor += dx * v
            dx *= f
            store_tile(d_values + start, first, D, row, column, inside, dx)
        first += ROWS
    sums = d_parameters + program.to(tl.int64) * D + start + column
    tl.store(sums, tl.sum(d_weight, axis=0), mask=column < SIZE)
    if values is not None:
        sums += (tl.num_programs(0) // GROUPS).to(tl.int64) * D
        tl.store(sums, tl.sum(d_factor, axis=0), mask=column < SIZE)


@operator("gated_rms_norm")
def _norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    gate_bias: float,
    values: Tensor | None,
    factor: Tensor | None,
    order: str,
    group_size: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The output, and 1 / rms of each position and group."""
    output, rstd = _outputs(x, gate, weight, gate_bias, values, factor, order, group_size, eps)
    tile, groups = wide_tile(group_size), rstd.shape[-1]
    count = x.shape[0] * x.shape[1]
    programs = ceil_div(count, tile["ROWS"]) * groups
    if programs:
        x, x_stride = rows_of(x)
        gate, gate_stride = rows_of(gate)
        values, values_stride = optional_rows(values)
        with on_device_of(x):
            _forward_kernel[(programs,)](
                x, gate, weight.contiguous(), values,
                None if factor is None else factor.contiguous(), output, rstd, count,
                x_stride, gate_stride, values_stride, EPS=eps,
                **_constants(weight, groups, group_size, order, gate_bias, rstd), **tile,
            )  # fmt: skip
    return output, rstd


@_norm.register_fake
def _outputs(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    gate_bias: float,
    values: Tensor | None,
    factor: Tensor | None,
    order: str,
    group_size: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Outputs before they are computed."""
    batch, length, channels = x.shape
    shape = (batch, length, channels // group_size)
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    return output, torch.empty(shape, dtype=accumulator(x), device=x.device)


def _constants(
    weight: Tensor, groups: int, group_size: int, order: str, gate_bias: float, rstd: Tensor
) -> dict[str, Any]:
    """What both kernels are compiled for."""
    return {
        "GROUPS": groups,
        "SIZE": group_size,
        "SHARED": weight.shape[0] == group_size,
        "GATE_FIRST": order == "gate_first",
        "BIAS": gate_bias,
        "ACC": types(rstd.dtype)["ACC"],
    }


@operator("gated_rms_norm_backward")
def _backward(
    d_output: Tensor,
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    values: Tensor | None,
    factor: Tensor | None,
    rstd: Tensor,
    gate_bias: float,
    order: str,
    group_size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, gate and values (empty without), and sums (1 or 2, D) for the parameters."""
    tile, groups = looped_tile(group_size), rstd.shape[-1]
    count = x.shape[0] * x.shape[1]
    programs, each = share_tiles(ceil_div(count, tile["ROWS"]), groups)
    d_x, d_gate, d_values = _streams(x, gate, values)
    parts = partial_sums(2 - (values is None), programs, x.shape[-1], like=rstd)
    if programs:
        x, x_stride = rows_of(x)
        gate, gate_stride = rows_of(gate)
        values, values_stride = optional_rows(values)
        d_output, d_output_stride = rows_of(d_output)
        with on_device_of(x):
            _backward_kernel[(programs * groups,)](
                x, gate, weight.contiguous(), values,
                None if factor is None else factor.contiguous(), rstd, d_output,
                d_x, d_gate, d_values, parts, count, each,
                x_stride, gate_stride, values_stride, d_output_stride,
                **_constants(weight, groups, group_size, order, gate_bias, rstd), **tile,
            )  # fmt: skip
    return d_x, d_gate, d_values, summed(parts)


@_backward.register_fake
def _gradients(
    d_output: Tensor,
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    values: Tensor | None,
    factor: Tensor | None,
    rstd: Tensor,
    gate_bias: float,
    order: str,
    group_size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients before they are computed."""
    sums = rstd.new_empty(2 - (values is None), x.shape[-1])
    return *_streams(x, gate, values), sums


def _streams(x: Tensor, gate: Tensor, values: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, gate and values (empty without) before they are computed."""
    d_x, d_gate, d_values = (
        x.new_empty(0)
        if tensor is None
        else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor in (x, gate, values)
    )
    return d_x, d_gate, d_values


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """What the backward pass needs."""
    x, gate, weight, gate_bias, values, factor, order, group_size, _ = inputs
    ctx.save_for_backward(x, gate, weight, values, factor, output[1])
    ctx.options = gate_bias, order, group_size
    ctx.mark_non_differentiable(output[1])


def _norm_gradients(ctx: Any, d_output: Tensor, _: Any) -> Any:
    """For every argument of _norm."""
    saved = ctx.saved_tensors
    _, _, weight, values, factor, _ = saved
    d_x, d_gate, d_values, sums = _backward(d_output, *saved, *ctx.options)
    d_weight = sums[0]
    if len(weight) < len(d_weight):  # shared by the groups
        d_weight = d_weight.unflatten(0, (-1, len(weight))).sum(0)
    skip = (None, None) if values is None else (d_values, sums[1].to(factor.dtype))
    return d_x, d_gate, d_weight.to(weight.dtype), None, *skip, None, None, None


_norm.register_autograd(_norm_gradients, setup_context=_save)


def compile_cases() -> Iterator[Case]:
    """Every tile in both dtypes: the gate first, with a skip, and the norm first, in groups."""
    streams = ("x", "gate", "values", "output", "d_output", "d_x", "d_gate", "d_values")
    for size, kind, grouped in product(WIDTHS, ("bf16", "fp32"), (False, True)):
        pointers = dict.fromkeys(streams, kind)
        pointers |= dict.fromkeys(("weight", "factor", "rstd", "d_parameters"), "fp32")
        constants = {
            "GROUPS": 4 if grouped else 1, "SIZE": size, "SHARED": grouped, "BIAS": 0.0,
            "GATE_FIRST": not grouped, "EPS": 1e-6, "ACC": tl.float32,
        }  # fmt: skip
        missing = ("values", "factor") if grouped else ()
        constants |= dict.fromkeys(missing)
        label = f"size={size} {kind}{' in groups' if grouped else ' with skip'}"
        for kernel, tile in ((_forward_kernel, wide_tile), (_backward_kernel, looped_tile)):
            yield compile_case(kernel, pointers, constants | tile(size), label)
