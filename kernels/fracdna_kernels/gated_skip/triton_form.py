"""gated_skip in one kernel each way, registered as operators of PyTorch.

Only the inputs are saved for the backward pass, which computes the rest again.
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
from fracdna_kernels.gated_skip.triton_kernels import skip_backward, skip_forward
from fracdna_kernels.registration import operator
from fracdna_kernels.triton_rows import partial_sums, rows_of, summed
from fracdna_kernels.triton_support import ceil_div, dense, on_device_of, padded_size, types

ELEMENTS = 4096  # of a tile without ranks, 16 for each of 256 threads; with them half as many


def gated_skip_triton(
    x: Tensor,
    values: Tensor,
    factor: Tensor,
    gate: Tensor,
    gate_mix: Tensor | None,
    output_mix: Tensor | None,
) -> Tensor:
    """See gated_skip for shapes and meaning."""
    return _skip(x, values, factor, gate, gate_mix, output_mix)


@cache
def _sized(rank: int, heads: int, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """What both kernels are compiled for."""
    padded_heads, padded_width = padded_size(heads), padded_size(width)
    elements = ELEMENTS if rank == 1 else ELEMENTS // 2
    return {
        "H": heads,
        "R": rank,
        "V": width,
        "POSITIONS": max(1, elements // (padded_heads * padded_width)),
        "HEADS": padded_heads,
        "WIDTH": padded_width,
        "ACC": types(dtype)["ACC"],
        "num_warps": 8 if padded_heads * padded_width <= elements else 16,
    }


def _launch(x: Tensor) -> tuple[int, int, dict[str, Any]]:
    """Programs, positions, and what both kernels are compiled for."""
    batch, length, *sizes = x.shape
    constants = _sized(*sizes, x.dtype)
    count = batch * length
    return ceil_div(count, constants["POSITIONS"]), count, constants


@operator("gated_skip")
def _skip(
    x: Tensor,
    values: Tensor,
    factor: Tensor,
    gate: Tensor,
    gate_mix: Tensor | None,
    output_mix: Tensor | None,
) -> Tensor:
    """The output."""
    output = _outputs(x, values, factor, gate, gate_mix, output_mix)
    programs, count, constants = _launch(x)
    if programs:
        gate, gate_stride = rows_of(gate)
        with on_device_of(x):
            skip_forward[(programs,)](
                *dense(x, values, factor), gate, *dense(gate_mix, output_mix), output,
                count, gate_stride, **constants,
            )  # fmt: skip
    return output


@_skip.register_fake
def _outputs(
    x: Tensor,
    values: Tensor,
    factor: Tensor,
    gate: Tensor,
    gate_mix: Tensor | None,
    output_mix: Tensor | None,
) -> Tensor:
    """The output before it is computed."""
    return torch.empty_like(gate, dtype=x.dtype, memory_format=torch.contiguous_format)


@operator("gated_skip_backward")
def _backward(
    d_output: Tensor,
    x: Tensor,
    values: Tensor,
    factor: Tensor,
    gate: Tensor,
    gate_mix: Tensor | None,
    output_mix: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, values, factor and gate, and sums (2, H R V) for the mixes (0 without)."""
    gradients = _streams(x, values, factor, gate)
    programs, count, constants = _launch(x)
    mixed = gate_mix is not None
    parts = partial_sums(2 * mixed, programs, _width(x), like=x)
    if programs:
        gate, gate_stride = rows_of(gate)
        with on_device_of(x):
            skip_backward[(programs,)](
                *dense(d_output, x, values, factor), gate, *dense(gate_mix, output_mix),
                *gradients, parts if mixed else None, count, gate_stride, **constants,
            )  # fmt: skip
    return (*gradients, summed(parts))


@_backward.register_fake
def _gradients(
    d_output: Tensor,
    x: Tensor,
    values: Tensor,
    factor: Tensor,
    gate: Tensor,
    gate_mix: Tensor | None,
    output_mix: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients before they are computed."""
    sums = x.new_empty(0 if gate_mix is None else 2, _width(x), dtype=accumulator(x))
    return *_streams(x, values, factor, gate), sums


def _width(x: Tensor) -> int:
    """Elements of a mix."""
    return x.shape[2] * x.shape[3] * x.shape[4]


def _streams(*inputs: Tensor) -> list[Tensor]:
    """Gradients of what belongs to positions before they are computed."""
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """What the backward pass needs."""
    ctx.save_for_backward(*inputs)


def _skip_gradients(ctx: Any, d_output: Tensor) -> Any:
    """For every argument of _skip."""
    *gradients, sums = _backward(d_output, *ctx.saved_tensors)
    mixes = ctx.saved_tensors[4:]
    if mixes[0] is None:
        return *gradients, None, None
    found = (y.view_as(mix).to(mix.dtype) for y, mix in zip(sums, mixes, strict=True))
    return *gradients, *found


_skip.register_autograd(_skip_gradients, setup_context=_save)


def compile_cases() -> Iterator[Case]:
    """Few and many heads, wide and narrow ones, alone and with ranks and mixes, in both dtypes."""
    streams = ("x", "values", "gate", "output")
    streams += tuple(f"d_{name}" for name in streams)
    exact = ("factor", "gate_mix", "output_mix", "d_factor", "d_mixes")
    shapes = ((8, 64), (16, 64), (3, 24), (4, 256), (16, 256))
    for (heads, width), rank, kind in product(shapes, (1, 4), ("bf16", "fp32")):
        pointers = dict.fromkeys(streams, kind) | dict.fromkeys(exact, "fp32")
        constants = _sized(rank, heads, width, torch.float32) | {"ACC": tl.float32}
        if rank == 1:
            constants |= dict.fromkeys(("gate_mix", "output_mix", "d_mixes"))
        for kernel in (skip_forward, skip_backward):
            label = f"{heads} heads rank {rank} width {width} {kind}"
            yield compile_case(kernel, pointers, constants, label)
