"""One layer of the network: a pre-norm residual mixer, then an MLP likewise, which may be null.

A branch's output is added to the stream together with the next norm, which is one operator
(fracdna.model.layers.add_norm). So between layers goes a pair: what the last branch adds, and the
stream before it; their sum is the stream.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from fracdna.mixers.mixer import Mixer, Shared
from fracdna.model.layers import add_norm


class Block(nn.Module):
    """s + mixer(norm(s)), then s + mlp(norm(s)) where an MLP exists; s is the stream."""

    def __init__(
        self,
        d_model: int,
        mixer: Mixer,
        norm: Callable[[int], nn.Module] | None,
        mlp: nn.Module | None,
    ) -> None:
        super().__init__()
        # without a norm the mixer reads the stream itself and has norms of its own
        norm = nn.Identity if norm is None else norm
        self.mixer_norm = norm(d_model)
        self.mixer = mixer
        self.mlp_norm = None if mlp is None else norm(d_model)
        self.mlp = mlp

    def forward(
        self, x: Tensor, residual: Tensor | None, cu_seqlens: Tensor | None, shared: Shared
    ) -> tuple[Tensor, Tensor]:
        """Whole sequences.

        Args:
            x: (batch, length, d_model), what the last branch adds; the embedding at first.
            residual: (batch, length, d_model), the stream before that; None at first.
            cu_seqlens: (sequences + 1,) bounds of packed sequences; None: one per row.
            shared: what earlier layers hand to later ones in this pass.

        Returns:
            The same pair after this layer.
        """
        normed, residual = add_norm(self.mixer_norm, x, residual)
        x = self.mixer(normed, cu_seqlens=cu_seqlens, shared=shared)
        return self._transform(x, residual)

    def step(
        self,
        x: Tensor,
        residual: Tensor | None,
        state: Any,
        lengths: Tensor | None,
        shared: Shared,
    ) -> tuple[Tensor, Tensor, Any]:
        """A continuation: the pair after this layer, and the mixer's state."""
        normed, residual = add_norm(self.mixer_norm, x, residual)
        x, state = self.mixer.step(normed, state, lengths=lengths, shared=shared)
        return *self._transform(x, residual), state

    def _transform(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The MLP's branch."""
        if self.mlp is None:
            return x, residual
        normed, residual = add_norm(self.mlp_norm, x, residual)
        return self.mlp(normed), residual
