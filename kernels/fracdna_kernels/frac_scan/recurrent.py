"""frac_scan for decoding: the increment form keeps what a slow mode loses in one step."""

import torch
from torch import Tensor

from fracdna_kernels.forms import accumulator


def frac_scan_recurrent(
    values: Tensor,
    write: Tensor,
    read: Tensor,
    u: Tensor,
    log_tau: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Update the state position by position, all rows at once; see frac_scan for shapes.

    exp(-u/tau) of a slow mode is within a few float32 steps of 1, so the state moves by
    S += expm1(-u/tau) S + write values^T.

    Raises:
        ValueError: packed sequences, which a decoder never holds.
    """
    if cu_seqlens is not None:
        raise ValueError("form='recurrent' takes one sequence per row; use 'chunk' for packed rows")
    B, T, H, V = values.shape
    dtype = accumulator(values)
    v, k, q = values.to(dtype), write.to(dtype), read.to(dtype)
    loss = torch.expm1(-u.to(dtype)[..., None] * torch.exp(-log_tau.to(dtype)))  # (B, T, H, M)
    if initial_state is None:
        state = v.new_zeros(B, H, log_tau.shape[0], V)
    else:
        state = initial_state.to(dtype)
    outputs = []
    for t in range(T):
        state = state + loss[:, t, ..., None] * state + k[:, t, ..., None] * v[:, t, :, None, :]
        outputs.append(torch.einsum("bhm,bhmv->bhv", q[:, t], state))
    output = torch.stack(outputs, dim=1) if outputs else torch.zeros_like(v)
    return output.to(values.dtype), state
