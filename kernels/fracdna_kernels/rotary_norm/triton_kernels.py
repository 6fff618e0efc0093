"""The kernels of rotary_norm's Triton form; triton_form.py launches them.

A row is a position and a head. Its K coordinates are held as four tiles of P columns: the first and
the second of every pair that turns, and two quarters that stay. What the heads of a position share
is loaded for each of them again, out of the cache.

H heads   R rank   K state width   P pairs, a quarter of K   PAIRS the power of two that holds P
HEADS the power of two that holds H   EACH neighbours in memory are pairs
ACC the dtype of all arithmetic   d_x gradient of x   h gradient before the weight
"""

import triton
import triton.language as tl


@triton.jit
def sine_cosine(angle):
    """Both of angles of a few turns at most, to about 1e-7.

    Triton's own are made for angles of any size: they keep a table in local memory.
    """
    quarter = tl.floor(angle * 0.6366197723675814 + 0.5)
    x = angle - quarter * 1.5703125  # pi / 2 in three parts, of which products are exact
    x -= quarter * 4.837512969970703e-4
    x -= quarter * 7.549789948768648e-8
    z = x * x
    series = 8.3321608736e-3 - z * 1.9515295891e-4
    sine = x + x * z * (-1.6666654611e-1 + z * series)
    series = -1.388731625493765e-3 + z * 2.443315711809948e-5
    cosine = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * series)
    number = quarter.to(tl.int32)
    swapped = (number & 1) == 1
    s = tl.where(swapped, cosine, sine)
    c = tl.where(swapped, sine, cosine)
    return tl.where((number & 2) == 2, -s, s), tl.where(((number + 1) & 2) == 2, -c, c)


@triton.jit
def load_quarters(
    pointer, start, valid,
    P: tl.constexpr, PAIRS: tl.constexpr, EACH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """K coordinates from `start` on, of valid rows: first, second, and those that stay."""
    if EACH:
        column = tl.arange(0, 2 * PAIRS)
        inside = valid[:, None] & (column < 2 * P)[None, :]
        place = pointer + (start[:, None] + column[None, :])
        pairs: tl.constexpr = [start.shape[0], PAIRS, 2]
        turning = tl.load(place, mask=inside, other=0.0)
        still = tl.load(place + 2 * P, mask=inside, other=0.0)
        first, second = tl.split(tl.reshape(turning, pairs))
        one, two = tl.split(tl.reshape(still, pairs))
    else:
        column = tl.arange(0, PAIRS)
        inside = valid[:, None] & (column < P)[None, :]
        place = pointer + (start[:, None] + column[None, :])
        first = tl.load(place, mask=inside, other=0.0)
        one = tl.load(place + P, mask=inside, other=0.0)
        second = tl.load(place + 2 * P, mask=inside, other=0.0)
        two = tl.load(place + 3 * P, mask=inside, other=0.0)
    return first.to(ACC), second.to(ACC), one.to(ACC), two.to(ACC)


@triton.jit
def store_quarters(
    pointer, start, valid, x, P: tl.constexpr, PAIRS: tl.constexpr, EACH: tl.constexpr
):
    """The counterpart of load_quarters."""
    kind = pointer.dtype.element_ty
    first, second, one, two = x[0].to(kind), x[1].to(kind), x[2].to(kind), x[3].to(kind)
    if EACH:
        column = tl.arange(0, 2 * PAIRS)
        inside = valid[:, None] & (column < 2 * P)[None, :]
        place = pointer + (start[:, None] + column[None, :])
        tl.store(place, tl.interleave(first, second), mask=inside)
        tl.store(place + 2 * P, tl.interleave(one, two), mask=inside)
    else:
        column = tl.arange(0, PAIRS)
        inside = valid[:, None] & (column < P)[None, :]
        place = pointer + (start[:, None] + column[None, :])
        tl.store(place, first, mask=inside)
        tl.store(place + P, one, mask=inside)
        tl.store(place + 2 * P, second, mask=inside)
        tl.store(place + 3 * P, two, mask=inside)


@triton.jit
def shared_quarters(
    pointer, P: tl.constexpr, PAIRS: tl.constexpr, EACH: tl.constexpr, ACC: tl.constexpr
):
    """As load_quarters, of a parameter that all rows share: one row."""
    row = tl.zeros([1], tl.int32)
    return load_quarters(pointer, row, row == 0, P, PAIRS, EACH, ACC)


@triton.jit
def inner(a, b):
    """Sum of the products of coordinates, for every row."""
    return tl.sum(a[0] * b[0] + a[1] * b[1] + (a[2] * b[2] + a[3] * b[3]), axis=1)


@triton.jit
def scaled(x, factor):
    """x times a factor."""
    return x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor


@triton.jit
def times(a, b):
    """Products of coordinates."""
    return a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]


