"""The kernels of delta_rule's Triton form; triton_chunk.py plans and launches them.

A chunk is BT positions. What a position writes depends on what all earlier ones wrote, but
linearly: with G_ij the decay after j up to i and L_ij = beta_i (k_i . k_j) G_ij for j < i, a chunk
writes V' = X beta (v - f (k S)), X = (I + L)^-1. Then o = scale f (q S) + P V', where
P_ij = scale (q_i . k_j) G_ij for j <= i, and S' = e S + k^T (r V'); f, r and e are the decays since
the start of the chunk, until its end, and over it all.

X and P do not depend on the state: they are made of all chunks at once. The state is kept
transposed, so that value columns are the rows of all products that it takes part in. Each warp has
its own rows, and what a product gives is a factor of the next one without a way through shared
memory. The compiler shares rows out among warps only where a tile has no more columns than rows:
so the state is a tuple of TILES tiles of BK keys. What does pass through shared memory, states and
outputs on their way out, comes last in a loop: loads of factors cannot be delayed beyond it.

T length   H heads   K key width   V value width   BT, BK, BV tile sizes   S state (K, V)
"""

import triton
import triton.language as tl

from fracdna_kernels.delta_rule import launches
from fracdna_kernels.triton_chunks import grow, meets, piece, unit_inverse, within
from fracdna_kernels.triton_support import LOG2E, exact_product, product

HALF_LEVELS = tl.constexpr(launches.LEVELS - 1)  # of the tree inside half a chunk
# a kernel serves all lengths: compiled anew for some of them, it would stall and change bits
_SIZES = ["count", "T", "length", "per_row", "chunks"]


@triton.jit
def half_decays(g, i, LEVELS: tl.constexpr, ACC: tl.constexpr):
    """Log decays since the start of half a chunk and up to its end, and the decays inside it.

    All are log2; g (positions,) is at most 0.
    """
    before, after = g, tl.zeros_like(g)
    pairs = tl.where(i[:, None] == i[None, :], 1.0, 0.0).to(ACC)
    for level in tl.static_range(LEVELS):
        reach = tl.exp2(tl.where(((i >> level) & 1) == 1, before, after))
        pairs = tl.where(meets(i, level), reach[:, None] * reach[None, :], pairs)
        before, after = grow(before, after, i, level)
    return before, after, pairs


