"""The contract of every sequence mixer, and what several mixers need to keep it."""

from abc import abstractmethod
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

Shared = MutableMapping[str, Tensor]


class Mixer(nn.Module):
    """Mixes information along the sequence, causally, and can carry on from a state.

    Built with d_model, layer_index, num_layers and its own options. The law, tested for every mixer
    in configs/mixer: forward equals the concatenated step over any split; the future never changes
    the past; right padding never changes a valid output; gradients of both roads agree.
    """

    # parameters that weight decay must leave alone although they have several axes
    no_weight_decay: ClassVar[frozenset[str]] = frozenset()
    # parameters that learn at another rate than the rest, and by what factor
    learning_rate_factors: ClassVar[Mapping[str, float]] = MappingProxyType({})
    d_model: int

    @abstractmethod
    def forward(
        self, x: Tensor, *, cu_seqlens: Tensor | None = None, shared: Shared | None = None
    ) -> Tensor:
        """Mix whole sequences from an empty state.

        Args:
            x: (batch, length, d_model).
            cu_seqlens: (sequences + 1,) bounds of packed sequences, needs batch 1; every sequence
                starts afresh.
            shared: what earlier layers hand to later ones in this pass.

        Returns:
            (batch, length, d_model).
        """

    @abstractmethod
    def initial_state(self, batch: int) -> Any:
        """An empty memory for a batch of sequences, on the device of the weights."""

    @abstractmethod
    def step(
        self,
        x: Tensor,
        state: Any,
        *,
        lengths: Tensor | None = None,
        shared: Shared | None = None,
    ) -> tuple[Tensor, Any]:
        """Carry on from a state over one or more positions.

        Args:
            x: (batch, length, d_model).
            state: what initial_state or the previous step returned; not changed.
            lengths: (batch,) valid positions of each row, padding follows them; None: all.
            shared: as in forward.

        Returns:
            (batch, length, d_model), and the state at the true end of each row.
        """

    @abstractmethod
    def state_size(self) -> int:
        """Scalars carried per sequence; for a cache that grows, per position."""

    def time_scales(self, times: Tensor) -> Tensor | None:
        """How long the memory keeps what it holds, when the input of the layer is 0.

        Args:
            times: (n,) places in a sequence, counted from 1.

        Returns:
            (n, channels) positions until a share 1/e is left, one column for each rate of decay;
            None: a memory that does not fade by rates.
        """
        return None


def valid_positions(lengths: Tensor, length: int) -> Tensor:
    """(batch, length) true where a right-padded row has a real position."""
    return torch.arange(length, device=lengths.device) < lengths[:, None]


def convolution_tail(state: Tensor, x: Tensor, lengths: Tensor) -> Tensor:
    """The last inputs before the true end of each right-padded row.

    Args:
        state: (batch, channels, tail), inputs before x, oldest first.
        x: (batch, length, channels).
        lengths: (batch,) valid positions of x.

    Returns:
        (batch, channels, tail).
    """
    tail = state.shape[-1]
    window = torch.cat([state, x.mT.to(state.dtype)], dim=-1)
    index = lengths[:, None] + torch.arange(tail, device=x.device)
    return window.gather(-1, index[:, None].expand(-1, window.shape[1], -1))
