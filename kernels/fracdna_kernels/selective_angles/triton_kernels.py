"""The kernels of selective_angles' Triton form; triton_form.py launches them.

Rows are cut into chunks: the first sweep sums up each chunk, a short one carries the sums from
chunk to chunk, and then all chunks are written at once. Angles are summed in turns and in float64,
their gradients, from the end, in ACC.

T length   H heads   P pairs   CHUNK positions of a chunk   PAIRS the power of two that holds P
t position of a chunk   p pair   chunks of a row   ACC the dtype of all other arithmetic
d_x gradient of x
"""

import triton
import triton.language as tl

from fracdna_kernels.triton_rows import load_tile, store_tile
from fracdna_kernels.triton_support import charge

PI = tl.constexpr(3.141592653589793)
TURN = tl.constexpr(6.283185307179586)


@triton.jit
def _place(chunk, batch, T, CHUNK: tl.constexpr):
    """First row of a chunk, its positions, and which of them exist."""
    t = tl.arange(0, CHUNK)
    return batch.to(tl.int64) * T + chunk * CHUNK, t, chunk * CHUNK + t < T


@triton.jit
def _tanh(speed, first, stride, t, p, inside, ACC: tl.constexpr):
    """tanh of the chunk's speeds and its derivative, exact also where they are small."""
    x = load_tile(speed, first, stride, t, p, inside, ACC)
    charged, kept = charge(2.0 * tl.abs(x))
    whole = 1.0 + kept
    return tl.where(x < 0, -charged, charged) / whole, 4.0 * kept / (whole * whole)


@triton.jit
def _steps(delta, first, stride, t, valid, h, ACC: tl.constexpr):
    """Time steps of one head in a chunk."""
    return tl.load(delta + (first + t) * stride + h, mask=valid, other=0.0).to(ACC)


