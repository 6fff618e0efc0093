"""The sum of short_convolution, one position and one tap at a time: the ground truth.

B batch   T length   D channels   W filter width   N sequences
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import silu

from fracdna_kernels.forms import accumulator

MOST_READERS = 3


def short_convolution_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    """Slide the window over every sequence; see short_convolution for shapes."""
    B, T, D = x.shape
    W = weight.shape[1]
    dtype = accumulator(x)
    bounds = [0, T] if cu_seqlens is None else cu_seqlens.tolist()
    rows = [(b, s, e) for b in range(B) for s, e in pairwise(bounds)]
    offset = x.new_zeros(D, dtype=dtype) if bias is None else bias.to(dtype)
    outputs = [[x.new_zeros(D, dtype=dtype)] * T for _ in range(B)]
    states = []
    for n, (b, start, end) in enumerate(rows):
        if initial_state is None:
            past = [x.new_zeros(D, dtype=dtype)] * (W - 1)
        else:
            past = list(initial_state[n].to(dtype).unbind(1))
        for t in range(start, end):
            past = [*past, x[b, t].to(dtype)]
            taps = zip(weight.to(dtype).unbind(1), past[-W:], strict=True)
            y = offset + sum(tap * value for tap, value in taps)
            outputs[b][t] = silu(y) if activation == "silu" else y
        tail = past[len(past) - W + 1 :]
        states.append(torch.stack(tail, dim=1) if tail else x.new_zeros(D, 0, dtype=dtype))
    final = torch.stack(states) if states else x.new_zeros(0, D, W - 1, dtype=dtype)
    if not x.numel():
        return x.to(dtype), final
    return torch.stack([torch.stack(row) for row in outputs]), final
