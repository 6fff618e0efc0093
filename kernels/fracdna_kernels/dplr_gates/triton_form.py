"""dplr_gates in one kernel each way, registered as operators of PyTorch.

Only the inputs are saved for the backward pass, which computes everything again.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.dplr_gates.triton_kernels import gates_backward, gates_forward
from fracdna_kernels.forms import accumulator
from fracdna_kernels.registration import operator
from fracdna_kernels.triton_rows import (
    looped_tile,
    optional_rows,
    partial_sums,
    share_tiles,
    summed,
    wide_tile,
)
from fracdna_kernels.triton_support import ceil_div, dense, on_device_of, types


def dplr_gates_triton(
    k: Tensor,
    v: Tensor,
    rate_logits: Tensor,
    decay_logits: Tensor,
    removal_scale: Tensor,
    rate_scale: Tensor,
    decay_bias: Tensor | None,
    first_values: Tensor | None,
    share_logits: Tensor | None,
    lengths: Tensor | None,
    head_width: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See dplr_gates for shapes and meaning; outputs are (B, T, D)."""
    keys, values, a, b, g = _gates(
        k, v, rate_logits, decay_logits, removal_scale, rate_scale, decay_bias, first_values,
        share_logits, lengths, head_width,
    )  # fmt: skip
    # an operator must not return its input: without first values v goes round it
    return keys, v if first_values is None else values, a, b, g


def _constants(k: Tensor, head_width: int) -> dict[str, Any]:
    """What both kernels are compiled for."""
    heads = k.shape[-1] // head_width
    return {"HEADS": heads, "SIZE": head_width, "ACC": types(accumulator(k))["ACC"]}


def _placed(streams: tuple[Tensor | None, ...]) -> tuple[list[Tensor | None], list[int]]:
    """What belongs to positions as rows of those, and the strides between them."""
    rows, strides = zip(*map(optional_rows, streams), strict=True)
    return [*rows], [*strides]


