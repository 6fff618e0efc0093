"""decay_attention parallel in time, in PyTorch: chunks, and a tree over their states.

Every exponent is a sum of log decays over one stretch of positions, never a difference of two
prefix sums, and every exponential is of a number at most 0: nothing overflows, and a strong decay
does not drown the weak ones after it. So the gradient of a decay is a sum over the pairs of
positions that it lies between; the short formula, q dq - k dk summed from the end, would cancel.

B rows   N chunks of a row   C positions of a chunk   R rank   K key width   V value width
H heads of v: G heads of q and k, times P that share one   W 1, or K where every key decays alone
"""

import torch
from torch import Tensor

from fracdna_kernels.chunks import ChunkLayout, chunk_layout, chunk_states
from fracdna_kernels.forms import accumulator

ROWS = 64  # of a chunk: positions times rank


def decay_attention_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """All chunks at once, states by a tree over chunks; see decay_attention for shapes."""
    B, T, H = v.shape[:3]
    G, R = k.shape[2], v.shape[3] if v.ndim == 5 else 1
    dtype, shape = accumulator(v), v.shape
    if initial_state is None:
        sequences = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
        initial_state = v.new_zeros(sequences, H, k.shape[-1], v.shape[-1])
    initial_state = initial_state.to(dtype)
    if not v.numel() or not initial_state.numel():
        return torch.zeros_like(v), initial_state.clone()
    chunk = min(1 << (max(ROWS // R, 1).bit_length() - 1), 1 << (T - 1).bit_length())
    layout = chunk_layout(T, chunk, cu_seqlens)

    def split(x: Tensor, rows: int) -> Tensor:
        """(B, T, heads, *) to (B, N, G, P, rows, *), the rank within each position."""
        x = layout.split(x.reshape(B, T, x.shape[2], -1))
        return x.reshape(*x.shape[:2], G, x.shape[2] // G, rows, -1)

    q, k, v, g = (x.to(dtype) for x in (q, k, v, g))
    q, k, v = (split(x, chunk * R) for x in (q * scale, k, v))
    g = split(g, chunk)
    weights, since, until = _fade(q, k, g) if g.shape[-1] == 1 else _fade_keys(q, k, g)
    gained = (k * _per_row(until.exp(), R)).mT @ v  # (B, N, G, P, K, V)
    start, final = _states(g.sum(-2), gained, initial_state, layout)
    output = (q * _per_row(since.exp(), R)) @ start + weights @ v
    output = layout.join(output.view(B, -1, H, chunk, R * v.shape[-1]))
    return output.reshape(shape), final


def _states(
    total: Tensor, gained: Tensor, initial: Tensor, layout: ChunkLayout
) -> tuple[Tensor, Tensor]:
    """State at the start of each chunk (B, N, G, P, K, V) and at the end of each sequence.

    Args:
        total: (B, N, G, P, W), log decay of each chunk.
        gained: (B, N, G, P, K, V), what each chunk adds to an empty state.
        initial: (sequences, H, K, V).
        layout: of the chunks.
    """
    K, V = gained.shape[-2:]
    width = total.shape[-1]
    # whatever decays by a rate of its own is a head by itself: H of K rows, or H K of one row
    heads = (-1, initial.shape[1] * width, K // width, V)
    start, final = chunk_states(
        -total.flatten(2),
        gained.reshape(gained.shape[0], *heads),
        total.new_ones(1),
        initial.reshape(heads),
        layout,
    )
    return start.reshape(gained.shape), final.reshape(initial.shape)


def _per_row(x: Tensor, rank: int) -> Tensor:
    """(..., C, W) to (..., C * R, W): all rows of a position alike."""
    return x if rank == 1 else x.repeat_interleave(rank, dim=-2)


def _fade(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What each row reads of each row, where all keys of a head decay alike.

    Args:
        q: (..., C * R, K).
        k: (..., C * R, K).
        g: (..., C, 1).

    Returns:
        weights (..., C * R, C * R), (q_i . k_j) exp(sum of g over j < t <= i) for positions j <= i,
        else 0; the log decay since the chunk's start and until its end, (..., C, 1) each.
    """
    C = g.shape[-2]
    rank = q.shape[-2] // C
    spans = g.expand(*g.shape[:-1], C).tril(-1).cumsum(-2)  # (..., C, C), sum over j < t <= i
    fading = _per_row(_per_row(spans.exp(), rank).mT, rank).mT
    position = torch.arange(C * rank, device=g.device) // rank
    # selected: 0 times a product with a later row is not 0 where that product overflows
    weights = torch.where(position[:, None] >= position, (q @ k.mT) * fading, 0.0)
    return weights, g.cumsum(-2), spans[..., -1:, :].mT


def _fade_keys(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What _fade gives, where every key decays alone: g is (..., C, K), and the rank is 1.

    Blocks of positions are joined in pairs, from single positions on. Between the two, the exponent
    splits at their border into a sum over the later block's head and one over the earlier block's
    tail, so all that the later one reads of the earlier is one matrix product. Both sums grow with
    the blocks, by addition only: log2(C) levels of K exponentials per position replace C of them.
    """
    shape = g.shape
    q, k = q.expand(shape), k.expand(shape)
    since, until = g.unsqueeze(-2), torch.zeros_like(g).unsqueeze(-2)  # (..., blocks, size, K)
    weights = (q * k).sum(-1)[..., None, None]
    size = 1
    while size < shape[-2]:
        pair = (-1, 2, size)
        later_q = q.unflatten(-2, pair)[..., 1, :, :]
        earlier_k = k.unflatten(-2, pair)[..., 0, :, :]
        (since_0, since_1), (until_0, until_1), (inside_0, inside_1) = (
            x.unflatten(-3, (-1, 2)).unbind(-3) for x in (since, until, weights)
        )
        across = (later_q * since_1.exp()) @ (earlier_k * until_0.exp()).mT
        upper = torch.cat([inside_0, torch.zeros_like(across)], dim=-1)
        weights = torch.cat([upper, torch.cat([across, inside_1], dim=-1)], dim=-2)
        whole_0, whole_1 = since_0[..., -1:, :], since_1[..., -1:, :]
        since = torch.cat([since_0, whole_0 + since_1], dim=-2)
        until = torch.cat([until_0 + whole_1, until_1], dim=-2)
        size *= 2
    return weights.squeeze(-3), since.squeeze(-3), until.squeeze(-3)