@triton.jit(do_not_specialize=["count", "T", "per_row"])
def prepare_kernel(
    q, k, beta, g, inverses, pairs, factors, table, scale, count, T, per_row, H, K,
    BK: tl.constexpr, BT: tl.constexpr, KEEP: tl.constexpr, PACKED: tl.constexpr,
    EVEN: tl.constexpr, ACC: tl.constexpr, OPERAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What does not depend on the state, of one chunk and head.

    Two halves, so that nothing is made of the part above the diagonal between them.

    Writes X to `inverses` (B, T, H, BT) where the backward pass needs it (KEEP), X beta and P to
    `pairs` (slots, H, 2, BT, BT), and f and r to `factors` (slots, H, 2, BT).
    """
    program = tl.program_id(0)
    h = program % H
    index = program // H
    begin, end, sequence, slot, _, _ = piece(
        table, count, index, T, BT, per_row, per_row, PACKED, BT
    )
    i, m = tl.arange(0, BT // 2), tl.arange(0, BK)
    left = (end - begin).to(tl.int32)
    rows1, rows2 = i < left, i + BT // 2 < left
    row = begin * H + h
    half = BT // 2 * H
    k += row * K + i[:, None] * (H * K)
    q += row * K + i[:, None] * (H * K)
    square = tl.zeros((BT // 2, BT // 2), ACC)
    lower1, lower2, lower21, seen1, seen2, seen21 = square, square, square, square, square, square
    for start in tl.range(0, K, BK, num_stages=STAGES):
        keys = start + m
        used1, used2 = within(rows1, keys, K, EVEN), within(rows2, keys, K, EVEN)
        k1 = tl.load(k + keys[None, :], mask=used1, other=0.0)
        k2 = tl.load(k + half * K + keys[None, :], mask=used2, other=0.0)
        q1 = tl.load(q + keys[None, :], mask=used1, other=0.0)
        q2 = tl.load(q + half * K + keys[None, :], mask=used2, other=0.0)
        k1t, k2t = tl.trans(k1), tl.trans(k2)
        lower1 += product(k1, k1t, OPERAND, ACC)
        lower2 += product(k2, k2t, OPERAND, ACC)
        lower21 += product(k2, k1t, OPERAND, ACC)
        seen1 += product(q1, k1t, OPERAND, ACC)
        seen2 += product(q2, k2t, OPERAND, ACC)
        seen21 += product(q2, k1t, OPERAND, ACC)
    flat = row + i * H
    beta1 = tl.load(beta + flat, mask=rows1, other=0.0).to(ACC)
    beta2 = tl.load(beta + half + flat, mask=rows2, other=0.0).to(ACC)
    g1 = tl.load(g + flat, mask=rows1, other=0.0).to(ACC) * LOG2E
    g2 = tl.load(g + half + flat, mask=rows2, other=0.0).to(ACC) * LOG2E
    before1, after1, pairs1 = half_decays(g1, i, HALF_LEVELS, ACC)
    before2, after2, pairs2 = half_decays(g2, i, HALF_LEVELS, ACC)
    pairs21 = tl.exp2(before2)[:, None] * tl.exp2(after1)[None, :]
    lower1 *= pairs1 * beta1[:, None]
    lower2 *= pairs2 * beta2[:, None]
    lower21 *= pairs21 * beta2[:, None]
    causal = i[:, None] >= i[None, :]
    seen1 = tl.where(causal, seen1 * pairs1, 0.0) * scale
    seen2 = tl.where(causal, seen2 * pairs2, 0.0) * scale
    seen21 *= pairs21 * scale
    exists = sequence >= 0
    kind = pairs.dtype.element_ty
    nothing = tl.zeros((BT // 2, BT // 2), kind)
    at = pairs + (slot * H + h) * (2 * BT * BT) + i[:, None] * BT + i[None, :]
    tl.store(at + BT * BT, seen1.to(kind), mask=exists)
    tl.store(at + BT * BT + BT // 2, nothing, mask=exists)
    tl.store(at + BT * BT + BT // 2 * BT, seen21.to(kind), mask=exists)
    tl.store(at + BT * BT + BT // 2 * BT + BT // 2, seen2.to(kind), mask=exists)
    inverse1 = unit_inverse(lower1, i, HALF_LEVELS, True, OPERAND, ACC)
    inverse2 = unit_inverse(lower2, i, HALF_LEVELS, True, OPERAND, ACC)
    inverse21 = exact_product(lower21, inverse1, OPERAND, ACC)
    inverse21 = exact_product(inverse2, inverse21, OPERAND, ACC)
    if KEEP:
        to = inverses + row * BT + i[:, None] * (H * BT) + i[None, :]
        tl.store(to, inverse1.to(kind), mask=rows1[:, None])
        tl.store(to + BT // 2, nothing, mask=rows1[:, None])
        tl.store(to + half * BT, (-inverse21).to(kind), mask=rows2[:, None])
        tl.store(to + half * BT + BT // 2, inverse2.to(kind), mask=rows2[:, None])
    weight1, weight2 = beta1[None, :], beta2[None, :]
    tl.store(at, (inverse1 * weight1).to(kind), mask=exists)
    tl.store(at + BT // 2, nothing, mask=exists)
    tl.store(at + BT // 2 * BT, (inverse21 * -weight1).to(kind), mask=exists)
    tl.store(at + BT // 2 * BT + BT // 2, (inverse2 * weight2).to(kind), mask=exists)
    # totals of the halves, in every lane
    last = i * 0 + (BT // 2 - 1)
    total1, total2 = tl.gather(before1, last, 0), tl.gather(before2, last, 0)
    at = factors + (slot * H + h) * (2 * BT) + i
    tl.store(at, tl.exp2(before1), mask=exists)
    tl.store(at + BT // 2, tl.exp2(before2 + total1), mask=exists)
    tl.store(at + BT, tl.exp2(after1 + total2), mask=exists)
    tl.store(at + BT + BT // 2, tl.exp2(after2), mask=exists)


@triton.jit
def tile_of(tile: tl.constexpr, BK: tl.constexpr):
    """The keys of a tile."""
    return tile * BK + tl.arange(0, BK)


@triton.jit
def load_rows(x, i, rows, H, K, TILES: tl.constexpr, BK: tl.constexpr, FULL: tl.constexpr):
    """A tuple of tiles (positions, keys)."""
    tiles = ()
    for tile in tl.static_range(TILES):
        m = tile_of(tile, BK)
        at = x + i[:, None] * (H * K) + m[None, :]
        tiles = tiles + (tl.load(at, mask=within(rows, m, K, FULL), other=0.0),)
    return tiles


@triton.jit
def load_state(
    x, exists, columns, K, V, TILES: tl.constexpr, BK: tl.constexpr, FULL: tl.constexpr,
    EVEN: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """A transposed state (K, V), a tuple of tiles (columns, keys)."""
    tiles = ()
    for tile in tl.static_range(TILES):
        m = tile_of(tile, BK)
        mask = inside(m, columns, K, V, FULL, EVEN) & exists
        at = x + m[None, :] * V + columns[:, None]
        tiles = tiles + (tl.load(at, mask=mask, other=0.0).to(ACC),)
    return tiles


@triton.jit
def store_state(
    x, state, exists, columns, K, V, TILES: tl.constexpr, BK: tl.constexpr, FULL: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """The other way round."""
    for tile in tl.static_range(TILES):
        m = tile_of(tile, BK)
        mask = inside(m, columns, K, V, FULL, EVEN) & exists
        at = x + m[None, :] * V + columns[:, None]
        tl.store(at, state[tile].to(x.dtype.element_ty), mask=mask)


@triton.jit
def inside(m, columns, K, V, FULL: tl.constexpr, EVEN: tl.constexpr):
    """Which elements of a tile (columns, keys) exist."""
    if FULL:
        if EVEN:
            return tl.full((1, 1), True, tl.int1)
        else:
            return (columns < V)[:, None]
    else:
        if EVEN:
            return (m < K)[None, :]
        else:
            return (columns < V)[:, None] & (m < K)[None, :]


@triton.jit
def rounded(state, TILES: tl.constexpr, OPERAND: tl.constexpr):
    """A tuple of tiles as factors of products."""
    tiles = ()
    for tile in tl.static_range(TILES):
        tiles = tiles + (state[tile].to(OPERAND),)
    return tiles


@triton.jit
def read(state, rows, TILES: tl.constexpr, OPERAND: tl.constexpr, ACC: tl.constexpr):
    """What rows (positions, keys) find in a state, (columns, positions)."""
    found = product(state[0], tl.trans(rows[0]), OPERAND, ACC)
    for tile in tl.static_range(1, TILES):
        found += product(state[tile], tl.trans(rows[tile]), OPERAND, ACC)
    return found


@triton.jit
def written(state, kept, x, rows, TILES: tl.constexpr, OPERAND: tl.constexpr, ACC: tl.constexpr):
    """A state that fades to the share `kept`, with x (columns, positions) added under rows."""
    tiles = ()
    for tile in tl.static_range(TILES):
        added = state[tile] * kept + product(x, rows[tile], OPERAND, ACC)
        tiles = tiles + (added,)
    return tiles


@triton.jit
def empty(TILES: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, ACC: tl.constexpr):
    """A state of zeros."""
    tiles = ()
    for _ in tl.static_range(TILES):
        tiles = tiles + (tl.zeros((BV, BK), ACC),)
    return tiles


@triton.jit
def identity(across, TILES: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr):
    """Columns `across` of the identity, transposed."""
    tiles = ()
    for tile in tl.static_range(TILES):
        same = across[:, None] == tile_of(tile, BK)[None, :]
        tiles = tiles + (tl.where(same, 1.0, 0.0).to(ACC),)
    return tiles


@triton.jit
def entering(
    initial, start, carried, place, exists, opens, columns, K, V, TILES: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, FULL: tl.constexpr, EVEN: tl.constexpr,
    INITIAL: tl.constexpr, SPLIT: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """What a piece starts from: a given state where it opens its sequence, else a carried one."""
    if INITIAL and SPLIT:
        at = tl.where(opens, initial + start, carried + place)
        state = load_state(at, exists, columns, K, V, TILES, BK, FULL, EVEN, ACC)
    elif INITIAL:
        state = load_state(initial + start, exists, columns, K, V, TILES, BK, FULL, EVEN, ACC)
    elif SPLIT:
        there = exists & (opens == 0)
        state = load_state(carried + place, there, columns, K, V, TILES, BK, FULL, EVEN, ACC)
    else:
        state = empty(TILES, BK, BV, ACC)
    return state


@triton.jit(do_not_specialize=_SIZES)
def output_kernel(
    q, k, v, pairs, factors, initial, starts, output, final, states, table, scale, count,
    T, length, per_row, chunks, H, K, V, BLOCKS,
    TILES: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr,
    KEEP: tl.constexpr, PACKED: tl.constexpr, INITIAL: tl.constexpr, SPLIT: tl.constexpr,
    FULL: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr, OPERAND: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Output, the states that chunks start from (KEEP) and the final state.

    One program sweeps one piece of one head and one block of value columns.
    """
    program = tl.program_id(0)
    h = program % H
    block = (program // H) % BLOCKS
    index = program // (H * BLOCKS)
    begin, end, sequence, slot, first, last = piece(
        table, count, index, T, length, per_row, chunks, PACKED, BT
    )
    i, columns = tl.arange(0, BT), block * BV + tl.arange(0, BV)
    start = (sequence * H + h) * (K * V)
    exists = sequence >= 0
    state = entering(
        initial, start, starts, (index.to(tl.int64) * H + h) * (K * V), exists, first, columns,
        K, V, TILES, BK, BV, FULL, EVEN, INITIAL, SPLIT, ACC,
    )  # fmt: skip
    row = begin * H + h
    q += row * K
    k += row * K
    v += row * V
    output += row * V
    place = slot * H + h
    pairs += place * (2 * BT * BT) + i[:, None] * BT + i[None, :]
    factors += place * (2 * BT)
    states += place * (K * V)
    wide = i[:, None] * (H * V) + columns[None, :]
    left = (end - begin).to(tl.int32)
    if KEEP:
        store_state(states, state, left > 0, columns, K, V, TILES, BK, FULL, EVEN)
    for t in tl.range(0, left, BT, num_stages=STAGES):
        rows = i < left - t
        mask = within(rows, columns, V, EVEN)
        keys = load_rows(k, i, rows, H, K, TILES, BK, FULL)
        queries = load_rows(q, i, rows, H, K, TILES, BK, FULL)
        x = tl.load(v + tl.trans(wide), mask=tl.trans(mask), other=0.0)
        inverse = tl.trans(tl.load(pairs))
        seen = tl.trans(tl.load(pairs + BT * BT))
        since = tl.load(factors + i)[None, :]
        until = tl.load(factors + BT + i)[None, :]
        kept = tl.load(factors + BT - 1)
        low = rounded(state, TILES, OPERAND)
        found = read(low, keys, TILES, OPERAND, ACC) * since
        result = read(low, queries, TILES, OPERAND, ACC) * (since * scale)
        # X beta (v - found), of which v is a factor as it lies in memory
        corrected = product(x, inverse, OPERAND, ACC)
        corrected += product(-found, inverse, OPERAND, ACC)
        result += product(corrected, seen, OPERAND, ACC)
        state = written(state, kept, corrected * until, keys, TILES, OPERAND, ACC)
        states += H * K * V
        if KEEP:
            # last: what waits for other warps holds up the loads of factors behind it
            more = t + BT < left
            store_state(states, state, more, columns, K, V, TILES, BK, FULL, EVEN)
        # nobody reads it before it has left the cache; what is still to be read may stay
        result = tl.trans(result).to(output.dtype.element_ty)
        tl.store(output + wide, result, mask=mask, eviction_policy="evict_first")
        q += BT * H * K
        k += BT * H * K
        v += BT * H * V
        output += BT * H * V
        pairs += H * 2 * BT * BT
        factors += H * 2 * BT
    store_state(final + start, state, exists & last, columns, K, V, TILES, BK, FULL, EVEN)


@triton.jit(do_not_specialize=_SIZES)
def local_kernel(
    k, v, pairs, factors, ends, transitions, table, count,
    T, length, per_row, chunks, H, K, V, BLOCKS, ALL_BLOCKS,
    TILES: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr,
    KEEP: tl.constexpr, PACKED: tl.constexpr, FULL: tl.constexpr, EVEN: tl.constexpr,
    ACC: tl.constexpr, OPERAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What each piece makes of an empty state, and its transition, which it makes of the identity.

    Blocks of columns of the identity follow those of the values and have values of zero. Of the
    last piece of a sequence only the transition is used, and in the backward pass alone (KEEP).
    """
    program = tl.program_id(0)
    h = program % H
    block = (program // H) % ALL_BLOCKS
    index = program // (H * ALL_BLOCKS)
    begin, end, sequence, slot, _, last = piece(
        table, count, index, T, length, per_row, chunks, PACKED, BT
    )
    own = block < BLOCKS
    i, columns = tl.arange(0, BT), block * BV + tl.arange(0, BV)
    across = columns - BLOCKS * BV
    state = identity(across, TILES, BK, ACC)
    used = (last == 0) | (own == 0) if KEEP else last == 0
    row = begin * H + h
    k += row * K
    v += row * V
    place = slot * H + h
    pairs += place * (2 * BT * BT) + i[:, None] * BT + i[None, :]
    factors += place * (2 * BT)
    wide = i[:, None] * (H * V) + columns[None, :]
    left = tl.where(used, end - begin, 0).to(tl.int32)
    for t in tl.range(0, left, BT, num_stages=STAGES):
        rows = i < left - t
        keys = load_rows(k, i, rows, H, K, TILES, BK, FULL)
        mask = within(rows & own, columns, V, EVEN)
        x = tl.load(v + tl.trans(wide), mask=tl.trans(mask), other=0.0)
        inverse = tl.trans(tl.load(pairs))
        since = tl.load(factors + i)[None, :]
        until = tl.load(factors + BT + i)[None, :]
        kept = tl.load(factors + BT - 1)
        found = read(rounded(state, TILES, OPERAND), keys, TILES, OPERAND, ACC) * since
        corrected = product(x, inverse, OPERAND, ACC)
        corrected += product(-found, inverse, OPERAND, ACC)
        state = written(state, kept, corrected * until, keys, TILES, OPERAND, ACC)
        k += BT * H * K
        v += BT * H * V
        pairs += H * 2 * BT * BT
        factors += H * 2 * BT
    place = index.to(tl.int64) * H + h
    used &= sequence >= 0
    if own:
        store_state(ends + place * (K * V), state, used, columns, K, V, TILES, BK, FULL, EVEN)
    else:
        store_state(
            transitions + place * (K * K), state, used, across, K, K, TILES, BK, FULL, False
        )


@triton.jit(do_not_specialize=_SIZES)
def adjoint_kernel(
    q, k, grad, pairs, factors, initial, starts, ends, adjoints, table, scale, count,
    T, length, per_row, chunks, H, K, V, BLOCKS,
    TILES: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr,
    LOCAL: tl.constexpr, PACKED: tl.constexpr, INITIAL: tl.constexpr, SPLIT: tl.constexpr,
    FULL: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr, OPERAND: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The adjoint D of the state backwards: D' = e D + scale (f q)^T dO - k^T (f beta R).

    R = X^T (P^T dO + r (k D)). LOCAL: from zero, writes what each piece leaves for the one before
    it. Else it starts from carried adjoints, writes the one at the end of every chunk and, where a
    sequence begins, what is left.
    """
    program = tl.program_id(0)
    h = program % H
    block = (program // H) % BLOCKS
    index = program // (H * BLOCKS)
    begin, end, sequence, slot, first, last = piece(
        table, count, index, T, length, per_row, chunks, PACKED, BT
    )
    i, columns = tl.arange(0, BT), block * BV + tl.arange(0, BV)
    start = (sequence * H + h) * (K * V)
    place = (index.to(tl.int64) * H + h) * (K * V)
    exists = sequence >= 0
    adjoint = entering(
        initial, start, starts, place, exists, last, columns,
        K, V, TILES, BK, BV, FULL, EVEN, INITIAL, SPLIT, ACC,
    )  # fmt: skip
    number = tl.cdiv(end - begin, BT)
    if LOCAL:
        # what the first piece leaves is nobody's start
        number = tl.where(first, 0, number)
        ends += place
        leaves = exists & (first == 0)
    else:
        ends += start
        leaves = exists & first
    skip = tl.maximum(number - 1, 0)
    row = (begin + skip * BT) * H + h
    q += row * K
    k += row * K
    grad += row * V
    place = (slot + skip) * H + h
    pairs += place * (2 * BT * BT) + i[:, None] * BT + i[None, :]
    factors += place * (2 * BT)
    adjoints += place * (K * V)
    wide = i[:, None] * (H * V) + columns[None, :]
    left = (end - begin - skip * BT).to(tl.int32)
    if not LOCAL:
        store_state(adjoints, adjoint, number > 0, columns, K, V, TILES, BK, FULL, EVEN)
    for n in tl.range(0, number, num_stages=STAGES):
        rows = i < left
        keys = load_rows(k, i, rows, H, K, TILES, BK, FULL)
        queries = load_rows(q, i, rows, H, K, TILES, BK, FULL)
        mask = within(rows, columns, V, EVEN)
        x = tl.load(grad + tl.trans(wide), mask=tl.trans(mask), other=0.0)
        inverse = tl.load(pairs)
        seen = tl.load(pairs + BT * BT)
        since = tl.load(factors + i)[None, :]
        until = tl.load(factors + BT + i)[None, :]
        kept = tl.load(factors + BT - 1)
        low = rounded(adjoint, TILES, OPERAND)
        passed = read(low, keys, TILES, OPERAND, ACC) * until
        passed += product(x, seen, OPERAND, ACC)
        reached = product(passed, inverse, OPERAND, ACC) * since
        # times the identity: that brings it to where the next product has its factor
        same = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
        asked = product(x, same, OPERAND, ACC) * (since * scale)
        adjoint = written(adjoint, kept, asked, queries, TILES, OPERAND, ACC)
        adjoint = written(adjoint, 1.0, -reached, keys, TILES, OPERAND, ACC)
        adjoints -= H * K * V
        if not LOCAL:
            more = n + 1 < number
            store_state(adjoints, adjoint, more, columns, K, V, TILES, BK, FULL, EVEN)
        q -= BT * H * K
        k -= BT * H * K
        grad -= BT * H * V
        pairs -= H * 2 * BT * BT
        factors -= H * 2 * BT
        left += BT
    store_state(ends, adjoint, leaves, columns, K, V, TILES, BK, FULL, EVEN)
