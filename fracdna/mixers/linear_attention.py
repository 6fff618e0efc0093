"""Linear attention with a fading memory and a gated output: what GLA and RetNet have in common."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fracdna.mixers.mixer import Mixer, Shared, valid_positions
from fracdna.mixers.positions import sequence_positions
from fracdna.model.layers import linear
from fracdna_kernels import decay_attention, gated_rms_norm


class LinearAttentionState(NamedTuple):
    """What linear attention carries from one position to the next."""

    memory: Tensor  # (batch, heads, key width, value width) float32
    count: Tensor  # (batch,) positions seen


class LinearAttention(Mixer):
    """S_t = exp(g_t) S_{t-1} + k_t v_t^T, o_t = K^(-1/2) q_t S_t, an RMS norm per head, a gate.

    A subclass says how the memory fades (log_decay), and may turn queries and keys (placed).

    Args:
        d_model: width of the stream.
        num_heads: H.
        key_width: K of each head.
        value_width: V of each head.
        form: form of decay_attention.
        reset: positions count from 0 in each packed sequence, and not through their borders.
    """

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int,
        key_width: int,
        value_width: int,
        form: str,
        reset: bool = True,
    ) -> None:
        super().__init__()
        self.d_model, self.num_heads, self.form, self.reset = d_model, num_heads, form, reset
        self.key_width, self.value_width = key_width, value_width
        self.q_projection = linear(d_model, num_heads * key_width)
        self.k_projection = linear(d_model, num_heads * key_width)
        self.v_projection = linear(d_model, num_heads * value_width)
        self.gate_projection = linear(d_model, num_heads * value_width)
        self.norm_weight = nn.Parameter(torch.ones(value_width))
        self.out_projection = linear(num_heads * value_width, d_model)

    @abstractmethod
    def log_decay(self, x: Tensor, positions: Tensor) -> Tensor:
        """How much of the memory each position keeps.

        Args:
            x: (batch, length, d_model).
            positions: (length,) or (batch, length), counted from 0.

        Returns:
            (batch, length, heads), or (batch, length, heads, key width) where every key channel
            fades alone: natural log, at most 0, float32 (float64 in a float64 model).
        """

    def placed(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys that know where they stand; here they do not.

        Args:
            q: (batch, length, heads, key width).
            k: like q.
            positions: as in log_decay.
        """
        return q, k

    def forward(
        self, x: Tensor, *, cu_seqlens: Tensor | None = None, shared: Shared | None = None
    ) -> Tensor:
        """See Mixer.forward."""
        return self._mix(x, None, cu_seqlens, None)[0]

    def initial_state(self, batch: int) -> LinearAttentionState:
        """An empty memory."""
        weight = self.norm_weight
        exact = torch.promote_types(weight.dtype, torch.float32)
        memory = (batch, self.num_heads, self.key_width, self.value_width)
        return LinearAttentionState(
            weight.new_zeros(memory, dtype=exact), weight.new_zeros(batch, dtype=torch.long)
        )

    def step(
        self,
        x: Tensor,
        state: LinearAttentionState,
        *,
        lengths: Tensor | None = None,
        shared: Shared | None = None,
    ) -> tuple[Tensor, LinearAttentionState]:
        """See Mixer.step."""
        output, memory = self._mix(x, state, None, lengths)
        count = state.count + (x.shape[1] if lengths is None else lengths)
        return output, LinearAttentionState(memory, count)

    def state_size(self) -> int:
        """Memory H K V."""
        return self.num_heads * self.key_width * self.value_width

    def time_scales(self, times: Tensor) -> Tensor:
        """See Mixer.time_scales; (n, heads), or (n, heads * key width) of channels that differ."""
        inputs = self.norm_weight.new_zeros(1, len(times), self.d_model)
        return -1 / self.log_decay(inputs, times - 1)[0].flatten(1)

    def _mix(
        self,
        x: Tensor,
        state: LinearAttentionState | None,
        cu_seqlens: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Project, remember, normalise, gate: whole sequences or a continuation."""
        memory, count = (None, None) if state is None else state
        q, k, v = (
            projection(x).unflatten(-1, (self.num_heads, -1))
            for projection in (self.q_projection, self.k_projection, self.v_projection)
        )
        positions = sequence_positions(x, count, cu_seqlens if self.reset else None)
        q, k = self.placed(q, k, positions)
        g = self.log_decay(x, positions)
        if lengths is not None:
            # a pad must neither write nor let the memory fade
            valid = valid_positions(lengths, x.shape[1])[..., None, None]
            k = torch.where(valid, k, 0.0)
            g = torch.where(valid if g.ndim == 4 else valid[..., 0], g, 0.0)
        output, memory = decay_attention(
            q, k, v, g, scale=self.key_width**-0.5,
            initial_state=memory, cu_seqlens=cu_seqlens, form=self.form,
        )  # fmt: skip
        output = gated_rms_norm(
            output.flatten(2), self.gate_projection(x), self.norm_weight,
            order="norm_first", group_size=self.value_width, eps=1e-5,
        )  # fmt: skip
        return self.out_projection(output), memory
