"""add_rms_norm in one kernel each way, registered as operators of PyTorch.

Saved for the backward pass: the stream, which is an output anyway, and 1 / rms of each row.
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
    store_tile,
    summed,
    wide_tile,
)
from fracdna_kernels.triton_support import ceil_div, on_device_of, types


def add_rms_norm_triton(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """See add_rms_norm for shapes and meaning."""
    if residual is None:  # an operator must not return its input: the stream goes round it
        return _norm(x, weight, eps, out_dtype)[0], x
    normed, stream, _ = _add_norm(x, residual, weight, eps, out_dtype)
    return normed, stream


@triton.jit(do_not_specialize=["count"])
def _forward_kernel(
    x,
    residual,
    weight,
    normed,
    stream,
    rstd,
    count,
    x_stride,
    residual_stride,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    ACC: tl.constexpr,
):
    """One tile of rows; count rows in all."""
    first = tl.program_id(0) * ROWS
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (first + row < count)[:, None] & (column < D)[None, :]
    s = load_tile(x, first, x_stride, row, column, inside, ACC)
    if residual is not None:
        s += load_tile(residual, first, residual_stride, row, column, inside, ACC)
        # normalise what later layers will see, as the reference does
        s = s.to(stream.dtype.element_ty).to(ACC)
        store_tile(stream, first, D, row, column, inside, s)
    scale = tl.rsqrt(tl.sum(s * s, axis=1) / D + EPS)
    tl.store(rstd + first + row, scale, mask=first + row < count)
    w = tl.load(weight + column, mask=column < D, other=0.0).to(ACC)
    store_tile(normed, first, D, row, column, inside, s * scale[:, None] * w[None, :])


@triton.jit(do_not_specialize=["count", "tiles"])
def _backward_kernel(
    stream,
    weight,
    rstd,
    d_normed,
    d_stream,
    d_x,
    d_residual,
    d_weight,
    count,
    tiles,
    stream_stride,
    d_normed_stride,
    d_stream_stride,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    ACC: tl.constexpr,
):
    """`tiles` tiles of rows one after the other, and the part of d_weight that they make."""
    first = tl.program_id(0) * tiles * ROWS
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    w = tl.load(weight + column, mask=column < D, other=0.0).to(ACC)
    total = tl.zeros([ROWS, WIDTH], ACC)
    for _ in tl.range(0, tiles, num_stages=STAGES):
        valid = first + row < count
        inside = valid[:, None] & (column < D)[None, :]
        s = load_tile(stream, first, stream_stride, row, column, inside, ACC)
        dn = load_tile(d_normed, first, d_normed_stride, row, column, inside, ACC)
        scale = tl.load(rstd + first + row, mask=valid, other=0.0)
        s *= scale[:, None]
        total += dn * s
        h = dn * w[None, :]
        mean = tl.sum(s * h, axis=1) / D
        ds = scale[:, None] * (h - s * mean[:, None])
        if d_stream is not None:
            ds += load_tile(d_stream, first, d_stream_stride, row, column, inside, ACC)
        store_tile(d_x, first, D, row, column, inside, ds)
        if d_residual is not None:
            store_tile(d_residual, first, D, row, column, inside, ds)
        first += ROWS
    place = tl.program_id(0).to(tl.int64) * D + column
    tl.store(d_weight + place, tl.sum(total, axis=0), mask=column < D)


@operator("add_rms_norm")
def _add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """normed, stream, and 1 / rms of each row."""
    normed, stream, rstd = _outputs(x, residual, weight, eps, out_dtype)
    _launch(x, residual, weight, normed, stream, rstd, eps)
    return normed, stream, rstd


@_add_norm.register_fake
def _outputs(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs before they are computed."""
    normed, rstd = _norm_outputs(x, weight, eps, out_dtype)
    wider = torch.promote_types(x.dtype, residual.dtype)
    return normed, torch.empty_like(normed, dtype=wider), rstd