@operator("dplr_gates")
def _gates(
    k: Tensor,
    v: Tensor,
    rate_logits: Tensor,
    decay_logits: Tensor,
    removal_scale: Tensor,
    rate_scale: Tensor,
    decay_bias: Tensor | None,
    first_values: Tensor | None,
    share_logits: Tensor | None,
    lengths: Tensor | None,
    head_width: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """keys, values (empty without first values), a, b and g."""
    outputs = _outputs(
        k, v, rate_logits, decay_logits, removal_scale, rate_scale, decay_bias, first_values,
        share_logits, lengths, head_width,
    )  # fmt: skip
    tile, constants = wide_tile(head_width), _constants(k, head_width)
    batch, length, _ = k.shape
    programs = ceil_div(batch * length, tile["ROWS"]) * constants["HEADS"]
    if programs:
        streams = (k, v, rate_logits, decay_logits, first_values, share_logits)
        rows, strides = _placed(streams)
        with on_device_of(k):
            gates_forward[(programs,)](
                *rows, *dense(removal_scale, rate_scale, decay_bias, lengths), *outputs,
                batch * length, length, *strides, **constants, **tile,
            )  # fmt: skip
    return outputs


@_gates.register_fake
def _outputs(
    k: Tensor,
    v: Tensor,
    rate_logits: Tensor,
    decay_logits: Tensor,
    removal_scale: Tensor,
    rate_scale: Tensor,
    decay_bias: Tensor | None,
    first_values: Tensor | None,
    share_logits: Tensor | None,
    lengths: Tensor | None,
    head_width: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Outputs before they are computed."""
    keys, a, b = (torch.empty_like(k, memory_format=torch.contiguous_format) for _ in range(3))
    values = v.new_empty(v.shape if first_values is not None else 0)
    return keys, values, a, b, torch.empty_like(keys, dtype=accumulator(k))


@operator("dplr_gates_backward")
def _backward(
    d_keys: Tensor,
    d_values: Tensor,
    d_a: Tensor,
    d_b: Tensor,
    d_g: Tensor,
    k: Tensor,
    v: Tensor,
    rate_logits: Tensor,
    decay_logits: Tensor,
    removal_scale: Tensor,
    rate_scale: Tensor,
    decay_bias: Tensor | None,
    first_values: Tensor | None,
    share_logits: Tensor | None,
    lengths: Tensor | None,
    head_width: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of k, v, both logits, first values and their share, and sums (2 or 3, D).

    Without first values those of v, of theirs and of the share are empty.
    """
    streams = (k, v, rate_logits, decay_logits, first_values, share_logits)
    gradients = _streams(*streams)
    tile, constants = looped_tile(head_width), _constants(k, head_width)
    (batch, length, width), heads = k.shape, constants["HEADS"]
    programs, each = share_tiles(ceil_div(batch * length, tile["ROWS"]), heads)
    parts = partial_sums(3 - (decay_bias is None), programs, width, like=k)
    if programs:
        rows, strides = _placed(streams)
        with on_device_of(k):
            gates_backward[(programs * heads,)](
                *dense(d_keys, d_values, d_a, d_b, d_g), *rows,
                *dense(removal_scale, rate_scale, decay_bias, lengths), *gradients, parts,
                batch * length, length, each, *strides, **constants, **tile,
            )  # fmt: skip
    return (*gradients, summed(parts))


@_backward.register_fake
def _gradients(
    d_keys: Tensor,
    d_values: Tensor,
    d_a: Tensor,
    d_b: Tensor,
    d_g: Tensor,
    k: Tensor,
    v: Tensor,
    rate_logits: Tensor,
    decay_logits: Tensor,
    removal_scale: Tensor,
    rate_scale: Tensor,
    decay_bias: Tensor | None,
    first_values: Tensor | None,
    share_logits: Tensor | None,
    lengths: Tensor | None,
    head_width: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients before they are computed."""
    sums = k.new_empty(3 - (decay_bias is None), k.shape[-1], dtype=accumulator(k))
    return (*_streams(k, v, rate_logits, decay_logits, first_values, share_logits), sums)


def _streams(
    k: Tensor, v: Tensor, rate: Tensor, decay: Tensor, first: Tensor | None, share: Tensor | None
) -> list[Tensor]:
    """Gradients of what belongs to positions before they are computed."""
    wanted = (k, None if first is None else v, rate, decay, first, share)
    packed = torch.contiguous_format
    return [
        k.new_empty(0) if x is None else torch.empty_like(x, memory_format=packed) for x in wanted
    ]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """What the backward pass needs."""
    *tensors, head_width = inputs
    ctx.save_for_backward(*tensors)
    ctx.head_width = head_width


def _gates_gradients(ctx: Any, *incoming: Tensor) -> Any:
    """For every argument of _gates."""
    tensors = ctx.saved_tensors
    removal_scale, rate_scale, decay_bias, first_values = tensors[4:8]
    *streams, sums = _backward(*incoming, *tensors, ctx.head_width)
    d_k, d_v, d_rate, d_decay, d_first, d_share = streams
    mixed = (None,) * 3 if first_values is None else (d_v, d_first, d_share)
    d_bias = None if decay_bias is None else sums[2].to(decay_bias.dtype)
    scales = sums[0].to(removal_scale.dtype), sums[1].to(rate_scale.dtype)
    return d_k, mixed[0], d_rate, d_decay, *scales, d_bias, *mixed[1:], None, None


_gates.register_autograd(_gates_gradients, setup_context=_save)


def compile_cases() -> Iterator[Case]:
    """Heads of common widths and one that leaves some of its tile empty, in both dtypes."""
    streams = ("k", "v", "first_values", "share_logits", "rate_logits", "keys", "values", "a", "b")
    streams += tuple(f"d_{name}" for name in ("k", "v", "first", "share", "rate", *streams[5:]))
    exact = ("decay_logits", "g", "d_g", "d_decay", "removal_scale", "rate_scale", "decay_bias")
    optional = ("first_values", "share_logits", "decay_bias")
    for width, kind, bare in product((16, 64, 80, 128, 256), ("bf16", "fp32"), (True, False)):
        pointers = dict.fromkeys(streams, kind) | dict.fromkeys((*exact, "d_parameters"), "fp32")
        pointers["lengths"] = "i64"
        constants = {"HEADS": 4, "SIZE": width, "ACC": tl.float32}
        # training has no pads, and the first layer no values before its own
        constants |= dict.fromkeys(("lengths",) if not bare else optional)
        label = f"P={width} {kind}{' bare, with pads' if bare else ''}"
        yield compile_case(gates_forward, pointers, constants | wide_tile(width), label)
        yield compile_case(gates_backward, pointers, constants | looped_tile(width), label)
