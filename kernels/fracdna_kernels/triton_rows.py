"""Kernels that treat every position alone: tensors as rows, tiles of rows, sums over all rows.

A gradient that sums over rows is summed tile by tile in each program, written to the program's row
of a float32 buffer and added up in a fixed order: results do not depend on timing.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from fracdna_kernels.forms import accumulator
from fracdna_kernels.triton_support import ceil_div, on_device_of, padded_size

PROGRAMS = 1024  # at most, where each leaves a row of partial sums: their traffic stays under 3 %


def rows_of(x: Tensor) -> tuple[Tensor, int]:
    """Memory with the rows of (..., D), whose channels are adjacent, and the step between rows.

    A copy only where strides leave no choice.
    """
    if x.is_contiguous():
        return x, x.shape[-1]
    rows = x.flatten(0, -2)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    return rows, rows.stride(0)


def optional_rows(x: Tensor | None) -> tuple[Tensor | None, int]:
    """As rows_of, of a tensor that may be missing."""
    return (None, 0) if x is None else rows_of(x)


@cache
def wide_tile(width: int) -> dict[str, int]:
    """A tile of rows that a program takes at once: 8 to 16 elements a thread, all loads in flight.

    With 16 elements of long rows the assembler spills to fit one more program.
    """
    padded = padded_size(width)
    return {
        "ROWS": max(1, 4096 // padded),
        "WIDTH": padded,
        "num_warps": 8 if padded < 1024 else 16,
    }


@cache
def looped_tile(width: int) -> dict[str, int]:
    """A tile of a loop that sums in registers: 8 elements a thread, the next tiles on the way.

    The tiles on their way lie in shared memory, which is too small for those of long rows.
    """
    padded = padded_size(width)
    return {
        "ROWS": max(1, 1024 // padded),
        "WIDTH": padded,
        "STAGES": 3 if padded <= 2048 else 1,
        "num_warps": min(16, max(4, padded // 256)),
    }


def share_tiles(tiles: int, columns: int = 1) -> tuple[int, int]:
    """Programs of each column of tiles, and the consecutive tiles that each of them takes."""
    each = ceil_div(tiles, max(1, PROGRAMS // columns))
    return (ceil_div(tiles, each), each) if tiles else (0, 0)


def partial_sums(*shape: int, like: Tensor) -> Tensor:
    """A buffer for what programs sum up, in the dtype of sums."""
    exact = accumulator(like)
    return torch.empty(shape, dtype=exact, device=like.device)


@triton.jit(do_not_specialize=["count", "width"])
def sum_kernel(parts, sums, count, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums of ROWS rows, of COLUMNS columns of one group."""
    columns, blocks = tl.cdiv(width, COLUMNS), tl.cdiv(count, ROWS)
    column = tl.program_id(0) % columns * COLUMNS + tl.arange(0, COLUMNS)
    block = tl.program_id(0) // columns  # of all groups
    first = block % blocks * ROWS
    row = first + tl.arange(0, ROWS)
    parts += (block // blocks).to(tl.int64) * count * width
    mask = (row < count)[:, None] & (column < width)[None, :]
    tile = tl.load(parts + row[:, None] * width + column[None, :], mask=mask, other=0.0)
    tl.store(sums + block * width + column, tl.sum(tile, axis=0), mask=column < width)


def summed(parts: Tensor) -> Tensor:
    """Sums of partial sums over the second axis, in a fixed order.

    Twice as fast as PyTorch's own for a thousand rows of a few hundred columns: many programs sum
    few rows each, until one row is left.

    Args:
        parts: (groups, programs, width), dense.

    Returns:
        (groups, width).
    """
    groups, count, width = parts.shape
    if 0 in parts.shape:
        return parts.new_zeros(groups, width)
    while count > 1:
        tile = sum_tile(count, width)
        blocks = ceil_div(count, tile["ROWS"])
        sums = parts.new_empty(groups, blocks, width)
        with on_device_of(parts):
            sum_kernel[(groups * blocks * ceil_div(width, tile["COLUMNS"]),)](
                parts, sums, count, width, **tile
            )
        parts, count = sums, blocks
    return parts[:, 0]


@cache
def sum_tile(count: int, width: int) -> dict[str, int]:
    """Full lines of memory, all of a program's rows in flight at once."""
    return {
        "ROWS": min(64, padded_size(count)),
        "COLUMNS": min(64, padded_size(width)),
        "num_warps": 4,
    }


@triton.jit
def load_tile(pointer, first, stride, row, column, inside, ACC: tl.constexpr):
    """ROWS x WIDTH elements from row `first` on, zero outside; 64-bit base, 32-bit offsets."""
    base = pointer + first.to(tl.int64) * stride
    return tl.load(base + row[:, None] * stride + column[None, :], mask=inside, other=0.0).to(ACC)


@triton.jit
def store_tile(pointer, first, stride, row, column, inside, x):
    """The counterpart of load_tile."""
    base = pointer + first.to(tl.int64) * stride
    tl.store(base + row[:, None] * stride + column[None, :], x, mask=inside)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), 0 where the exponential overflows."""
    return 1.0 / (1.0 + tl.exp(-x))
