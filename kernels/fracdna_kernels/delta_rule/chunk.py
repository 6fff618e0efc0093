"""The delta rules parallel in time, in PyTorch: what a chunk does to any state, then the states.

What a position writes depends on what all earlier ones wrote, but linearly: inside a chunk one unit
triangular matrix is inverted, and the chunk as a whole is S -> transition S + gained. Chunks are
prepared all at once; only this one product goes from chunk to chunk.

Every decay is the exponential of a sum over one stretch of positions, never of a difference of two
prefix sums, so that a strong decay does not drown the weak ones after it.

B rows   N chunks of a row   C positions of a chunk   H heads   K key width   V value width
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, threshold
from torch.utils.checkpoint import checkpoint

from fracdna_kernels.chunks import ChunkLayout, chunk_layout, later_sum
from fracdna_kernels.forms import accumulator

DELTA_CHUNK = 64
DPLR_CHUNK = 32
MOST_DECAY = 20.0  # over a chunk: more than 32 times exp(-1/2), the bound of RWKV-7


def delta_rule_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Chunks by the WY form; see delta_rule for shapes."""
    inputs = (q, k, v, beta[..., None], g[..., None])
    return _by_chunks(_delta_chunk, DELTA_CHUNK, inputs, scale, initial_state, cu_seqlens)


def dplr_delta_rule_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Chunks by the WY form; see dplr_delta_rule for shapes."""
    inputs = (q, k, v, a, b, g)
    return _by_chunks(_dplr_chunk, DPLR_CHUNK, inputs, scale, initial_state, cu_seqlens)


class _Chunk(NamedTuple):
    """What a chunk does to the state S that it starts from."""

    transition: Tensor  # (B, N, H, K, K), the state after it is transition S + gained
    gained: Tensor  # (B, N, H, K, V)
    reader: Tensor  # (B, N, H, C, K), its outputs are reader S + output
    output: Tensor  # (B, N, H, C, V)


def _by_chunks(
    prepare: Callable[..., _Chunk],
    most: int,
    inputs: tuple[Tensor, ...],
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Outputs and final states; inputs are q, k, v and what else prepare takes, (B, T, H, *)."""
    q, k, v = inputs[:3]
    B, T, H, V = v.shape
    dtype = accumulator(v)
    if initial_state is not None:
        initial_state = initial_state.to(dtype)
    else:
        count = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
        initial_state = v.new_zeros(count, H, k.shape[-1], V, dtype=dtype)
    if T == 0 or initial_state.shape[0] == 0:
        return torch.zeros_like(v), initial_state.clone()
    size = min(most, 1 << (T - 1).bit_length())
    layout = chunk_layout(T, size, cu_seqlens)
    inputs = (q.to(dtype) * scale, *inputs[1:])
    chunk = prepare(*(layout.split(x.to(dtype)) for x in inputs))
    start, final = _chunk_states(chunk, initial_state, layout)
    return layout.join(chunk.reader @ start + chunk.output).to(v.dtype), final


def _chunk_states(chunk: _Chunk, initial: Tensor, layout: ChunkLayout) -> tuple[Tensor, Tensor]:
    """State at the start of each chunk (B, N, H, K, V) and at the end of each sequence."""
    packed = layout.owner is not None
    state = initial[:1] if packed else initial
    starts, ends = [], []
    # unbind, since an index per chunk would fill a gradient of all chunks for each
    for n, (transition, gained) in enumerate(
        zip(chunk.transition.unbind(1), chunk.gained.unbind(1), strict=True)
    ):
        if packed:
            opened = initial.index_select(0, layout.owner[n : n + 1])
            state = torch.where(layout.first[n], opened, state)
        starts.append(state)
        state = gained + transition @ state
        ends.append(state)
    if not packed:
        return torch.stack(starts, dim=1), state
    last = layout.last
    final = torch.where(
        (last >= 0)[:, None, None, None], torch.cat(ends)[last.clamp(min=0)], initial
    )
    return torch.stack(starts, dim=1), final


def _decay(log_decay: Tensor) -> Tensor:
    """exp, with 0 in the place of what is next to nothing.

    Products of two such factors would be subnormal, which slows processors a hundredfold.
    """
    return threshold(log_decay.exp(), math.sqrt(torch.finfo(log_decay.dtype).tiny), 0.0)


def _unit_inverse(lower: Tensor) -> Tensor:
    """(I + strictly lower part)^-1 of (..., C, C); on and above the diagonal nothing is read."""
    identity = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(
        lower, identity.expand_as(lower), upper=False, unitriangular=True
    )


