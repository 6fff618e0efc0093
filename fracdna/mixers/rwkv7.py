"""RWKV-7: a memory that decays by channel and replaces what it holds under a key."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize

from fracdna.mixers.low_rank import LowRank, rounded_rank
from fracdna.mixers.mixer import Mixer, Shared, valid_positions
from fracdna.mixers.positions import sequence_positions
from fracdna.mixers.post import TaperedSpectrum, checked_length
from fracdna.mixers.rwkv7_initial import InitialValues
from fracdna.mixers.token_shift import token_shift
from fracdna.model.layers import LayerNorm, linear
from fracdna_kernels import dplr_delta_rule

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
        positions = sequence_positions(x, cu_seqlens=cu_seqlens)
        return self._mix(x, positions, (None, None, None), cu_seqlens, None, shared)[0]

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
        positions = sequence_positions(x, state.count)
        output, *carried = self._mix(x, positions, state[:3], None, lengths, shared)
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
        positions: Tensor,
        carried: tuple[Tensor | None, ...],
        cu_seqlens: Tensor | None,
        lengths: Tensor | None,
        shared: Shared | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both mixes; what they add to the stream, the memory and both tokens."""
        memory, time_token, channel_token = carried
        stream = x if self.embedding_norm is None else self.embedding_norm(x)
        normed = self.time_norm(stream)
        previous, time_token = token_shift(normed, time_token, positions, lengths)
        inputs = [torch.addcmul(normed, previous - normed, share) for share in self.time_shares]
        mixed, memory = self._time_mix(inputs, positions, memory, cu_seqlens, lengths, shared)
        normed = self.channel_norm(stream + mixed)
        previous, channel_token = token_shift(normed, channel_token, positions, lengths)
        inner = self.up_projection(torch.addcmul(normed, previous - normed, self.channel_share))
        change = mixed + self.down_projection(torch.relu(inner).square())
        if self.embedding_norm is not None:
            change = change + (stream - x)  # the block adds x, of which nothing is to be left
        return change, memory, time_token, channel_token

    def _time_mix(
        self,
        inputs: list[Tensor],
        positions: Tensor,
        memory: Tensor | None,
        cu_seqlens: Tensor | None,
        lengths: Tensor | None,
        shared: Shared | None,
    ) -> tuple[Tensor, Tensor]:
        """The memory; inputs are those of r, w, k, v, a and the gate."""
        of_r, of_w, of_k, of_v, of_a, of_gate = inputs
        if not self.post_reset and cu_seqlens is not None:
            positions = sequence_positions(of_w)  # of the taper alone
        r, k = self.r_projection(of_r), self.k_projection(of_k)
        v = self._with_first_values(self.v_projection(of_v), of_v, shared)
        g, a = self.log_decay(self.decay(of_w), positions), torch.sigmoid(self.rate(of_a))
        removal = normalize(self._heads(k * self.removal_scale), dim=-1)
        k = k * (1 + (a - 1) * self.rate_scale)
        if lengths is not None:
            # a pad must neither write, nor remove, nor let the memory decay
            valid = valid_positions(lengths, k.shape[1])[..., None]
            k, a, g = (torch.where(valid, y, 0.0) for y in (k, a, g))
        r, k, v, a, g = map(self._heads, (r, k, v, a, g))
        output, memory = dplr_delta_rule(
            r, k, v, -removal, removal * a, g,
            initial_state=memory, cu_seqlens=cu_seqlens, form=self.form,
        )  # fmt: skip
        output = layer_norm(output, (self.head_width,), eps=NORM_EPS).flatten(2)
        output = self.head_norm_weight * output + self.head_norm_bias
        bonus = (r * k * self._heads(self.bonus)).sum(-1, keepdim=True) * v
        return self.out_projection((output + bonus.flatten(2)) * self.gate(of_gate)), memory

    def _with_first_values(self, v: Tensor, of_v: Tensor, shared: Shared | None) -> Tensor:
        """Values with a share of those of the first layer of this pass."""
        first = v if shared is None else shared.setdefault(FIRST_VALUES, v)
        if self.value_share is None:
            return v
        return v + (first - v) * torch.sigmoid(self.value_share(of_v)).to(v.dtype)

    def _heads(self, x: Tensor) -> Tensor:
        """(..., d_model) to (..., heads, head width)."""
        return x.unflatten(-1, (self.num_heads, self.head_width))