@operator("rms_norm")
def _norm(x: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Normed, and 1 / rms of each row."""
    normed, rstd = _norm_outputs(x, weight, eps, out_dtype)
    _launch(x, None, weight, normed, None, rstd, eps)
    return normed, rstd


@_norm.register_fake
def _norm_outputs(
    x: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Outputs before they are computed."""
    normed = torch.empty_like(x, dtype=out_dtype, memory_format=torch.contiguous_format)
    batch, length, _ = x.shape
    return normed, torch.empty((batch, length), dtype=accumulator(x), device=x.device)


def _launch(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    normed: Tensor,
    stream: Tensor | None,
    rstd: Tensor,
    eps: float,
) -> None:
    """Fill the outputs."""
    width, tile = x.shape[-1], wide_tile(x.shape[-1])
    programs = ceil_div(rstd.numel(), tile["ROWS"])
    if not programs or not width:
        return
    x, x_stride = rows_of(x)
    residual, residual_stride = optional_rows(residual)
    with on_device_of(x):
        _forward_kernel[(programs,)](
            x, residual, weight.contiguous(), normed, stream, rstd, rstd.numel(),
            x_stride, residual_stride, D=width, EPS=eps, ACC=types(rstd.dtype)["ACC"], **tile,
        )  # fmt: skip


@operator("add_rms_norm_backward")
def _backward(
    stream: Tensor,
    weight: Tensor,
    rstd: Tensor,
    d_normed: Tensor,
    d_stream: Tensor | None,
    x_dtype: torch.dtype,
    residual_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of the residual (empty where it is the same tensor) and of the weight."""
    d_x, d_residual = _streams(stream, x_dtype, residual_dtype)
    width, tile = stream.shape[-1], looped_tile(stream.shape[-1])
    programs, each = share_tiles(ceil_div(rstd.numel(), tile["ROWS"]))
    parts = partial_sums(1, programs, width, like=rstd)
    if programs and width:
        stream, stream_stride = rows_of(stream)
        d_normed, d_normed_stride = rows_of(d_normed)
        d_stream, d_stream_stride = optional_rows(d_stream)
        with on_device_of(stream):
            _backward_kernel[(programs,)](
                stream, weight.contiguous(), rstd, d_normed, d_stream,
                d_x, d_residual if len(d_residual) else None, parts, rstd.numel(), each,
                stream_stride, d_normed_stride, d_stream_stride,
                D=width, ACC=types(rstd.dtype)["ACC"], **tile,
            )  # fmt: skip
    return d_x, d_residual, summed(parts)[0].to(weight.dtype)


@_backward.register_fake
def _gradients(
    stream: Tensor,
    weight: Tensor,
    rstd: Tensor,
    d_normed: Tensor,
    d_stream: Tensor | None,
    x_dtype: torch.dtype,
    residual_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients before they are computed."""
    d_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
    return *_streams(stream, x_dtype, residual_dtype), d_weight


def _streams(
    stream: Tensor, x_dtype: torch.dtype, residual_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Gradients of x and, where its dtype differs, of the residual, before they are computed."""
    d_x = torch.empty_like(stream, dtype=x_dtype, memory_format=torch.contiguous_format)
    if residual_dtype == x_dtype:
        return d_x, d_x.new_empty(0, dtype=residual_dtype)
    return d_x, torch.empty_like(d_x, dtype=residual_dtype)


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """What the backward pass of _add_norm needs."""
    x, residual, weight, *_ = inputs
    _, stream, rstd = output
    ctx.dtypes = x.dtype, residual.dtype
    ctx.save_for_backward(stream, weight, rstd)
    ctx.mark_non_differentiable(rstd)
    ctx.set_materialize_grads(False)


def _add_norm_gradients(ctx: Any, d_normed: Tensor | None, d_stream: Tensor | None, _: Any) -> Any:
    """For x, residual, weight, eps and out_dtype."""
    x_dtype, residual_dtype = ctx.dtypes
    if d_normed is None:
        if d_stream is None:
            return (None,) * 5
        return d_stream.to(x_dtype), d_stream.to(residual_dtype), None, None, None
    d_x, d_residual, d_weight = _backward(*ctx.saved_tensors, d_normed, d_stream, *ctx.dtypes)
    return d_x, d_x if x_dtype == residual_dtype else d_residual, d_weight, None, None


def _save_input(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """What the backward pass of _norm needs."""
    x, weight, *_ = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _norm_gradients(ctx: Any, d_normed: Tensor | None, _: Any) -> Any:
    """For x, weight, eps and out_dtype."""
    if d_normed is None:
        return (None,) * 4
    x, weight, rstd = ctx.saved_tensors
    d_x, _, d_weight = _backward(x, weight, rstd, d_normed, None, x.dtype, x.dtype)
    return d_x, d_weight, None, None


_add_norm.register_autograd(_add_norm_gradients, setup_context=_save_sum)
_norm.register_autograd(_norm_gradients, setup_context=_save_input)


def compile_cases() -> Iterator[Case]:
    """Every tile in both dtypes, with the residual and without."""
    streams = ("x", "residual", "normed", "stream", "d_normed", "d_stream", "d_x", "d_residual")
    for width, kind, alone in product(WIDTHS, ("bf16", "fp32"), (False, True)):
        pointers = dict.fromkeys(streams, kind)
        pointers |= dict.fromkeys(("weight", "rstd", "d_weight"), "fp32")
        sizes = {"D": width, "EPS": 1e-6, "ACC": tl.float32}
        label = f"D={width} {kind}{' alone' if alone else ''}"
        missing = dict.fromkeys(("residual", "stream") if alone else ())
        yield compile_case(_forward_kernel, pointers, sizes | wide_tile(width) | missing, label)
        # the residual's gradient is a tensor of its own only where dtypes differ
        missing = dict.fromkeys(("d_residual", "d_stream") if alone else ("d_residual",))
        yield compile_case(_backward_kernel, pointers, sizes | looped_tile(width) | missing, label)
