"""The kernels of dplr_gates' Triton form; triton_form.py launches them.

A program takes tiles of one head: ROWS positions by the head's channels.

D channels   HEADS heads of SIZE channels   ACC the dtype of all arithmetic   d_x gradient of x
"""

import triton
import triton.language as tl

from fracdna_kernels.dplr_gates.reference import FASTEST, NORM_EPS
from fracdna_kernels.triton_rows import load_tile, sigmoid, store_tile

_FASTEST, _NORM_EPS = tl.constexpr(FASTEST), tl.constexpr(NORM_EPS)


@triton.jit
def _channels(pointer, column, SIZE: tl.constexpr, ACC: tl.constexpr):
    """A parameter of the head's channels in a row, zero beyond them."""
    return tl.load(pointer + column, mask=column < SIZE, other=0.0).to(ACC)[None, :]


@triton.jit
def _real(lengths, first, row, count, length):
    """Which rows are positions of a sequence, and no pads."""
    place = first + row
    valid = place < count
    if lengths is not None:
        valid &= place % length < tl.load(lengths + place // length, mask=valid, other=0)
    return valid


@triton.jit
def _unit(key, scale):
    """Scaled keys over their length, and 1 over that; the third: whether the length counts."""
    scaled = key * scale
    size = tl.sqrt(tl.sum(scaled * scaled, axis=1))[:, None]
    inverse = 1.0 / tl.maximum(size, _NORM_EPS)
    return scaled * inverse, inverse, size > _NORM_EPS


@triton.jit(do_not_specialize=["count", "length"])
def gates_forward(
    k,
    v,
    rate_logits,
    decay_logits,
    first_values,
    share_logits,
    removal_scale,
    rate_scale,
    decay_bias,
    lengths,
    keys,
    values,
    a,
    b,
    g,
    count,
    length,
    k_stride,
    v_stride,
    rate_stride,
    decay_stride,
    first_stride,
    share_stride,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    ACC: tl.constexpr,
):
    """One tile; count positions in all, length of them in a row of the batch."""
    first = tl.program_id(0) // HEADS * ROWS
    start = tl.program_id(0) % HEADS * SIZE
    D: tl.constexpr = HEADS * SIZE
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (first + row < count)[:, None] & (column < SIZE)[None, :]
    real = _real(lengths, first, row, count, length)[:, None]
    key = load_tile(k + start, first, k_stride, row, column, inside, ACC)
    rate = sigmoid(load_tile(rate_logits + start, first, rate_stride, row, column, inside, ACC))
    unit, _, _ = _unit(key, _channels(removal_scale + start, column, SIZE, ACC))
    store_tile(a + start, first, D, row, column, inside, -unit)
    store_tile(b + start, first, D, row, column, inside, tl.where(real, unit * rate, 0.0))
    key *= 1.0 + (rate - 1.0) * _channels(rate_scale + start, column, SIZE, ACC)
    store_tile(keys + start, first, D, row, column, inside, tl.where(real, key, 0.0))
    logits = load_tile(decay_logits + start, first, decay_stride, row, column, inside, ACC)
    if decay_bias is not None:
        logits += _channels(decay_bias + start, column, SIZE, ACC)
    decay = tl.where(real, -_FASTEST * sigmoid(logits), 0.0)
    store_tile(g + start, first, D, row, column, inside, decay)
    if first_values is not None:
        value = load_tile(v + start, first, v_stride, row, column, inside, ACC)
        other = load_tile(first_values + start, first, first_stride, row, column, inside, ACC)
        share = load_tile(share_logits + start, first, share_stride, row, column, inside, ACC)
        value += (other - value) * sigmoid(share)
        store_tile(values + start, first, D, row, column, inside, value)


@triton.jit(do_not_specialize=["count", "length", "tiles"])
def gates_backward(
    d_keys,
    d_values,
    d_a,
    d_b,
    d_g,
    k,
    v,
    rate_logits,
    decay_logits,
    first_values,
    share_logits,
    removal_scale,
    rate_scale,
    decay_bias,
    lengths,
    d_k,
    d_v,
    d_rate,
    d_decay,
    d_first,
    d_share,
    d_parameters,
    count,
    length,
    tiles,
    k_stride,
    v_stride,
    rate_stride,
    decay_stride,
    first_stride,
    share_stride,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    ACC: tl.constexpr,
):
    """`tiles` tiles one after the other, and their part of the sums for the parameters."""
    program = tl.program_id(0) // HEADS
    start = tl.program_id(0) % HEADS * SIZE
    first = program * tiles * ROWS
    D: tl.constexpr = HEADS * SIZE
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    removed = _channels(removal_scale + start, column, SIZE, ACC)
    slowed = _channels(rate_scale + start, column, SIZE, ACC)
    if decay_bias is not None:
        offset = _channels(decay_bias + start, column, SIZE, ACC)
    d_removed = tl.zeros([ROWS, WIDTH], ACC)
    d_slowed = tl.zeros([ROWS, WIDTH], ACC)
    d_offset = tl.zeros([ROWS, WIDTH], ACC)
    for _ in tl.range(0, tiles, num_stages=STAGES):
        inside = (first + row < count)[:, None] & (column < SIZE)[None, :]
        # a pad's key, b and g do not depend on anything
        real = _real(lengths, first, row, count, length)[:, None] & inside
        dk = load_tile(d_keys + start, first, D, row, column, real, ACC)
        db = load_tile(d_b + start, first, D, row, column, real, ACC)
        dg = load_tile(d_g + start, first, D, row, column, real, ACC)
        da = load_tile(d_a + start, first, D, row, column, inside, ACC)
        key = load_tile(k + start, first, k_stride, row, column, inside, ACC)
        rate = load_tile(rate_logits + start, first, rate_stride, row, column, inside, ACC)
        rate = sigmoid(rate)
        unit, inverse, counts = _unit(key, removed)
        slope = (db * unit + dk * key * slowed) * rate * (1.0 - rate)
        store_tile(d_rate + start, first, D, row, column, inside, slope)
        d_slowed += dk * key * (rate - 1.0)
        du = db * rate - da
        along = tl.where(counts, tl.sum(du * unit, axis=1)[:, None], 0.0)
        du = inverse * (du - unit * along)
        d_removed += du * key
        dk = dk * (1.0 + (rate - 1.0) * slowed) + du * removed
        store_tile(d_k + start, first, D, row, column, inside, dk)
        logits = load_tile(decay_logits + start, first, decay_stride, row, column, inside, ACC)
        if decay_bias is not None:
            logits += offset
        decay = sigmoid(logits)
        dg *= -_FASTEST * decay * (1.0 - decay)
        d_offset += dg
        store_tile(d_decay + start, first, D, row, column, inside, dg)
        if first_values is not None:
            dv = load_tile(d_values + start, first, D, row, column, inside, ACC)
            value = load_tile(v + start, first, v_stride, row, column, inside, ACC)
            other = load_tile(first_values + start, first, first_stride, row, column, inside, ACC)
            share = load_tile(share_logits + start, first, share_stride, row, column, inside, ACC)
            share = sigmoid(share)
            store_tile(d_first + start, first, D, row, column, inside, dv * share)
            store_tile(d_v + start, first, D, row, column, inside, dv * (1.0 - share))
            dv *= (other - value) * share * (1.0 - share)
            store_tile(d_share + start, first, D, row, column, inside, dv)
        first += ROWS
    programs = (tl.num_programs(0) // HEADS).to(tl.int64)
    sums = d_parameters + program.to(tl.int64) * D + start + column
    tl.store(sums, tl.sum(d_removed, axis=0), mask=column < SIZE)
    tl.store(sums + programs * D, tl.sum(d_slowed, axis=0), mask=column < SIZE)
    if decay_bias is not None:
        tl.store(sums + 2 * programs * D, tl.sum(d_offset, axis=0), mask=column < SIZE)
