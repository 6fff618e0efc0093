"""decay_attention for decoding: the increment form keeps what a slow decay loses in one step."""

import torch
from torch import Tensor

from fracdna_kernels.forms import accumulator


def decay_attention_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Update the state position by position, all rows at once; see decay_attention for shapes.

    exp(g) of a slow decay is within a few float32 steps of 1, so the state moves by
    S += expm1(g) S + k v^T.

    Raises:
        ValueError: packed sequences, which a decoder never holds.
    """
    if cu_seqlens is not None:
        raise ValueError("form='recurrent' takes one sequence per row; use 'chunk' for packed rows")
    dtype = accumulator(v)
    shape = v.shape
    if v.ndim == 4:
        q, k, v = (x.unsqueeze(3) for x in (q, k, v))
    B, T, H, _, V = v.shape
    K = k.shape[-1]
    shared = H // k.shape[2]
    q, k = (x.to(dtype).repeat_interleave(shared, dim=2) for x in (q, k))  # (B, T, H, R, K)
    q, v = q * scale, v.to(dtype)
    g = g.to(dtype) if g.ndim == 4 else g.to(dtype)[..., None]
    loss = torch.expm1(g)[..., None]  # (B, T, H, 1 or K, 1)
    state = v.new_zeros(B, H, K, V) if initial_state is None else initial_state.to(dtype)
    outputs = []
    for t in range(T):
        state = state + loss[:, t] * state + k[:, t].mT @ v[:, t]
        outputs.append(q[:, t] @ state)  # (B, H, R, V)
    output = torch.stack(outputs, dim=1) if outputs else torch.zeros_like(v)
    return output.reshape(shape), state
