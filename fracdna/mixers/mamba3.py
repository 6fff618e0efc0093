"""Mamba-3: a selective state space with trapezoidal steps, turning keys, and writes of any rank."""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu, softplus

from fracdna.mixers.mixer import Mixer, Shared, valid_positions
from fracdna.mixers.positions import at_end
from fracdna.mixers.rates import LEAST_RATE, RATES
from fracdna.mixers.selective_rotary import selective_angles, turn_half
from fracdna.mixers.time_steps import time_step_bias
from fracdna.mixers.trapezoid import trapezoidal_attention
from fracdna_kernels import exact_linear
from fracdna_kernels.shapes import sequence_of


class Mamba3State(NamedTuple):
    """What Mamba-3 carries from one position to the next; float32 but for the count."""

    memory: Tensor  # (batch, heads, state width, value width)
    keys: Tensor  # (batch, heads, rank, state width), of the last position, turned
    values: Tensor  # (batch, heads, 1, value width), of the last position
    angle: Tensor  # (batch, heads, state width / 4)
    count: Tensor  # (batch,) positions seen


class Mamba3(Mixer):
    """S_t = a_t S_{t-1} + (1 - phi_t) delta_t a_t k_{t-1} v_{t-1}^T + phi_t delta_t k_t v_t^T.

    With a rank R above 1 every position writes R pairs, whose values are copies of one that are
    scaled apart, and reads R times; the gated readings are summed with weights.

    Args:
        d_model: width of the stream, D.
        num_heads: H; the value width is V = E / H.
        layer_index: number of the layer (unused: all layers are alike).
        num_layers: depth of the network, for the initial size of the output map.
        state_width: N, of keys and queries; half of it turns.
        rank: R; 1 is the published SISO form, more the MIMO form.
        expand: E = expand * D.
        rate: "softplus" as first released, or "rational" as since June 2026; the decay of a
            position is a = exp(-max(rate, 1e-4) delta).
        output_norm: an RMS norm of every head and rank before the gate, with a weight per channel.
        form: form of decay_attention.

    Raises:
        ValueError: heads that do not divide the inner width, a state width that is no multiple of
            4, or an unknown rate.

    Source: arXiv 2603.15569.
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"key_bias", "query_bias"})

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int,
        layer_index: int = 0,
        num_layers: int = 1,
        state_width: int = 128,
        rank: int = 1,
        expand: int = 2,
        rate: str = "softplus",
        output_norm: bool = False,
        form: str = "auto",
    ) -> None:
        super().__init__()
        inner = expand * d_model
        if inner % num_heads or state_width % 4:
            raise ValueError(
                f"num_heads={num_heads} must divide the inner width {inner}, and "
                f"state_width={state_width} be a multiple of 4"
            )
        if rate not in RATES:
            raise ValueError(f"rate={rate!r} is unknown; use one of {tuple(RATES)}")
        self.d_model, self.num_heads, self.rank = d_model, num_heads, rank
        self.state_width, self.value_width = state_width, inner // num_heads
        self.rate, self.form = rate, form
        # nn.Linear itself begins uniform within 1 / sqrt(inputs), as published
        self.gate_projection = nn.Linear(d_model, inner, bias=False)
        self.in_projection = nn.Linear(d_model, inner + 2 * state_width * rank, bias=False)
        self.dynamics = nn.Linear(d_model, 3 * num_heads + state_width // 4, bias=False)
        self.dt_bias = nn.Parameter(time_step_bias(num_heads))
        self.key_norm_weight = nn.Parameter(torch.ones(state_width))
        self.query_norm_weight = nn.Parameter(torch.ones(state_width))
        self.key_bias = nn.Parameter(torch.ones(num_heads, rank, state_width))
        self.query_bias = nn.Parameter(torch.ones(num_heads, rank, state_width))
        self.skip = nn.Parameter(torch.ones(num_heads))
        if rank > 1:
            shape = (num_heads, rank, self.value_width)
            self.value_mix = nn.Parameter(torch.full(shape, 1 / rank))
            self.gate_mix = nn.Parameter(torch.ones(shape))
            self.output_mix = nn.Parameter(torch.full(shape, 1 / rank))
        self.output_norm_weight = None
        if output_norm:
            self.output_norm_weight = nn.Parameter(torch.ones(inner))
        self.out_projection = nn.Linear(inner, d_model, bias=False)
        with torch.no_grad():
            self.out_projection.weight /= num_layers**0.5

    def forward(
        self, x: Tensor, *, cu_seqlens: Tensor | None = None, shared: Shared | None = None
    ) -> Tensor:
        """See Mixer.forward."""
        return self._mix(x, None, cu_seqlens, None)[0]

    def initial_state(self, batch: int) -> Mamba3State:
        """An empty memory."""
        heads, width, values = self.num_heads, self.state_width, self.value_width
        exact = torch.promote_types(self.skip.dtype, torch.float32)
        shapes = (heads, width, values), (heads, self.rank, width), (heads, 1, values)
        return Mamba3State(
            *(self.skip.new_zeros(batch, *s, dtype=exact) for s in (*shapes, (heads, width // 4))),
            self.skip.new_zeros(batch, dtype=torch.long),
        )

    def step(
        self,
        x: Tensor,
        state: Mamba3State,
        *,
        lengths: Tensor | None = None,
        shared: Shared | None = None,
    ) -> tuple[Tensor, Mamba3State]:
        """See Mixer.step."""
        output, memory, *seen = self._mix(x, state, None, lengths)
        last = (at_end(*pair, lengths) for pair in zip(state[1:4], seen, strict=True))
        count = state.count + (x.shape[1] if lengths is None else lengths)
        return output, Mamba3State(memory, *last, count)

    def state_size(self) -> int:
        """Memory E N, and of the last position R keys, the values and the angles."""
        heads, width = self.num_heads, self.state_width
        return heads * (self.value_width * (width + 1) + self.rank * width + width // 4)

    def time_scales(self, times: Tensor) -> Tensor:
        """See Mixer.time_scales; (n, heads), the same at all times."""
        logits = self.dt_bias.new_zeros(1, len(times), self.num_heads)
        return -1 / self.log_decay(logits, softplus(logits + self.dt_bias), None, None)[0]

    def log_decay(
        self, logits: Tensor, delta: Tensor, count: Tensor | None, cu_seqlens: Tensor | None
    ) -> Tensor:
        """Log decay of every position and head, at most 0.

        Args:
            logits: (batch, length, heads), of the rate, in full precision.
            delta: (batch, length, heads), time steps in full precision, 0 at pads.
            count: (batch,) positions before the first; None: whole sequences. Of no effect here.
            cu_seqlens: bounds of packed sequences, likewise.

        Returns:
            (batch, length, heads).
        """
        return -RATES[self.rate](logits).clamp(min=LEAST_RATE) * delta

    def _mix(
        self,
        x: Tensor,
        state: Mamba3State | None,
        cu_seqlens: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Output, memory, and keys, values and angles of all positions."""
        x, dynamics = exact_linear(x, self.dynamics.weight, tap=True)
        heads, width = self.num_heads, self.state_width
        steps, rates, phi, speed = dynamics.split([heads, heads, heads, width // 4], dim=-1)
        delta, phi = softplus(steps + self.dt_bias), torch.sigmoid(phi)
        if lengths is not None:
            # in no time a pad neither writes, nor decays, nor turns
            delta = torch.where(valid_positions(lengths, x.shape[1])[..., None], delta, 0.0)
        start, count = (None, None) if state is None else (state.angle, state.count)
        angle = selective_angles(delta, speed, start, cu_seqlens)
        values, keys, queries = self.in_projection(x).split(
            [heads * self.value_width, self.rank * width, self.rank * width], dim=-1
        )
        if cu_seqlens is not None:
            # without a convolution nothing else silences positions outside the sequences
            inside = sequence_of(cu_seqlens, x.shape[1]) < cu_seqlens.shape[0] - 1
            values = torch.where(inside[:, None], values, 0.0)
        values = values.unflatten(-1, (heads, 1, -1))
        keys = self._turned(keys, self.key_norm_weight, self.key_bias, angle)
        queries = self._turned(queries, self.query_norm_weight, self.query_bias, angle)
        copies, memory, last = self._copies(values), None, None
        if state is not None:
            memory, last = state.memory, (state.keys, self._copies(state.values))
        read, memory = trapezoidal_attention(
            queries, keys, copies, self.log_decay(rates, delta, count, cu_seqlens),
            phi * delta, (1 - phi) * delta,
            memory=memory, last=last, cu_seqlens=cu_seqlens, form=self.form,
        )  # fmt: skip
        read = read + self.skip[:, None, None] * copies
        if self.output_norm_weight is not None:
            weight = self.output_norm_weight.view(heads, 1, -1)
            read = rms_norm(read, (self.value_width,), eps=1e-5) * weight
        gate = self.gate_projection(x).unflatten(-1, (heads, 1, -1))
        if self.rank > 1:
            output = (self.output_mix * read * silu(gate * self.gate_mix)).sum(-2)
        else:
            output = (read * silu(gate)).squeeze(-2)
        return self.out_projection(output.flatten(2).to(x.dtype)), memory, keys, values, angle

    def _turned(self, x: Tensor, weight: Tensor, bias: Tensor, angle: Tensor) -> Tensor:
        """Keys or queries of all heads, (batch, length, heads, rank, state width)."""
        exact = x.to(angle.dtype).unflatten(-1, (1, self.rank, -1))
        normed = rms_norm(exact, (self.state_width,), weight.to(angle.dtype), 1e-5) + bias
        # the two published forms differ in which coordinates pair
        return turn_half(normed, angle[..., None, :], neighbours=self.rank == 1).to(x.dtype)

    def _copies(self, values: Tensor) -> Tensor:
        """The values that are written, (batch, ..., heads, rank, value width)."""
        return (values * self.value_mix).to(values.dtype) if self.rank > 1 else values
