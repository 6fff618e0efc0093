"""The kernels of shifted_layer_norm's Triton form; triton_form.py launches them.

A tile is ROWS positions by all channels; positions of all rows of the batch are numbered in one go.

D channels   COUNT mixtures   ACC the dtype of all arithmetic   n normalised   d_x gradient of x
"""

import triton
import triton.language as tl

from fracdna_kernels.triton_rows import load_tile, store_tile


@triton.jit
def _normed(
    x, addend, first, x_stride, addend_stride, row, column, inside,
    D: tl.constexpr, EPS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Rows without their mean over their standard deviation, and 1 over that."""
    s = load_tile(x, first, x_stride, row, column, inside, ACC)
    if addend is not None:
        s += load_tile(addend, first, addend_stride, row, column, inside, ACC)
    s = tl.where(inside, s - (tl.sum(s, axis=1) / D)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(s * s, axis=1) / D + EPS)[:, None]
    return s * scale, scale


@triton.jit
def _channels(pointer, column, D: tl.constexpr, ACC: tl.constexpr):
    """A parameter as a row, zero beyond the channels."""
    return tl.load(pointer + column, mask=column < D, other=0.0).to(ACC)[None, :]


@triton.jit
def _after_another(starts, position, length, valid):
    """Which positions of `valid` have one of their own sequence before them."""
    follows = valid & (position > 0) & (position < length)
    if starts is not None:
        follows &= tl.load(starts + position, mask=follows, other=1) == 0
    return follows


@triton.jit
def _of_sequences(sequence, column, D: tl.constexpr):
    """Places in (B, D)."""
    return sequence.to(tl.int64)[:, None] * D + column[None, :]


@triton.jit
def _ends(lengths, sequence, length, valid):
    """Valid positions of the sequence of each row."""
    if lengths is None:
        return sequence * 0 + length
    else:
        return tl.load(lengths + sequence, mask=valid, other=0).to(tl.int32)


@triton.jit(do_not_specialize=["count", "length"])
def forward_kernel(
    x,
    addend,
    weight,
    bias,
    shares,
    last,
    starts,
    lengths,
    first,
    second,
    third,
    fourth,
    fifth,
    sixth,
    token,
    count,
    length,
    x_stride,
    addend_stride,
    COUNT: tl.constexpr,
    D: tl.constexpr,
    EPS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    ACC: tl.constexpr,
):
    """One tile; count positions in all, length of them in a row of the batch."""
    top = tl.program_id(0) * ROWS
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    valid = top + row < count
    position = (top + row) % length
    sequence = (top + row) // length
    channel = (column < D)[None, :]
    inside = valid[:, None] & channel
    w = _channels(weight, column, D, ACC)
    offset = _channels(bias, column, D, ACC)
    now, _ = _normed(
        x, addend, top, x_stride, addend_stride, row, column, inside, D, EPS, ACC
    )  # fmt: skip
    now = now * w + offset
    follows = _after_another(starts, position, length, valid)[:, None] & channel
    before, _ = _normed(
        x, addend, top - 1, x_stride, addend_stride, row, column, follows, D, EPS, ACC
    )  # fmt: skip
    before = tl.where(follows, before * w + offset, 0.0)
    opens = (valid & (position == 0))[:, None] & channel
    place = _of_sequences(sequence, column, D)
    if last is not None:
        before += tl.load(last + place, mask=opens, other=0.0).to(ACC)
    end = _ends(lengths, sequence, length, valid)
    tl.store(token + place, now, mask=(valid & (position == end - 1))[:, None] & channel)
    if lengths is not None:  # without valid positions it stays what it was
        tl.store(token + place, before, mask=opens & (end == 0)[:, None])
    change = before - now
    mixtures = (first, second, third, fourth, fifth, sixth)
    for e in tl.static_range(COUNT):
        share = _channels(shares + e * D, column, D, ACC)
        store_tile(mixtures[e], top, D, row, column, inside, now + change * share)


@triton.jit
def _receive(
    dy, share, n, old, top, row, column, inside, followed, dn, d_old, total,
    D: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Add what a mixture sends back to the gradients of n, of `last` and of the share.

    A position meets its own mixture and, where one follows it in its sequence, the next one's.
    """
    if dy is not None:
        here = load_tile(dy, top, D, row, column, inside, ACC)
        change = load_tile(dy, top + 1, D, row, column, followed, ACC) - here
        dn += here + change * share
        total += change * n
        if old is not None:
            d_old += here * share
            total += here * old
    return dn, d_old, total


@triton.jit
def _keep(sums, number, total, column, D: tl.constexpr):
    """Write this program's part of the sum of that number."""
    programs = tl.num_programs(0).to(tl.int64)
    place = sums + (number * programs + tl.program_id(0)) * D + column
    tl.store(place, tl.sum(total, axis=0), mask=column < D)


@triton.jit(do_not_specialize=["count", "length", "tiles"])
def backward_kernel(
    d_first,
    d_second,
    d_third,
    d_fourth,
    d_fifth,
    d_sixth,
    d_token,
    x,
    addend,
    weight,
    bias,
    shares,
    last,
    starts,
    lengths,
    d_x,
    d_addend,
    d_last,
    sums,
    count,
    length,
    tiles,
    x_stride,
    addend_stride,
    COUNT: tl.constexpr,
    D: tl.constexpr,
    EPS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    ACC: tl.constexpr,
):
    """`tiles` tiles one after the other, and their part of the sums for the parameters."""
    top = tl.program_id(0) * tiles * ROWS
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    channel = (column < D)[None, :]
    w = _channels(weight, column, D, ACC)
    offset = _channels(bias, column, D, ACC)
    nothing = tl.zeros([ROWS, WIDTH], ACC)
    gradients = (d_first, d_second, d_third, d_fourth, d_fifth, d_sixth)
    totals = ()
    for _ in tl.static_range(COUNT):
        totals = totals + (nothing,)
    d_weight, d_bias = nothing, nothing
    for _ in tl.range(0, tiles, num_stages=STAGES):
        valid = top + row < count
        position = (top + row) % length
        sequence = (top + row) // length
        inside = valid[:, None] & channel
        followed = _after_another(starts, position + 1, length, valid)[:, None] & channel
        place = _of_sequences(sequence, column, D)
        unit, scale = _normed(
            x, addend, top, x_stride, addend_stride, row, column, inside, D, EPS, ACC
        )  # fmt: skip
        n = unit * w + offset
        opens = (valid & (position == 0))[:, None] & channel
        old = None
        if last is not None:
            old = tl.load(last + place, mask=opens, other=0.0).to(ACC)
        dn, d_old = nothing, nothing
        received = ()
        for e in tl.static_range(COUNT):
            share = _channels(shares + e * D, column, D, ACC)
            dn, d_old, total = _receive(
                gradients[e], share, n, old, top, row, column, inside, followed, dn, d_old,
                totals[e], D, ACC,
            )  # fmt: skip
            received = received + (total,)
        totals = received
        if d_token is not None:
            end = _ends(lengths, sequence, length, valid)
            closes = (valid & (position == end - 1))[:, None] & channel
            dn += tl.load(d_token + place, mask=closes, other=0.0).to(ACC)
            if last is not None:
                empty = opens & (end == 0)[:, None]
                d_old += tl.load(d_token + place, mask=empty, other=0.0).to(ACC)
        if last is not None:
            tl.store(d_last + place, d_old, mask=opens)
        d_weight += dn * unit
        d_bias += dn
        dn *= w
        mean = (tl.sum(dn, axis=1) / D)[:, None]
        ds = scale * (dn - mean - unit * (tl.sum(dn * unit, axis=1) / D)[:, None])
        store_tile(d_x, top, D, row, column, inside, ds)
        if addend is not None:
            store_tile(d_addend, top, D, row, column, inside, ds)
        top += ROWS
    for e in tl.static_range(COUNT):
        _keep(sums, e, totals[e], column, D)
    _keep(sums, COUNT, d_weight, column, D)
    _keep(sums, COUNT + 1, d_bias, column, D)
