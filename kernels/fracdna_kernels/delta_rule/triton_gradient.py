"""Gradients of delta_rule's inputs in Triton: every chunk and head is a program of its own.

With the state S before a chunk and the adjoint D after it, all that its positions need lies inside
the chunk. Below, f is the decay since the start of the chunk, r that until its end, e that over it
all and G_ij that between two positions; X is the inverse of I + L, L = strict(beta_i k_i.k_j G_ij),
and P = tril(scale q_i.k_j G_ij) what a position reads of the chunk. Then

    V' = X beta (v - f k S)      what the chunk adds         dV' = P^T dO + r k D
    R = X^T dV'                  gradient of beta (v - f k S)
    dL = -strict(R V'^T)         no derivative of an inverse      dP = tril(dO V'^T)

and every decay is the exponential of a sum over one stretch of positions.

B batch   T length   H heads   K key width   V value width   BT positions of a chunk
BK, BV padded widths   KEYS, COLUMNS of them at once   S, D (K, V)
"""

from collections.abc import Iterator
from itertools import product as combinations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.delta_rule import launches
from fracdna_kernels.pieces import Rows, tile_width
from fracdna_kernels.triton_chunks import grow, piece, spread, within
from fracdna_kernels.triton_support import LOG2E, on_device_of, product, types

LEVELS = tl.constexpr(launches.LEVELS)  # log2 of BT


def gradient_launch(K: int, V: int, dtype: torch.dtype) -> dict[str, int]:
    """Padded widths, what is taken of them at once, warps, and stages of the loop over keys.

    Four warps share out the 64 columns of a tile; of 32 each would make all rows again.

    Args:
        K: key width.
        V: value width.
        dtype: of the values.
    """
    keys, columns = tile_width(K), tile_width(V)
    most, warps = (64, 4) if min(keys, columns) >= 64 else (32, 2)
    if dtype != torch.bfloat16:
        most, warps = 32, 8  # without matrix units
    elif most == 64 and keys > 128:
        warps = 8
    return {
        "BK": keys, "KEYS": min(keys, most), "BV": columns, "COLUMNS": min(columns, most),
        "num_warps": warps, "STAGES": 1,
    }  # fmt: skip


@triton.jit
def _stretches(gate, i, BT: tl.constexpr, ACC: tl.constexpr):
    """Log decay since the start of the chunk, until its end, and between two positions.

    (positions,) to (positions,) twice and to (positions, positions), which is symmetric. Two
    positions first part at one level of the tree; there the later one counts since the border
    between the two halves, the earlier one up to it.
    """
    before, after = gate, tl.zeros_like(gate)
    between = tl.zeros((BT, BT), ACC)
    for level in tl.static_range(LEVELS):
        reach = spread(tl.where(((i >> level) & 1) == 1, before, after), i)
        parted = ((i[:, None] ^ i[None, :]) >> level) == 1
        between = tl.where(parted, reach[:, None] + reach[None, :], between)
        before, after = grow(before, after, i, level)
    return before, after, between


