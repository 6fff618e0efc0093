"""A map through a narrow middle, which starts as its bias."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fracdna_kernels import exact_linear


class LowRank(nn.Module):
    """up activation(down x) + bias, with `down` 0 at first.

    Args:
        width: of inputs and outputs.
        rank: of the middle.
        activation: of the middle; None: none.
        bias: (width,) initial bias; None: no bias.
        exact: compute in float32 also under autocast.
    """

    def __init__(
        self,
        width: int,
        rank: int,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
        bias: Tensor | None = None,
        exact: bool = False,
    ) -> None:
        super().__init__()
        self.activation, self.exact = activation, exact
        self.down = nn.Parameter(torch.zeros(rank, width))
        self.up = nn.Parameter(nn.init.orthogonal_(torch.empty(width, rank), gain=0.1))
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        apply = exact_linear if self.exact else linear
        middle = apply(x, self.down)
        if self.activation is not None:
            middle = self.activation(middle)
        return apply(middle, self.up, self.bias)


def rounded_rank(size: float) -> int:
    """The multiple of 32 nearest to a size, at least 32; halves go to the even multiple."""
    return max(32, 32 * round(size / 32))
