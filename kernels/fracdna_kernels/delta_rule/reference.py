"""The recurrences of delta_rule, one position at a time: the ground truth of every other form.

B batch   T length   H heads   K key width   V value width   N sequences
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from fracdna_kernels.forms import accumulator


def delta_rule_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Step through every sequence; see delta_rule for shapes."""
    return _step_through(_delta_step, (q, k, v, beta, g), scale, initial_state, cu_seqlens)


def dplr_delta_rule_reference(
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
    """Step through every sequence; see dplr_delta_rule for shapes."""
    return _step_through(_dplr_step, (q, k, v, a, b, g), scale, initial_state, cu_seqlens)


def _delta_step(state: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Tensor:
    """Forget, then move what is stored under k (H, K) towards v (H, V)."""
    state = torch.exp(g)[:, None, None] * state
    missing = v - torch.einsum("hk,hkv->hv", k, state)
    return state + k[:, :, None] * (beta[:, None] * missing)[:, None, :]


def _dplr_step(state: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, g: Tensor) -> Tensor:
    """Forget by key channel; what a reads of the state before, b writes beside the new pair."""
    found = torch.einsum("hk,hkv->hv", a, state)
    kept = torch.exp(g)[:, :, None] * state
    return kept + b[:, :, None] * found[:, None, :] + k[:, :, None] * v[:, None, :]


def _step_through(
    step: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Outputs and final states; inputs are q, k, v and what else the step takes."""
    values = inputs[2]
    dtype = accumulator(values)
    q, k, v, *rest = (x.to(dtype) for x in inputs)
    B, T, H, V = v.shape
    K = k.shape[-1]
    if cu_seqlens is None:
        pieces = [(b, 0, T) for b in range(B)]
    else:
        pieces = [(0, start, end) for start, end in pairwise(cu_seqlens.tolist())]
    outputs = [v.new_zeros(T, H, V) for _ in range(B)]
    states = []
    for n, (b, start, end) in enumerate(pieces):
        state = v.new_zeros(H, K, V) if initial_state is None else initial_state[n].to(dtype)
        rows = []
        for t in range(start, end):
            state = step(state, *(x[b, t] for x in (k, v, *rest)))
            rows.append(scale * torch.einsum("hk,hkv->hv", q[b, t], state))
        if rows:
            before, after = outputs[b][:start], outputs[b][end:]
            outputs[b] = torch.cat([before, torch.stack(rows), after])
        states.append(state)
    final = torch.stack(states) if states else v.new_zeros(0, H, K, V)
    output = torch.stack(outputs) if outputs else torch.zeros_like(v)
    return output.to(values.dtype), final
