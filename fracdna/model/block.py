"""One layer of the network: a pre-norm residual mixer, then an MLP likewise, which may be null."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from fracdna.mixers.mixer import Mixer, Shared


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)) where an MLP exists."""

    def __init__(
        self, d_model: int, mixer: Mixer, norm: Callable[[int], nn.Module], mlp: nn.Module | None
    ) -> None:
        super().__init__()
        self.mixer_norm = norm(d_model)
        self.mixer = mixer
        self.mlp_norm = None if mlp is None else norm(d_model)
        self.mlp = mlp

    def forward(self, x: Tensor, cu_seqlens: Tensor | None, shared: Shared) -> Tensor:
        """Whole sequences, (batch, length, d_model) to the same shape."""
        x = x + self.mixer(self.mixer_norm(x), cu_seqlens=cu_seqlens, shared=shared)
        return self._transform(x)

    def step(
        self,
        x: Tensor,
        state: Any,
        lengths: Tensor | None,
        shared: Shared,
    ) -> tuple[Tensor, Any]:
        """A continuation: the stream after it, and the mixer's state."""
        mixed, state = self.mixer.step(self.mixer_norm(x), state, lengths=lengths, shared=shared)
        return self._transform(x + mixed), state

    def _transform(self, x: Tensor) -> Tensor:
        """The MLP's residual."""
        return x if self.mlp is None else x + self.mlp(self.mlp_norm(x))
