"""What chunks of dplr_delta_rule do, and sweeps of sequences; triton_dplr.py launches them.

What a chunk of BT positions does to the state S that it starts from is linear. Of each chunk and
head, prepare_kernel makes, so that sweeps have matrix products alone to do,

    S' = diag(kept) S + replacers^T (finders S) + writers^T v      o = readers S + seen v

with kept (K,), finders, replacers, writers and readers (BT, K) and seen (BT, BT). The adjoint of
the state takes the same form with finders for replacers, readers for writers and do for v.

With L_ab and L_ak, what a reads at a position of what b and k wrote at earlier ones of the chunk,
and P_qb, P_qk, what q reads of them, X = (I - L_ab)^-1 is what corrections to come add up to:

    finders = X (a decayed from the start)     found = X L_ak     u = finders S + found v
    readers = (q decayed from the start) + P_qb finders           seen = P_qk + P_qb found
    replacers = b decayed to the end           writers = (k decayed to the end) + found^T replacers

Decays between two positions are split at the borders of a binary tree, see triton_chunks.py. What a
reads at a position is the state before it decays there: what q would read one position earlier.
So a is taken `ahead`, row i holding that of position i + 1, and shares all decays with q; the last
row holds the a of the first position, which finds nothing of its own chunk.

T length   H heads   K key width   V value width   BT, BK, BV padded tile sizes   S state (K, V)
"""

import triton
import triton.language as tl

from fracdna_kernels.delta_rule import launches
from fracdna_kernels.triton_chunks import (
    masked_sums,
    meets,
    passes,
    piece,
    unit_inverse,
    within,
)
from fracdna_kernels.triton_support import LOG2E, exact_product, product

LEVELS = tl.constexpr(launches.LEVELS)  # log2 of BT
# a kernel serves all lengths: compiled anew for some of them, it would stall and change bits
_SIZES = ["count", "T", "length", "per_row", "chunks"]


@triton.jit
def decays(g, i, level, OPERAND: tl.constexpr, ACC: tl.constexpr):
    """Decay (positions, keys) between each position and the border of its level; g for exp2."""
    return tl.exp2(masked_sums(passes(i[None, :], i[:, None], level), g, OPERAND, ACC))


@triton.jit
def load_inputs(q, k, a, b, g, left, start, i, m, H, K, BT: tl.constexpr, ACC: tl.constexpr):
    """Rows of q, k, b and g, and of a ahead, for a block of keys; g is made one for exp2."""
    keys = start + m < K
    following = (i + 1) & (BT - 1)
    used = (i < left)[:, None] & keys[None, :]
    at = i[:, None] * (H * K) + (start + m)[None, :]
    used_ahead = (following < left)[:, None] & keys[None, :]
    at_ahead = following[:, None] * (H * K) + (start + m)[None, :]
    return (
        tl.load(q + at, mask=used, other=0.0),
        tl.load(k + at, mask=used, other=0.0),
        tl.load(a + at_ahead, mask=used_ahead, other=0.0),
        tl.load(b + at, mask=used, other=0.0),
        tl.load(g + at, mask=used, other=0.0).to(ACC) * LOG2E,
    )


@triton.jit
def row_products(x, y, ACC: tl.constexpr):
    """Inner products of equal rows."""
    return tl.sum(x.to(ACC) * y.to(ACC), axis=1)


