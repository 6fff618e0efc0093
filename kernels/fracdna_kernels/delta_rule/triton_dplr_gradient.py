"""Gradients of the chunks of dplr_delta_rule; triton_dplr.py launches the kernels.

From the state S before a chunk and the adjoint D after it all gradients of its positions are local.
With u what b writes (see triton_dplr_kernels.py) and r the adjoint of what a has found,

    dq = (do S^T) decayed + (do u^T) b + (do v^T) k, over earlier rows and decayed between,

and likewise da with r for do, db and dk with u and v for do, D for S and the later positions.
No derivative of the inverse is left: it is inside u and r.

T length   H heads   K key width   V value width   BT, BK, BV padded tile sizes
"""

import triton
import triton.language as tl

from fracdna_kernels.delta_rule.triton_dplr_kernels import LEVELS, decays, load_inputs
from fracdna_kernels.triton_chunks import masked_sums, passes, piece, within
from fracdna_kernels.triton_support import product


@triton.jit(do_not_specialize=["count", "T", "per_row"])
def meeting_kernel(
    v, grad, finders, writers, seen, found, traced, tracers, states, adjoints, grad_v, corrections,
    returns, pairs, table, count, T, per_row, H, K, V,
    BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, PACKED: tl.constexpr,
    EVEN: tl.constexpr, ACC: tl.constexpr, OPERAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dv of one chunk and head, and all that its other gradients need of whole rows of values.

    corrections: u, returns: r, (slots, H, BT, V), the latter with rows ahead like those of a.
    pairs: (slots, H, 4, BT, BT). At each level of the tree a row weighs q and a where it is the
    later of two positions, k and b where it is the earlier. With q or k as one, a or b as other,
    these are the gradients of one one, one other, other one and other other.
    """
    program = tl.program_id(0)
    h = program % H
    index = program // H
    begin, end, _, slot, _, _ = piece(table, count, index, T, BT, per_row, per_row, PACKED, BT)
    i, m, w = tl.arange(0, BT), tl.arange(0, BK), tl.arange(0, BV)
    exists = begin < end
    rows, keys = i < (end - begin).to(tl.int32), (m < K) & exists
    row = (begin * H + h) * V
    chunk = slot * H + h
    tile = chunk * (BT * K) + i[:, None] * K + m[None, :]
    square = i[:, None] * BT + i[None, :]
    v += row + i[:, None] * (H * V)
    grad += row + i[:, None] * (H * V)
    grad_v += row + i[:, None] * (H * V)
    corrections += chunk * (BT * V) + i[:, None] * V
    returns += chunk * (BT * V) + i[:, None] * V
    states += chunk * (K * V) + m[None, :]
    adjoints += chunk * (K * V) + m[None, :]
    seen += chunk * (BT * BT) + square
    found += chunk * (BT * BT) + square
    traced += chunk * (BT * BT) + square
    # rows read, columns were written
    qk = tl.zeros((BT, BT), ACC)
    qb = tl.zeros((BT, BT), ACC)
    ak = tl.zeros((BT, BT), ACC)
    ab = tl.zeros((BT, BT), ACC)
    for start in tl.range(0, V, BV, num_stages=STAGES):
        columns = start + w
        wide = within(rows, columns, V, EVEN)
        tall = tl.trans(within(keys, columns, V, EVEN))
        x = tl.load(v + columns[None, :], mask=wide, other=0.0)
        do = tl.load(grad + columns[None, :], mask=wide, other=0.0)
        adjoint = tl.load(adjoints + columns[:, None] * K, mask=tall, other=0.0)
        write = tl.load(writers + tile, mask=keys[None, :], other=0.0)
        dx = product(tl.trans(tl.load(seen, mask=exists, other=0.0)), do, OPERAND, ACC)
        dx += product(write, tl.trans(adjoint), OPERAND, ACC)
        dx = dx.to(grad_v.dtype.element_ty)
        tl.store(grad_v + columns[None, :], dx, mask=wide, eviction_policy="evict_first")
        trace = tl.load(tracers + tile, mask=keys[None, :], other=0.0)
        r = product(tl.load(traced, mask=exists, other=0.0), do, OPERAND, ACC)
        r = (r + product(trace, tl.trans(adjoint), OPERAND, ACC)).to(OPERAND)
        state = tl.load(states + columns[:, None] * K, mask=tall, other=0.0)
        find = tl.load(finders + tile, mask=keys[None, :], other=0.0)
        u = product(tl.load(found, mask=exists, other=0.0), x, OPERAND, ACC)
        u = (u + product(find, tl.trans(state), OPERAND, ACC)).to(OPERAND)
        inside = within(exists | (i < 0), columns, V, EVEN)
        tl.store(returns + columns[None, :], r.to(returns.dtype.element_ty), mask=inside)
        tl.store(corrections + columns[None, :], u.to(corrections.dtype.element_ty), mask=inside)
        qk += product(do, tl.trans(x), OPERAND, ACC)
        qb += product(do, tl.trans(u), OPERAND, ACC)
        ak += product(r, tl.trans(x), OPERAND, ACC)
        ab += product(r, tl.trans(u), OPERAND, ACC)
    # the last row is that of the first position, which finds nothing of its own chunk
    ended = (i == BT - 1)[:, None]
    ak = tl.where(ended, 0.0, ak)
    ab = tl.where(ended, 0.0, ab)
    lower = i[:, None] >= i[None, :]
    kind = pairs.dtype.element_ty
    pairs += chunk * (4 * BT * BT) + square
    tl.store(pairs, tl.where(lower, qk, tl.trans(qk)).to(kind), mask=exists)
    pairs += BT * BT
    tl.store(pairs, tl.where(lower, qb, tl.trans(ak)).to(kind), mask=exists)
    pairs += BT * BT
    tl.store(pairs, tl.where(lower, ak, tl.trans(qb)).to(kind), mask=exists)
    pairs += BT * BT
    tl.store(pairs, tl.where(lower, ab, tl.trans(ab)).to(kind), mask=exists)


@triton.jit(do_not_specialize=["count", "T", "per_row", "scale"])
def gradient_kernel(
    q, k, v, a, b, g, grad, corrections, returns, pairs, states, adjoints,
    grad_q, grad_k, grad_a, grad_b, grad_g, table, count, T, per_row, H, K, V, scale, BLOCKS,
    BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, PACKED: tl.constexpr,
    EVEN: tl.constexpr, ACC: tl.constexpr, OPERAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of q, k, a, b and g of one chunk, head and block of keys.

    The decays' gradient follows the tree: dg_t sums what passes t, where at each level a position
    passes the stretch between itself and the border with the product of what it weighs there and
    its gradient. No term is subtracted from another, so nothing cancels.
    """
    program = tl.program_id(0)
    start = (program % BLOCKS) * BK
    h = (program // BLOCKS) % H
    index = program // (BLOCKS * H)
    begin, end, _, slot, _, _ = piece(table, count, index, T, BT, per_row, per_row, PACKED, BT)
    i, m, w = tl.arange(0, BT), tl.arange(0, BK), tl.arange(0, BV)
    left = (end - begin).to(tl.int32)
    exists = begin < end
    rows, keys = i < left, (start + m < K) & exists
    row = begin * H + h
    chunk = slot * H + h
    v += row * V + i[:, None] * (H * V)
    grad += row * V + i[:, None] * (H * V)
    corrections += chunk * (BT * V) + i[:, None] * V
    returns += chunk * (BT * V) + i[:, None] * V
    states += chunk * (K * V) + (start + m)[None, :]
    adjoints += chunk * (K * V) + (start + m)[None, :]
    dq = tl.zeros((BT, BK), ACC)
    dk = tl.zeros((BT, BK), ACC)
    da = tl.zeros((BT, BK), ACC)
    db = tl.zeros((BT, BK), ACC)
    through = tl.zeros((BK,), ACC)
    for first in tl.range(0, V, BV, num_stages=STAGES):
        columns = first + w
        wide = within(rows, columns, V, EVEN)
        inside = within(exists | (i < 0), columns, V, EVEN)
        tall = tl.trans(within(keys, columns, V, EVEN))
        x = tl.load(v + columns[None, :], mask=wide, other=0.0)
        do = tl.load(grad + columns[None, :], mask=wide, other=0.0)
        u = tl.load(corrections + columns[None, :], mask=inside, other=0.0)
        r = tl.load(returns + columns[None, :], mask=inside, other=0.0)
        state = tl.load(states + columns[:, None] * K, mask=tall, other=0.0)
        adjoint = tl.load(adjoints + columns[:, None] * K, mask=tall, other=0.0)
        dq += product(do, state, OPERAND, ACC)
        da += product(r, state, OPERAND, ACC)
        db += product(u, adjoint, OPERAND, ACC)
        dk += product(x, adjoint, OPERAND, ACC)
        through += tl.sum(state.to(ACC) * adjoint.to(ACC), axis=0)
    reads, writes, ahead, replaces, fades = load_inputs(
        q + row * K, k + row * K, a + row * K, b + row * K, g + row * K,
        left, start, i, m, H, K, BT, ACC,
    )  # fmt: skip
    position, passed = i[None, :], i[:, None]
    ended = (i == BT - 1)[:, None]
    dg = tl.zeros((BT, BK), ACC) + (through * tl.exp2(tl.sum(fades, axis=0)))[None, :]
    opened = tl.exp2(masked_sums(i[None, :] <= i[:, None], fades, OPERAND, ACC))
    dq *= opened
    da *= tl.where(ended, 1.0, opened)
    passing = dq * reads * scale + tl.where(ended, 0.0, da * ahead)
    dg += masked_sums(passed <= position, passing, OPERAND, ACC)
    closed = tl.exp2(masked_sums(i[None, :] > i[:, None], fades, OPERAND, ACC))
    dk *= closed
    db *= closed
    dg += masked_sums(passed > position, dk * writes + db * replaces, OPERAND, ACC)
    at = pairs + chunk * (4 * BT * BT) + i[:, None] * BT + i[None, :]
    one_one = tl.load(at, mask=exists, other=0.0)
    one_other = tl.load(at + BT * BT, mask=exists, other=0.0)
    other_one = tl.load(at + 2 * BT * BT, mask=exists, other=0.0)
    other_other = tl.load(at + 3 * BT * BT, mask=exists, other=0.0)
    # pairs at the same row do not decay
    same = i[:, None] == i[None, :]
    own_qk = tl.sum(tl.where(same, one_one, 0.0).to(ACC), axis=1)[:, None]
    own_qb = tl.sum(tl.where(same, one_other, 0.0).to(ACC), axis=1)[:, None]
    own_ak = tl.sum(tl.where(same, other_one, 0.0).to(ACC), axis=1)[:, None]
    own_ab = tl.sum(tl.where(same, other_other, 0.0).to(ACC), axis=1)[:, None]
    dq += own_qk * writes + own_qb * replaces
    da += own_ak * writes + own_ab * replaces
    dk += own_qk * reads * scale + own_ak * ahead
    db += own_qb * reads * scale + own_ab * ahead
    # not unrolled: side by side, the levels would fill the registers
    for level in tl.range(LEVELS, num_stages=1):
        later = (((i >> level) & 1) == 1)[:, None]
        decay = decays(fades, i, level, OPERAND, ACC)
        one = tl.where(later, reads * scale, writes) * decay
        other = tl.where(later, ahead, replaces) * decay
        joined = ((i[:, None] ^ i[None, :]) >> level) == 1
        d_one = product(tl.where(joined, one_one, 0.0), one, OPERAND, ACC)
        d_one += product(tl.where(joined, one_other, 0.0), other, OPERAND, ACC)
        d_other = product(tl.where(joined, other_one, 0.0), one, OPERAND, ACC)
        d_other += product(tl.where(joined, other_other, 0.0), other, OPERAND, ACC)
        passing = d_one * one + d_other * other
        dg += masked_sums(passes(passed, position, level), passing, OPERAND, ACC)
        d_one *= decay
        d_other *= decay
        dq += tl.where(later, d_one, 0.0)
        dk += tl.where(later, 0.0, d_one)
        da += tl.where(later, d_other, 0.0)
        db += tl.where(later, 0.0, d_other)
    used = rows[:, None] & keys[None, :]
    narrow = row * K + i[:, None] * (H * K) + (start + m)[None, :]
    tl.store(grad_q + narrow, (dq * scale).to(grad_q.dtype.element_ty), mask=used)
    tl.store(grad_k + narrow, dk.to(grad_k.dtype.element_ty), mask=used)
    tl.store(grad_b + narrow, db.to(grad_b.dtype.element_ty), mask=used)
    tl.store(grad_g + narrow, dg.to(grad_g.dtype.element_ty), mask=used)
    following = (i + 1) & (BT - 1)
    used = (following < left)[:, None] & keys[None, :]
    narrow = row * K + following[:, None] * (H * K) + (start + m)[None, :]
    tl.store(grad_a + narrow, da.to(grad_a.dtype.element_ty), mask=used)
