"""The kernels of frac_scan's Triton form; triton_chunk.py plans and launches them.

A chunk is BT positions. Inside it the exponents are split at the borders of a binary tree, as in
chunk.py: at level l the later half of a block of 2^(l+1) positions reads what the earlier half
wrote, and exp(-(u_{j+1} + .. + u_i) / tau) is the product of one factor for i and one for j, both
at most 1. So nothing overflows for any clock, no branch depends on data, and each level is one
small matrix product, whose entries between other blocks are dropped afterwards. The state before
the chunk acts as one more, outermost, earlier half.

T length   H heads   V value width   M modes   BT, BM, BV padded tile sizes   S state (M, V)
"""

import triton
import triton.language as tl

from fracdna_kernels.frac_scan import launches
from fracdna_kernels.triton_chunks import (
    grow,
    last_of,
    meets,
    piece,
    settled,
    spread,
    turned,
    within,
)
from fracdna_kernels.triton_support import LN2, LOG2E, charge, product

LEVELS = tl.constexpr(launches.LEVELS)  # log2 of BT
# a kernel serves all lengths: compiled anew for some of them, it would stall and change bits
_SIZES = ["count", "T", "length", "per_row", "chunks"]


@triton.jit
def rates(log_tau, m, M: tl.constexpr, ACC: tl.constexpr):
    """log2(e) / tau of each mode, so that decays are exp2(-advance * rate).

    Padded modes hold nothing and fade like any other: a rate of 0 would make NaN of an infinite
    advance.
    """
    exponent = tl.load(log_tau + m, mask=m < M, other=0.0).to(ACC)
    return tl.exp2(-exponent * LOG2E) * LOG2E


@triton.jit
def decay(advance, rate):
    """exp(-advance / tau), (positions,) and (modes,) to (positions, modes)."""
    return tl.exp2(-advance[:, None] * rate[None, :])


