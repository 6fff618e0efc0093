"""Gradients of decay_attention in Triton, every chunk by itself.

A chunk of BT positions has the state before it, kept by the forward pass, and the adjoint of the
state after it, from the backward sweep; with these two its gradients touch no other chunk. A
program takes one chunk of one head. It holds the value rows and what becomes their gradient, and
walks through blocks of key columns, whose gradients are complete once their block is done, so all
is read once.

The gradient of a decay is a sum over what passes its position, as in chunk.py: no term is
subtracted from another, so nothing cancels under strong decays.

T length   H heads of v   G heads of q and k   K key width   V value width   S state (K, V)
BT, BK, BV tile sizes   W 1, or K where every key decays alone   P heads that share q and k
"""

import itertools
from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.decay_attention import launches
from fracdna_kernels.decay_attention.launches import CHUNK
from fracdna_kernels.forms import accumulator
from fracdna_kernels.pieces import Rows, tile_width
from fracdna_kernels.triton_chunks import masked_sums, meets, passes, piece, spread, within
from fracdna_kernels.triton_support import LOG2E, on_device_of, product, types

LEVELS = tl.constexpr(launches.LEVELS)  # log2 of BT
MOST_COLUMNS = 256  # values of a program; gradients of more are sums of several programs'


@triton.jit
def decay(x):
    """What a sum of log decays leaves."""
    return tl.exp2(x * LOG2E)