def _delta_chunk(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> _Chunk:
    """One gate a position: the decay between two positions is one matrix for all keys."""
    C = g.shape[-2]
    later_than = torch.ones(C, C, dtype=torch.bool, device=g.device).tril(-1)
    # column j sums the gates after j, down to each row; above the diagonal this leaves exp(0)
    decay = _decay(torch.where(later_than, g, 0.0).cumsum(-2))  # (B, N, H, C, C)
    since_start, until_end = _decay(g.cumsum(-2)), _decay(later_sum(g[..., 0]))
    weighted = beta * k
    inverse = _unit_inverse((weighted @ k.mT) * decay)
    values = inverse @ (beta * v)
    keys = inverse @ (weighted * since_start)
    seen = ((q @ k.mT) * decay).tril()
    left = (k * until_end[..., None]).mT
    total = _decay(g.sum(-2)).expand(*g.shape[:-2], k.shape[-1])
    return _Chunk(
        transition=torch.diag_embed(total) - left @ keys,
        gained=left @ values,
        reader=q * since_start - seen @ keys,
        output=seen @ values,
    )


def _dplr_chunk(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, g: Tensor) -> _Chunk:
    """A gate for each key: decays are inside the products of keys."""
    C = g.shape[-2]
    since_start = g.cumsum(-2)
    before = pad(since_start[..., :-1, :], (0, 0, 1, 0))
    until_end = _decay(later_sum(g.mT).mT)
    pairs = _pair_sums(torch.cat([q, a], -2), torch.cat([k, b], -2), g, since_start, before)
    (qk, qb), (ak, ab) = (x.split(C, -1) for x in pairs.split(C, -2))
    inverse = _unit_inverse(-ab)
    values = inverse @ (ak @ v)
    keys = inverse @ (a * _decay(before))
    left_k, left_b = (k * until_end).mT, (b * until_end).mT
    return _Chunk(
        transition=torch.diag_embed(_decay(g.sum(-2))) + left_b @ keys,
        gained=left_k @ v + left_b @ values,
        reader=q * _decay(since_start) + qb @ keys,
        output=qk @ v + qb @ values,
    )


def _pair_sums(
    left: Tensor, right: Tensor, g: Tensor, since_start: Tensor, before: Tensor
) -> Tensor:
    """Products of rows with the decay between their positions, (B, N, H, 2C, 2C).

    The upper rows of left read the state after their position, so what is written at j <= i; the
    lower ones read the state before it, so j < i. Where decays are known on the host and mild, as
    those of RWKV-7 always are, one product is enough; a device is not waited for.
    """
    on_host = g.device.type == "cpu" and not torch.compiler.is_compiling()
    if on_host and bool((since_start >= -MOST_DECAY).all()):
        return _mild_pair_sums(left, right, since_start, before)
    # every level would keep arrays as large as its inputs for the backward pass: rather done twice
    return checkpoint(_any_pair_sums, left, right, g, use_reentrant=False, preserve_rng_state=False)


def _mild_pair_sums(left: Tensor, right: Tensor, since_start: Tensor, before: Tensor) -> Tensor:
    """exp(c_i - c_j) as a product of two factors, which overflows under strong decay."""
    C = since_start.shape[-2]
    ahead = torch.cat([since_start, before], -2).exp()
    products = _products(left, right, ahead, (-since_start).exp())
    earlier = torch.ones(C, C, dtype=torch.bool, device=products.device)
    earlier = torch.cat([earlier.tril(), earlier.tril(-1)]).repeat(1, 2)
    return torch.where(earlier, products, 0.0)


def _any_pair_sums(left: Tensor, right: Tensor, g: Tensor) -> Tensor:
    """The exponent split at the border of two neighbouring blocks of 1, 2, 4, .. positions.

    Sums from the border on and up to it are both at most 0. Blocks grow by adding sums, and each
    pair is taken from the one level at which its positions are in neighbouring blocks.
    """
    C = g.shape[-2]
    row = torch.arange(C, device=g.device)
    same = row[:, None] == row
    same = torch.cat([same, torch.zeros_like(same)]).repeat(1, 2)
    sums = torch.where(same, left @ right.mT, 0.0)
    through, until, after, total = g, torch.zeros_like(g), torch.zeros_like(g), g
    size = 1
    while size < C:
        ahead = _decay(torch.cat([through, until], -2))
        products = _products(left, right, ahead, _decay(after))
        block = row // size
        neighbours = (block[:, None] % 2 == 1) & (block[:, None] - 1 == block)
        sums = torch.where(neighbours.repeat(2, 2), products, sums)
        halves = total.unflatten(-2, (-1, 2))  # (B, N, H, blocks, 2, K)
        none = torch.zeros_like(halves[..., :1, :])
        first, second = halves.split(1, -2)
        through = _add_to_halves(through, torch.cat([none, first], -2))
        until = _add_to_halves(until, torch.cat([none, first], -2))
        after = _add_to_halves(after, torch.cat([second, none], -2))
        total = halves.sum(-2)
        size *= 2
    return sums


def _products(left: Tensor, right: Tensor, ahead: Tensor, behind: Tensor) -> Tensor:
    """Rows of left times ahead with rows of right times behind, which is one for its two kinds."""
    return (left * ahead) @ (right * torch.cat([behind, behind], -2)).mT


def _add_to_halves(x: Tensor, summand: Tensor) -> Tensor:
    """Add (B, N, H, blocks, 2, K) to the positions of each half of each block."""
    parts = x.unflatten(-2, (*summand.shape[-3:-1], -1))
    return (parts + summand[..., None, :]).flatten(-4, -2)
