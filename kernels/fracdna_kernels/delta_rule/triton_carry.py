"""States between pieces of sequences, where a piece is S -> transition S + local for any state S.

N sequences   G pieces   H heads   K key width   V value width
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fracdna_kernels.delta_rule.launches import launch
from fracdna_kernels.pieces import Pieces, tile_width
from fracdna_kernels.triton_chunks import within
from fracdna_kernels.triton_support import ceil_div, types


def carry(
    transitions: Tensor, local: Tensor, initial: Tensor | None, pieces: Pieces, *, reverse: bool
) -> Tensor:
    """The state that each piece starts from, or backwards the adjoint at its end.

    Args:
        transitions: (G, H, K, K), all three in float32 or float64 and contiguous.
        local: (G, H, K, V), what each piece makes of an empty state (backwards: of no adjoint).
        initial: (N, H, K, V), what sequences start from (backwards: end with); None: nothing.
        pieces: G of them; a row of N / G is one sequence, or the table says where they lie.
        reverse: the transposed transitions, from the last piece to the first.

    Returns:
        (G, H, K, V). What the first piece of a sequence (backwards the last) starts from is
        `initial` itself, its place here is not written.
    """
    G, H, K, V = local.shape
    N = G // pieces.per_row if pieces.first is None else pieces.first.shape[0] - 1
    starts = torch.empty_like(local)
    chosen = launch("carry", K, V, local.dtype)
    blocks = ceil_div(V, chosen["BV"])
    carry_kernel[(N * H * blocks,)](
        transitions, local, initial, starts, pieces.first, pieces.per_row, H, K, V, blocks,
        BK=tile_width(K), REVERSE=reverse, PACKED=pieces.first is not None,
        INITIAL=initial is not None, EVEN=V % chosen["BV"] == 0, ACC=types(local.dtype)["ACC"],
        **chosen,
    )  # fmt: skip
    return starts


@triton.jit(do_not_specialize=["per_row"])
def carry_kernel(
    transitions, local, initial, starts, first_piece, per_row, H, K, V, BLOCKS,
    BK: tl.constexpr, BV: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr,
    INITIAL: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One block of value columns of one head of one sequence, piece after piece.

    The state is kept transposed, (BV, BK): few rows, so the product stays with small tiles.
    """
    program = tl.program_id(0)
    h = program % H
    block = (program // H) % BLOCKS
    sequence = (program // (H * BLOCKS)).to(tl.int64)
    if PACKED:
        begin = tl.load(first_piece + sequence)
        number = tl.load(first_piece + sequence + 1) - begin
    else:
        begin = sequence * per_row
        number = per_row
    index = begin + number - 1 if REVERSE else begin
    step = -1 if REVERSE else 1
    m, v = tl.arange(0, BK), block * BV + tl.arange(0, BV)
    keys = m < K
    tile = m[None, :] * V + v[:, None]
    inside = tl.trans(within(keys, v, V, EVEN))
    # rows are summed over: columns of the transition, backwards its rows
    square = m[:, None] * K + m[None, :] if REVERSE else m[None, :] * K + m[:, None]
    used = keys[:, None] & keys[None, :]
    state = tl.zeros((BV, BK), ACC)
    if INITIAL:
        at = initial + (sequence * H + h) * (K * V) + tile
        state = tl.load(at, mask=inside, other=0.0).to(ACC)
    transitions += (index * H + h) * (K * K)
    local += (index * H + h) * (K * V)
    starts += (index * H + h) * (K * V)
    for _ in tl.range(0, number - 1, num_stages=STAGES):
        passed = tl.load(transitions + square, mask=used, other=0.0)
        ended = tl.load(local + tile, mask=inside, other=0.0)
        # three products of rounded halves are nearly as exact as float32, and on matrix units
        state = tl.dot(state, passed, input_precision="tf32x3", out_dtype=ACC) + ended
        transitions += step * H * K * K
        local += step * H * K * V
        starts += step * H * K * V
        tl.store(starts + tile, state, mask=inside)
