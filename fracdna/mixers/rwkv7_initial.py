"""What RWKV-7 starts from: vectors by channel n = 0 .. D - 1 and layer l, as released."""

import torch
from torch import Tensor


class InitialValues:
    """Initial values by channel and layer.

    Args:
        width: D.
        head_width: P.
        layer_index: l.
        num_layers: L.

    Attributes:
        place: (D,) n / D.
        line: (D,) from -1/2 to 1/2.
        zigzag: (D,) from -1 to 1 within each head, flat in the middle.
        above: 1 - l / L.
    """

    EXPONENTS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)  # of r, w, k, v, a and the gate

    def __init__(self, width: int, head_width: int, layer_index: int, num_layers: int) -> None:
        channel, middle = torch.arange(width), (head_width - 1) / 2
        within = (channel % head_width - middle) / middle
        self.place, self.line = channel / width, channel / (width - 1) - 0.5
        self.zigzag = within * within.abs()
        self.above = 1 - layer_index / num_layers
        self.depth = layer_index / max(num_layers - 1, 1)

    def share(self, exponent: float) -> Tensor:
        """Shares of the position before, of the time mix."""
        return 1 - self.place ** (exponent * self.above)

    def decay_bias(self) -> Tensor:
        """Logits of the decay: slow channels first, within each head from slow to fast."""
        rise = (self.line + 0.5) ** (1 + self.depth**0.3)
        return -6 + 6 * rise + 0.5 + 2.5 * self.zigzag

    def rate_bias(self) -> Tensor:
        """Logits of the share of a key's memory that is replaced."""
        return -0.19 + 0.3 * self.zigzag + 0.4 * self.line
