"""What the kernels of all recurrences share: pieces of sequences, and the tree inside a chunk.

A chunk is BT positions, a power of two. Blocks of one, two, four .. positions are joined in pairs,
and what the later half of a pair reads of the earlier one is split at the border between the two:
all exponents are sums over one stretch of positions, at most 0, and none is a difference.
"""

import triton
import triton.language as tl

from fracdna_kernels.triton_support import exact_product, product


@triton.jit
def grow(before, after, i, level):
    """Clock advance from the start of each position's block, and up to its end: twice the block.

    `before` counts the position itself, `after` does not; blocks of 2^level become blocks of twice
    that. All are sums of their own: a difference of two loses small advances beside a large one.
    """
    later = ((i >> level) & 1) == 1
    # the last of the other half holds the total of that half
    last = (((i >> level) ^ 1) << level) | ((1 << level) - 1)
    other = tl.gather(before, last, 0)
    return before + tl.where(later, other, 0.0), after + tl.where(later, 0.0, other)


@triton.jit
def spread(x, i):
    """x itself, from one position a lane to where tiles of products hold their rows.

    The gather is where layouts change. Without it the compiler carries each number in the layouts
    of all its later uses, and every step of `grow` is made several times.
    """
    return tl.gather(x, i, 0)


@triton.jit
def last_of(x, m, BT: tl.constexpr):
    """The last position's number, for every mode."""
    return tl.gather(x, m * 0 + (BT - 1), 0)


@triton.jit
def settled(x, m, OPERAND: tl.constexpr, ACC: tl.constexpr):
    """x (positions, modes) itself, times the identity.

    That brings it into the layout of results of products, in which a single warp can use it as a
    factor again, also transposed, without a detour through shared memory.
    """
    return product(x, tl.where(m[:, None] == m[None, :], 1.0, 0.0), OPERAND, ACC)


@triton.jit
def turned(x, m, OPERAND: tl.constexpr, ACC: tl.constexpr):
    """The transpose of x (positions, modes), in the same way."""
    return product(tl.where(m[:, None] == m[None, :], 1.0, 0.0), tl.trans(x), OPERAND, ACC)


@triton.jit
def within(rows, columns, V, EVEN: tl.constexpr):
    """Which elements exist; EVEN: blocks of columns fill the width."""
    if EVEN:
        return rows[:, None]
    else:
        return rows[:, None] & (columns < V)[None, :]


@triton.jit
def meets(i, level):
    """Pairs (row, column) whose row is in the later and column in the earlier half of a block."""
    other = i[:, None] ^ i[None, :]
    return ((other >> level) == 1) & (i[:, None] > i[None, :])


@triton.jit
def passes(t, i, level):
    """Whether position t lies between i and the border of its half of a block.

    The half has 2^level positions. One in a later half has its border in front and passes itself,
    as what it reads decays there; one in an earlier half has its border behind and does not. Whole
    chunks count as an earlier half.
    """
    later = ((i >> level) & 1) == 1
    return ((t >> level) == (i >> level)) & ((t <= i) == later)


@triton.jit
def masked_sums(chosen, x, OPERAND: tl.constexpr, ACC: tl.constexpr):
    """Sums of rows of x, (rows, positions) @ (positions, columns); chosen says which.

    Each takes its own stretch alone. Where operands are rounded, x comes in two parts, which leaves
    relative errors of 2^-17: of an exponent s, that changes exp(s) by s exp(s) 2^-17 < 3e-6.
    """
    mask = tl.where(chosen, 1.0, 0.0)
    sums = product(mask, x, OPERAND, ACC)
    if OPERAND != ACC:
        sums += product(mask, x - x.to(OPERAND).to(ACC), OPERAND, ACC)
    return sums


@triton.jit
def unit_inverse(
    lower, i, LEVELS: tl.constexpr, UNROLL: tl.constexpr, OPERAND: tl.constexpr, ACC: tl.constexpr
):
    """(I + lower)^-1 of the part of a tile below its diagonal, 2^LEVELS rows.

    Inverses of diagonal blocks of 1, 2, 4 .. rows are joined in pairs: between two of them stands
    -(later inverse) lower (earlier inverse). Powers of `lower` would grow and cancel. UNROLL: else
    levels take turns in the same registers.
    """
    same = i[:, None] == i[None, :]
    inverse = tl.where(same, 1.0, tl.where(meets(i, 0), -lower, 0.0)).to(ACC)
    if UNROLL:
        for level in tl.static_range(1, LEVELS):
            inverse -= _between(inverse, lower, i, level, OPERAND, ACC)
    else:
        for level in tl.range(1, LEVELS, num_stages=1):
            inverse -= _between(inverse, lower, i, level, OPERAND, ACC)
    return inverse


@triton.jit
def _between(inverse, lower, i, level, OPERAND: tl.constexpr, ACC: tl.constexpr):
    """(later inverse) lower (earlier inverse), of all pairs of blocks of 2^level rows."""
    met = tl.where(meets(i, level), lower, 0.0)
    return exact_product(exact_product(inverse, met, OPERAND, ACC), inverse, OPERAND, ACC)


@triton.jit
def piece(table, count, index, T, length, per_row, chunks, PACKED: tl.constexpr, BT: tl.constexpr):
    """Bounds of a piece, its sequence, its first chunk slot, whether it opens or ends a sequence.

    Without packing, piece `index` is number index % per_row of row index // per_row, and a row has
    `chunks` slots. With packing all is in the table (5, count); pieces that do not exist have
    sequence -1.
    """
    if PACKED:
        begin = tl.load(table + index)
        end = tl.load(table + count + index)
        sequence = tl.load(table + 2 * count + index)
        slot = tl.load(table + 3 * count + index)
        edges = tl.load(table + 4 * count + index)
        first = (edges & 1) == 1
        last = (edges & 2) == 2
    else:
        sequence = (index // per_row).to(tl.int64)
        part = index % per_row
        begin = sequence * T + part * length
        end = tl.minimum(begin + length, (sequence + 1) * T)
        slot = sequence * chunks + part * (length // BT)
        first = part == 0
        last = part == per_row - 1
    return begin, end, sequence, slot, first, last