@triton.jit(do_not_specialize=["count", "T", "per_row", "scale"])
def gradient_kernel(
    q, k, v, g, scale, states, adjoints, grad, grad_q, grad_k, grad_v, grad_g, table, count,
    T, per_row, H, P, V, BLOCKS,
    K: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, PER_KEY: tl.constexpr,
    PACKED: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr, OPERAND: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of one chunk and head, or what a block of value columns adds to them.

    grad_q, grad_k (positions, H, BLOCKS, K) and grad_g (positions, H, BLOCKS, W) come by head and
    block. With f and r the decays since the chunk's start and until its end, Gamma those between
    positions, D the adjoint and dA = causal(dO v^T):
      dq = f (dO S^T) + (dA Gamma) k      dk = r (v D^T) + (dA Gamma)^T q
      dv = (q k^T Gamma)^T dO + (k r) D.
    """
    program = tl.program_id(0)
    h = program % H
    block = (program // H) % BLOCKS
    index = program // (H * BLOCKS)
    begin, end, _, slot, _, _ = piece(table, count, index, T, BT, per_row, per_row, PACKED, BT)
    i, key, column = tl.arange(0, BT), tl.arange(0, BK), block * BV + tl.arange(0, BV)
    rows = i < end - begin
    row = begin * H + h
    out = row * BLOCKS + block
    row_q = begin * (H // P) + h // P
    q += row_q * K + i[:, None] * (H // P * K)
    k += row_q * K + i[:, None] * (H // P * K)
    grad_q += out * K + i[:, None] * (H * BLOCKS * K)
    grad_k += out * K + i[:, None] * (H * BLOCKS * K)
    tile = (slot * H + h) * (K * V) + key[:, None] * V + column[None, :]
    states += tile
    adjoints += tile
    wide = within(rows, column, V, EVEN)
    v += row * V + i[:, None] * (H * V) + column[None, :]
    grad += row * V + i[:, None] * (H * V) + column[None, :]
    x = tl.load(v, mask=wide, other=0.0)
    do = tl.load(grad, mask=wide, other=0.0)
    earlier, same = i[:, None] > i[None, :], i[:, None] == i[None, :]
    both = product(do, tl.trans(x), OPERAND, ACC)
    across = tl.zeros((BT, BT), ACC)
    dv = tl.zeros((BT, BV), ACC)
    if PER_KEY:
        g += row * K + i[:, None] * (H * K)
        grad_g += out * K + i[:, None] * (H * BLOCKS * K)
        own = tl.sum(tl.where(same, both, 0.0), axis=1) * scale
        both = tl.where(earlier, both * scale, 0.0)
        both += tl.trans(both)
    else:
        # sums over the stretch from one position to another, each by itself
        rate = tl.load(g + row + i * H, mask=rows, other=0.0).to(ACC)
        span = tl.where(earlier, spread(rate, i)[:, None], 0.0)
        span = masked_sums(earlier | same, span, OPERAND, ACC)
        until = tl.sum(tl.where(i[:, None] == BT - 1, span, 0.0), axis=0)
        until = decay(spread(until, i))[:, None]
        since = tl.sum(tl.where(i[None, :] == 0, span, 0.0), axis=1)
        since = decay(since + tl.sum(tl.where(i == 0, rate, 0.0), axis=0))[:, None]
        fading = decay(span) * scale
        mixed = tl.where(earlier | same, both * fading, 0.0).to(OPERAND)
        inner = tl.zeros((BT,), ACC)
        outer = tl.zeros((BT,), ACC)
        met = 0.0
    for start in tl.range(0, K, BK, num_stages=STAGES):
        used = within(rows, start + key, K, K % BK == 0)
        tall = within((start + key < K) & (begin < end), column, V, EVEN)
        x = tl.load(v, mask=wide, other=0.0)
        do = tl.load(grad, mask=wide, other=0.0)
        queries = tl.load(q + (start + key)[None, :], mask=used, other=0.0)
        keys = tl.load(k + (start + key)[None, :], mask=used, other=0.0)
        state = tl.load(states + start * V, mask=tall, other=0.0)
        adjoint = tl.load(adjoints + start * V, mask=tall, other=0.0)
        dq = product(do, tl.trans(state), OPERAND, ACC)
        dk = product(x, tl.trans(adjoint), OPERAND, ACC)
        # what passes all positions, between the state before the chunk and the adjoint after it
        meeting = state.to(ACC) * adjoint.to(ACC)
        if PER_KEY:
            rate = tl.load(g + (start + key)[None, :], mask=used, other=0.0).to(ACC)
            meeting = tl.sum(meeting, axis=1) * decay(tl.sum(rate, axis=0))
            since = decay(masked_sums(earlier | same, rate, OPERAND, ACC))
            until = decay(masked_sums(passes(i[None, :], i[:, None], LEVELS), rate, OPERAND, ACC))
            dq *= since * scale
            dk *= until
            dv += product(keys.to(ACC) * until, adjoint, OPERAND, ACC)
            # what passes a position on its way from or to the outside of the chunk
            dg = masked_sums(i[:, None] <= i[None, :], dq * queries.to(ACC), OPERAND, ACC)
            dg += masked_sums(earlier, dk * keys.to(ACC), OPERAND, ACC)
            dg += meeting[None, :]
            dq += own[:, None] * keys.to(ACC)
            dk += own[:, None] * queries.to(ACC)
            alone = tl.sum(queries.to(ACC) * keys.to(ACC), axis=1)
            across += tl.where(same, alone[:, None], 0.0)
            # unrolled, its masks would all be kept in registers
            for level in tl.range(LEVELS):
                ahead = tl.where(((i >> level) & 1) == 1, 1.0, 0.0).to(ACC)[:, None]
                reached = masked_sums(passes(i[None, :], i[:, None], level), rate, OPERAND, ACC)
                reached = decay(reached)
                weight = tl.where(ahead == 1.0, queries, keys).to(ACC) * reached
                pairs = product(weight, tl.trans(weight), OPERAND, ACC)
                across += tl.where(meets(i, level), pairs, 0.0)
                joined = ((i[:, None] ^ i[None, :]) >> level) == 1
                change = product(tl.where(joined, both, 0.0), weight, OPERAND, ACC)
                passing = change * weight
                dg += masked_sums(passes(i[:, None], i[None, :], level), passing, OPERAND, ACC)
                change *= reached
                # one instruction each, where a select and a sum would be two
                dq += ahead * change
                dk += (1.0 - ahead) * change
            tl.store(grad_g + (start + key)[None, :], dg.to(grad_g.dtype.element_ty), mask=used)
        else:
            across += product(queries, tl.trans(keys), OPERAND, ACC)
            dv += product(keys, adjoint, OPERAND, ACC)
            met += tl.sum(meeting)
            dq *= since * scale
            dk *= until
            inner += tl.sum(dq * queries.to(ACC), axis=1)
            outer += tl.sum(dk * keys.to(ACC), axis=1)
            dq += product(mixed, keys, OPERAND, ACC)
            dk += product(tl.trans(mixed), queries, OPERAND, ACC)
        tl.store(grad_q + (start + key)[None, :], dq.to(grad_q.dtype.element_ty), mask=used)
        tl.store(grad_k + (start + key)[None, :], dk.to(grad_k.dtype.element_ty), mask=used)
    if PER_KEY:
        across *= scale
    else:
        dv *= until
        across = tl.where(earlier | same, across * fading, 0.0)
        passing = tl.where(earlier, both * across, 0.0)
        # what is read of the state before the chunk joins as a column that no pair needs
        last = i[None, :] == BT - 1
        passing = tl.where(last, spread(inner, i)[:, None], passing)
        passing = masked_sums(i[:, None] <= i[None, :], passing, OPERAND, ACC)
        written = tl.where(earlier, passing + spread(outer, i)[None, :], 0.0)
        dg = tl.sum(tl.where(last, passing, written), axis=1)
        dg += decay(tl.sum(rate, axis=0)) * met
        at = grad_g + out + i * (H * BLOCKS)
        tl.store(at, dg.to(grad_g.dtype.element_ty), mask=rows)
    do = tl.load(grad, mask=wide, other=0.0)
    dv += product(tl.trans(across.to(OPERAND)), do, OPERAND, ACC)
    at = grad_v + row * V + i[:, None] * (H * V) + column[None, :]
    tl.store(at, dv.to(grad_v.dtype.element_ty), mask=wide)


def launch(K: int, V: int, dtype: torch.dtype, *, per_key: bool) -> dict[str, int]:
    """Blocks of key and value columns, warps and pipeline stages of gradient_kernel.

    Args:
        K: key width.
        V: value width.
        dtype: of the values.
        per_key: every key decays alone.

    Returns:
        BK, BV, num_warps and STAGES.
    """
    keys, columns = tile_width(K), tile_width(V)
    if dtype != torch.bfloat16:
        keys, columns = (16, 32) if per_key else (min(keys, 32), min(columns, 32))
        return {"BK": keys, "BV": min(tile_width(V), columns), "num_warps": 4, "STAGES": 1}
    columns = min(columns, MOST_COLUMNS)
    if min(keys, columns) < 64:
        # warps share the columns of a product, at least 16 each
        return {"BK": min(keys, 32), "BV": columns, "num_warps": 2, "STAGES": 1}
    warps = 8 if columns > 128 or (per_key and columns > 64) else 4
    # a loop within the loop cannot be pipelined, and one block of keys is no loop
    stages = 1 if per_key or keys == 64 else 2
    return {"BK": 64, "BV": columns, "num_warps": warps, "STAGES": stages}


def gradients(
    rows: Rows,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float,
    states: Tensor,
    adjoints: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and g; all tensors are contiguous, see decay_attention for shapes.

    Args:
        rows: of the sequences, with chunks of CHUNK positions.
        q: (B, T, G, K).
        k: like q.
        v: (B, T, H, V).
        g: (B, T, H), or (B, T, H, K).
        scale: factor on the output.
        states: (slots, H, K, V), before each chunk.
        adjoints: like states, gradient of the state after each chunk by all that comes later.
        grad: like v, gradient of the output.
    """
    B, T, H, V = v.shape
    G, K = k.shape[2:]
    chosen = launch(K, V, v.dtype, per_key=g.ndim == 4)
    blocks = -(-V // chosen["BV"])
    # positions that belong to no sequence are written by nobody
    blank = v.new_empty if rows.cu_seqlens is None else v.new_zeros
    shares, exact = (H // G, blocks), accumulator(v)
    whole = shares == (1, 1)
    dq, dk = (blank(B, T, G, *shares, K, dtype=x.dtype if whole else exact) for x in (q, k))
    dg = blank(B, T, H, blocks, *g.shape[3:], dtype=g.dtype)
    dv = blank(v.shape)
    count, geometry = rows.of_chunks()
    with on_device_of(v):
        gradient_kernel[(count * H * blocks,)](
            q, k, v, g, scale, states, adjoints, grad, dq, dk, dv, dg, **geometry, H=H, P=H // G,
            V=V, BLOCKS=blocks, K=K, PER_KEY=g.ndim == 4, EVEN=V % chosen["BV"] == 0,
            **types(v.dtype), **chosen,
        )  # fmt: skip
    # over heads that share a row of q and k and blocks of values, in an order that never changes
    dq, dk = (
        d.view(x.shape) if whole else d.sum((3, 4)).to(x.dtype) for d, x in ((dq, q), (dk, k))
    )
    return dq, dk, dv, dg.view(g.shape) if blocks == 1 else dg.sum(3)


def compile_cases() -> Iterator[Case]:
    """The kernel at common sizes, for compilation without a device."""
    wide = ((16, 32), (64, 64), (128, 64), (128, 128), (256, 256))
    cases = [(torch.bfloat16, "bf16", K, V, False) for K, V in wide]
    cases += [(torch.bfloat16, "bf16", 64, 64, True)]
    cases += [(torch.float32, "fp32", K, V, False) for K, V in ((16, 32), (128, 128))]
    for (dtype, kind, K, V, packed), per_key in itertools.product(cases, (False, True)):
        exact = {"ACC": tl.float32, "OPERAND": tl.bfloat16 if kind == "bf16" else tl.float32}
        fixed = {"K": K, "BT": CHUNK, "PER_KEY": per_key, "PACKED": packed, "EVEN": True}
        case = compile_case(
            gradient_kernel,
            dict.fromkeys(_NARROW, kind) | _EXACT,
            fixed | exact | launch(K, V, dtype, per_key=per_key),
            f"K={K} V={V} {kind}{' per key' * per_key}{' packed' * packed}",
            divisible=("V",),
            may_spill=True,
        )
        case[1]["scale"] = "fp32"
        yield case


_NARROW = ("q", "k", "v", "states", "adjoints", "grad", "grad_q", "grad_k", "grad_v")
_EXACT = {"g": "fp32", "grad_g": "fp32", "table": "i64"}
