"""frac_scan parallel in time, in PyTorch: chunks, a tree inside each, a tree over their states.

Every exponent is a sum of clock advances over one stretch of positions, never a difference of two
prefix sums, and every exponential is of a number at most 0: nothing overflows, and a jump of the
clock does not drown the small advances after it.

B rows   N chunks of a row   C positions of a chunk   H heads   M modes   V value width
"""

import torch
from torch import Tensor

from fracdna_kernels.chunks import chunk_layout, chunk_states, later_sum, mode_decay
from fracdna_kernels.forms import accumulator

CHUNK = 64


def frac_scan_chunk(
    values: Tensor,
    write: Tensor,
    read: Tensor,
    u: Tensor,
    log_tau: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All chunks at once, states by a tree over chunks; see frac_scan for shapes."""
    B, T, H, V = values.shape
    M = log_tau.shape[0]
    dtype = accumulator(values)
    rate = torch.exp(-log_tau.to(dtype))
    if initial_state is not None:
        initial_state = initial_state.to(dtype)
    elif cu_seqlens is not None:
        initial_state = values.new_zeros(cu_seqlens.shape[0] - 1, H, M, V, dtype=dtype)
    else:
        initial_state = values.new_zeros(B, H, M, V, dtype=dtype)
    if T == 0 or initial_state.shape[0] == 0:
        return torch.zeros_like(values), initial_state.clone()
    chunk = min(CHUNK, 1 << (T - 1).bit_length())
    layout = chunk_layout(T, chunk, cu_seqlens)
    v, k, q, clock = (
        layout.split(x.to(dtype)) for x in (values, write, read, u[..., None])
    )  # (B, N, H, C, *)
    clock = clock[..., 0]
    total = clock.sum(-1)  # (B, N, H)
    later = later_sum(clock)
    gained = (k * mode_decay(later, rate)).mT @ v  # (B, N, H, M, V)
    start, final = chunk_states(total, gained, rate, initial_state, layout)
    output = (q * mode_decay(clock.cumsum(-1), rate)) @ start
    output = output + _causal_weights(q, k, clock, rate) @ v
    return layout.join(output).to(values.dtype), final


def _causal_weights(q: Tensor, k: Tensor, clock: Tensor, rate: Tensor) -> Tensor:
    """A_ij = sum_m q_im k_jm exp(-(u_{j+1} + .. + u_i) / tau_m) for j <= i, else 0.

    The span is halved: between halves the exponent splits at the border into a sum over the later
    half's head and one over the earlier half's tail, so a block is one matrix product; each half is
    the same problem again. log2(C) levels of M exponentials per position replace C of them.
    """
    size = q.shape[-2]
    if size == 1:
        return (q * k).sum(-1, keepdim=True)
    half = (2, size // 2)
    q, k, clock = q.unflatten(-2, half), k.unflatten(-2, half), clock.unflatten(-1, half)
    inside = _causal_weights(q, k, clock, rate)  # (..., 2, C/2, C/2)
    ahead = q[..., 1, :, :] * mode_decay(clock[..., 1, :].cumsum(-1), rate)
    behind = k[..., 0, :, :] * mode_decay(later_sum(clock[..., 0, :]), rate)
    across = ahead @ behind.mT
    upper = torch.cat([inside[..., 0, :, :], torch.zeros_like(across)], dim=-1)
    lower = torch.cat([across, inside[..., 1, :, :]], dim=-1)
    return torch.cat([upper, lower], dim=-2)
