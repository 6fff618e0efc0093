"""The kernels of decay_attention's Triton form; triton_chunk.py plans and launches them.

A chunk is BT positions. Inside it the exponents are split at the borders of a binary tree: at level
l the later half of a block of 2^(l+1) positions reads what the earlier half wrote, and
exp(g_{j+1} + .. + g_i) is the product of one factor for i and one for j, both at most 1. So nothing
overflows, no exponent is a difference, and no branch depends on data. Where a head decays as one,
these factors weigh one product of q and k. Where every key decays alone they are part of the rows,
and each level is a product of its own: fade_kernel makes those for all chunks at once, and what
walks through a sequence reads rows that are done.

The state is held as (V, K), transposed: then it is a factor of the next product where it lies.

T length   H heads   G heads of q and k   K key width   V value width   S state (K, V)
BT, BK, BV padded tile sizes
"""

import triton
import triton.language as tl

from fracdna_kernels.decay_attention import launches
from fracdna_kernels.triton_chunks import grow, meets, piece, spread, within
from fracdna_kernels.triton_support import LOG2E, product

LEVELS = tl.constexpr(launches.LEVELS)  # log2 of BT
# a kernel serves all lengths and scales: compiled anew for some, it would stall and change bits
_SIZES = ["count", "T", "length", "per_row", "chunks", "scale"]


@triton.jit
def among(rows, keys, K: tl.constexpr, BK: tl.constexpr):
    """Which elements of rows of keys exist."""
    if K == BK:
        return rows[:, None]
    else:
        return rows[:, None] & (keys < K)[None, :]


@triton.jit
def fading(advance, i):
    """Decay between any two positions of a chunk, the later one the row; 0 before.

    Args:
        advance: (BT,), log2 of the decay at each position.
        i: (BT,), positions.

    Returns:
        (BT, BT); log2 of the decay since the chunk's start, the position included, and until its
        end, the position left out.
    """
    before, after = advance, tl.zeros_like(advance)
    weights = tl.where(i[:, None] == i[None, :], 1.0, tl.zeros_like(advance)[:, None])
    for level in tl.static_range(LEVELS):
        later = ((i >> level) & 1) == 1
        reach = spread(tl.exp2(tl.where(later, before, after)), i)
        weights = tl.where(meets(i, level), reach[:, None] * reach[None, :], weights)
        before, after = grow(before, after, i, level)
    return weights, before, after


@triton.jit
def joined(before, after, whole, level: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr):
    """What `grow` does, for all columns of tiles: sums over blocks of 2^level, over twice that.

    Args:
        before: (BT, BK), sums from the start of each position's block.
        after: (BT, BK), sums up to its end, the position left out.
        whole: (BT >> level, BK), sums over blocks.
        level: of the tree.
        BT: positions.
        BK: columns.
    """
    couples: tl.constexpr = BT >> (level + 1)
    split: tl.constexpr = (couples, 2, 1 << level, BK)
    second = tl.arange(0, 2) == 1
    halves = tl.reshape(whole, (couples, 2, BK))
    # nothing but zeros is added: sums stay sums over one stretch
    earlier = tl.sum(tl.where(second[None, :, None], 0.0, halves), axis=1)
    later = tl.sum(tl.where(second[None, :, None], halves, 0.0), axis=1)
    late = second[None, :, None, None]
    before = tl.reshape(before, split) + tl.where(late, earlier[:, None, None, :], 0.0)
    after = tl.reshape(after, split) + tl.where(late, 0.0, later[:, None, None, :])
    return tl.reshape(before, (BT, BK)), tl.reshape(after, (BT, BK)), earlier + later