@triton.jit(do_not_specialize=["count", "T", "per_row", "scale"])
def prepare_kernel(
    q, k, a, b, g, finders, replacers, writers, readers, seen, kept, found, traced, tracers,
    table, count, T, per_row, H, K, scale,
    BK: tl.constexpr, BT: tl.constexpr, PACKED: tl.constexpr, BACKWARD: tl.constexpr,
    ACC: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """What one chunk and head does to any state, see above; all chunks at once.

    For gradients also `found`, and what the adjoint of u is: traced do + tracers D, D the adjoint
    after the chunk; of these two, rows are ahead like those of a.
    """
    program = tl.program_id(0)
    h = program % H
    index = program // H
    begin, end, _, slot, _, _ = piece(table, count, index, T, BT, per_row, per_row, PACKED, BT)
    i, m = tl.arange(0, BT), tl.arange(0, BK)
    left = (end - begin).to(tl.int32)
    # places of a table that no chunk takes have the slot of another
    exists = begin < end
    row = (begin * H + h) * K
    q += row
    k += row
    a += row
    b += row
    g += row
    same = i[:, None] == i[None, :]
    earlier = i[:, None] > i[None, :]
    # rows read, columns were written; `mixed` has q with b below the diagonal, k with a above it
    qk = tl.zeros((BT, BT), ACC)
    ab = tl.zeros((BT, BT), ACC)
    mixed = tl.zeros((BT, BT), ACC)
    own_qb = tl.zeros((BT,), ACC)
    own_ak = tl.zeros((BT,), ACC)
    for start in tl.range(0, K, BK, num_stages=1):
        reads, writes, ahead, replaces, fades = load_inputs(
            q, k, a, b, g, left, start, i, m, H, K, BT, ACC
        )
        qk += tl.where(same, row_products(reads, writes, ACC)[:, None], 0.0)
        ab += tl.where(same, row_products(ahead, replaces, ACC)[:, None], 0.0)
        own_qb += row_products(reads, replaces, ACC)
        own_ak += row_products(ahead, writes, ACC)
        # not unrolled: side by side, the levels would fill the registers
        for level in tl.range(LEVELS, num_stages=1):
            later = (((i >> level) & 1) == 1)[:, None]
            decay = decays(fades, i, level, OPERAND, ACC)
            one = (tl.where(later, reads, writes) * decay).to(OPERAND)
            other = (tl.where(later, ahead, replaces) * decay).to(OPERAND)
            joined = ((i[:, None] ^ i[None, :]) >> level) == 1
            qk += tl.where(meets(i, level), product(one, tl.trans(one), OPERAND, ACC), 0.0)
            ab += tl.where(meets(i, level), product(other, tl.trans(other), OPERAND, ACC), 0.0)
            mixed += tl.where(joined, product(one, tl.trans(other), OPERAND, ACC), 0.0)
    qb = tl.where(earlier, mixed, 0.0)
    qb = (tl.where(same, own_qb[:, None], qb) * scale).to(OPERAND)
    ak = tl.where(earlier, tl.trans(mixed), 0.0)
    ak = tl.where(same, own_ak[:, None], ak)
    ak = tl.where((i == BT - 1)[:, None], 0.0, ak)
    # rows of a back to their own positions, and I - L_ab is what is inverted
    back = tl.where(i[:, None] == i[None, :] + 1, -1.0, 0.0).to(ACC)
    lower = exact_product(back, ab, OPERAND, ACC)
    # not unrolled, as above
    inverse = unit_inverse(lower, i, LEVELS, False, OPERAND, ACC)
    # columns ahead, so that it takes rows of a as they are
    turn = tl.where(i[:, None] == ((i + 1) & (BT - 1))[None, :], 1.0, 0.0)
    inverse = product(inverse, turn, OPERAND, ACC).to(OPERAND)
    known = product(inverse, ak, OPERAND, ACC).to(OPERAND)
    near = qk * scale + product(qb, known, OPERAND, ACC)
    chunk = slot * H + h
    pairs = chunk * (BT * BT) + i[:, None] * BT + i[None, :]
    tl.store(seen + pairs, near.to(seen.dtype.element_ty), mask=exists)
    if BACKWARD:
        tl.store(found + pairs, known.to(found.dtype.element_ty), mask=exists)
        trace = tl.trans(product(qb, inverse, OPERAND, ACC))
        tl.store(traced + pairs, trace.to(traced.dtype.element_ty), mask=exists)
    for start in tl.range(0, K, BK, num_stages=1):
        reads, writes, ahead, replaces, fades = load_inputs(
            q, k, a, b, g, left, start, i, m, H, K, BT, ACC
        )
        opened = tl.exp2(masked_sums(i[None, :] <= i[:, None], fades, OPERAND, ACC))
        closed = tl.exp2(masked_sums(i[None, :] > i[:, None], fades, OPERAND, ACC))
        ahead *= tl.where((i == BT - 1)[:, None], 1.0, opened)
        find = product(inverse, ahead, OPERAND, ACC).to(OPERAND)
        replace = (replaces * closed).to(OPERAND)
        write = writes * closed + product(tl.trans(known), replace, OPERAND, ACC)
        read = reads * opened * scale + product(qb, find, OPERAND, ACC)
        keys = start + m
        inside = (keys < K)[None, :] & exists
        tile = chunk * (BT * K) + i[:, None] * K + keys[None, :]
        tl.store(finders + tile, find.to(finders.dtype.element_ty), mask=inside)
        tl.store(replacers + tile, replace.to(replacers.dtype.element_ty), mask=inside)
        tl.store(writers + tile, write.to(writers.dtype.element_ty), mask=inside)
        tl.store(readers + tile, read.to(readers.dtype.element_ty), mask=inside)
        total = tl.exp2(tl.sum(fades, axis=0))
        tl.store(kept + chunk * K + keys, total, mask=(keys < K) & exists)
        if BACKWARD:
            follow = product(tl.trans(inverse), replace, OPERAND, ACC)
            tl.store(tracers + tile, follow.to(tracers.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def sweep_kernel(
    finders, replacers, writers, kept, values, readers, seen, initial, starts, output, ends, maps,
    states, table, count, T, length, per_row, chunks, H, K, V, BLOCKS, PROGRAMS,
    BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, REVERSE: tl.constexpr,
    LOCAL: tl.constexpr, OUTPUT: tl.constexpr, KEEP: tl.constexpr, PACKED: tl.constexpr,
    INITIAL: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr,
    OPERAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """S' = diag(kept) S + replacers^T (finders S) + writers^T values, chunk after chunk.

    One program sweeps one piece of one head and one block of value columns. Backwards it is handed
    replacers for finders, finders for replacers, readers for writers and do for values.
    OUTPUT: also o = readers S + seen values. KEEP: also S at the entry of every chunk, forwards at
    its start, backwards at its end, (V, K). LOCAL: from zero, what each piece ends with; a second
    half of the blocks sweeps the columns of the identity with no values, which gives the map of the
    piece, (K, K), backwards transposed.

    The state is kept transposed, (BV, BK): that is a first factor of products straight from
    registers, with few rows.
    """
    program = tl.program_id(0)
    h = program % H
    block = (program // H) % PROGRAMS
    index = program // (H * PROGRAMS)
    begin, end, sequence, slot, first, last = piece(
        table, count, index, T, length, per_row, chunks, PACKED, BT
    )
    enters, leaves = (last, first) if REVERSE else (first, last)
    i, m = tl.arange(0, BT), tl.arange(0, BK)
    v = block * BV + tl.arange(0, BV)
    keys, columns = m < K, v < V
    tile = m[None, :] * V + v[:, None]
    inside = tl.trans(within(keys, v, V, EVEN))
    state = tl.zeros((BV, BK), ACC)
    if INITIAL:
        at = initial + (sequence * H + h) * (K * V) + tile
        state = tl.load(at, mask=inside & enters & (sequence >= 0), other=0.0).to(ACC)
    if SPLIT:
        at = starts + (index.to(tl.int64) * H + h) * (K * V) + tile
        state += tl.load(at, mask=inside & (enters == 0) & (sequence >= 0), other=0.0).to(ACC)
    number = tl.cdiv(end - begin, BT)
    column = (block - BLOCKS) * BV + tl.arange(0, BV)
    if LOCAL:
        # the last piece's state is nobody's start
        number = tl.where(leaves, 0, number)
        state += tl.where(column[:, None] == m[None, :], 1.0, 0.0)
    skip = tl.maximum(number - 1, 0) if REVERSE else 0
    chunk = (slot + skip) * H + h
    row = (begin + skip * BT) * H + h
    finders += chunk * (BT * K)
    replacers += chunk * (BT * K)
    writers += chunk * (BT * K)
    kept += chunk * K
    values += row * V
    if OUTPUT:
        readers += chunk * (BT * K)
        seen += chunk * (BT * BT)
        output += row * V
    if KEEP:
        states += chunk * (K * V)
    left = (end - begin - skip * BT).to(tl.int32)
    narrow = i[:, None] * K + m[None, :]
    wide = i[:, None] * (H * V) + v[None, :]
    pairs = i[:, None] * BT + i[None, :]
    step = -1 if REVERSE else 1
    for _ in tl.range(0, number, num_stages=STAGES):
        # beyond the chunk there are zeros in what is multiplied with it
        find = tl.load(finders + narrow, mask=keys[None, :], other=0.0)
        replace = tl.load(replacers + narrow, mask=keys[None, :], other=0.0)
        write = tl.load(writers + narrow, mask=keys[None, :], other=0.0)
        decay = tl.load(kept + m, mask=keys, other=0.0)
        present = (i < left)[:, None] & (columns[None, :] if LOCAL else within(i >= 0, v, V, EVEN))
        x = tl.load(values + wide, mask=present, other=0.0)
        low = state.to(OPERAND)
        if KEEP:
            low_inside = columns[:, None] & keys[None, :]
            low_tile = v[:, None] * K + m[None, :]
            tl.store(states + low_tile, low.to(states.dtype.element_ty), mask=low_inside)
        if OUTPUT:
            read = tl.load(readers + narrow, mask=keys[None, :], other=0.0)
            near = tl.load(seen + pairs)
            result = product(low, tl.trans(read), OPERAND, ACC)
            result += product(tl.trans(x), tl.trans(near), OPERAND, ACC)
            result = tl.trans(result).to(output.dtype.element_ty)
            # nobody reads it before it has left the cache; what is still to be read may stay
            tl.store(output + wide, result, mask=present, eviction_policy="evict_first")
        change = product(low, tl.trans(find), OPERAND, ACC)
        state *= decay[None, :]
        state += product(change, replace, OPERAND, ACC)
        state += product(tl.trans(x), write, OPERAND, ACC)
        finders += step * BT * H * K
        replacers += step * BT * H * K
        writers += step * BT * H * K
        kept += step * H * K
        values += step * BT * H * V
        if OUTPUT:
            readers += BT * H * K
            seen += H * BT * BT
            output += BT * H * V
        if KEEP:
            states += step * H * K * V
        left -= step * BT
    if LOCAL:
        piece_head = index.to(tl.int64) * H + h
        done = (leaves == 0) & (sequence >= 0)
        tl.store(ends + piece_head * (K * V) + tile, state, mask=inside & done & (block < BLOCKS))
        square = column[:, None] * K + m[None, :] if REVERSE else column[:, None] + m[None, :] * K
        used = (column >= 0)[:, None] & (column < K)[:, None] & keys[None, :]
        tl.store(maps + piece_head * (K * K) + square, state, mask=used & done)
    else:
        at = ends + (sequence * H + h) * (K * V) + tile
        tl.store(at, state, mask=inside & leaves & (sequence >= 0))
