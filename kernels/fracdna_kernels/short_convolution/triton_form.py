"""short_convolution as one kernel each way; only its inputs are kept for the backward."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.forms import accumulator
from fracdna_kernels.registration import operator
from fracdna_kernels.short_convolution.reference import MOST_READERS
from fracdna_kernels.short_convolution.triton_kernels import (
    convolution_backward,
    convolution_forward,
)
from fracdna_kernels.triton_rows import partial_sums, summed
from fracdna_kernels.triton_support import (
    INTERPRETED,
    ceil_div,
    on_device_of,
    padded_size,
    types,
)

_CHANNELS = 256  # of a program: 512 bytes of a row in bfloat16
_FORWARD_ROWS = 16  # of a program, which reads W - 1 more
# loaded at once, by whether the gradient of the output has parts; a program goes on through many
_BACKWARD_ROWS = {False: 4, True: 2}
# a thread of the backward keeps what two windows of 4 channels need without spills; an H200 then
# holds so many programs at once, and a single wave of them leaves the fewest partial sums
_REGISTERS = 128
_SLOTS = 1024


def short_convolution_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: str | None,
    readers: int,
) -> tuple[Tensor, ...]:
    """`readers` times the output, and the last inputs; see short_convolution for shapes."""
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.clamp(0, x.shape[1])  # a device cannot refuse wrong ones
    inputs = (x, weight, bias, initial_state, cu_seqlens, activation == "silu")
    if readers > 1 and torch.is_grad_enabled():
        return _ReadOften.apply(readers, *inputs)
    y, final = _forward(*inputs)
    return *(y,) * readers, final


@operator("short_convolution")
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    """The output and the last inputs of every sequence."""
    y, final = _outputs(x, weight, bias, initial_state, cu_seqlens, silu)
    T, D = x.shape[1:]
    x, constants = _rows(x), _constants(x, weight, silu)
    rows = 1 if T == 1 else _FORWARD_ROWS
    programs = _programs(x, cu_seqlens, rows) * ceil_div(D, constants["BD"])
    if programs:
        with on_device_of(x):
            convolution_forward[(programs,)](
                x, weight.contiguous(), *_plain(bias, initial_state, cu_seqlens), y, final,
                T, len(final), x.stride(0), x.stride(1), D,
                ROWS=rows, **constants, num_warps=1 if x.dtype == torch.bfloat16 else 2,
            )  # fmt: skip
    return y, final


@_forward.register_fake
def _outputs(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    """Uninitialised results of the forward."""
    shape = (_sequences(x, cu_seqlens), x.shape[2], weight.shape[1] - 1)
    final = torch.empty(shape, dtype=accumulator(x), device=x.device)
    return torch.empty_like(x, memory_format=torch.contiguous_format), final


@operator("short_convolution_backward")
def _backward(
    dy: Tensor | None,
    dy_second: Tensor | None,
    dy_third: Tensor | None,
    dfinal: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, weight, bias and initial_state; empty for an input that is None.

    That of the output is the sum of the first three.
    """
    dx, dweight, dbias, dstate = _gradients(
        dy, dy_second, dy_third, dfinal, x, weight, bias, initial_state, cu_seqlens, silu
    )
    T, D = x.shape[1:]
    x, dys = _rows(x), _alike(torch.zeros_like(x) if dy is None else dy, dy_second, dy_third)
    constants = _constants(x, weight, silu)
    columns = ceil_div(D, constants["BD"])
    at_once = _BACKWARD_ROWS[dys[1] is not None]
    tiles = _tiles(ceil_div(T, at_once), len(x) * columns)
    programs = _programs(x, cu_seqlens, tiles * at_once)
    W = weight.shape[1]
    sums = partial_sums(1, programs, (W + 1) * D, like=x)
    if programs * columns:
        with on_device_of(x):
            convolution_backward[(programs * columns,)](
                *dys, *_plain(dfinal), x,
                weight.contiguous(), *_plain(bias, initial_state, cu_seqlens),
                dx, sums, None if initial_state is None else dstate,
                T, _sequences(x, cu_seqlens), tiles,
                *dys[0].stride()[:2], *x.stride()[:2], D,
                ROWS=at_once, **constants, num_warps=2, maxnreg=_REGISTERS,
            )  # fmt: skip
    sums = summed(sums).view(W + 1, D)
    dweight = sums[:W].T.to(dweight.dtype, memory_format=torch.contiguous_format, copy=True)
    return dx, dweight, dbias if bias is None else sums[W].to(dbias.dtype, copy=True), dstate


