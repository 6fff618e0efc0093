"""Mamba-3: a selective state space with trapezoidal steps, turning keys, and writes of any rank."""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu, softplus

from fracdna.mixers.mixer import Mixer, Shared, valid_positions
from fracdna.mixers.positions import at_end
from fracdna.mixers.rates import LEAST_RATE, RATES
from fracdna.mixers.time_steps import time_step_bias
from fracdna.mixers.trapezoid import handed_on, trapezoidal_attention, with_last_pairs
from fracdna_kernels import (
    exact_linear,
    gated_rms_norm,
    gated_skip,
    rotary_norm,
    selective_angles,
)
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
        angle = selective_angles(delta, speed, start=start)
        values, keys, queries = self.in_projection(x).split(
            [heads * self.value_width, self.rank * width, self.rank * width], dim=-1
        )
        # dense once, where each pass of decay_attention would make a copy of its own
        values = values.contiguous().unflatten(-1, (1, heads, -1))
        copies = self._copies(values)
        sequence = None if cu_seqlens is None else sequence_of(cu_seqlens, x.shape[1])
        before = (1 - phi) * delta
        later = handed_on(before, sequence)
        weight = phi * delta + later
        # the two published forms differ in which coordinates pair: neighbours without a rank
        queries, keys, products = rotary_norm(
            queries, keys, self.query_norm_weight, self.key_norm_weight, self.query_bias,
            self.key_bias, angle, weight if state is None else None, neighbours=self.rank == 1,
        )  # fmt: skip
        memory, written = None, keys
        if state is not None:
            # the last keys are carried on as they are, without a weight
            written = (keys * weight[:, :, None, :, None]).to(keys.dtype)
            last = self._copies(state.values.transpose(1, 2)).transpose(1, 2)
            memory = with_last_pairs(state.memory, state.keys, last, before)
        read, own, memory = trapezoidal_attention(
            queries, written, copies, self.log_decay(rates, delta, count, cu_seqlens),
            products, weight, later, memory=memory, cu_seqlens=cu_seqlens, form=self.form,
        )  # fmt: skip
        alone = torch.eye(self.rank, dtype=own.dtype, device=x.device)
        own = own + self.skip[:, None, None] * alone
        if sequence is not None:
            # without a convolution nothing else silences positions outside the sequences
            inside = sequence < cu_seqlens.shape[0] - 1
            own = torch.where(inside[:, None, None, None], own, 0.0)
        output = self._gated(read, own, copies, self.gate_projection(x))
        output = self.out_projection(output.to(x.dtype))
        return output, memory, keys.transpose(2, 3), values.transpose(2, 3), angle

    def _gated(self, read: Tensor, own: Tensor, copies: Tensor, gate: Tensor) -> Tensor:
        """Readings with a position's own part, normed if asked for, gated, summed over the rank.

        Args:
            read: (batch, length, rank, heads, value width).
            own: (batch, length, heads, rank, rank), weights of the copies.
            copies: like read.
            gate: (batch, length, E), pre-activation.

        Returns:
            (batch, length, E).
        """
        weight = self.output_norm_weight
        mixes = (self.gate_mix, self.output_mix) if self.rank > 1 else (None, None)
        if weight is None:
            return gated_skip(read, copies, own, gate, *mixes)
        read, copies = read.transpose(2, 3), copies.transpose(2, 3)
        if self.rank == 1:
            read = (read + own * copies).to(read.dtype).flatten(2)
            return gated_rms_norm(
                read, gate, weight, order="norm_first", group_size=self.value_width, eps=1e-5
            )
        read = read + own.to(copies.dtype) @ copies
        read = rms_norm(read, (self.value_width,), eps=1e-5) * weight.view(self.num_heads, 1, -1)
        gate = silu(gate.unflatten(-1, (self.num_heads, 1, -1)) * self.gate_mix)
        return (self.output_mix * read * gate).sum(-2).flatten(2)

    def _copies(self, values: Tensor) -> Tensor:
        """The values that are written, (batch, ..., rank, heads, value width)."""
        if self.rank == 1:
            return values
        # a mix in the order of the values, or the product would not be in that order
        return (values * self.value_mix.transpose(0, 1).contiguous()).to(values.dtype)