@triton.jit
def plus(a, b):
    """Sums of coordinates."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@triton.jit
def turned(x, sine, cosine):
    """x after its turn."""
    return x[0] * cosine - x[1] * sine, x[0] * sine + x[1] * cosine, x[2], x[3]


@triton.jit
def rms_scale(x, K: tl.constexpr, EPS: tl.constexpr):
    """1 / rms of every row."""
    return tl.rsqrt(inner(x, x) / K + EPS)


@triton.jit
def placed(
    x, weight, bias, start, biased, sine, cosine, valid,
    K: tl.constexpr, P: tl.constexpr, PAIRS: tl.constexpr, EACH: tl.constexpr, EPS: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Queries or keys of rows, without any factor; `start` and `biased` are where theirs begin."""
    y = load_quarters(x, start, valid, P, PAIRS, EACH, ACC)
    y = scaled(y, rms_scale(y, K, EPS)[:, None])
    y = times(y, shared_quarters(weight, P, PAIRS, EACH, ACC))
    y = plus(y, load_quarters(bias, biased, valid, P, PAIRS, EACH, ACC))
    return turned(y, sine, cosine)


@triton.jit(do_not_specialize=["count"])
def rotary_forward(
    queries, keys, query_weight, key_weight, query_bias, key_bias, angle, key_factor,
    q, k, products, count, query_stride, key_stride,
    H: tl.constexpr, R: tl.constexpr, K: tl.constexpr, P: tl.constexpr, EACH: tl.constexpr,
    EPS: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """ROWS rows of all ranks; count positions in all."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    position, head = row // H, (row % H).to(tl.int32)
    valid = position < count
    p = tl.arange(0, PAIRS)
    inside = valid[:, None] & (p < P)[None, :]
    turn = tl.load(angle + row[:, None] * P + p[None, :], mask=inside, other=0.0).to(ACC)
    sine, cosine = sine_cosine(turn)
    for r in range(R):
        reads = placed(
            queries, query_weight, query_bias, position * query_stride + r * K,
            (head * R + r) * K, sine, cosine, valid, K, P, PAIRS, EACH, EPS, ACC,
        )  # fmt: skip
        store_quarters(q, ((position * R + r) * H + head) * K, valid, reads, P, PAIRS, EACH)
        for s in range(R):
            writes = placed(
                keys, key_weight, key_bias, position * key_stride + s * K,
                (head * R + s) * K, sine, cosine, valid, K, P, PAIRS, EACH, EPS, ACC,
            )  # fmt: skip
            tl.store(products + (row * R + r) * R + s, inner(reads, writes), mask=valid)
            if r == 0:
                if key_factor is not None:
                    factor = tl.load(key_factor + row, mask=valid, other=0.0).to(ACC)
                    writes = scaled(writes, factor[:, None])
                store_quarters(
                    k, ((position * R + s) * H + head) * K, valid, writes, P, PAIRS, EACH
                )


@triton.jit
def _over_heads(x, POSITIONS: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr):
    """Sums over the heads of each position, of one quarter."""
    return tl.sum(tl.reshape(x, [POSITIONS, HEADS, PAIRS]), axis=1)


@triton.jit
def _through_norm(
    dy, x, weight, start, d_x, d_start, d_weight, valid,
    K: tl.constexpr, P: tl.constexpr, PAIRS: tl.constexpr, EACH: tl.constexpr, EPS: tl.constexpr,
    POSITIONS: tl.constexpr, HEADS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Writes d_x of POSITIONS positions for dy of their heads; d_weight with their part."""
    dy = (
        _over_heads(dy[0], POSITIONS, HEADS, PAIRS), _over_heads(dy[1], POSITIONS, HEADS, PAIRS),
        _over_heads(dy[2], POSITIONS, HEADS, PAIRS), _over_heads(dy[3], POSITIONS, HEADS, PAIRS),
    )  # fmt: skip
    normed = load_quarters(x, start, valid, P, PAIRS, EACH, ACC)
    scale = rms_scale(normed, K, EPS)[:, None]
    normed = scaled(normed, scale)
    h = times(dy, shared_quarters(weight, P, PAIRS, EACH, ACC))
    projected = scaled(normed, -(inner(normed, h) / K)[:, None])
    d_normed = plus(h, projected)
    store_quarters(d_x, d_start, valid, scaled(d_normed, scale), P, PAIRS, EACH)
    return plus(d_weight, times(dy, normed))


@triton.jit
def _added_products(
    dy, products, start, step, x, weight, bias, place, biased, sine, cosine, valid,
    R: tl.constexpr, K: tl.constexpr, P: tl.constexpr, PAIRS: tl.constexpr, EACH: tl.constexpr,
    EPS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """dy with what it gets through its products with the R vectors of the other side."""
    for s in range(R):
        grad = tl.load(products + start + s * step, mask=valid, other=0.0).to(ACC)
        other = placed(
            x, weight, bias, place + s * K, biased + s * K, sine, cosine, valid,
            K, P, PAIRS, EACH, EPS, ACC,
        )  # fmt: skip
        dy = plus(dy, scaled(other, grad[:, None]))
    return dy


@triton.jit(do_not_specialize=["count", "tiles"])
def rotary_backward(
    queries, keys, query_weight, key_weight, query_bias, key_bias, angle, key_factor,
    d_q, d_k, d_products, d_queries, d_keys, d_angle, d_factor, d_parameters,
    count, tiles, query_stride, key_stride,
    H: tl.constexpr, R: tl.constexpr, K: tl.constexpr, P: tl.constexpr, EACH: tl.constexpr,
    EPS: tl.constexpr, POSITIONS: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """`tiles` tiles of one rank r, one after the other, and their part of the parameters' sums.

    d_angle and d_factor are the rank's part. Sums are a row of H R K for the bias, and R K for the
    weight, first those of queries of all programs, then those of keys.
    """
    r = tl.program_id(0) % R
    program = tl.program_id(0) // R
    row = tl.arange(0, POSITIONS * HEADS)
    head = row % HEADS
    p = tl.arange(0, PAIRS)
    biased = head * (R * K)
    none = tl.zeros([POSITIONS * HEADS, PAIRS], ACC)
    query_sums, key_sums = (none, none, none, none), (none, none, none, none)
    none = tl.zeros([POSITIONS, PAIRS], ACC)
    query_scales, key_scales = (none, none, none, none), (none, none, none, none)
    for tile in range(tiles):
        first = (program.to(tl.int64) * tiles + tile) * POSITIONS
        position = first + row // HEADS
        valid = (head < H) & (position < count)
        inside = valid[:, None] & (p < P)[None, :]
        flat = position * H + head
        place = flat[:, None] * P + p[None, :]
        turn = tl.load(angle + place, mask=inside, other=0.0).to(ACC)
        sine, cosine = sine_cosine(turn)
        ranked = ((position * R + r) * H + head) * K
        at_query, at_key = position * query_stride, position * key_stride
        writes = placed(
            keys, key_weight, key_bias, at_key + r * K, biased + r * K, sine, cosine, valid,
            K, P, PAIRS, EACH, EPS, ACC,
        )  # fmt: skip
        dk = load_quarters(d_k, ranked, valid, P, PAIRS, EACH, ACC)
        part = r.to(tl.int64) * count * H + flat
        if key_factor is not None:
            factor = tl.load(key_factor + flat, mask=valid, other=0.0).to(ACC)
            tl.store(d_factor + part, inner(dk, writes), mask=valid)
            dk = scaled(dk, factor[:, None])
        dk = _added_products(
            dk, d_products, flat * (R * R) + r, R, queries, query_weight, query_bias, at_query,
            biased, sine, cosine, valid, R, K, P, PAIRS, EACH, EPS, ACC,
        )  # fmt: skip
        reads = placed(
            queries, query_weight, query_bias, at_query + r * K, biased + r * K, sine, cosine,
            valid, K, P, PAIRS, EACH, EPS, ACC,
        )  # fmt: skip
        dq = load_quarters(d_q, ranked, valid, P, PAIRS, EACH, ACC)
        dq = _added_products(
            dq, d_products, (flat * R + r) * R, 1, keys, key_weight, key_bias, at_key,
            biased, sine, cosine, valid, R, K, P, PAIRS, EACH, EPS, ACC,
        )  # fmt: skip
        moved = dq[1] * reads[0] - dq[0] * reads[1] + (dk[1] * writes[0] - dk[0] * writes[1])
        tl.store(d_angle + part[:, None] * P + p[None, :], moved, mask=inside)
        dq, dk = turned(dq, -sine, cosine), turned(dk, -sine, cosine)
        query_sums, key_sums = plus(query_sums, dq), plus(key_sums, dk)
        position = first + tl.arange(0, POSITIONS)
        valid = position < count
        target = (position * R + r) * K
        query_scales = _through_norm(
            dq, queries, query_weight, position * query_stride + r * K, d_queries, target,
            query_scales, valid, K, P, PAIRS, EACH, EPS, POSITIONS, HEADS, ACC,
        )  # fmt: skip
        key_scales = _through_norm(
            dk, keys, key_weight, position * key_stride + r * K, d_keys, target,
            key_scales, valid, K, P, PAIRS, EACH, EPS, POSITIONS, HEADS, ACC,
        )  # fmt: skip
    WIDTH: tl.constexpr = (H + 1) * R * K
    sums = d_parameters + program.to(tl.int64) * WIDTH
    _store_sums(sums, query_sums, query_scales, r, H, R, K, P, PAIRS, EACH, POSITIONS, HEADS)
    sums += (tl.num_programs(0) // R).to(tl.int64) * WIDTH
    _store_sums(sums, key_sums, key_scales, r, H, R, K, P, PAIRS, EACH, POSITIONS, HEADS)


@triton.jit
def _over_positions(x, POSITIONS: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr):
    """Sums over the positions of each head, of one quarter."""
    return tl.sum(tl.reshape(x, [POSITIONS, HEADS, PAIRS]), axis=0)


@triton.jit
def _store_sums(
    sums, d_bias, d_weight, r,
    H: tl.constexpr, R: tl.constexpr, K: tl.constexpr, P: tl.constexpr, PAIRS: tl.constexpr,
    EACH: tl.constexpr, POSITIONS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """A program's sums for one bias and one weight, of one rank."""
    head = tl.arange(0, HEADS)
    d_bias = (
        _over_positions(d_bias[0], POSITIONS, HEADS, PAIRS),
        _over_positions(d_bias[1], POSITIONS, HEADS, PAIRS),
        _over_positions(d_bias[2], POSITIONS, HEADS, PAIRS),
        _over_positions(d_bias[3], POSITIONS, HEADS, PAIRS),
    )
    store_quarters(sums, (head * R + r) * K, head < H, d_bias, P, PAIRS, EACH)
    d_weight = (
        tl.sum(d_weight[0], axis=0, keep_dims=True), tl.sum(d_weight[1], axis=0, keep_dims=True),
        tl.sum(d_weight[2], axis=0, keep_dims=True), tl.sum(d_weight[3], axis=0, keep_dims=True),
    )  # fmt: skip
    row = tl.zeros([1], tl.int32)
    store_quarters(sums, row + (H * R + r) * K, row == 0, d_weight, P, PAIRS, EACH)