@_backward.register_fake
def _gradients(
    dy: Tensor | None,
    dy_second: Tensor | None,
    dy_third: Tensor | None,
    dfinal: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Uninitialised results of the backward."""
    dx, dweight, dbias, dstate = (
        x.new_empty(0)
        if tensor is None
        else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor in (x, weight, bias, initial_state)
    )
    return dx, dweight, dbias, dstate


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keep the inputs; a result that no loss looks at gets no gradient of zeros."""
    ctx.save_for_backward(*inputs[:-1])
    ctx.silu = inputs[-1]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dy: Tensor | None, dfinal: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients in the order of the inputs."""
    if dy is None and dfinal is None:
        return (None,) * 6
    return _of_inputs(ctx, (dy, None, None), dfinal)


_forward.register_autograd(_differentiate, setup_context=_keep)


def _of_inputs(
    ctx: Any, dys: tuple[Tensor | None, ...], dfinal: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients in the order of the inputs, from those of up to three readers of the output."""
    inputs = ctx.saved_tensors
    gradients = _backward(*dys, dfinal, *inputs, ctx.silu)
    pairs = zip(inputs, gradients, strict=False)  # bounds have none
    return *(None if x is None else gradient for x, gradient in pairs), None, None


class _ReadOften(torch.autograd.Function):
    """The output once for each reader: an operator must not return a tensor twice."""

    @staticmethod
    def forward(ctx: Any, readers: int, *inputs: Any) -> tuple[Tensor, ...]:
        y, final = _forward(*inputs)
        _keep(ctx, inputs, (y, final))
        return y, *(y.view_as(y) for _ in range(readers - 1)), final

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        *dys, dfinal = gradients
        dys = [dy for dy in dys if dy is not None]
        if not dys and dfinal is None:
            return (None,) * 7
        return None, *_of_inputs(ctx, (*dys, *[None] * (MOST_READERS - len(dys))), dfinal)


def _sequences(x: Tensor, cu_seqlens: Tensor | None) -> int:
    """N."""
    return x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def _programs(x: Tensor, cu_seqlens: Tensor | None, span: int) -> int:
    """Programs that have a place in every batch of these sizes; see the kernels' _place."""
    B, T = x.shape[:2]
    if cu_seqlens is None:
        return B * max(ceil_div(T, span), 1)
    return T // span + _sequences(x, cu_seqlens) + 2


def _tiles(count: int, rows: int) -> int:
    """Of `count` tiles of a row, those of one program: one full wave of programs, or about four."""
    rows = max(rows, 1)
    spans = _SLOTS // rows
    if 4 * spans * rows < 3 * _SLOTS:
        spans = ceil_div(4 * _SLOTS, rows)
    return max(ceil_div(count, spans), 1)


def _alike(*dys: Tensor | None) -> list[Tensor | None]:
    """The tensors with equal strides and neighbouring channels."""
    strides = {dy.stride() for dy in dys if dy is not None}
    return list(dys) if len(strides) == 1 and dys[0].stride(-1) == 1 else _plain(*dys)


def _rows(x: Tensor) -> Tensor:
    """x itself where channels are neighbours in memory; positions and rows may lie anywhere."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _plain(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors in the order of memory."""
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def _constants(x: Tensor, weight: Tensor, silu: bool) -> dict[str, Any]:
    """What both kernels are compiled with."""
    W = weight.shape[1]
    return {
        "W": W,
        "WP": padded_size(W),
        "SILU": silu,
        "BD": min(_CHANNELS, padded_size(max(x.shape[2], 1))),
        "ACC": types(x.dtype)["ACC"],
        "INTERPRETED": INTERPRETED,
    }


def compile_cases() -> Iterator[Case]:
    """Filters of 2 to 4 taps on few and many channels, one position and many, in both dtypes."""
    exact = ("weight", "bias", "state", "final", "dfinal", "sums", "dstate")
    stateful = ("state", "bounds", "dstate", "dfinal")
    for W, channels, kind, bare in product((2, 3, 4), (64, 256), ("bf16", "fp32"), (True, False)):
        streams = ("x", "y", "dy", "dy_second", "dy_third", "dx")
        pointers = dict.fromkeys(streams, kind) | dict.fromkeys(exact, "fp32")
        pointers["bounds"] = "i64"
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        x = torch.empty(1, 1, channels, dtype=dtype, device="meta")
        constants = _constants(x, x.new_empty(channels, W), bare)
        constants |= {"INTERPRETED": False, "ACC": tl.float32}
        constants |= dict.fromkeys(stateful if bare else ("dy_second", "dy_third"))
        aligned = ("x_batch", "x_row", "dy_batch", "dy_row", "D")
        label = f"W={W} D={channels} {kind}{'' if bare else ' packed, with states, read once'}"
        for rows in (_FORWARD_ROWS, 1):
            launched = constants | {"ROWS": rows, "num_warps": 1 if kind == "bf16" else 2}
            yield compile_case(
                convolution_forward, pointers, launched, f"{label} {rows} rows", divisible=aligned
            )
        launched = constants | {"ROWS": _BACKWARD_ROWS[bare], "num_warps": 2}
        yield compile_case(
            convolution_backward, pointers, launched, label, divisible=aligned, maxnreg=_REGISTERS
        )
