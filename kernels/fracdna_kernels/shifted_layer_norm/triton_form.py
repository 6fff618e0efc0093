"""shifted_layer_norm in one kernel each way, registered as operators of PyTorch.

Only the inputs are saved for the backward pass, which normalises again. An operator has a fixed
number of outputs: MOST_SHARES mixtures, of which those without a share are empty.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import WIDTHS, Case, compile_case
from fracdna_kernels.forms import accumulator
from fracdna_kernels.registration import operator
from fracdna_kernels.shifted_layer_norm import MOST_SHARES
from fracdna_kernels.shifted_layer_norm.triton_kernels import backward_kernel, forward_kernel
from fracdna_kernels.triton_rows import (
    looped_tile,
    optional_rows,
    partial_sums,
    rows_of,
    share_tiles,
    summed,
    wide_tile,
)
from fracdna_kernels.triton_support import ceil_div, dense, on_device_of, types

Mixtures = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def shifted_layer_norm_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shares: Tensor,
    addend: Tensor | None,
    last: Tensor | None,
    starts: Tensor | None,
    lengths: Tensor | None,
    eps: float,
    out_dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """See shifted_layer_norm for shapes and meaning; starts (T,) is true where sequences begin."""
    *mixtures, token = _norm(x, weight, bias, shares, addend, last, starts, lengths, eps, out_dtype)
    return *mixtures[: len(shares)], token


@cache
def _backward_tile(width: int) -> dict[str, int]:
    """As looped_tile; every mixture's gradient is on its way twice."""
    tile = looped_tile(width)
    return tile | {"STAGES": 2 if tile["WIDTH"] <= 1024 else 1}


@operator("shifted_layer_norm")
def _norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shares: Tensor,
    addend: Tensor | None,
    last: Tensor | None,
    starts: Tensor | None,
    lengths: Tensor | None,
    eps: float,
    out_dtype: torch.dtype,
) -> Mixtures:
    """The mixtures, and what stands at the end of each row."""
    outputs = _outputs(x, weight, bias, shares, addend, last, starts, lengths, eps, out_dtype)
    *mixtures, token = outputs
    (batch, length, width), tile = x.shape, wide_tile(x.shape[-1])
    programs = ceil_div(batch * length, tile["ROWS"])
    if programs and width:
        x, x_stride = rows_of(x)
        addend, addend_stride = optional_rows(addend)
        with on_device_of(x):
            forward_kernel[(programs,)](
                x, addend, *dense(weight, bias, shares, last, starts, lengths),
                *_given(mixtures, shares), token, batch * length, length,
                x_stride, addend_stride, COUNT=len(shares), D=width, EPS=eps,
                ACC=types(token.dtype)["ACC"], **tile,
            )  # fmt: skip
    elif last is None:
        token.zero_()
    else:
        token.copy_(last)
    return outputs


@_norm.register_fake
def _outputs(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shares: Tensor,
    addend: Tensor | None,
    last: Tensor | None,
    starts: Tensor | None,
    lengths: Tensor | None,
    eps: float,
    out_dtype: torch.dtype,
) -> Mixtures:
    """Outputs before they are computed."""
    batch, _, width = x.shape
    mixtures = [
        torch.empty(x.shape if n < len(shares) else 0, dtype=out_dtype, device=x.device)
        for n in range(MOST_SHARES)
    ]
    return (*mixtures, torch.empty((batch, width), dtype=accumulator(x), device=x.device))


def _given(mixtures: list[Tensor], shares: Tensor) -> list[Tensor | None]:
    """The mixtures, None where there is no share."""
    return [y if n < len(shares) else None for n, y in enumerate(mixtures)]


