"""Linear attention that writes each pair twice: at its own position and at the next one.

S_t = e^g_t (S_{t-1} + before_t k_{t-1} v_{t-1}^T) + now_t k_t v_t^T, o_tr = q_tr S_t; products with
k and v are summed over the rank. The first position of a sequence has no pair before it.

Source: arXiv 2603.15569, exponential-trapezoidal discretisation.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from fracdna_kernels import decay_attention


def handed_on(before: Tensor, sequence: Tensor | None = None) -> Tensor:
    """The weight with which each position's pairs are written once more at the next position.

    Args:
        before: (batch, length, heads), weight of the pairs of the position before each one.
        sequence: (length,) numbers of packed sequences, see sequence_of; None: rows are whole.

    Returns:
        (batch, length, heads): before_{t+1}, 0 at the end of a row or sequence.
    """
    later = pad(before, (0, 0, 0, 1))[:, 1:]
    if sequence is None:
        return later
    ends = pad(sequence[1:] != sequence[:-1], (0, 1))
    return torch.where(ends[:, None], 0.0, later)


def with_last_pairs(memory: Tensor, keys: Tensor, values: Tensor, before: Tensor) -> Tensor:
    """A memory to go on from, with the pairs of its last position written once more.

    Args:
        memory: (batch, heads, K, V).
        keys: (batch, heads, rank, K), of the last position.
        values: (batch, heads, rank, V), likewise.
        before: as handed_on takes it; its first position counts, where there is one.
    """
    # products and a sum, which autocast leaves alone
    pairs = (keys[..., None] * values[..., None, :]).sum(2)
    return memory + before[:, :1].sum(1)[..., None, None] * pairs


def trapezoidal_attention(
    q: Tensor,
    written: Tensor,
    v: Tensor,
    g: Tensor,
    products: Tensor,
    weight: Tensor,
    later: Tensor,
    *,
    memory: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """What is read of the memory, and with which weights a position's own values are to be added.

    Positions after a pair's own find it with the weight now_t + before_{t+1}, so one pass of
    decay_attention writes both. It takes the ranks of a position for positions of their own: rank r
    reads the ranks up to its own. Those after it are missing, and what is only written at the next
    position is too much; the weights that are returned put both right.

    Args:
        q: (batch, length, rank, heads, K).
        written: like q, keys times weight.
        v: (batch, length, rank, heads, V).
        g: (batch, length, heads), log decay, at most 0.
        products: (batch, length, heads, rank, rank), q_r . k_s, keys without a weight.
        weight: (batch, length, heads), now_t + before_{t+1}.
        later: (batch, length, heads), before_{t+1}, see handed_on.
        memory: (batch, heads, K, V) to go on from, see with_last_pairs; None: empty.
        cu_seqlens: (sequences + 1,) bounds of packed sequences, needs batch 1 and no memory.
        form: form of decay_attention.

    Returns:
        What is read, like v; weights of v_s in o_r, like products; the memory at the end.
    """
    rank = q.shape[2]
    if rank > 1 and q.shape[1] == 1:
        # all ranks at once, as decoding does: it keeps what a slow decay loses beside 1
        read, memory = decay_attention(
            *(rows.transpose(2, 3) for rows in (q, written, v)), g,
            initial_state=memory, cu_seqlens=cu_seqlens, form=form,
        )  # fmt: skip
        return read.transpose(2, 3), products * -later[..., None, None], memory
    read, memory = decay_attention(
        *(rows.flatten(1, 2) for rows in (q, written, v)),
        pad(g[:, :, None], (0, 0, 0, rank - 1)).flatten(1, 2),  # fades before the first rank alone
        initial_state=memory, form=form,
        cu_seqlens=None if cu_seqlens is None else cu_seqlens * rank,
    )  # fmt: skip
    missing = products.new_ones(rank, rank).triu(1)
    own = products * (weight[..., None, None] * missing - later[..., None, None])
    return read.view_as(v), own, memory
