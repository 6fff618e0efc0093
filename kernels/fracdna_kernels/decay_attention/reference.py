"""The recurrence of decay_attention, one position at a time: the ground truth of every other form.

B batch   T length   H heads of v   G heads of q and k   R rank   K key width   V value width
N sequences
"""

from itertools import pairwise

import torch
from torch import Tensor

from fracdna_kernels.forms import accumulator


def decay_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Step through every sequence; see decay_attention for shapes."""
    dtype = accumulator(v)
    shape = v.shape
    if v.ndim == 4:
        q, k, v = (x.unsqueeze(3) for x in (q, k, v))
    B, T, H, _, V = v.shape
    K = k.shape[-1]
    shared = H // k.shape[2]
    q, k = (x.to(dtype).repeat_interleave(shared, dim=2) for x in (q, k))  # (B, T, H, R, K)
    v = v.to(dtype)
    g = g.to(dtype) if g.ndim == 4 else g.to(dtype)[..., None]  # (B, T, H, 1 or K)
    bounds = [0, T] if cu_seqlens is None else cu_seqlens.tolist()
    pieces = [(b, start, end) for b in range(B) for start, end in pairwise(bounds)]
    outputs = [[v.new_zeros(v.shape[2:])] * T for _ in range(B)]
    states = []
    for n, (b, start, end) in enumerate(pieces):
        state = v.new_zeros(H, K, V) if initial_state is None else initial_state[n].to(dtype)
        for t in range(start, end):
            written = torch.einsum("hrk,hrv->hkv", k[b, t], v[b, t])
            state = torch.exp(g[b, t])[..., None] * state + written
            outputs[b][t] = scale * torch.einsum("hrk,hkv->hrv", q[b, t], state)
        states.append(state)
    final = torch.stack(states) if states else v.new_zeros(0, H, K, V)
    if not v.numel():
        return v.new_zeros(shape), final
    return torch.stack([torch.stack(row) for row in outputs]).view(shape), final