@triton.jit
def entering(
    initial, starts, advances, index, sequence, enters, per_row, h, H, tile, inside, rate, size,
    BM: tl.constexpr, BV: tl.constexpr, REVERSE: tl.constexpr, INITIAL: tl.constexpr,
    SPLIT: tl.constexpr, FEW: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The state that a piece starts from, or backwards the adjoint that it ends with.

    FEW: `starts` holds what each piece before adds to an empty state. So few are added up here, by
    every piece for itself, sooner than a kernel of its own would be launched.
    """
    state = tl.zeros((BM, BV), ACC)
    if INITIAL:
        at = initial + (sequence * H + h) * size + tile
        state = tl.load(at, mask=inside & (enters | FEW) & (sequence >= 0), other=0.0).to(ACC)
    if FEW:
        part = index % per_row
        step = -1 if REVERSE else 1
        count = per_row - 1 - part if REVERSE else part
        at = (index - step * count).to(tl.int64) * H + h
        for _ in tl.range(0, count):
            passed = tl.load(advances + at + tl.arange(0, 1))
            ended = tl.load(starts + at * size + tile, mask=inside, other=0.0)
            state = state * tl.exp2(-passed * rate)[:, None] + ended
            at += step * H
    elif SPLIT:
        at = starts + (index.to(tl.int64) * H + h) * size + tile
        state += tl.load(at, mask=inside & (enters == 0) & (sequence >= 0), other=0.0).to(ACC)
    return state


@triton.jit(do_not_specialize=_SIZES)
def output_kernel(
    values, write, read, u, log_tau, initial, starts, advances, output, final, states, table, count,
    T, length, per_row, chunks, H, V, BLOCKS,
    M: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr,
    PACKED: tl.constexpr, INITIAL: tl.constexpr, SPLIT: tl.constexpr, FEW: tl.constexpr,
    KEEP: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr, OPERAND: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Output, final state and, where kept, the state at the start of every chunk.

    One program sweeps one piece of one head and one block of value columns.
    """
    program = tl.program_id(0)
    h = program % H
    block = (program // H) % BLOCKS
    index = program // (H * BLOCKS)
    begin, end, sequence, slot, first, last = piece(
        table, count, index, T, length, per_row, chunks, PACKED, BT
    )
    i, m, v = tl.arange(0, BT), tl.arange(0, BM), block * BV + tl.arange(0, BV)
    modes = m < M
    rate = rates(log_tau, m, M, ACC)
    tile = m[:, None] * V + v[None, :]
    inside = within(modes, v, V, EVEN)
    state = entering(
        initial, starts, advances, index, sequence, first, per_row, h, H, tile, inside, rate, M * V,
        BM, BV, False, INITIAL, SPLIT, FEW, ACC,
    )  # fmt: skip
    row = begin * H + h
    values += row * V
    output += row * V
    write += row * M
    read += row * M
    u += row
    states += (slot * H + h) * (M * V)
    narrow = i[:, None] * (H * M) + m[None, :]
    wide = i[:, None] * (H * V) + v[None, :]
    left = (end - begin).to(tl.int32)
    for t in tl.range(0, left, BT, num_stages=STAGES):
        rows = i < left - t
        advance = tl.load(u + i * H, mask=rows, other=0.0).to(ACC)
        q = tl.load(read + narrow, mask=rows[:, None] & modes[None, :], other=0.0)
        k = tl.load(write + narrow, mask=rows[:, None] & modes[None, :], other=0.0)
        x = tl.load(values + wide, mask=within(rows, v, V, EVEN), other=0.0)
        q = settled(q, m, OPERAND, ACC)
        k = settled(k, m, OPERAND, ACC)
        low = state.to(OPERAND)
        if KEEP:
            tl.store(states + tile, low, mask=inside)
        across = product(q, tl.trans(k), OPERAND, ACC)
        before, after = advance, tl.zeros_like(advance)
        for level in tl.static_range(LEVELS):
            later = ((i >> level) & 1) == 1
            reach = tl.where(later, before, after)
            weight = tl.where(later[:, None], q, k) * decay(spread(reach, i), rate)
            pairs = product(weight, tl.trans(weight), OPERAND, ACC)
            across = tl.where(meets(i, level), pairs, across)
            before, after = grow(before, after, i, level)
        # later positions, last: dropped at once, they would cost a register too many
        across = tl.where(i[:, None] < i[None, :], 0.0, across)
        result = product(q * decay(spread(before, i), rate), low, OPERAND, ACC)
        result += product(across, x, OPERAND, ACC)
        kept = turned(k * decay(spread(after, i), rate), m, OPERAND, ACC)
        state *= tl.exp2(-last_of(before, m, BT) * rate)[:, None]
        state += product(kept, x, OPERAND, ACC)
        result = result.to(output.dtype.element_ty)
        # nobody reads it before it has left the cache; what is still to be read may stay
        mask = within(rows, v, V, EVEN)
        tl.store(output + wide, result, mask=mask, eviction_policy="evict_first")
        values += BT * H * V
        output += BT * H * V
        write += BT * H * M
        read += BT * H * M
        u += BT * H
        states += H * M * V
    at = final + (sequence * H + h) * (M * V) + tile
    tl.store(at, state, mask=inside & last & (sequence >= 0))


@triton.jit(do_not_specialize=_SIZES)
def sweep_kernel(
    keys, values, u, log_tau, initial, starts, ends, states, advances, table, count,
    T, length, per_row, chunks, H, V, BLOCKS,
    M: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr,
    REVERSE: tl.constexpr, LOCAL: tl.constexpr, PACKED: tl.constexpr, INITIAL: tl.constexpr,
    SPLIT: tl.constexpr, FEW: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr,
    OPERAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state alone, S' = e S + (k r)^T v, or backwards its adjoint, S' = e S + (q f)^T g.

    LOCAL: from zero, writes what each piece ends with and its clock advance (for carry_kernel).
    Else it starts from carried states, writes the state at the entry of every chunk (forwards at
    its start, backwards at its end) and, where a sequence is left, what it ends with.
    """
    program = tl.program_id(0)
    h = program % H
    block = (program // H) % BLOCKS
    index = program // (H * BLOCKS)
    begin, end, sequence, slot, first, last = piece(
        table, count, index, T, length, per_row, chunks, PACKED, BT
    )
    enters, leaves = (last, first) if REVERSE else (first, last)
    i, m, v = tl.arange(0, BT), tl.arange(0, BM), block * BV + tl.arange(0, BV)
    modes = m < M
    rate = rates(log_tau, m, M, ACC)
    tile = m[:, None] * V + v[None, :]
    inside = within(modes, v, V, EVEN)
    state = entering(
        initial, starts, advances, index, sequence, enters, per_row, h, H, tile, inside, rate,
        M * V, BM, BV, REVERSE, INITIAL, SPLIT, FEW, ACC,
    )  # fmt: skip
    total = tl.zeros((1,), ACC)
    # the last piece's state is nobody's start
    number = tl.where(leaves, 0, tl.cdiv(end - begin, BT)) if LOCAL else tl.cdiv(end - begin, BT)
    skip = tl.maximum(number - 1, 0) if REVERSE else 0
    row = (begin + skip * BT) * H + h
    keys += row * M
    values += row * V
    u += row
    states += ((slot + skip) * H + h) * (M * V)
    left = (end - begin - skip * BT).to(tl.int32)
    narrow = i[:, None] * (H * M) + m[None, :]
    wide = i[:, None] * (H * V) + v[None, :]
    step = -1 if REVERSE else 1
    for _ in tl.range(0, number, num_stages=STAGES):
        rows = i < left
        advance = tl.load(u + i * H, mask=rows, other=0.0).to(ACC)
        k = tl.load(keys + narrow, mask=rows[:, None] & modes[None, :], other=0.0)
        x = tl.load(values + wide, mask=within(rows, v, V, EVEN), other=0.0)
        if not LOCAL:
            tl.store(states + tile, state.to(states.dtype.element_ty), mask=inside)
        before, after = advance, tl.zeros_like(advance)
        for level in tl.static_range(LEVELS):
            before, after = grow(before, after, i, level)
        kept = settled(k, m, OPERAND, ACC) * decay(spread(before if REVERSE else after, i), rate)
        total += tl.gather(before, tl.zeros((1,), tl.int32) + (BT - 1), 0)
        state *= tl.exp2(-last_of(before, m, BT) * rate)[:, None]
        state += product(turned(kept, m, OPERAND, ACC), x, OPERAND, ACC)
        values += step * BT * H * V
        keys += step * BT * H * M
        u += step * BT * H
        states += step * H * M * V
        left -= step * BT
    if LOCAL:
        at = ends + (index.to(tl.int64) * H + h) * (M * V) + tile
        tl.store(at, state, mask=inside & (leaves == 0) & (sequence >= 0))
        if block == 0:
            tl.store(advances + index * H + h + tl.arange(0, 1), total, mask=sequence >= 0)
    else:
        at = ends + (sequence * H + h) * (M * V) + tile
        tl.store(at, state, mask=inside & leaves & (sequence >= 0))


@triton.jit(do_not_specialize=["per_row"])
def carry_kernel(
    local, advances, log_tau, initial, starts, first_piece, per_row, H, V,
    M: tl.constexpr, BV: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr,
    INITIAL: tl.constexpr, ACC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What each piece starts from, of one mode and one head of one sequence, piece after piece."""
    program = tl.program_id(0)
    m = program % M
    h = (program // M) % H
    sequence = (program // (M * H)).to(tl.int64)
    if PACKED:
        begin = tl.load(first_piece + sequence)
        number = tl.load(first_piece + sequence + 1) - begin
    else:
        begin = sequence * per_row
        number = per_row
    index = begin + number - 1 if REVERSE else begin
    step = -1 if REVERSE else 1
    v = tl.arange(0, BV)
    columns = v < V
    rate = rates(log_tau + m, tl.arange(0, 1), 1, ACC)
    state = tl.zeros((BV,), ACC)
    if INITIAL:
        state = tl.load(initial + ((sequence * H + h) * M + m) * V + v, mask=columns, other=0.0)
        state = state.to(ACC)
    local += ((index * H + h) * M + m) * V + v
    starts += ((index * H + h) * M + m) * V + v
    advances += index * H + h
    for _ in tl.range(0, number - 1, num_stages=STAGES):
        ended = tl.load(local, mask=columns, other=0.0)
        passed = tl.load(advances + tl.arange(0, 1))
        state = state * tl.exp2(-passed * rate) + ended
        local += step * H * M * V
        starts += step * H * M * V
        advances += step * H
        tl.store(starts, state, mask=columns)


@triton.jit(do_not_specialize=["count", "T", "per_row"])
def gradient_kernel(
    values, write, read, u, log_tau, states, adjoints, grad,
    grad_values, grad_write, grad_read, grad_u, table, count, T, per_row, H, V,
    M: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, PACKED: tl.constexpr,
    EVEN: tl.constexpr, ACC: tl.constexpr, OPERAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of the inputs of one chunk and head, from the state before and the adjoint after.

    The clock's gradient follows the tree too: du_t = -(sum of what passes t), where at each level a
    position i of the later half passes all between the border and itself with
    s_i = sum_m w_im dw_im / tau_m, and one of the earlier half all after it up to the border. No
    term is subtracted from another, so nothing cancels.
    """
    program = tl.program_id(0)
    h = program % H
    index = program // H
    begin, end, _, slot, _, _ = piece(table, count, index, T, BT, per_row, per_row, PACKED, BT)
    i, m, v = tl.arange(0, BT), tl.arange(0, BM), tl.arange(0, BV)
    modes = m < M
    rate = rates(log_tau, m, M, ACC)
    rows = i < end - begin
    row = begin * H + h
    narrow = row * M + i[:, None] * (H * M) + m[None, :]
    used = rows[:, None] & modes[None, :]
    advance = tl.load(u + row + i * H, mask=rows, other=0.0).to(ACC)
    values += row * V + i[:, None] * (H * V)
    grad += row * V + i[:, None] * (H * V)
    grad_values += row * V + i[:, None] * (H * V)
    states += (slot * H + h) * (M * V) + m[:, None] * V
    adjoints += (slot * H + h) * (M * V) + m[:, None] * V
    q = tl.zeros((BT, BM), ACC)
    k = tl.zeros((BT, BM), ACC)
    both = tl.zeros((BT, BT), ACC)
    dq = tl.zeros((BT, BM), ACC)
    dk = tl.zeros((BT, BM), ACC)
    meeting = tl.zeros((BM, BM), ACC)
    for start in tl.range(0, V, BV, num_stages=STAGES):
        columns = start + v
        wide = within(rows, columns, V, EVEN)
        tall = within(modes & (begin < end), columns, V, EVEN)
        x = tl.load(values + columns[None, :], mask=wide, other=0.0)
        g = tl.load(grad + columns[None, :], mask=wide, other=0.0)
        state = tl.load(states + columns[None, :], mask=tall, other=0.0)
        adjoint = tl.load(adjoints + columns[None, :], mask=tall, other=0.0)
        # once, but here: waited for on their own, they would hold up the other loads
        once = used & (start == 0)
        q += settled(tl.load(read + narrow, mask=once, other=0.0), m, OPERAND, ACC)
        k += settled(tl.load(write + narrow, mask=once, other=0.0), m, OPERAND, ACC)
        both += product(g, tl.trans(x), OPERAND, ACC)
        dq += product(g, tl.trans(state), OPERAND, ACC)
        dk += product(x, tl.trans(adjoint), OPERAND, ACC)
        meeting += product(state, tl.trans(adjoint), OPERAND, ACC)
    before, after = advance, tl.zeros_like(advance)
    for level in tl.static_range(LEVELS):
        before, after = grow(before, after, i, level)
    # what passes all positions, between the state before the chunk and the adjoint after it
    passed = tl.exp2(-last_of(before, m, BT) * rate) * rate
    meeting = tl.where(m[:, None] == m[None, :], meeting, 0.0)
    lost = tl.sum(tl.sum(meeting, axis=1) * passed, axis=0)
    closed = decay(spread(after, i), rate)
    dq *= decay(spread(before, i), rate)
    dk *= closed
    kept = (k * closed).to(OPERAND)
    # what passes a position on its way from or to the outside of the chunk
    inner = spread(tl.sum(dq * q * rate[None, :], axis=1), i)
    outer = spread(tl.sum(dk * k * rate[None, :], axis=1), i)
    same = i[:, None] == i[None, :]
    own = tl.sum(tl.where(same, both, 0.0), axis=1)
    dq += own[:, None] * k
    dk += own[:, None] * q
    both = tl.where(i[:, None] > i[None, :], both, 0.0)
    both += tl.trans(both)
    # rows are what was written, columns the later positions that read it
    across = tl.where(same, tl.sum(q * k, axis=1)[:, None], 0.0)
    for level in tl.static_range(LEVELS - 1, -1, -1):
        later = ((i >> level) & 1) == 1
        # the transpose of `grow`
        whole = tl.where(later, inner, outer)
        before, after = advance, tl.zeros_like(advance)
        for bit in tl.static_range(level):
            whole += tl.gather(whole, i ^ (1 << bit), 0)
            before, after = grow(before, after, i, bit)
        end_of_half = (i & ((1 << level) - 1)) == ((1 << level) - 1)
        inner += tl.where(end_of_half, tl.gather(whole, i ^ (1 << level), 0), 0.0)
        reached = decay(spread(tl.where(later, before, after), i), rate)
        weight = tl.where(later[:, None], q, k) * reached
        pairs = product(weight, tl.trans(weight), OPERAND, ACC)
        joined = ((i[:, None] ^ i[None, :]) >> level) == 1
        across = tl.where(joined & (i[:, None] < i[None, :]), pairs, across)
        change = product(tl.where(joined, both, 0.0), weight, OPERAND, ACC)
        passing = spread(tl.sum(change * weight * rate[None, :], axis=1), i)
        inner += tl.where(later, passing, 0.0)
        outer += tl.where(later, 0.0, passing)
        change *= reached
        if level >= 3:
            # which half a row is in is known when compiling: a select costs nothing
            dq += tl.where(later[:, None], change, 0.0)
            dk += tl.where(later[:, None], 0.0, change)
        else:
            # one instruction each, where a select and a sum would be two
            ahead = tl.where(later, 1.0, 0.0).to(ACC)
            dq += ahead[:, None] * change
            dk += (1.0 - ahead)[:, None] * change
    du = (inner + lost) * -LN2
    tl.store(grad_u + row + i * H, du.to(grad_u.dtype.element_ty), mask=rows)
    tl.store(grad_read + narrow, dq.to(grad_read.dtype.element_ty), mask=used)
    tl.store(grad_write + narrow, dk.to(grad_write.dtype.element_ty), mask=used)
    across = across.to(OPERAND)
    for start in tl.range(0, V, BV, num_stages=STAGES):
        columns = start + v
        wide = within(rows, columns, V, EVEN)
        g = tl.load(grad + columns[None, :], mask=wide, other=0.0)
        tall = within(modes, columns, V, EVEN)
        adjoint = tl.load(adjoints + columns[None, :], mask=tall, other=0.0)
        dx = product(across, g, OPERAND, ACC) + product(kept, adjoint, OPERAND, ACC)
        dx = dx.to(grad_values.dtype.element_ty)
        at = grad_values + columns[None, :]
        tl.store(at, dx, mask=wide, eviction_policy="evict_first")


@triton.jit
def step_kernel(
    values, write, read, u, log_tau, state, output, after, H, V, BLOCKS,
    M: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr, INITIAL: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """One position of one head: S += (exp(-u/tau) - 1) S + write values^T, then read it.

    The loss is formed by itself: exp(-u/tau) of a slow mode is within a few steps of float32 of 1.
    """
    program = tl.program_id(0).to(tl.int64)
    block = program % BLOCKS
    row = program // BLOCKS
    m, v = tl.arange(0, BM), block * BV + tl.arange(0, BV)
    modes, columns = m < M, v < V
    tile = row * (M * V) + m[:, None] * V + v[None, :]
    inside = modes[:, None] & columns[None, :]
    k = tl.load(write + row * M + m, mask=modes, other=0.0).to(ACC)
    q = tl.load(read + row * M + m, mask=modes, other=0.0).to(ACC)
    x = tl.load(values + row * V + v, mask=columns, other=0.0).to(ACC)
    added = k[:, None] * x[None, :]
    if INITIAL:
        exponent = tl.load(log_tau + m, mask=modes, other=0.0).to(ACC)
        lost, kept = charge(tl.load(u + row).to(ACC) * tl.exp2(-exponent * LOG2E))
        before = tl.load(state + tile, mask=inside, other=0.0).to(ACC)
        # a slow mode moves by little; of a fast one little is left beside what is written
        slow = before + (added - lost[:, None] * before)
        added = tl.where((lost < 0.5)[:, None], slow, kept[:, None] * before + added)
    tl.store(after + tile, added, mask=inside)
    result = tl.sum(q[:, None] * added, axis=0)
    tl.store(output + row * V + v, result.to(output.dtype.element_ty), mask=columns)
