"""The delta rules for decoding: all rows at once, the state moved by an increment.

exp(g) of a slow decay is within a few float32 steps of 1, so the state moves by expm1(g) of itself.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fracdna_kernels.forms import accumulator


def delta_rule_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Update the state position by position; see delta_rule for shapes.

    Raises:
        ValueError: packed sequences, which a decoder never holds.
    """
    dtype = accumulator(v)
    beta, g = beta.to(dtype)[..., None], g.to(dtype)[..., None]
    inputs = (k.to(dtype), v.to(dtype), beta, torch.exp(g), torch.expm1(g))
    return _update(_delta_increment, q, v, inputs, scale, initial_state, cu_seqlens)


def dplr_delta_rule_recurrent(
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
    """Update the state position by position; see dplr_delta_rule for shapes.

    Raises:
        ValueError: packed sequences, which a decoder never holds.
    """
    dtype = accumulator(v)
    inputs = (*(x.to(dtype) for x in (k, v, a, b)), torch.expm1(g.to(dtype)))
    return _update(_dplr_increment, q, v, inputs, scale, initial_state, cu_seqlens)


def _delta_increment(
    state: Tensor, k: Tensor, v: Tensor, beta: Tensor, kept: Tensor, loss: Tensor
) -> Tensor:
    """exp(g) S + k (beta (v - exp(g) S^T k))^T, less S."""
    missing = v - kept * _read(k, state)
    return loss[..., None] * state + k[..., None] * (beta * missing)[..., None, :]


def _dplr_increment(
    state: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, loss: Tensor
) -> Tensor:
    """diag(exp(g)) S + b (S^T a)^T + k v^T, less S."""
    written = b[..., None] * _read(a, state)[..., None, :] + k[..., None] * v[..., None, :]
    return loss[..., None] * state + written


def _read(key: Tensor, state: Tensor) -> Tensor:
    """(B, H, K) and (B, H, K, V) to (B, H, V)."""
    return (key[..., None, :] @ state)[..., 0, :]


def _update(
    increment: Callable[..., Tensor],
    q: Tensor,
    values: Tensor,
    inputs: tuple[Tensor, ...],
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Outputs and final states, one sequence per row."""
    if cu_seqlens is not None:
        raise ValueError("form='recurrent' takes one sequence per row; use 'chunk' for packed rows")
    B, T, H, V = values.shape
    dtype = accumulator(values)
    q = q.to(dtype) * scale
    empty = initial_state is None
    state = q.new_zeros(B, H, q.shape[-1], V) if empty else initial_state.to(dtype)
    outputs = []
    for t in range(T):
        state = state + increment(state, *(x[:, t] for x in inputs))
        outputs.append(_read(q[:, t], state))
    output = torch.stack(outputs, dim=1) if outputs else q.new_zeros(B, T, H, V)
    return output.to(values.dtype), state
