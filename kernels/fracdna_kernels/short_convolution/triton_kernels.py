"""Kernels of short_convolution: a program slides the window down a span of one sequence.

Rows are loaded once, several at a time; the W rows that meet the filter stay in registers, as a
tuple of vectors over channels, and so do the gradients that they wait for.

T length   D channels   W filter width   WP the power of two that holds it   N sequences
BD channels of a program   ROWS positions loaded at once   ACC the dtype of all arithmetic
p output of the filter before the activation   d_x gradient of x
"""

import triton
import triton.language as tl


@triton.jit
def _sigmoid(p, INTERPRETED: tl.constexpr):
    """1 / (1 + exp(-p)).

    Compiled it takes 4 instructions; the plain formula takes a dozen, for subnormal numbers that
    1 + exp(-p) never meets, and they would cost the forward more time than its bytes.
    """
    if INTERPRETED:
        return tl.sigmoid(p)
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .f32 e; mul.f32 e, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 e, e;"  # exp2(-p log2 e)
            " add.f32 e, e, 0f3F800000; rcp.approx.ftz.f32 $0, e; }",
            "=f,f", [p], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def _place(bounds, program, T, N, span):
    """Sequence of a program, its row of the batch, its begin and length, the span's first position.

    Packed: what lies before the first and past the last bound counts as sequences -1 and N. The
    spans of the j-th stretch are numbered from floor(begin / span) + j on. That leaves each its
    number whatever the lengths, so a search over the bounds alone finds a program's stretch.
    """
    if bounds is None:
        spans = tl.maximum(tl.cdiv(T, span), 1)
        sequence = program // spans
        row, begin, length = sequence, 0, T
        first = (program % spans) * span
    else:
        low = 0
        high = N + 1
        while low < high:
            middle = (low + high + 1) // 2
            begun = tl.load(bounds + middle - 1).to(tl.int32) // span + middle <= program
            low = tl.where(begun, middle, low)
            high = tl.where(begun, high, middle - 1)
        begin = tl.load(bounds + low - 1, mask=low > 0, other=0).to(tl.int32)
        end = tl.load(bounds + low, mask=low <= N, other=T).to(tl.int32)
        sequence, row, length = low - 1, 0, end - begin
        first = (program - begin // span - low) * span
    return sequence, row, begin, length, first


@triton.jit
def _filter(weight, bias, d, inside, W: tl.constexpr, WP: tl.constexpr, ACC: tl.constexpr):
    """The W taps and the bias.

    The taps of a channel are neighbours in memory: they are read in one sweep and then told apart,
    where W loads would each touch every line.
    """
    w = tl.arange(0, WP)[None, :]
    mask = inside[:, None] & (w < W)
    tile = tl.load(weight + d[:, None] * W + w, mask=mask, other=0.0).to(ACC)
    taps = ()
    for k in tl.static_range(W):
        taps = taps + (tl.sum(tl.where(w == k, tile, 0.0), axis=1),)
    offset = tl.zeros_like(taps[0])
    if bias is not None:
        offset = tl.load(bias + d, mask=inside, other=0.0).to(ACC)
    return taps, offset


@triton.jit
def _before(x, stride, state, first, length, d, inside, W: tl.constexpr, ACC: tl.constexpr):
    """The W - 1 rows before position `first`, to which x points; those before 0 are the state's."""
    rows = ()
    for k in tl.static_range(W - 1):
        position = first + k - (W - 1)
        here = inside & (position >= 0) & (position < length)
        row = tl.load(x + (k - (W - 1)) * stride + d, mask=here, other=0.0).to(ACC)
        if state is not None:
            kept = state + position + W - 1
            row += tl.load(kept, mask=inside & (position < 0), other=0.0).to(ACC)
        rows = rows + (row,)
    return rows


@triton.jit(do_not_specialize=["T", "N"])
def convolution_forward(
    x, weight, bias, state, bounds, y, final,
    T, N, x_batch, x_row, D,
    W: tl.constexpr, WP: tl.constexpr, SILU: tl.constexpr,
    ROWS: tl.constexpr, BD: tl.constexpr, ACC: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """y of ROWS positions; the last span of a sequence also writes the sequence's last inputs."""
    columns = tl.cdiv(D, BD)
    pid = tl.program_id(0)
    sequence, row, begin, length, first = _place(bounds, pid // columns, T, N, ROWS)
    d = (pid % columns) * BD + tl.arange(0, BD)
    inside = d < D
    real = (sequence >= 0) & (sequence < N)
    known = tl.where(real, length, 0)  # what lies outside the bounds is not read
    top = (begin + first).to(tl.int64)
    x += tl.cast(row, tl.int64) * x_batch + top * x_row
    y += (tl.cast(row, tl.int64) * T + top) * D
    tail = (sequence.to(tl.int64) * D + d) * (W - 1)
    if state is not None:
        state += tail
    taps, offset = _filter(weight, bias, d, inside, W, WP, ACC)
    window = _before(x, x_row, state, first, known, d, inside & real, W, ACC)
    rows = ()
    for r in tl.static_range(ROWS):
        rows = rows + (tl.load(x + r * x_row + d, mask=inside & (first + r < known), other=0.0),)
    for r in tl.static_range(ROWS):
        window = window + (rows[r].to(ACC),)
        p = _filtered(window, r, taps, offset, W)
        if SILU:
            p *= _sigmoid(p, INTERPRETED)
        if bounds is not None:
            p = tl.where(real, p, 0.0)
        tl.store(y + r * D + d, p.to(y.dtype.element_ty), mask=inside & (first + r < length))
    # an empty sequence has a span too
    if real & (length <= first + ROWS) & ((first < length) | (first == 0)):
        end = x + (length - first).to(tl.int64) * x_row
        inputs = _before(end, x_row, state, length, length, d, inside, W, ACC)
        for k in tl.static_range(W - 1):
            tl.store(final + tail + k, inputs[k], mask=inside)


@triton.jit(do_not_specialize=["T", "N", "tiles"])
def convolution_backward(
    dy, dy_second, dy_third, dfinal, x, weight, bias, state, bounds,
    dx, sums, dstate,
    T, N, tiles, dy_batch, dy_row, x_batch, x_row, D,
    W: tl.constexpr, WP: tl.constexpr, SILU: tl.constexpr,
    ROWS: tl.constexpr, BD: tl.constexpr, ACC: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """dx of tiles * ROWS positions, and what these inputs add to dweight and dbias.

    dy is the sum of up to three gradients, with equal strides.

    The input of position t takes part in W outputs: dx_t = sum_k weight_{W-1-k} dp_{t+k} and
    dweight_{W-1-k} += x_t dp_{t+k}. So the sweep is W - 1 positions ahead of the gradients that it
    writes; the inputs of a sequence's state are settled on the way into its first span.
    """
    columns = tl.cdiv(D, BD)
    pid = tl.program_id(0)
    program = pid // columns
    sequence, row, begin, length, first = _place(bounds, program, T, N, tiles * ROWS)
    d = (pid % columns) * BD + tl.arange(0, BD)
    inside = d < D
    real = (sequence >= 0) & (sequence < N)
    known = tl.where(real, length, 0)
    top = (begin + first).to(tl.int64)
    x += tl.cast(row, tl.int64) * x_batch + top * x_row
    at = tl.cast(row, tl.int64) * dy_batch + top * dy_row
    dx += (tl.cast(row, tl.int64) * T + top) * D
    tail = (sequence.to(tl.int64) * D + d) * (W - 1)
    if state is not None:
        state += tail
    taps, offset = _filter(weight, bias, d, inside, W, WP, ACC)
    window = _before(x, x_row, state, first, known, d, inside & real, W, ACC)
    dbias = tl.zeros([BD], ACC)
    dweight, dps = (), ()
    for _ in tl.static_range(W):
        dweight = dweight + (dbias,)
    for _ in tl.static_range(W - 1):
        dps = dps + (dbias,)
    for k in tl.static_range(W - 1):
        here = inside & (first + k < known)
        window = window + (tl.load(x + k * x_row + d, mask=here, other=0.0).to(ACC),)
        dp = _gathered(dy, dy_second, dy_third, at + k * dy_row + d, here, ACC)
        dps = dps + (_before_activation(dp, window, k, taps, offset, SILU, W, INTERPRETED),)
        if state is not None:
            opening = real & (first == 0)
            dweight = _added(dweight, tl.where(opening, window[k], 0.0), dps, k, W)
            total = _received(taps, dps, k, W)
            total += _passed(dfinal, tail, k - length, inside & opening, W, ACC)
            tl.store(dstate + tail + k, total, mask=inside & opening)
    window, dps = _last(window, 2 * (W - 1), W), _last(dps, 2 * (W - 1), W)
    x += (W - 1) * x_row
    at += (W - 1) * dy_row
    for _ in range(tl.minimum(tl.cdiv(tl.maximum(length - first, 0), ROWS), tiles)):
        rows, incoming = (), ()
        for r in tl.static_range(ROWS):
            here = inside & (first + W - 1 + r < known)
            rows = rows + (tl.load(x + r * x_row + d, mask=here, other=0.0),)
            place = at + r * dy_row + d
            incoming = incoming + (_gathered(dy, dy_second, dy_third, place, here, ACC),)
        for r in tl.static_range(ROWS):
            window = window + (rows[r].to(ACC),)
            dp = incoming[r]
            dps = dps + (_before_activation(dp, window, r, taps, offset, SILU, W, INTERPRETED),)
            dweight = _added(dweight, window[r], dps, r, W)
            dbias += dps[r]
            total = _received(taps, dps, r, W)
            here = inside & (first + r < length)
            total += _passed(dfinal, tail, first + r - length + W - 1, here & real, W, ACC)
            tl.store(dx + r * D + d, total.to(dx.dtype.element_ty), mask=here)
        window, dps = _last(window, ROWS + W - 1, W), _last(dps, ROWS + W - 1, W)
        first += ROWS
        x += ROWS * x_row
        at += ROWS * dy_row
        dx += ROWS * D
    own = sums + program.to(tl.int64) * (W + 1) * D + d
    for w in tl.static_range(W):
        tl.store(own + w * D, dweight[w], mask=inside)
    tl.store(own + W * D, dbias, mask=inside)


@triton.jit
def _gathered(first, second, third, at, mask, ACC: tl.constexpr):
    """The sum of what the readers of the output send back."""
    total = tl.load(first + at, mask=mask, other=0.0).to(ACC)
    if second is not None:
        total += tl.load(second + at, mask=mask, other=0.0).to(ACC)
    if third is not None:
        total += tl.load(third + at, mask=mask, other=0.0).to(ACC)
    return total


@triton.jit
def _filtered(window, r, taps, offset, W: tl.constexpr):
    """p of the rows r .. r + W - 1 of the window."""
    p = offset
    for w in tl.static_range(W):
        p += window[r + w] * taps[w]
    return p


@triton.jit
def _before_activation(
    dy, window, r, taps, offset, SILU: tl.constexpr, W: tl.constexpr, INTERPRETED: tl.constexpr
):
    """dp of the rows r .. r + W - 1 of the window; p is formed again."""
    if SILU:
        p = _filtered(window, r, taps, offset, W)
        s = _sigmoid(p, INTERPRETED)
        dy *= s + p * s * (1.0 - s)
    return dy


@triton.jit
def _received(taps, dps, r, W: tl.constexpr):
    """What the input of row r receives from the outputs r .. r + W - 1."""
    total = taps[W - 1] * dps[r]
    for k in tl.static_range(1, W):
        total += taps[W - 1 - k] * dps[r + k]
    return total


@triton.jit
def _added(dweight, row, dps, r, W: tl.constexpr):
    """dweight with what one input adds to it."""
    sums = ()
    for w in tl.static_range(W):
        sums = sums + (dweight[w] + row * dps[r + W - 1 - w],)
    return sums


@triton.jit
def _passed(dfinal, tail, k, mask, W: tl.constexpr, ACC: tl.constexpr):
    """The gradient of the k-th row of the final state, where there is one."""
    if dfinal is None:
        return 0.0
    else:
        return tl.load(dfinal + tail + k, mask=mask & (k >= 0), other=0.0).to(ACC)


@triton.jit
def _last(rows, count: tl.constexpr, W: tl.constexpr):
    """The last W - 1 of count rows."""
    kept = ()
    for w in tl.static_range(count - W + 1, count):
        kept = kept + (rows[w],)
    return kept
