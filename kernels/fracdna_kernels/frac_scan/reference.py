"""The recurrence of frac_scan, one position at a time: the ground truth of every other form.

B batch   T length   H heads   V value width   M modes   N sequences
"""

from itertools import pairwise

import torch
from torch import Tensor

from fracdna_kernels.forms import accumulator


def frac_scan_reference(
    values: Tensor,
    write: Tensor,
    read: Tensor,
    u: Tensor,
    log_tau: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Step through every sequence; see frac_scan for shapes."""
    B, T, H, V = values.shape
    M = log_tau.shape[0]
    dtype = accumulator(values)
    v, k, q, clock = values.to(dtype), write.to(dtype), read.to(dtype), u.to(dtype)
    rate = torch.exp(-log_tau.to(dtype))
    if cu_seqlens is None:
        pieces = [(b, 0, T) for b in range(B)]
    else:
        bounds = cu_seqlens.tolist()
        pieces = [(0, start, end) for start, end in pairwise(bounds)]
    outputs = [v.new_zeros(T, H, V) for _ in range(B)]
    states = []
    for n, (b, start, end) in enumerate(pieces):
        state = v.new_zeros(H, M, V) if initial_state is None else initial_state[n].to(dtype)
        rows = []
        for t in range(start, end):
            decay = torch.exp(-clock[b, t, :, None] * rate)  # (H, M)
            state = decay[..., None] * state + k[b, t, :, :, None] * v[b, t, :, None, :]
            rows.append(torch.einsum("hm,hmv->hv", q[b, t], state))
        if rows:
            before, after = outputs[b][:start], outputs[b][end:]
            outputs[b] = torch.cat([before, torch.stack(rows), after])
        states.append(state)
    if not outputs:
        return values.clone(), v.new_zeros(0, H, M, V)
    final = torch.stack(states) if states else v.new_zeros(0, H, M, V)
    return torch.stack(outputs).to(values.dtype), final