@triton.jit(do_not_specialize=_SIZES)
def fade_kernel(
    q, k, g, reads, writes, pairs, totals, table, count, T, per_row, H, G, scale,
    K: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr, PACKED: tl.constexpr,
    FORWARD: tl.constexpr, ACC: tl.constexpr, OPERAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows of q and k as the state before and after their chunk sees them, every key alone.

    One program takes one chunk of one head: scale q exp(sum of g since the chunk's start) to reads,
    k exp(sum until its end) to writes, what its positions read of each other to pairs (T, H, BT)
    and the sum over the chunk, as a power of 2, to totals. FORWARD: else reads and totals alone.
    """
    program = tl.program_id(0)
    h = program % H
    index = program // H
    begin, end, _, slot, _, _ = piece(table, count, index, T, BT, per_row, per_row, PACKED, BT)
    i = tl.arange(0, BT)
    rows = i < end - begin
    here = (begin * H + h) * K
    there = (begin * G + h // (H // G)) * K
    same = i[:, None] == i[None, :]
    across = tl.zeros((BT, BT), ACC)
    for start in tl.range(0, K, BK, num_stages=STAGES):
        keys = start + tl.arange(0, BK)
        used = rows[:, None] & (keys < K)[None, :]
        own = here + i[:, None] * (H * K) + keys[None, :]
        shared = there + i[:, None] * (G * K) + keys[None, :]
        advance = tl.load(g + own, mask=used, other=0.0).to(ACC) * LOG2E
        x = tl.load(q + shared, mask=used, other=0.0).to(ACC)
        before, after, whole = advance, tl.zeros_like(advance), advance
        if FORWARD:
            y = tl.load(k + shared, mask=used, other=0.0).to(ACC)
            across += tl.where(same, tl.sum(x * y, axis=1)[:, None], 0.0)
        for level in tl.static_range(LEVELS):
            if FORWARD:
                later = (((i >> level) & 1) == 1)[:, None]
                weight = tl.where(later, x, y) * tl.exp2(tl.where(later, before, after))
                weight = weight.to(OPERAND)
                found = product(weight, tl.trans(weight), OPERAND, ACC)
                across += tl.where(meets(i, level), found, 0.0)
            before, after, whole = joined(before, after, whole, level, BT, BK)
        faded = x * tl.exp2(before) * scale
        tl.store(reads + own, faded.to(reads.dtype.element_ty), mask=used)
        total = tl.sum(whole, axis=0)
        at = totals + (slot * H + h) * K + keys
        tl.store(at, total, mask=(keys < K) & (begin < end))
        if FORWARD:
            faded = y * tl.exp2(after)
            tl.store(writes + own, faded.to(writes.dtype.element_ty), mask=used)
    if FORWARD:
        at = pairs + (begin * H + h) * BT + i[:, None] * (H * BT) + i[None, :]
        tl.store(at, (across * scale).to(pairs.dtype.element_ty), mask=rows[:, None])


@triton.jit
def entering(
    initial, starts, given, carried, enters, tile, inside, V, INITIAL: tl.constexpr,
    SPLIT: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Some keys of what a piece starts from: a given state, or inside its sequence a carried one.

    They are in rows of V columns, from `given` on in `initial` and from `carried` on in `starts`.
    """
    state = tl.zeros((BV, BK), ACC)
    if INITIAL:
        state = tl.load(initial + given * V + tile, mask=inside & enters, other=0.0).to(ACC)
    if SPLIT:
        there = inside & (enters == 0)
        state += tl.load(starts + carried * V + tile, mask=there, other=0.0).to(ACC)
    return state


@triton.jit(do_not_specialize=_SIZES)
def output_kernel(
    q, k, v, g, pairs, initial, starts, output, final, states, table, count,
    T, length, per_row, chunks, H, G, V, BLOCKS, scale,
    K: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr,
    PER_KEY: tl.constexpr, PACKED: tl.constexpr, INITIAL: tl.constexpr, SPLIT: tl.constexpr,
    KEEP: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr, OPERAND: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Output, final state and, where kept, the state at the start of every chunk.

    One program sweeps one piece of one head and one block of value columns. The keys are taken in
    PARTS of BK, one after another: fewer factors wait in registers. PER_KEY: q and k are the rows
    that fade_kernel made for every head, with pairs and, in g, the totals of chunks.
    """
    program = tl.program_id(0)
    h = program % H
    block = (program // H) % BLOCKS
    index = program // (H * BLOCKS)
    begin, end, sequence, slot, first, last = piece(
        table, count, index, T, length, per_row, chunks, PACKED, BT
    )
    i, key, v_ = tl.arange(0, BT), tl.arange(0, BK), block * BV + tl.arange(0, BV)
    tile = v_[:, None] + key[None, :] * V
    columns = v_ < V
    place = (index.to(tl.int64) * H + h) * K
    state = ()
    for part in tl.static_range(PARTS):
        inside = columns[:, None] & (part * BK + key < K)[None, :] & (sequence >= 0)
        entered = entering(
            initial, starts, (sequence * H + h) * K + part * BK, place + part * BK, first, tile,
            inside, V, INITIAL, SPLIT, BV, BK, ACC,
        )  # fmt: skip
        state = state + (entered,)
    row = begin * H + h
    shared = (begin * G + h // (H // G)) * K
    q += shared
    k += shared
    v += row * V
    output += row * V
    states += (slot * H + h) * (K * V)
    if PER_KEY:
        pairs += row * BT
        g += (slot * H + h) * K
    else:
        g += row
    narrow = i[:, None] * (G * K) + key[None, :]
    wide = i[:, None] * (H * V) + v_[None, :]
    square = i[:, None] * (H * BT) + i[None, :]
    left = (end - begin).to(tl.int32)
    for t in tl.range(0, left, BT, num_stages=STAGES):
        rows = i < left - t
        result = tl.zeros((BT, BV), ACC)
        across = tl.zeros((BT, BT), ACC)
        if not PER_KEY:
            advance = tl.load(g + i * H, mask=rows, other=0.0).to(ACC) * LOG2E
        written = ()
        for part in tl.static_range(PARTS):
            used = among(rows, part * BK + key, K, PARTS * BK)
            reader = tl.load(q + part * BK + narrow, mask=used, other=0.0)
            writer = tl.load(k + part * BK + narrow, mask=used, other=0.0)
            low = state[part].to(OPERAND)
            if KEEP:
                inside = columns[:, None] & (part * BK + key < K)[None, :]
                kept = low.to(states.dtype.element_ty)
                tl.store(states + part * BK * V + tile, kept, mask=inside)
            if not PER_KEY:
                across += product(reader, tl.trans(writer), OPERAND, ACC)
            result += product(reader, tl.trans(low), OPERAND, ACC)
            written = written + (writer,)
        if PER_KEY:
            across = tl.load(pairs + square, mask=rows[:, None], other=0.0)
        else:
            weights, before, after = fading(advance, i)
            # selected: 0 times a product with a later row is not 0 where that overflows
            across = tl.where(i[:, None] >= i[None, :], across * (weights * scale), 0.0)
            result *= spread(tl.exp2(before) * scale, i)[:, None]
        exists = within(rows, v_, V, EVEN)
        x = tl.load(v + wide, mask=exists, other=0.0)
        result += product(across, x, OPERAND, ACC)
        result = result.to(output.dtype.element_ty)
        # nobody reads it before it has left the cache; what is still to be read may stay
        tl.store(output + wide, result, mask=exists, eviction_policy="evict_first")
        if not PER_KEY:
            passed = tl.exp2(tl.sum(advance, axis=0))
            x = (x.to(ACC) * spread(tl.exp2(after), i)[:, None]).to(OPERAND)
        after_chunk = ()
        for part in tl.static_range(PARTS):
            if PER_KEY:
                alive = part * BK + key < K
                passed = tl.exp2(tl.load(g + part * BK + key, mask=alive, other=0.0))[None, :]
            added = product(tl.trans(x), written[part], OPERAND, ACC)
            after_chunk = after_chunk + (state[part] * passed + added,)
        state = after_chunk
        q += BT * G * K
        k += BT * G * K
        v += BT * H * V
        output += BT * H * V
        states += H * K * V
        pairs += BT * H * BT
        g += H * K if PER_KEY else BT * H
    for part in tl.static_range(PARTS):
        inside = columns[:, None] & (part * BK + key < K)[None, :]
        at = final + ((sequence * H + h) * K + part * BK) * V + tile
        tl.store(at, state[part], mask=inside & last & (sequence >= 0))


@triton.jit(do_not_specialize=_SIZES)
def sweep_kernel(
    k, v, g, initial, starts, ends, states, advances, table, count,
    T, length, per_row, chunks, H, G, V, BLOCKS, scale,
    K: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr,
    PER_KEY: tl.constexpr, REVERSE: tl.constexpr, LOCAL: tl.constexpr, PACKED: tl.constexpr,
    INITIAL: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr,
    OPERAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state alone, S' = e S + k^T (r v), or backwards its adjoint, D' = e D + q^T (f scale do).

    LOCAL: from zero, writes what each piece ends with and its log decay (for carry_kernel). Else it
    starts from carried states, writes the state at the entry of every chunk (forwards at its start,
    backwards at its end) and, where a sequence is left, what it ends with. PER_KEY: k are rows that
    fade_kernel made, and g the totals of chunks.
    """
    program = tl.program_id(0)
    h = program % H
    block = (program // H) % BLOCKS
    index = program // (H * BLOCKS)
    begin, end, sequence, slot, first, last = piece(
        table, count, index, T, length, per_row, chunks, PACKED, BT
    )
    enters, leaves = (last, first) if REVERSE else (first, last)
    i, key, v_ = tl.arange(0, BT), tl.arange(0, BK), block * BV + tl.arange(0, BV)
    tile = v_[:, None] + key[None, :] * V
    columns = v_ < V
    place = (index.to(tl.int64) * H + h) * K
    state, total = (), ()
    for part in tl.static_range(PARTS):
        inside = columns[:, None] & (part * BK + key < K)[None, :] & (sequence >= 0)
        entered = entering(
            initial, starts, (sequence * H + h) * K + part * BK, place + part * BK, enters, tile,
            inside, V, INITIAL, SPLIT, BV, BK, ACC,
        )  # fmt: skip
        state = state + (entered,)
        total = total + (tl.zeros((BK if PER_KEY else 1,), ACC),)
    # the last piece's state is nobody's start
    number = tl.where(leaves, 0, tl.cdiv(end - begin, BT)) if LOCAL else tl.cdiv(end - begin, BT)
    skip = tl.maximum(number - 1, 0) if REVERSE else 0
    row = (begin + skip * BT) * H + h
    k += ((begin + skip * BT) * G + h // (H // G)) * K
    v += row * V
    g += ((slot + skip) * H + h) * K if PER_KEY else row
    states += ((slot + skip) * H + h) * (K * V)
    left = (end - begin - skip * BT).to(tl.int32)
    narrow = i[:, None] * (G * K) + key[None, :]
    wide = i[:, None] * (H * V) + v_[None, :]
    step = -1 if REVERSE else 1
    for _ in tl.range(0, number, num_stages=STAGES):
        rows = i < left
        x = tl.load(v + wide, mask=within(rows, v_, V, EVEN), other=0.0)
        if not PER_KEY:
            advance = tl.load(g + i * H, mask=rows, other=0.0).to(ACC) * LOG2E
            before, after = advance, tl.zeros_like(advance)
            for level in tl.static_range(LEVELS):
                before, after = grow(before, after, i, level)
            reach = tl.exp2(before) * scale if REVERSE else tl.exp2(after)
            x = (x.to(ACC) * spread(reach, i)[:, None]).to(OPERAND)
            passed = tl.sum(advance, axis=0)
            faded = tl.exp2(passed)
        following, passing = (), ()
        for part in tl.static_range(PARTS):
            used = among(rows, part * BK + key, K, PARTS * BK)
            writer = tl.load(k + part * BK + narrow, mask=used, other=0.0)
            if not LOCAL:
                inside = columns[:, None] & (part * BK + key < K)[None, :]
                kept = state[part].to(states.dtype.element_ty)
                tl.store(states + part * BK * V + tile, kept, mask=inside)
            if PER_KEY:
                alive = part * BK + key < K
                passed = tl.load(g + part * BK + key, mask=alive, other=0.0)
                faded = tl.exp2(passed)[None, :]
            added = product(tl.trans(x), writer, OPERAND, ACC)
            following = following + (state[part] * faded + added,)
            passing = passing + (total[part] + passed,)
        state, total = following, passing
        k += step * BT * G * K
        v += step * BT * H * V
        g += step * H * K if PER_KEY else step * BT * H
        states += step * H * K * V
        left -= step * BT
    for part in tl.static_range(PARTS):
        inside = columns[:, None] & (part * BK + key < K)[None, :] & (sequence >= 0)
        if LOCAL:
            at = ends + (place + part * BK) * V + tile
            tl.store(at, state[part], mask=inside & (leaves == 0))
        else:
            at = ends + ((sequence * H + h) * K + part * BK) * V + tile
            tl.store(at, state[part], mask=inside & leaves)
    if LOCAL:
        whose = index.to(tl.int64) * H + h
        once = (block == 0) & (sequence >= 0)
        if PER_KEY:
            for part in tl.static_range(PARTS):
                at = part * BK + key
                tl.store(advances + whose * K + at, total[part], mask=once & (at < K))
        else:
            tl.store(advances + whose + tl.arange(0, 1), total[0], mask=once)


@triton.jit(do_not_specialize=["per_row"])
def carry_kernel(
    local, advances, initial, starts, first_piece, per_row, H, V,
    K: tl.constexpr, BV: tl.constexpr, PER_KEY: tl.constexpr, REVERSE: tl.constexpr,
    PACKED: tl.constexpr, INITIAL: tl.constexpr, ACC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What each piece starts from, of one key and one head of one sequence, piece after piece."""
    program = tl.program_id(0)
    key = program % K
    h = (program // K) % H
    sequence = (program // (K * H)).to(tl.int64)
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
    state = tl.zeros((BV,), ACC)
    if INITIAL:
        state = tl.load(initial + ((sequence * H + h) * K + key) * V + v, mask=columns, other=0.0)
        state = state.to(ACC)
    local += ((index * H + h) * K + key) * V + v
    starts += ((index * H + h) * K + key) * V + v
    advances += (index * H + h) * K + key if PER_KEY else index * H + h
    for _ in tl.range(0, number - 1, num_stages=STAGES):
        ended = tl.load(local, mask=columns, other=0.0)
        passed = tl.load(advances + tl.arange(0, 1))
        state = state * tl.exp2(passed) + ended
        local += step * H * K * V
        starts += step * H * K * V
        advances += step * H * K if PER_KEY else step * H
        tl.store(starts, state, mask=columns)