@operator("shifted_layer_norm_backward")
def _backward(
    d_first: Tensor | None,
    d_second: Tensor | None,
    d_third: Tensor | None,
    d_fourth: Tensor | None,
    d_fifth: Tensor | None,
    d_sixth: Tensor | None,
    d_token: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shares: Tensor,
    addend: Tensor | None,
    last: Tensor | None,
    starts: Tensor | None,
    lengths: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, addend and last (empty without), and sums (E + 2, D).

    The sums are for the shares, weight and bias.
    """
    incoming = [d_first, d_second, d_third, d_fourth, d_fifth, d_sixth][: len(shares)]
    incoming += [None] * (MOST_SHARES - len(shares))
    d_x, d_addend, d_last = _streams(x, addend, last)
    (batch, length, width), tile = x.shape, _backward_tile(x.shape[-1])
    programs, each = share_tiles(ceil_div(batch * length, tile["ROWS"]))
    parts = partial_sums(len(shares) + 2, programs, width, like=x)
    if programs and width:
        x, x_stride = rows_of(x)
        addend, addend_stride = optional_rows(addend)
        with on_device_of(x):
            backward_kernel[(programs,)](
                *dense(*incoming, d_token), x, addend,
                *dense(weight, bias, shares, last, starts, lengths),
                d_x, d_addend, d_last, parts, batch * length, length, each,
                x_stride, addend_stride, COUNT=len(shares), D=width, EPS=eps,
                ACC=types(parts.dtype)["ACC"], **tile,
            )  # fmt: skip
    elif last is not None:
        d_last.copy_(d_token) if d_token is not None else d_last.zero_()
    return d_x, d_addend, d_last, summed(parts)


@_backward.register_fake
def _gradients(
    d_first: Tensor | None,
    d_second: Tensor | None,
    d_third: Tensor | None,
    d_fourth: Tensor | None,
    d_fifth: Tensor | None,
    d_sixth: Tensor | None,
    d_token: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shares: Tensor,
    addend: Tensor | None,
    last: Tensor | None,
    starts: Tensor | None,
    lengths: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients before they are computed."""
    sums = x.new_empty(len(shares) + 2, x.shape[-1], dtype=accumulator(x))
    return *_streams(x, addend, last), sums


def _streams(
    x: Tensor, addend: Tensor | None, last: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, addend and last (empty without) before they are computed."""
    packed = torch.contiguous_format
    d_x, d_addend, d_last = (
        x.new_empty(0) if y is None else torch.empty_like(y, memory_format=packed)
        for y in (x, addend, last)
    )
    return d_x, d_addend, d_last


def _save(ctx: Any, inputs: tuple[Any, ...], output: Mixtures) -> None:
    """What the backward pass needs."""
    *tensors, eps, _ = inputs
    ctx.save_for_backward(*tensors)
    ctx.eps = eps
    ctx.set_materialize_grads(False)


def _norm_gradients(ctx: Any, *incoming: Tensor | None) -> Any:
    """For every argument of _norm."""
    tensors = ctx.saved_tensors
    if all(gradient is None for gradient in incoming):
        return (None,) * (len(tensors) + 2)
    _, weight, bias, shares, addend, last, _, _ = tensors
    d_x, d_addend, d_last, sums = _backward(*incoming, *tensors, ctx.eps)
    parameters = sums[-2].to(weight.dtype), sums[-1].to(bias.dtype), sums[:-2].to(shares.dtype)
    streams = None if addend is None else d_addend, None if last is None else d_last
    return d_x, *parameters, *streams, None, None, None, None


_norm.register_autograd(_norm_gradients, setup_context=_save)


def compile_cases() -> Iterator[Case]:
    """Every tile in both dtypes: six mixtures of the stream alone, one with all that can be."""
    numbers = ("first", "second", "third", "fourth", "fifth", "sixth")
    gradients = tuple(f"d_{name}" for name in numbers)
    exact = ("x", "d_x", "weight", "bias", "shares", "last", "d_last", "token", "d_token", "sums")
    optional = ("addend", "last", "starts", "lengths", "d_token")
    for width, kind, six in product(WIDTHS, ("bf16", "fp32"), (True, False)):
        narrow = (*numbers, *gradients, "addend", "d_addend")
        pointers = dict.fromkeys(narrow, kind) | dict.fromkeys(exact, "fp32")
        pointers |= {"starts": "i1", "lengths": "i64"}
        absent = optional if six else (*numbers[1:], *gradients[1:])
        sizes = {"D": width, "EPS": 1e-5, "ACC": tl.float32, "COUNT": 6 if six else 1}
        sizes |= dict.fromkeys(absent)
        label = f"D={width} {kind} {'six' if six else 'one, continued'}"
        yield compile_case(forward_kernel, pointers, sizes | wide_tile(width), label)
        yield compile_case(backward_kernel, pointers, sizes | _backward_tile(width), label)