@triton.jit
def _pairs(
    a, b, rows, i, n, H, width, BT: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    """Products of a chunk's positions in a with those in b, (BT, BT), by blocks of the width.

    One at a time: products that share a factor would share out rows and make all of them twice.
    """
    total = tl.zeros((BT, BT), ACC)
    for start in tl.range(0, width, BLOCK, num_stages=1):
        at = start + i[:, None] * (H * width) + n[None, :]
        inside = rows[:, None] & (start + n < width)[None, :]
        left = tl.load(a + at, mask=inside, other=0.0)
        right = tl.load(b + at, mask=inside, other=0.0)
        total += product(left, tl.trans(right), OPERAND, ACC)
    return total


@triton.jit(do_not_specialize=["count", "T", "per_row", "scale"])
def gradient_kernel(
    q, k, v, beta, g, inverses, states, adjoints, grad, grad_q, grad_k, grad_v, grad_beta, grad_g,
    additions, losses, table, count, T, per_row, H, V, scale,
    K: tl.constexpr, BK: tl.constexpr, KEYS: tl.constexpr, BV: tl.constexpr, COLUMNS: tl.constexpr,
    BT: tl.constexpr, PACKED: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr,
    OPERAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of the inputs of one chunk and head.

    By blocks of value columns first, what the chunk adds and the gradient R of that before X,
    which are written to `additions` and `losses` (B, T, H, V) and read again by all threads; then,
    by blocks of keys, what becomes of both in the state and in other positions. So no sum is
    larger than one block, and states pass twice, but through the cache the second time.

    The gate's gradient is the sum of what passes a position: from pairs of positions before and
    after it, from the state to later readers, from earlier writers to the adjoint, and from the
    state to the adjoint. No term is subtracted from another, so nothing cancels.
    """
    program = tl.program_id(0)
    h = program % H
    index = program // H
    begin, end, _, slot, _, _ = piece(table, count, index, T, BT, per_row, per_row, PACKED, BT)
    i = tl.arange(0, BT)
    all_keys, some_keys = tl.arange(0, BK), tl.arange(0, KEYS)
    all_columns, some_columns = tl.arange(0, BV), tl.arange(0, COLUMNS)
    rows = i < end - begin
    later, same = i[:, None] > i[None, :], i[:, None] == i[None, :]
    row = begin * H + h
    q += row * K
    k += row * K
    v += row * V
    grad += row * V
    grad_q += row * K
    grad_k += row * K
    grad_v += row * V
    additions += row * V
    losses += row * V
    states += (slot * H + h) * (K * V)
    adjoints += (slot * H + h) * (K * V)
    flat = row + i * H
    gate = tl.load(g + flat, mask=rows, other=0.0).to(ACC) * LOG2E
    share = spread(tl.load(beta + flat, mask=rows, other=0.0).to(ACC), i)
    before, after, between = _stretches(gate, i, BT, ACC)
    since, until, decay = tl.exp2(spread(before, i)), tl.exp2(spread(after, i)), tl.exp2(between)
    # what is read of other positions, and what is found under the keys of other positions
    seen = _pairs(q, k, rows, i, some_keys, H, K, BT, KEYS, ACC, OPERAND)
    alike = _pairs(k, k, rows, i, some_keys, H, K, BT, KEYS, ACC, OPERAND)
    seen = tl.where(later | same, seen * (decay * scale), 0.0)
    alike = tl.where(later, alike * decay, 0.0)
    # rows are what was written, columns the positions that read it
    shown = tl.trans(seen.to(OPERAND))
    square = inverses + row * BT + i[:, None] * (H * BT) + i[None, :]
    inverse = tl.load(square, mask=rows[:, None], other=0.0)
    there = all_keys < K
    at = k + i[:, None] * (H * K) + all_keys[None, :]
    written = tl.load(at, mask=rows[:, None] & there[None, :], other=0.0)
    dshare = tl.zeros((BT,), ACC)
    meeting = tl.zeros((COLUMNS,), ACC)
    for start in tl.range(0, V, COLUMNS, num_stages=1):
        wide = start + i[:, None] * (H * V) + some_columns[None, :]
        inside = within(rows, start + some_columns, V, EVEN)
        tall = start + all_keys[:, None] * V + some_columns[None, :]
        kept = within(there & (begin < end), start + some_columns, V, EVEN)
        state = tl.load(states + tall, mask=kept, other=0.0)
        adjoint = tl.load(adjoints + tall, mask=kept, other=0.0)
        value = tl.load(v + wide, mask=inside, other=0.0).to(ACC)
        o = tl.load(grad + wide, mask=inside, other=0.0)
        meeting += tl.sum(state.to(ACC) * adjoint.to(ACC), axis=0)
        missing = value - since[:, None] * product(written, state, OPERAND, ACC)
        added = product(inverse, share[:, None] * missing, OPERAND, ACC)
        lost = until[:, None] * product(written, adjoint, OPERAND, ACC)
        lost += product(shown, o, OPERAND, ACC)
        lost = product(tl.trans(inverse), lost, OPERAND, ACC)
        dshare += tl.sum(lost * missing, axis=1)
        dv = (share[:, None] * lost).to(grad_v.dtype.element_ty)
        tl.store(grad_v + wide, dv, mask=inside)
        tl.store(additions + wide, added.to(additions.dtype.element_ty), mask=inside)
        tl.store(losses + wide, lost.to(losses.dtype.element_ty), mask=inside)
    # what each thread has written, others read
    tl.debug_barrier()
    dseen = _pairs(grad, additions, rows, i, some_columns, H, V, BT, COLUMNS, ACC, OPERAND)
    dlower = _pairs(losses, additions, rows, i, some_columns, H, V, BT, COLUMNS, ACC, OPERAND)
    # dlower is -dL, here and below
    dshare -= tl.sum(dlower * alike, axis=1)
    tl.store(grad_beta + flat, dshare.to(grad_beta.dtype.element_ty), mask=rows)
    # pairs: from all that is not before a position (rows), then of what is before it (columns)
    passing = tl.where(later, dseen * seen - share[:, None] * dlower * alike, 0.0)
    passing = tl.cumsum(passing, axis=0, reverse=True)
    dg = tl.sum(tl.where(later, passing, 0.0), axis=1)
    dseen = tl.where(later | same, dseen * (decay * scale), 0.0).to(OPERAND)
    dshown = tl.trans(dseen)
    dlower = tl.where(later, share[:, None] * decay * dlower, 0.0)
    dlower = (dlower + tl.trans(dlower)).to(OPERAND)
    wide = i[:, None] * (H * V) + all_columns[None, :]
    inside = rows[:, None] & (all_columns < V)[None, :]
    o = tl.load(grad + wide, mask=inside, other=0.0)
    added = tl.load(additions + wide, mask=inside, other=0.0)
    lost = tl.load(losses + wide, mask=inside, other=0.0)
    # what passes a position on its way from or to the outside of the chunk
    inner = tl.zeros((BT,), ACC)
    outer = tl.zeros((BT,), ACC)
    for start in tl.range(0, K, KEYS, num_stages=STAGES):
        narrow = start + i[:, None] * (H * K) + some_keys[None, :]
        used = rows[:, None] & (start + some_keys < K)[None, :]
        long = start * V + some_keys[:, None] * V + all_columns[None, :]
        held = ((start + some_keys < K) & (begin < end))[:, None] & (all_columns < V)[None, :]
        state = tl.load(states + long, mask=held, other=0.0)
        query = tl.load(q + narrow, mask=used, other=0.0)
        key = tl.load(k + narrow, mask=used, other=0.0)
        dq = (since * scale)[:, None] * product(o, tl.trans(state), OPERAND, ACC)
        erased = (share * since)[:, None] * product(lost, tl.trans(state), OPERAND, ACC)
        inner += tl.sum(query.to(ACC) * dq - key.to(ACC) * erased, axis=1)
        dq += product(dseen, key, OPERAND, ACC)
        tl.store(grad_q + narrow, dq.to(grad_q.dtype.element_ty), mask=used)
        # so late that the state is out of the registers
        adjoint = tl.load(adjoints + long, mask=held, other=0.0)
        dk = until[:, None] * product(added, tl.trans(adjoint), OPERAND, ACC)
        outer += tl.sum(key.to(ACC) * dk, axis=1)
        dk += product(dshown, query, OPERAND, ACC)
        dk -= erased + product(dlower, key, OPERAND, ACC)
        tl.store(grad_k + narrow, dk.to(grad_k.dtype.element_ty), mask=used)
    dg += tl.sum(tl.where(later, outer[None, :], inner[None, :]), axis=1)
    dg += tl.exp2(tl.sum(gate, axis=0)) * tl.sum(meeting, axis=0)
    tl.store(grad_g + flat, dg.to(grad_g.dtype.element_ty), mask=rows)


def gradients(
    rows: Rows,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    scale: float,
    inverses: Tensor,
    states: Tensor,
    adjoints: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, beta and g, zeros at positions that belong to no sequence.

    Args:
        rows: how rows are cut, into chunks of 32 positions.
        q: (B, T, H, K) contiguous, as all that follow.
        k: (B, T, H, K).
        v: (B, T, H, V).
        beta: (B, T, H).
        g: (B, T, H), log decay.
        scale: factor on the output.
        inverses: (B, T, H, 32), rows of X; zeros in columns past the end of a sequence.
        states: (slots, H, K, V), before each chunk.
        adjoints: (slots, H, K, V), gradients of the states after each chunk, without what the
            chunk itself reads.
        grad: (B, T, H, V), of the output.
    """
    H, K, V = *q.shape[2:], v.shape[-1]
    # rows that belong to no sequence are written by nobody
    blank = torch.empty_like if rows.cu_seqlens is None else torch.zeros_like
    grads = [blank(x) for x in (q, k, v, beta, g)]
    passed = [torch.empty_like(v) for _ in range(2)]
    count, geometry = rows.of_chunks()
    chosen = gradient_launch(K, V, v.dtype)
    with on_device_of(v):
        gradient_kernel[(count * H,)](
            q, k, v, beta, g, inverses, states, adjoints, grad, *grads, *passed, **geometry, H=H,
            V=V, scale=scale, K=K, EVEN=V % chosen["COLUMNS"] == 0, **types(v.dtype), **chosen,
        )  # fmt: skip
    return tuple(grads)


def compile_cases() -> Iterator[Case]:
    """The kernel at common sizes, for compilation without a device."""
    dtypes = ((torch.bfloat16, "bf16"), (torch.float32, "fp32"))
    for size, (dtype, kind), packed in combinations((64, 128), dtypes, (False, True)):
        if packed and kind == "fp32":
            continue
        exact = {"ACC": tl.float32, "OPERAND": tl.bfloat16 if kind == "bf16" else tl.float32}
        sizes = {"K": size, "BT": launches.CHUNK, "EVEN": True, "PACKED": packed}
        rest = {} if packed else {"table": None}
        case = compile_case(
            gradient_kernel,
            dict.fromkeys(_NARROW, kind) | {"g": "fp32", "grad_g": "fp32", "table": "i64"},
            sizes | exact | rest | gradient_launch(size, size, dtype),
            f"K=V={size} {kind}{' packed' if packed else ''}",
            divisible=("V",),
            may_spill=kind == "fp32",
        )
        case[1]["scale"] = "fp32"
        yield case


_NARROW = (
    "q", "k", "v", "beta", "inverses", "states", "adjoints", "grad", "grad_q", "grad_k", "grad_v",
    "grad_beta", "additions", "losses",
)  # fmt: skip
