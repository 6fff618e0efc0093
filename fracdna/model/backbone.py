"""Token ids to hidden states: embedding, blocks, final norm."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fracdna.mixers.mixer import Mixer
from fracdna.model.block import Block
from fracdna.model.layers import add_norm
from fracdna_prep.vocabulary import DNA

Observer = Callable[[int, Tensor], None]


class Backbone(nn.Module):
    """The trunk of every model.

    Args:
        d_model: width of the stream.
        num_layers: number of blocks.
        mixer: called with d_model, layer_index and num_layers, once per block.
        norm: called with a width, for every block and the end; None: mixers that have their own.
        mlp: called with d_model and num_layers, once per block; None: blocks without an MLP.
        final_norm: called with a width, for the end; None: norm.
        vocabulary_rows: rows of the embedding; None: those of the DNA vocabulary.
        embedding_dropout: share of what the embedding gives that training sets to 0.
        activation_checkpointing: recompute each block in the backward pass instead of keeping its
            activations; parameter names stay the same.

    Raises:
        ValueError: neither a norm nor a final norm, or a dropout that is no share.
    """

    def __init__(
        self,
        d_model: int,
        num_layers: int,
        mixer: Callable[..., Mixer],
        norm: Callable[[int], nn.Module] | None,
        mlp: Callable[..., nn.Module] | None = None,
        final_norm: Callable[[int], nn.Module] | None = None,
        vocabulary_rows: int | None = None,
        embedding_dropout: float = 0.0,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        final_norm = final_norm or norm
        if final_norm is None:
            raise ValueError("norm=null needs a final_norm: the head reads a normalised stream")
        if not 0 <= embedding_dropout < 1:
            raise ValueError(
                f"embedding_dropout={embedding_dropout} must be at least 0 and below 1"
            )
        self.d_model = d_model
        self.activation_checkpointing = activation_checkpointing
        self.embedding = nn.Embedding(vocabulary_rows or DNA.rows, d_model)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.embedding_dropout = nn.Dropout(embedding_dropout)
        self.blocks = nn.ModuleList(
            Block(
                d_model,
                mixer(d_model=d_model, layer_index=index, num_layers=num_layers),
                norm,
                None if mlp is None else mlp(d_model=d_model, num_layers=num_layers),
            )
            for index in range(num_layers)
        )
        self.final_norm = final_norm(d_model)

    def forward(
        self, ids: Tensor, *, cu_seqlens: Tensor | None = None, observe: Observer | None = None
    ) -> Tensor:
        """Hidden states of whole sequences.

        Args:
            ids: (batch, length), any integer dtype.
            cu_seqlens: (sequences + 1,) bounds of packed sequences, needs batch 1.
            observe: called with 0 and the embedding, then with n and the stream after block n.

        Returns:
            (batch, length, d_model), after the final norm, in the dtype of the stream.
        """
        shared: dict[str, Tensor] = {}
        x, residual = self.embedding_dropout(self.embedding(ids.long())), None
        _tell(observe, 0, x, residual)
        for number, block in enumerate(self.blocks, start=1):
            inputs = x, residual, cu_seqlens, shared
            if self.activation_checkpointing and self.training:
                # of what goes between blocks only the sum is kept: half the memory of the pair
                branch, stream = checkpoint(block, *inputs, use_reentrant=False)
                x, residual = stream + branch, None
            else:
                x, residual = block(*inputs)
            _tell(observe, number, x, residual)
        return self._finish(x, residual)

    def initial_state(self, batch: int) -> list[Any]:
        """An empty state for every layer."""
        return [block.mixer.initial_state(batch) for block in self.blocks]

    def step(
        self,
        ids: Tensor,
        state: list[Any],
        *,
        lengths: Tensor | None = None,
        observe: Observer | None = None,
    ) -> tuple[Tensor, list[Any]]:
        """Carry on from a state over one or more positions.

        Args:
            ids: (batch, length).
            state: from initial_state or the previous step; not changed.
            lengths: (batch,) valid positions of right-padded rows; None: all.
            observe: as in forward.

        Returns:
            (batch, length, d_model) after the final norm, and the new state.
        """
        shared: dict[str, Tensor] = {}
        x, residual = self.embedding(ids.long()), None
        _tell(observe, 0, x, residual)
        after = []
        for number, (block, before) in enumerate(zip(self.blocks, state, strict=True), start=1):
            x, residual, carried = block.step(x, residual, before, lengths, shared)
            after.append(carried)
            _tell(observe, number, x, residual)
        return self._finish(x, residual), after

    def _finish(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """The final norm; its output may be a result, so autocast does not round it."""
        exact = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
        return add_norm(self.final_norm, x, residual, out_dtype=exact)[0]

    def state_size(self) -> int:
        """Scalars carried per sequence by all layers; per position where a cache grows."""
        return sum(block.mixer.state_size() for block in self.blocks)


def _tell(observe: Observer | None, layer: int, x: Tensor, residual: Tensor | None) -> None:
    """Show a layer's stream to whoever asked for it; nobody else pays for the sum."""
    if observe is not None:
        observe(layer, x if residual is None else residual + x)