@triton.jit(do_not_specialize=["T", "chunks"])
def totals_forward(
    delta, speed, totals, T, chunks, delta_stride, speed_stride,
    H: tl.constexpr, P: tl.constexpr, CHUNK: tl.constexpr, PAIRS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Turns of all chunks of a row but the last, which nobody asks for."""
    batch, chunk = tl.program_id(0) // (chunks - 1), tl.program_id(0) % (chunks - 1)
    first, t, valid = _place(chunk, batch, T, CHUNK)
    p = tl.arange(0, PAIRS)
    tanh, _ = _tanh(speed, first, speed_stride, t, p, valid[:, None] & (p < P)[None, :], ACC)
    turns = tanh.to(tl.float64) * 0.5
    totals += (batch.to(tl.int64) * chunks + chunk) * (H * P) + p
    for h in range(H):
        steps = _steps(delta, first, delta_stride, t, valid, h, ACC).to(tl.float64)
        tl.store(totals + h * P, tl.sum(steps[:, None] * turns, axis=0), mask=p < P)


@triton.jit(do_not_specialize=["T", "chunks"])
def totals_backward(
    d_angle, totals, T, chunks,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Sums of the gradients of all chunks of a row but the first; WIDTH heads times pairs."""
    BLOCKS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    column = tl.program_id(0) % BLOCKS * COLUMNS + tl.arange(0, COLUMNS)
    program = tl.program_id(0) // BLOCKS
    batch, chunk = program // (chunks - 1), program % (chunks - 1) + 1
    first, t, valid = _place(chunk, batch, T, CHUNK)
    inside = valid[:, None] & (column < WIDTH)[None, :]
    total = tl.sum(load_tile(d_angle, first, WIDTH, t, column, inside, ACC), axis=0)
    totals += (batch.to(tl.int64) * chunks + chunk) * WIDTH + column
    tl.store(totals, total, mask=column < WIDTH)


@triton.jit(do_not_specialize=["chunks"])
def carry_kernel(
    totals, carried, chunks,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """What the chunks before each one (REVERSE: after it) come to, ROWS chunks at a time."""
    BLOCKS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    column = tl.program_id(0) % BLOCKS * COLUMNS + tl.arange(0, COLUMNS)
    start = (tl.program_id(0) // BLOCKS).to(tl.int64) * chunks
    row = tl.arange(0, ROWS)
    known = tl.zeros([COLUMNS], totals.dtype.element_ty)
    for first in range(0, chunks, ROWS):
        place = first + row  # counted in the direction of the sum
        chunk = chunks - 1 - place if REVERSE else place
        before = chunk + 1 if REVERSE else chunk - 1
        real = (place < chunks)[:, None] & (column < WIDTH)[None, :]
        source = totals + (start + before)[:, None] * WIDTH + column[None, :]
        tile = tl.load(source, mask=real & (place > 0)[:, None], other=0.0)
        target = carried + (start + chunk)[:, None] * WIDTH + column[None, :]
        tl.store(target, known[None, :] + tl.cumsum(tile, axis=0), mask=real)
        known += tl.sum(tile, axis=0)


@triton.jit(do_not_specialize=["T", "chunks"])
def angles_forward(
    delta, speed, start, carried, angle, T, chunks, delta_stride, speed_stride,
    H: tl.constexpr, P: tl.constexpr, CHUNK: tl.constexpr, PAIRS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The angles of a chunk."""
    batch, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    first, t, valid = _place(chunk, batch, T, CHUNK)
    p = tl.arange(0, PAIRS)
    inside = valid[:, None] & (p < P)[None, :]
    tanh, _ = _tanh(speed, first, speed_stride, t, p, inside, ACC)
    turns = tanh.to(tl.float64) * 0.5
    for h in range(H):
        steps = _steps(delta, first, delta_stride, t, valid, h, ACC).to(tl.float64)
        total = tl.cumsum(steps[:, None] * turns, axis=0)
        if carried is not None:
            place = (batch.to(tl.int64) * chunks + chunk) * (H * P) + h * P + p
            total += tl.load(carried + place, mask=p < P, other=0.0)[None, :]
        if start is not None:
            place = batch.to(tl.int64) * (H * P) + h * P + p
            begun = tl.load(start + place, mask=p < P, other=0.0).to(tl.float64)
            total += begun[None, :] * (1.0 / TURN)
        total = (total - tl.floor(total + 0.5)) * TURN
        store_tile(angle + h * P, first, H * P, t, p, inside, total.to(ACC))


@triton.jit(do_not_specialize=["T", "chunks"])
def angles_backward(
    d_angle, delta, speed, carried, d_delta, d_speed, d_start,
    T, chunks, delta_stride, speed_stride,
    H: tl.constexpr, P: tl.constexpr, CHUNK: tl.constexpr, PAIRS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Gradients of a chunk's steps and speeds; the first chunk has that of the start."""
    batch, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    first, t, valid = _place(chunk, batch, T, CHUNK)
    p = tl.arange(0, PAIRS)
    inside = valid[:, None] & (p < P)[None, :]
    tanh, slope = _tanh(speed, first, speed_stride, t, p, inside, ACC)
    d_tanh = tl.zeros([CHUNK, PAIRS], ACC)
    for h in range(H):
        grad = load_tile(d_angle + h * P, first, H * P, t, p, inside, ACC)
        later = tl.zeros([PAIRS], ACC)
        if carried is not None:
            place = (batch.to(tl.int64) * chunks + chunk) * (H * P) + h * P + p
            later = tl.load(carried + place, mask=p < P, other=0.0)
        if d_start is not None:
            place = batch.to(tl.int64) * (H * P) + h * P + p
            whole = (tl.sum(grad, axis=0) + later).to(d_start.dtype.element_ty)
            tl.store(d_start + place, whole, mask=(p < P) & (chunk == 0))
        grad = (tl.cumsum(grad, axis=0, reverse=True) + later[None, :]) * PI
        steps = _steps(delta, first, delta_stride, t, valid, h, ACC)
        d_tanh += grad * steps[:, None]
        tl.store(d_delta + (first + t) * H + h, tl.sum(grad * tanh, axis=1), mask=valid)
    store_tile(d_speed, first, P, t, p, inside, d_tanh * slope)
