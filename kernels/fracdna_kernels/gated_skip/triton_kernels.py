"""The kernels of gated_skip's Triton form; triton_form.py launches them.

A program takes all heads of POSITIONS positions; a row is a position and a head.

H heads   R rank   V value width   HEADS and WIDTH the powers of two that hold H and V
r, s ranks   z gate of a rank before its activation   ACC the dtype of all arithmetic
d_x gradient of x
"""

import triton
import triton.language as tl

from fracdna_kernels.triton_rows import sigmoid


@triton.jit
def _rows(
    count, H: tl.constexpr, V: tl.constexpr,
    POSITIONS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Positions and heads of the program's rows, their channels, which rows and channels exist."""
    row = tl.arange(0, POSITIONS * HEADS)
    position = tl.program_id(0).to(tl.int64) * POSITIONS + row // HEADS
    head = row % HEADS
    column = tl.arange(0, WIDTH)
    valid = (position < count) & (head < H)
    return position, head, column[None, :], valid, valid[:, None] & (column < V)[None, :]


@triton.jit
def _load(pointer, start, column, inside, ACC: tl.constexpr):
    """V channels of every row from `start` on."""
    return tl.load(pointer + start[:, None] + column, mask=inside, other=0.0).to(ACC)


@triton.jit
def _weight(factor, place, valid, ACC: tl.constexpr):
    """A number for every row."""
    return tl.load(factor + place, mask=valid, other=0.0).to(ACC)[:, None]


@triton.jit
def _skipped(
    x, values, factor, position, head, r, column, valid, inside,
    H: tl.constexpr, R: tl.constexpr, V: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """x_r with the values of all ranks."""
    y = _load(x, ((position * R + r) * H + head) * V, column, inside, ACC)
    for s in range(R):
        v = _load(values, ((position * R + s) * H + head) * V, column, inside, ACC)
        y += v * _weight(factor, ((position * H + head) * R + r) * R + s, valid, ACC)
    return y


@triton.jit
def _gate(
    gate, gate_mix, head, r, column, inside, R: tl.constexpr, V: tl.constexpr, ACC: tl.constexpr
):
    """silu(z) of a rank, and its derivative."""
    z = gate
    if gate_mix is not None:
        z *= _load(gate_mix, (head * R + r) * V, column, inside, ACC)
    s = sigmoid(z)
    return z * s, s + z * s * (1.0 - s)


@triton.jit
def _mixed(x, mix, head, r, column, inside, R: tl.constexpr, V: tl.constexpr, ACC: tl.constexpr):
    """x times a rank's mix, where there is one."""
    if mix is not None:
        x *= _load(mix, (head * R + r) * V, column, inside, ACC)
    return x


@triton.jit(do_not_specialize=["count"])
def skip_forward(
    x, values, factor, gate, gate_mix, output_mix, output, count, gate_stride,
    H: tl.constexpr, R: tl.constexpr, V: tl.constexpr,
    POSITIONS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """POSITIONS positions; count in all."""
    position, head, column, valid, inside = _rows(count, H, V, POSITIONS, HEADS, WIDTH)
    g = _load(gate, position * gate_stride + head * V, column, inside, ACC)
    total = tl.zeros([POSITIONS * HEADS, WIDTH], ACC)
    for r in range(R):
        y = _skipped(x, values, factor, position, head, r, column, valid, inside, H, R, V, ACC)
        silu, _ = _gate(g, gate_mix, head, r, column, inside, R, V, ACC)
        total += _mixed(y * silu, output_mix, head, r, column, inside, R, V, ACC)
    tl.store(output + ((position * H + head) * V)[:, None] + column, total, mask=inside)


@triton.jit
def _store_sums(
    sums, x, r, H: tl.constexpr, R: tl.constexpr, V: tl.constexpr,
    POSITIONS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sums over the program's positions, for one rank's mix of all heads."""
    head, column = tl.arange(0, HEADS)[:, None], tl.arange(0, WIDTH)[None, :]
    place = tl.program_id(0).to(tl.int64) * (H * R * V) + (head * R + r) * V + column
    x = tl.sum(tl.reshape(x, [POSITIONS, HEADS, WIDTH]), axis=0)
    tl.store(sums + place, x, mask=(head < H) & (column < V))


@triton.jit(do_not_specialize=["count"])
def skip_backward(
    d_output, x, values, factor, gate, gate_mix, output_mix,
    d_x, d_values, d_factor, d_gate, d_mixes, count, gate_stride,
    H: tl.constexpr, R: tl.constexpr, V: tl.constexpr,
    POSITIONS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Gradients of POSITIONS positions, and their sums for both mixes, first all of gate_mix."""
    position, head, column, valid, inside = _rows(count, H, V, POSITIONS, HEADS, WIDTH)
    flat = position * H + head
    g = _load(gate, position * gate_stride + head * V, column, inside, ACC)
    d = _load(d_output, flat * V, column, inside, ACC)
    dg = tl.zeros([POSITIONS * HEADS, WIDTH], ACC)
    for r in range(R):
        y = _skipped(x, values, factor, position, head, r, column, valid, inside, H, R, V, ACC)
        silu, slope = _gate(g, gate_mix, head, r, column, inside, R, V, ACC)
        dy = _mixed(d, output_mix, head, r, column, inside, R, V, ACC)
        dz = dy * y * slope
        dg += _mixed(dz, gate_mix, head, r, column, inside, R, V, ACC)
        if d_mixes is not None:
            _store_sums(d_mixes, dz * g, r, H, R, V, POSITIONS, HEADS, WIDTH)
            second = d_mixes + tl.num_programs(0).to(tl.int64) * (H * R * V)
            _store_sums(second, d * y * silu, r, H, R, V, POSITIONS, HEADS, WIDTH)
        dy *= silu
        own = ((position * R + r) * H + head) * V
        tl.store(d_x + own[:, None] + column, dy, mask=inside)
        dv = tl.zeros([POSITIONS * HEADS, WIDTH], ACC)
        for s in range(R):
            v = _load(values, ((position * R + s) * H + head) * V, column, inside, ACC)
            tl.store(d_factor + (flat * R + r) * R + s, tl.sum(dy * v, axis=1), mask=valid)
            silu, _ = _gate(g, gate_mix, head, s, column, inside, R, V, ACC)
            other = _mixed(d * silu, output_mix, head, s, column, inside, R, V, ACC)
            dv += other * _weight(factor, (flat * R + s) * R + r, valid, ACC)
        tl.store(d_values + own[:, None] + column, dv, mask=inside)
    tl.store(d_gate + (flat * V)[:, None] + column, dg, mask=inside)
