"""RWKV-7: a memory that decays by channel and replaces what it holds under a key."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fracdna.mixers.low_rank import LowRank, rounded_rank
from fracdna.mixers.mixer import Mixer, Shared
from fracdna.mixers.positions import sequence_positions
from fracdna.mixers.post import TaperedSpectrum, checked_length
from fracdna.mixers.rwkv7_initial import InitialValues
from fracdna.model.layers import LayerNorm, linear
from fracdna_kernels import (
    dplr_delta_rule,
    dplr_gates,
    gated_head_norm,
    shifted_layer_norm,
    squared_relu,
)

FIRST_VALUES = "rwkv7.first_values"
NORM_EPS = 64e-5  # of the norm of each head's output


class RWKV7State(NamedTuple):
    """What RWKV-7 carries from one position to the next."""

    memory: Tensor  # (batch, heads, head width, head width) float32
    time_token: Tensor  # (batch, d_model) float32, last input of the time mix
    channel_token: Tensor  # (batch, d_model) float32, last input of the channel mix
    count: Tensor  # (batch,) positions seen


class RWKV7(Mixer):
    """A time mix and a channel mix, each with a LayerNorm of its own: for blocks without norm, MLP.

    Per head S <- diag(e^g) S - (a kappa) (kappa^T S) + k v^T, o = S^T r. Layers after the first mix
    the values of the first layer into their own; without those, `shared` lacking them, a layer
    takes its own as such. The first layer also normalises the embedding.

    Args:
        d_model: width of the stream, D.
        head_width: P, of keys and values.
        mlp_width: F, of the channel mix.
        layer_index: number of the layer, l.
        num_layers: depth of the network, L.
        form: form of dplr_delta_rule.
        post: logits of the decay that rise by channel over the time scales of post_length, tapered
            by the position (see TaperedSpectrum).
        post_length: positions of a training sequence, needed with post.
        post_span: full | strict, see TaperedSpectrum.
        post_reset: packed sequences count from 1 each; when false as in the release, whose count
            goes on through their borders.

    Raises:
        ValueError: a head width that does not divide the width; post without a length, or with an
            unknown span.

    Source: Peng et al. 2025, RWKV-7 "Goose", arXiv 2503.14456; its release decays no other weights
        than those of linear maps. post: arXiv 2604.07658.
    """

    def __init__(
        self,
        d_model: int,
        *,
        head_width: int,
        mlp_width: int,
        layer_index: int = 0,
        num_layers: int = 1,
        form: str = "auto",
        post: bool = False,
        post_length: int | None = None,
        post_span: str = "full",
        post_reset: bool = True,
    ) -> None:
        super().__init__()
        if d_model % head_width:
            raise ValueError(f"head_width={head_width} does not divide d_model={d_model}")
        self.d_model, self.head_width, self.form = d_model, head_width, form
        self.post_reset = post_reset
        self.num_heads = d_model // head_width
        start = InitialValues(d_model, head_width, layer_index, num_layers)
        self.embedding_norm = None if layer_index else LayerNorm(d_model)
        self.time_norm, self.channel_norm = LayerNorm(d_model), LayerNorm(d_model)

        # shares of the position before in the inputs of r, w, k, v, a and the gate
        self.time_shares = nn.Parameter(torch.stack([start.share(e) for e in start.EXPONENTS]))
        self.r_projection, self.k_projection, self.v_projection, self.out_projection = (
            linear(d_model, d_model) for _ in range(4)
        )
        nn.init.orthogonal_(self.r_projection.weight)
        nn.init.orthogonal_(self.k_projection.weight, gain=0.1)
        nn.init.orthogonal_(self.v_projection.weight)
        nn.init.zeros_(self.out_projection.weight)
        rank = 2.5 * math.sqrt(d_model) * head_width / 64
        # rounded to bfloat16, a decay would be wrong by a share of the whole memory's life
        self.decay = LowRank(
            d_model, rounded_rank(rank), activation=torch.tanh, exact=True,
            bias=2.5 * start.zigzag if post else None,
        )  # fmt: skip
        self.taper: TaperedSpectrum | None = None
        if post:
            slow = -math.log(math.exp(-0.5) * checked_length(post_length) - 1)
            self.taper = TaperedSpectrum(
                slow, 0.5, d_model, length=post_length, span=post_span, logits=True
            )
        else:
            self.decay_bias = nn.Parameter(start.decay_bias())
        self.rate = LowRank(d_model, rounded_rank(rank), bias=start.rate_bias())
        self.value_share = None
        if layer_index:
            rank = rounded_rank(1.7 * math.sqrt(d_model) * head_width / 64)
            self.value_share = LowRank(d_model, rank, bias=0.73 - 0.4 * start.line)
        rank = rounded_rank(5 * math.sqrt(d_model))
        self.gate = LowRank(d_model, rank, activation=torch.sigmoid)
        self.removal_scale = nn.Parameter(0.71 - 0.1 * start.line)
        self.rate_scale = nn.Parameter(torch.full((d_model,), 1.02))
        self.bonus = nn.Parameter(torch.full((d_model,), -0.04))
        scale = ((layer_index + 1) / num_layers) ** 0.7
        self.head_norm_weight = nn.Parameter(torch.full((d_model,), scale))
        self.head_norm_bias = nn.Parameter(torch.zeros(d_model))

        self.channel_share = nn.Parameter(1 - start.place ** (start.above**4))
        self.up_projection, self.down_projection = (
            linear(d_model, mlp_width),
            linear(mlp_width, d_model),
        )
        nn.init.orthogonal_(self.up_projection.weight)
        nn.init.zeros_(self.down_projection.weight)

    @property
    def no_weight_decay(self) -> frozenset[str]:
        """Shares and low-rank maps."""
        low_rank = (name for name, part in self.named_modules() if isinstance(part, LowRank))
        return frozenset({"time_shares", *(f"{n}.{x}" for n in low_rank for x in ("down", "up"))})

    @property
    def learning_rate_factors(self) -> dict[str, float]:
        """The logits of the decay learn at twice the rate, as released, also those of PoST."""
        logits = ("decay_bias",) if self.taper is None else self.taper.parameter_names("taper")
        return dict.fromkeys(logits, 2.0)

    def forward(
        self, x: Tensor, *, cu_seqlens: Tensor | None = None, shared: Shared | None = None
    ) -> Tensor:
        """See Mixer.forward."""
        return self._mix(x, None, cu_seqlens, None, shared)[0]

    def initial_state(self, batch: int) -> RWKV7State:
        """An empty memory, and zeros before the first position."""
        exact = torch.promote_types(self.bonus.dtype, torch.float32)
        width = self.head_width
        token = self.bonus.new_zeros(batch, self.d_model, dtype=exact)
        memory = token.new_zeros(batch, self.num_heads, width, width)
        return RWKV7State(memory, token, token.clone(), token.new_zeros(batch, dtype=torch.long))

    def step(
        self,
        x: Tensor,
        state: RWKV7State,
        *,
        lengths: Tensor | None = None,
        shared: Shared | None = None,
    ) -> tuple[Tensor, RWKV7State]:
        """See Mixer.step."""
        output, *carried = self._mix(x, state, None, lengths, shared)
        count = state.count + (x.shape[1] if lengths is None else lengths)
        return output, RWKV7State(*carried, count)

    def state_size(self) -> int:
        """Memory D P and both tokens."""
        return self.d_model * (self.head_width + 2)

    def time_scales(self, times: Tensor) -> Tensor:
        """See Mixer.time_scales; (n, d_model)."""
        inputs = self.bonus.new_zeros(1, len(times), self.d_model)
        return -1 / self.log_decay(self.decay(inputs), times - 1)[0]

    def log_decay(self, adjustment: Tensor, positions: Tensor) -> Tensor:
        """How much of the memory each position and channel keeps.

        Args:
            adjustment: (batch, length, d_model), what the input adds to the logits.
            positions: (length,) or (batch, length), counted from 0 in each sequence; of effect
                under post alone.

        Returns:
            (batch, length, d_model), natural log, from -exp(-1/2) to 0.
        """
        logits = self.decay_bias if self.taper is None else self.taper(positions)
        return -math.exp(-0.5) * torch.sigmoid(logits + adjustment)

    def _mix(
        self,
        x: Tensor,
        state: RWKV7State | None,
        cu_seqlens: Tensor | None,
        lengths: Tensor | None,
        shared: Shared | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both mixes; what they add to the stream, the memory and both tokens."""
        memory, time_token, channel_token, count = (None,) * 4 if state is None else state
        stream = x if self.embedding_norm is None else self.embedding_norm(x)
        *inputs, time_token = shifted_layer_norm(
            stream, self.time_norm.weight, self.time_norm.bias, self.time_shares,
            last=time_token, cu_seqlens=cu_seqlens, lengths=lengths, eps=self.time_norm.eps,
        )  # fmt: skip
        mixed, memory = self._time_mix(inputs, memory, count, cu_seqlens, lengths, shared)
        shifted, channel_token = shifted_layer_norm(
            stream, self.channel_norm.weight, self.channel_norm.bias, self.channel_share[None],
            addend=mixed, last=channel_token, cu_seqlens=cu_seqlens, lengths=lengths,
            eps=self.channel_norm.eps,
        )  # fmt: skip
        change = mixed + self.down_projection(squared_relu(self.up_projection(shifted)))
        if self.embedding_norm is not None:
            change = change + (stream - x)  # the block adds x, of which nothing is to be left
        return change, memory, time_token, channel_token

    def _time_mix(
        self,
        inputs: list[Tensor],
        memory: Tensor | None,
        count: Tensor | None,
        cu_seqlens: Tensor | None,
        lengths: Tensor | None,
        shared: Shared | None,
    ) -> tuple[Tensor, Tensor]:
        """The memory; inputs are those of r, w, k, v, a and the gate."""
        of_r, of_w, of_k, of_v, of_a, of_gate = inputs
        r = self.r_projection(of_r).unflatten(-1, (-1, self.head_width))
        v = self.v_projection(of_v)
        adjustment, bias = self.decay(of_w), None
        if self.taper is None:
            bias = self.decay_bias
        else:
            bounds = cu_seqlens if self.post_reset else None
            positions = sequence_positions(of_w, count, bounds)
            adjustment = self.taper(positions) + adjustment
        first, share = self._first_values(v, of_v, shared)
        k, v, a, b, g = dplr_gates(
            self.k_projection(of_k), v, self.rate(of_a), adjustment,
            self.removal_scale, self.rate_scale, decay_bias=bias, first_values=first,
            share_logits=share, lengths=lengths, head_width=self.head_width,
        )  # fmt: skip
        output, memory = dplr_delta_rule(
            r, k, v, a, b, g, initial_state=memory, cu_seqlens=cu_seqlens, form=self.form
        )
        output = gated_head_norm(
            output, r, k, v, self.gate(of_gate),
            self.head_norm_weight, self.head_norm_bias, self.bonus, eps=NORM_EPS,
        )  # fmt: skip
        return self.out_projection(output), memory

    def _first_values(
        self, v: Tensor, of_v: Tensor, shared: Shared | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Values of the first layer of this pass and logits of their share; None in that layer."""
        first = v if shared is None else shared.setdefault(FIRST_VALUES, v)
        if self.value_share is None:
            return None, None
        return first, self.value_share(of_v)
