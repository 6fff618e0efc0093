"""Linear attention that writes each pair twice: at its own position and at the next one."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from fracdna_kernels import decay_attention
from fracdna_kernels.shapes import sequence_of


def trapezoidal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    now: Tensor,
    before: Tensor,
    *,
    memory: Tensor | None = None,
    last: tuple[Tensor, Tensor] | None = None,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor]:
    """S_t = e^g_t (S_{t-1} + before_t k_{t-1} v_{t-1}^T) + now_t k_t v_t^T, o_t = q_t S_t.

    Products with k and v are summed over the rank. The first position of a sequence has no pair
    before it. Positions after a pair's own find it with the weight now_t + before_{t+1}, so one
    pass of decay_attention writes both; at its own position the second is taken off again.

    Args:
        q: (batch, length, heads, rank, K).
        k: like q.
        v: (batch, length, heads, rank, V).
        g: (batch, length, heads), log decay, at most 0.
        now: (batch, length, heads), weight of each position's pairs.
        before: (batch, length, heads), weight of the pairs of the position before.
        memory: (batch, heads, K, V) to go on from; None: empty.
        last: k (batch, heads, rank, K) and v (batch, heads, rank, V) of the position before the
            first; needed with a memory.
        cu_seqlens: (sequences + 1,) bounds of packed sequences, needs batch 1 and no memory.
        form: form of decay_attention.

    Returns:
        o (batch, length, heads, rank, V), and the memory at the end.

    Source: arXiv 2603.15569, exponential-trapezoidal discretisation.
    """
    shifted = pad(before, (0, 0, 0, 1))
    later = shifted[:, 1:]
    if cu_seqlens is not None:
        sequence = sequence_of(cu_seqlens, before.shape[1])
        ends = pad(sequence[1:] != sequence[:-1], (0, 1))
        later = torch.where(ends[:, None], 0.0, later)
    if memory is not None:
        # products and a sum, which autocast leaves alone
        pairs = (last[0][..., None] * last[1][..., None, :]).sum(2)
        memory = memory + shifted[:, 0, :, None, None] * pairs
    written = ((now + later)[..., None, None] * v).to(v.dtype)
    if q.shape[3] == 1:
        output, memory = decay_attention(
            q.squeeze(3), k.squeeze(3), written.squeeze(3), g,
            initial_state=memory, cu_seqlens=cu_seqlens, form=form,
        )  # fmt: skip
        output, own = output.unsqueeze(3), (q * k).sum(-1, keepdim=True) * v
    else:
        output, memory = decay_attention(
            q, k, written, g, initial_state=memory, cu_seqlens=cu_seqlens, form=form
        )
        own = (q @ k.mT) @ v
    return output - later[..., None, None] * own, memory
