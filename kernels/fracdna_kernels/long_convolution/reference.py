"""The sum of long_convolution, one position at a time: the ground truth of every other form.

B batch   T length   D channels   L taps   N sequences
"""

from itertools import pairwise

import torch
from torch import Tensor

from fracdna_kernels.forms import accumulator


def long_convolution_reference(
    x: Tensor,
    taps: Tensor,
    skip: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Sum over the past of every position; see long_convolution for shapes."""
    B, T, D = x.shape
    L = taps.shape[1]
    dtype = accumulator(x)
    x, taps = x.to(dtype), taps.to(dtype)
    bounds = [0, T] if cu_seqlens is None else cu_seqlens.tolist()
    rows = [(b, start, end) for b in range(B) for start, end in pairwise(bounds)]
    outputs = [[x.new_zeros(D)] * T for _ in range(B)]
    states = []
    for n, (b, start, end) in enumerate(rows):
        past = x.new_zeros(D, L - 1) if initial_state is None else initial_state[n].to(dtype)
        known = torch.cat([past, x[b, start:end].mT], dim=1)  # (D, L - 1 + positions)
        for t in range(start, end):
            latest_first = known[:, t - start : t - start + L].flip(1)
            y = (taps * latest_first).sum(1)
            outputs[b][t] = y if skip is None else y + skip.to(dtype) * x[b, t]
        states.append(known[:, end - start :])
    final = torch.stack(states) if states else x.new_zeros(0, D, L - 1)
    if not x.numel():
        return x, final
    return torch.stack([torch.stack(row) for row in outputs]), final
