"""selective_angles in three kernels each way, registered as operators of PyTorch.

Only the inputs are saved for the backward pass, of which the angles themselves are no part.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.forms import accumulator
from fracdna_kernels.registration import operator
from fracdna_kernels.selective_angles.triton_kernels import (
    angles_backward,
    angles_forward,
    carry_kernel,
    totals_backward,
    totals_forward,
)
from fracdna_kernels.triton_rows import rows_of
from fracdna_kernels.triton_support import ceil_div, dense, on_device_of, padded_size, types

ELEMENTS = 2048  # of a tile of positions and pairs: 16 for each of 128 threads, in float64
LONGEST = 64  # positions of a chunk
COLUMNS = 64  # of what is summed whatever it belongs to
CARRIED = 32  # chunks that the sums are carried over at a time


def selective_angles_triton(delta: Tensor, speed: Tensor, start: Tensor | None) -> Tensor:
    """See selective_angles for shapes and meaning."""
    return _angles(delta, speed, start)


@cache
def _sized(heads: int, pairs: int, dtype: torch.dtype) -> dict[str, Any]:
    """What the kernels are compiled for."""
    padded = padded_size(pairs)
    chunk = min(LONGEST, max(16, ELEMENTS // padded))
    return {
        "H": heads,
        "P": pairs,
        "WIDTH": heads * pairs,
        "CHUNK": chunk,
        "PAIRS": padded,
        "COLUMNS": min(COLUMNS, padded_size(heads * pairs)),
        "ROWS": CARRIED,
        "ACC": types(dtype)["ACC"],
        "num_warps": 4 if chunk * padded <= ELEMENTS else 8,
    }


def _chosen(sizes: dict[str, Any], *names: str) -> dict[str, Any]:
    """Those of the sizes that a kernel knows, and its warps."""
    return {name: sizes[name] for name in (*names, "num_warps")}


def _carried(totals: Tensor, sizes: dict[str, Any], *, reverse: bool) -> Tensor:
    """Sums over the chunks before (or after) each one."""
    carried = torch.empty_like(totals)
    blocks = ceil_div(sizes["WIDTH"], sizes["COLUMNS"])
    carry_kernel[(totals.shape[0] * blocks,)](
        totals, carried, totals.shape[1], REVERSE=reverse,
        **_chosen(sizes, "WIDTH", "ROWS", "COLUMNS"),
    )  # fmt: skip
    return carried


@operator("selective_angles")
def _angles(delta: Tensor, speed: Tensor, start: Tensor | None) -> Tensor:
    """The angles."""
    angle = _outputs(delta, speed, start)
    batch, length, heads, pairs = angle.shape
    if not angle.numel():
        return angle
    sizes = _sized(heads, pairs, delta.dtype)
    chunks = ceil_div(length, sizes["CHUNK"])
    own = _chosen(sizes, "H", "P", "CHUNK", "PAIRS", "ACC")
    (delta, *strides), (speed, speed_stride) = rows_of(delta), rows_of(speed)
    strides.append(speed_stride)
    (start,) = dense(start)
    carried = None
    with on_device_of(delta):
        if chunks > 1:
            totals = angle.new_empty(batch, chunks, heads, pairs, dtype=torch.float64)
            totals_forward[(batch * (chunks - 1),)](
                delta, speed, totals, length, chunks, *strides, **own
            )
            carried = _carried(totals, sizes, reverse=False)
        angles_forward[(batch * chunks,)](
            delta, speed, start, carried, angle, length, chunks, *strides, **own
        )
    return angle


@_angles.register_fake
def _outputs(delta: Tensor, speed: Tensor, start: Tensor | None) -> Tensor:
    """Angles before they are computed."""
    return delta.new_empty(*delta.shape, speed.shape[-1])


@operator("selective_angles_backward")
def _backward(
    d_angle: Tensor, delta: Tensor, speed: Tensor, start: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of delta, speed and start (empty without)."""
    gradients = _gradients(d_angle, delta, speed, start)
    batch, length, heads, pairs = d_angle.shape
    if not d_angle.numel():
        return tuple(x.zero_() for x in gradients)
    sizes = _sized(heads, pairs, delta.dtype)
    chunks = ceil_div(length, sizes["CHUNK"])
    (delta, *strides), (speed, speed_stride) = rows_of(delta), rows_of(speed)
    strides.append(speed_stride)
    d_angle = d_angle.contiguous()
    carried = None
    with on_device_of(delta):
        if chunks > 1:
            totals = d_angle.new_empty(batch, chunks, heads, pairs, dtype=accumulator(d_angle))
            blocks = ceil_div(sizes["WIDTH"], sizes["COLUMNS"])
            totals_backward[(batch * (chunks - 1) * blocks,)](
                d_angle, totals, length, chunks,
                **_chosen(sizes, "WIDTH", "CHUNK", "COLUMNS", "ACC"),
            )  # fmt: skip
            carried = _carried(totals, sizes, reverse=True)
        d_delta, d_speed, d_start = gradients
        angles_backward[(batch * chunks,)](
            d_angle, delta, speed, carried, d_delta, d_speed, None if start is None else d_start,
            length, chunks, *strides, **_chosen(sizes, "H", "P", "CHUNK", "PAIRS", "ACC"),
        )  # fmt: skip
    return gradients


@_backward.register_fake
def _gradients(
    d_angle: Tensor, delta: Tensor, speed: Tensor, start: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients before they are computed."""
    d_delta, d_speed = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (delta, speed)
    )
    if start is None:
        return d_delta, d_speed, delta.new_empty(0)
    return d_delta, d_speed, torch.empty_like(start, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """What the backward pass needs."""
    ctx.save_for_backward(*inputs)


def _angle_gradients(ctx: Any, d_angle: Tensor) -> Any:
    """For every argument of _angles."""
    delta, speed, start = ctx.saved_tensors
    d_delta, d_speed, d_start = _backward(d_angle, delta, speed, start)
    return d_delta, d_speed, None if start is None else d_start


_angles.register_autograd(_angle_gradients, setup_context=_save)


def compile_cases() -> Iterator[Case]:
    """Few and many heads and pairs, with a start and carried sums and without."""
    names = ("delta", "speed", "start", "angle", "d_angle", "d_delta", "d_speed", "d_start")
    for (heads, pairs), whole in product(((8, 32), (4, 6), (16, 64), (2, 256)), (True, False)):
        sizes = _sized(heads, pairs, torch.float32) | {"ACC": tl.float32}
        label = f"{heads} heads {pairs} pairs{' from a start' if whole else ''}"
        pointers = dict.fromkeys(names, "fp32")
        absent = {} if whole else dict.fromkeys(("start", "carried", "d_start"))
        for kernel, kind in ((angles_forward, "fp64"), (angles_backward, "fp32")):
            yield compile_case(kernel, pointers | {"carried": kind}, sizes | absent, label)
        if whole:
            for kernel, kind in ((totals_forward, "fp64"), (totals_backward, "fp32")):
                sums = dict.fromkeys(("totals", "carried"), kind)
                yield compile_case(kernel, pointers | sums, sizes, label)
                reverse = sizes | {"REVERSE": kind == "fp32"}
                yield compile_case(carry_kernel, sums, reverse, f"{label} {kind}")
