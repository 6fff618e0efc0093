"""Gated DeltaNet: a memory that decays by head and corrects what it has stored under a key."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from fracdna.mixers.mixer import Mixer, Shared, convolution_tail, valid_positions
from fracdna.mixers.positions import sequence_positions
from fracdna.mixers.post import TaperedSpectrum, checked_length
from fracdna.mixers.time_steps import time_step_bias
from fracdna.model.layers import linear
from fracdna_kernels import delta_rule, exact_linear, gated_rms_norm, short_convolution


class GDNState(NamedTuple):
    """What Gated DeltaNet carries from one position to the next."""

    memory: Tensor  # (batch, heads, key width, value width) float32
    convolution: Tensor  # (batch, channels, taps - 1) float32, inputs of the convolution
    count: Tensor  # (batch,) positions seen


class GDN(Mixer):
    """S <- e^g S; S <- S + k (beta (v - S^T k))^T; o = S^T q / sqrt(K), per head.

    Args:
        d_model: width of the stream, D.
        num_heads: H.
        key_width: K of one head.
        value_width: V of one head.
        layer_index: number of the layer (unused: all layers are alike).
        num_layers: depth of the network (unused: the output map is not rescaled).
        conv_width: taps of the causal convolution of queries, keys and values.
        negative_eigenvalues: beta up to 2 and not 1, so that a write can also turn around what is
            stored.
        form: form of delta_rule.
        post: rates of which the fastest is post_length times the slowest, tapered by the position
            (see TaperedSpectrum).
        post_length: positions of a training sequence, needed with post.
        post_span: full | strict, see TaperedSpectrum.
        post_reset: packed sequences count from 1 each; when false as in the release, whose count
            goes on through their borders.

    Raises:
        ValueError: post without a length, or with an unknown span.

    Source: Yang et al. 2024, Gated Delta Networks, arXiv 2412.06464; post: arXiv 2604.07658.
    """

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int,
        key_width: int,
        value_width: int,
        layer_index: int = 0,
        num_layers: int = 1,
        conv_width: int = 4,
        negative_eigenvalues: bool = False,
        form: str = "auto",
        post: bool = False,
        post_length: int | None = None,
        post_span: str = "full",
        post_reset: bool = True,
    ) -> None:
        super().__init__()
        keys, values = num_heads * key_width, num_heads * value_width
        self.d_model, self.num_heads = d_model, num_heads
        self.key_width, self.value_width, self.form = key_width, value_width, form
        self.post_reset = post_reset
        self.most_beta = 2.0 if negative_eigenvalues else 1.0
        self.qkv_projection = linear(d_model, 2 * keys + values)
        self.gate_projection = linear(d_model, values)
        self.dynamics = linear(d_model, 2 * num_heads)  # logits of beta, then time steps
        self.conv_weight = nn.Parameter(torch.randn(2 * keys + values, conv_width) * 0.02)
        self.taper: TaperedSpectrum | None = None
        if post:
            fast = math.log(checked_length(post_length))
            self.taper = TaperedSpectrum(0.0, fast, num_heads, length=post_length, span=post_span)
        else:
            # 1 - rand is never 0, whose logarithm would be a rate that no gradient can move
            self.A_log = nn.Parameter(torch.log(16 * (1 - torch.rand(num_heads))))
        self.dt_bias = nn.Parameter(time_step_bias(num_heads))
        self.norm_weight = nn.Parameter(torch.ones(value_width))
        self.out_projection = linear(values, d_model)

    def forward(
        self, x: Tensor, *, cu_seqlens: Tensor | None = None, shared: Shared | None = None
    ) -> Tensor:
        """See Mixer.forward."""
        return self._mix(x, None, cu_seqlens, None)[0]

    def initial_state(self, batch: int) -> GDNState:
        """An empty memory."""
        channels, taps = self.conv_weight.shape
        exact = torch.promote_types(self.dt_bias.dtype, torch.float32)
        memory = (batch, self.num_heads, self.key_width, self.value_width)
        return GDNState(
            self.dt_bias.new_zeros(memory, dtype=exact),
            self.dt_bias.new_zeros(batch, channels, taps - 1, dtype=exact),
            self.dt_bias.new_zeros(batch, dtype=torch.long),
        )

    def step(
        self,
        x: Tensor,
        state: GDNState,
        *,
        lengths: Tensor | None = None,
        shared: Shared | None = None,
    ) -> tuple[Tensor, GDNState]:
        """See Mixer.step."""
        output, memory, convolution = self._mix(x, state, None, lengths)
        count = state.count + (x.shape[1] if lengths is None else lengths)
        return output, GDNState(memory, convolution, count)

    def state_size(self) -> int:
        """Memory H K V plus the convolution's tail."""
        channels, taps = self.conv_weight.shape
        return self.num_heads * self.key_width * self.value_width + channels * (taps - 1)

    def time_scales(self, times: Tensor) -> Tensor:
        """See Mixer.time_scales; (n, heads)."""
        steps = self.dt_bias.new_zeros(1, len(times), self.num_heads)
        return -1 / self.log_decay(steps, times - 1)[0]

    def log_decay(self, steps: Tensor, positions: Tensor) -> Tensor:
        """How much of the memory each position keeps.

        Args:
            steps: (batch, length, heads), logits of the time steps, in full precision.
            positions: (length,) or (batch, length), counted from 0 in each sequence; of effect
                under post alone.

        Returns:
            (batch, length, heads), natural log, at most 0.
        """
        log_rate = self.A_log if self.taper is None else self.taper(positions)
        return -torch.exp(log_rate) * softplus(steps + self.dt_bias)

    def _mix(
        self,
        x: Tensor,
        state: GDNState | None,
        cu_seqlens: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output, memory and convolution's tail of whole sequences or of a continuation."""
        memory, tail, count = (None, None, None) if state is None else state
        positions = sequence_positions(x, count, cu_seqlens if self.post_reset else None)
        x, dynamics = exact_linear(x, self.dynamics.weight, tap=True)
        inputs = self.qkv_projection(x)
        mixed, next_tail = short_convolution(
            inputs, self.conv_weight, activation="silu", initial_state=tail, cu_seqlens=cu_seqlens
        )
        if lengths is not None:
            next_tail = convolution_tail(tail, inputs, lengths)
        beta, steps = dynamics.chunk(2, dim=-1)
        beta, g = self.most_beta * torch.sigmoid(beta), self.log_decay(steps, positions)
        if lengths is not None:
            # a pad must neither write nor let the memory decay
            valid = valid_positions(lengths, x.shape[1])[..., None]
            beta, g = torch.where(valid, beta, 0.0), torch.where(valid, g, 0.0)
        keys = self.num_heads * self.key_width
        query, key, value = (
            part.unflatten(-1, (self.num_heads, -1))
            for part in mixed.split([keys, keys, mixed.shape[-1] - 2 * keys], dim=-1)
        )
        output, memory = delta_rule(
            query, key, value, beta, g, scale=self.key_width**-0.5, l2norm=True,
            initial_state=memory, cu_seqlens=cu_seqlens, form=self.form,
        )  # fmt: skip
        output = gated_rms_norm(
            output.flatten(2), self.gate_projection(x), self.norm_weight,
            order="norm_first", group_size=self.value_width, eps=1e-5,
        )  # fmt: skip
        return self.out_projection(output), memory, next_tail
