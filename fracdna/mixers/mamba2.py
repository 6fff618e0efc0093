"""Mamba-2: a selective state space with one decay per head, by the time step of each position."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from fracdna.mixers.mixer import Mixer, Shared, convolution_tail, valid_positions
from fracdna.mixers.positions import sequence_positions
from fracdna.mixers.post import TaperedSpectrum, checked_length
from fracdna.mixers.time_steps import inverse_softplus, time_step_bias
from fracdna_kernels import decay_attention, exact_linear, gated_rms_norm, short_convolution

POST_TIME_STEP = 0.05  # fixed part of the time step under post


class Mamba2State(NamedTuple):
    """What Mamba-2 carries from one position to the next."""

    memory: Tensor  # (batch, heads, state width, value width) float32
    convolution: Tensor  # (batch, channels, taps - 1) float32, inputs of the convolution
    count: Tensor  # (batch,) positions seen


class Mamba2(Mixer):
    """S_t = exp(-e^A_log delta_t) S_{t-1} + delta_t B_t x_t^T, y_t = S_t^T C_t + D x_t, per head.

    Args:
        d_model: width of the stream, D.
        num_heads: H; the value width is V = E / H.
        layer_index: number of the layer (unused: all layers are alike).
        num_layers: depth of the network, for the initial size of the output map.
        state_width: N, of B and C.
        num_groups: G of B and C, each shared by H / G heads, and of the norm.
        expand: E = expand * D.
        conv_width: taps of the causal convolution of x, B and C.
        form: form of decay_attention.
        post: rates that span the time scales of post_length, tapered by the position (see
            TaperedSpectrum); the bias of the time step is then fixed.
        post_length: positions of a training sequence, needed with post.
        post_span: full | strict, see TaperedSpectrum.
        post_reset: packed sequences count from 1 each; when false as in the release, whose count
            goes on through their borders.

    Raises:
        ValueError: heads that do not divide the inner width, or groups that do not divide the
            heads; post without a length, or with an unknown span.

    Source: arXiv 2405.21060; post: arXiv 2604.07658.
    """

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int,
        layer_index: int = 0,
        num_layers: int = 1,
        state_width: int = 128,
        num_groups: int = 1,
        expand: int = 2,
        conv_width: int = 4,
        form: str = "auto",
        post: bool = False,
        post_length: int | None = None,
        post_span: str = "full",
        post_reset: bool = True,
    ) -> None:
        super().__init__()
        inner = expand * d_model
        if inner % num_heads or num_heads % num_groups:
            raise ValueError(
                f"num_heads={num_heads} must divide the inner width {inner}, and be a multiple of "
                f"num_groups={num_groups}"
            )
        channels = inner + 2 * num_groups * state_width
        self.d_model, self.num_heads, self.num_groups = d_model, num_heads, num_groups
        self.state_width, self.value_width, self.form = state_width, inner // num_heads, form
        self.post_reset = post_reset
        # nn.Linear itself begins uniform within 1 / sqrt(inputs), as published
        self.gate_projection = nn.Linear(d_model, inner, bias=False)
        self.in_projection = nn.Linear(d_model, channels, bias=False)
        self.dt_projection = nn.Linear(d_model, num_heads, bias=False)
        bound = conv_width**-0.5
        self.conv_weight = nn.Parameter(torch.empty(channels, conv_width).uniform_(-bound, bound))
        self.conv_bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))
        self.taper: TaperedSpectrum | None = None
        self.dt_bias: nn.Parameter | float
        if post:
            fast = -math.log(POST_TIME_STEP)
            slow = fast - math.log(checked_length(post_length))
            self.taper = TaperedSpectrum(slow, fast, num_heads, length=post_length, span=post_span)
            self.dt_bias = inverse_softplus(torch.tensor(POST_TIME_STEP).double()).item()
        else:
            self.A_log = nn.Parameter(torch.empty(num_heads).uniform_(1, 16).log())
            self.dt_bias = nn.Parameter(time_step_bias(num_heads))
        self.skip = nn.Parameter(torch.ones(num_heads))
        self.norm_weight = nn.Parameter(torch.ones(inner))
        self.out_projection = nn.Linear(inner, d_model, bias=False)
        with torch.no_grad():
            self.out_projection.weight /= num_layers**0.5

    def forward(
        self, x: Tensor, *, cu_seqlens: Tensor | None = None, shared: Shared | None = None
    ) -> Tensor:
        """See Mixer.forward."""
        return self._mix(x, None, cu_seqlens, None)[0]

    def initial_state(self, batch: int) -> Mamba2State:
        """An empty memory."""
        channels, taps = self.conv_weight.shape
        exact = torch.promote_types(self.skip.dtype, torch.float32)
        memory = (batch, self.num_heads, self.state_width, self.value_width)
        return Mamba2State(
            self.skip.new_zeros(memory, dtype=exact),
            self.skip.new_zeros(batch, channels, taps - 1, dtype=exact),
            self.skip.new_zeros(batch, dtype=torch.long),
        )

    def step(
        self,
        x: Tensor,
        state: Mamba2State,
        *,
        lengths: Tensor | None = None,
        shared: Shared | None = None,
    ) -> tuple[Tensor, Mamba2State]:
        """See Mixer.step."""
        output, memory, convolution = self._mix(x, state, None, lengths)
        count = state.count + (x.shape[1] if lengths is None else lengths)
        return output, Mamba2State(memory, convolution, count)

    def state_size(self) -> int:
        """Memory E N plus the convolution's tail."""
        channels, taps = self.conv_weight.shape
        return self.norm_weight.numel() * self.state_width + channels * (taps - 1)

    def time_scales(self, times: Tensor) -> Tensor:
        """See Mixer.time_scales; (n, heads)."""
        steps = self.skip.new_zeros(1, len(times), self.num_heads)
        return -1 / self.log_decay(softplus(steps + self.dt_bias), times - 1)[0]

    def log_decay(self, delta: Tensor, positions: Tensor) -> Tensor:
        """Log decay of every position and head, at most 0.

        Args:
            delta: (batch, length, heads), time steps in full precision, 0 at pads.
            positions: (length,) or (batch, length), counted from 0 in each sequence; of effect
                under post alone.

        Returns:
            (batch, length, heads).
        """
        log_rate = self.A_log if self.taper is None else self.taper(positions)
        return -torch.exp(log_rate) * delta

    def _mix(
        self,
        x: Tensor,
        state: Mamba2State | None,
        cu_seqlens: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output, memory and convolution's tail of whole sequences or of a continuation."""
        memory, tail, count = (None, None, None) if state is None else state
        positions = sequence_positions(x, count, cu_seqlens if self.post_reset else None)
        x, steps = exact_linear(x, self.dt_projection.weight, tap=True)
        inputs = self.in_projection(x)
        mixed, next_tail = short_convolution(
            inputs, self.conv_weight, self.conv_bias, activation="silu",
            initial_state=tail, cu_seqlens=cu_seqlens,
        )  # fmt: skip
        delta = softplus(steps + self.dt_bias)
        if lengths is not None:
            next_tail = convolution_tail(tail, inputs, lengths)
            # in no time a pad neither writes nor lets the memory decay
            delta = torch.where(valid_positions(lengths, x.shape[1])[..., None], delta, 0.0)
        inner, width = self.norm_weight.numel(), self.num_groups * self.state_width
        values, keys, queries = mixed.split([inner, width, width], dim=-1)
        written = values.unflatten(-1, (self.num_heads, -1)) * delta[..., None]
        output, memory = decay_attention(
            queries.unflatten(-1, (self.num_groups, -1)),
            keys.unflatten(-1, (self.num_groups, -1)),
            written.to(values.dtype), self.log_decay(delta, positions),
            initial_state=memory, cu_seqlens=cu_seqlens, form=self.form,
        )  # fmt: skip
        output = gated_rms_norm(
            output.flatten(2), self.gate_projection(x), self.norm_weight,
            skip=(values, self.skip.repeat_interleave(self.value_width)),
            group_size=inner // self.num_groups, eps=1e-5,
        )  # fmt: skip
        return self.out_projection(output), memory, next_tail
