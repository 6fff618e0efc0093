"""Causal softmax attention with rotary positions: the Transformer's mixer."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fracdna.mixers.mixer import Mixer, Shared, valid_positions
from fracdna.model.layers import RMSNorm, linear, residual_std, rotary_angles, rotate
from fracdna_kernels.shapes import sequence_of


class AttentionState(NamedTuple):
    """Keys and values of all earlier positions, and how many each row has seen."""

    keys: Tensor  # (batch, cached, key heads, head width), rotated
    values: Tensor  # (batch, cached, key heads, head width)
    positions: Tensor  # (batch, cached) position of each entry; -1 marks a pad, never attended
    count: Tensor  # (batch,) positions seen


class Attention(Mixer):
    """Multi-head causal attention, no biases; grouped keys and QK-norm by option.

    Args:
        d_model: width of the stream.
        num_heads: query heads; the head width is d_model / num_heads.
        layer_index: number of the layer (unused: all layers are alike).
        num_layers: depth, for the initial size of the output map.
        num_key_heads: heads of keys and values, shared by groups of query heads; None: num_heads.
        qk_norm: normalise queries and keys by RMS before rotation.
        rope_base: wave-length base of the rotary positions.

    Raises:
        ValueError: heads that do not divide the width, or key heads that do not divide the heads.

    Source: arXiv 1706.03762, arXiv 2104.09864.
    """

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int,
        layer_index: int = 0,
        num_layers: int = 1,
        num_key_heads: int | None = None,
        qk_norm: bool = False,
        rope_base: float = 10000.0,
    ) -> None:
        super().__init__()
        key_heads = num_heads if num_key_heads is None else num_key_heads
        if d_model % (2 * num_heads) or num_heads % key_heads:
            raise ValueError(
                f"num_heads={num_heads} needs an even share of d_model={d_model}, "
                f"and num_key_heads={key_heads} must divide it"
            )
        self.d_model, self.num_heads, self.num_key_heads = d_model, num_heads, key_heads
        self.head_width, self.rope_base = d_model // num_heads, rope_base
        self.q_projection = linear(d_model, d_model)
        self.k_projection = linear(d_model, key_heads * self.head_width)
        self.v_projection = linear(d_model, key_heads * self.head_width)
        self.out_projection = linear(d_model, d_model, std=residual_std(num_layers))
        self.q_norm = RMSNorm(self.head_width) if qk_norm else torch.nn.Identity()
        self.k_norm = RMSNorm(self.head_width) if qk_norm else torch.nn.Identity()

    def forward(
        self, x: Tensor, *, cu_seqlens: Tensor | None = None, shared: Shared | None = None
    ) -> Tensor:
        """See Mixer.forward."""
        positions = torch.arange(x.shape[1], device=x.device)
        if cu_seqlens is None:
            query, keys, values = self._project(x, positions)
            return self._attend(query, keys, values, None)
        sequence = sequence_of(cu_seqlens, x.shape[1])
        inside = sequence < cu_seqlens.shape[0] - 1
        start = cu_seqlens.long()[sequence]  # past the last sequence: its end, never looked at
        query, keys, values = self._project(x, positions - start)
        same = (sequence[:, None] == sequence) & (positions[:, None] >= positions)
        output = self._attend(query, keys, values, same[None, None])
        return torch.where(inside[:, None], output, 0.0)

    def initial_state(self, batch: int) -> AttentionState:
        """An empty cache."""
        weight = self.q_projection.weight
        cache = weight.new_zeros(batch, 0, self.num_key_heads, self.head_width)
        positions = torch.zeros(batch, 0, dtype=torch.long, device=weight.device)
        return AttentionState(cache, cache, positions, positions.new_zeros(batch))

    def step(
        self,
        x: Tensor,
        state: AttentionState,
        *,
        lengths: Tensor | None = None,
        shared: Shared | None = None,
    ) -> tuple[Tensor, AttentionState]:
        """See Mixer.step; the cache grows by the positions of x."""
        length = x.shape[1]
        positions = state.count[:, None] + torch.arange(length, device=x.device)
        query, keys, values = self._project(x, positions)
        seen = positions
        if lengths is not None:
            seen = torch.where(valid_positions(lengths, length), positions, -1)
        keys = torch.cat([state.keys.to(keys.dtype), keys], dim=1)
        values = torch.cat([state.values.to(values.dtype), values], dim=1)
        cached = torch.cat([state.positions, seen], dim=1)
        if state.keys.shape[1] == 0:
            # nothing is cached: causal order alone keeps pads on the right out of valid rows
            visible = None
        else:
            earlier = cached[:, None] <= positions[:, :, None]
            visible = ((cached >= 0)[:, None] & earlier)[:, None]
        output = self._attend(query, keys, values, visible)
        count = state.count + (length if lengths is None else lengths)
        return output, AttentionState(keys, values, cached, count)

    def state_size(self) -> int:
        """Keys and values of one position: the cache grows with the sequence."""
        return 2 * self.num_key_heads * self.head_width

    def _project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, (batch, length, heads, head width)."""
        query, keys, values = (
            projection(x).unflatten(-1, (-1, self.head_width))
            for projection in (self.q_projection, self.k_projection, self.v_projection)
        )
        angle = rotary_angles(positions, self.head_width, self.rope_base)
        query = rotate(self.q_norm(query), angle).to(values.dtype)
        keys = rotate(self.k_norm(keys), angle).to(values.dtype)
        return query, keys, values

    def _attend(
        self, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None
    ) -> Tensor:
        """Softmax attention; visible None means plain causal order."""
        output = scaled_dot_product_attention(
            query.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=visible,
            is_causal=visible is None,
            enable_gqa=self.num_key_heads != self.num_heads,
        )
        return self.out_projection(output.transpose(1, 2).flatten(2))
