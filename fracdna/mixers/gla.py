"""GLA: gated linear attention, in which every key channel fades at a rate read from the input."""

from torch import Tensor
from torch.nn.functional import logsigmoid

from fracdna.mixers.linear_attention import LinearAttention
from fracdna.mixers.post import TaperedGate
from fracdna.model.layers import linear
from fracdna_kernels import exact_linear


class GLA(LinearAttention):
    """Gated linear attention: g = log sigmoid(W_up W_down x + b) / decay_temper.

    Args:
        d_model: width of the stream.
        num_heads: H.
        key_width: K of each head; as published K = D / 2H.
        value_width: V of each head; as published V = D / H.
        layer_index: number of the layer (unused: all layers are alike).
        num_layers: depth of the network (unused: the output map is not rescaled).
        decay_rank: inner width of the map from the input to the decay.
        decay_temper: divides the log decay, so that an untrained memory lasts 23 positions.
        form: form of decay_attention.
        post: the decay is that of TaperedGate; rank and temper are then of no effect.
        post_length: positions of a training sequence, needed with post.
        post_span: full | strict, see TaperedSpectrum.
        post_reset: packed sequences count from 1 each; when false as in the release, whose count
            goes on through their borders.

    Raises:
        ValueError: post without a length, or with an unknown span.

    Source: arXiv 2312.06635; post: arXiv 2604.07658.
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
        decay_rank: int = 16,
        decay_temper: float = 16.0,
        form: str = "auto",
        post: bool = False,
        post_length: int | None = None,
        post_span: str = "full",
        post_reset: bool = True,
    ) -> None:
        super().__init__(
            d_model, num_heads=num_heads, key_width=key_width, value_width=value_width, form=form,
            reset=post_reset,
        )  # fmt: skip
        self.decay_temper = decay_temper
        self.tapered_gate: TaperedGate | None = None
        if post:
            self.tapered_gate = TaperedGate(
                d_model, num_heads=num_heads, key_width=key_width,
                length=post_length, span=post_span,
            )  # fmt: skip
        else:
            self.decay_down = linear(d_model, decay_rank)
            self.decay_up = linear(decay_rank, num_heads * key_width, bias=True)

    def log_decay(self, x: Tensor, positions: Tensor) -> Tensor:
        """See LinearAttention.log_decay; (batch, length, heads, key width)."""
        if self.tapered_gate is not None:
            return self.tapered_gate(x, positions)
        # in bfloat16 every time scale would be wrong by up to 1 in 256
        inner = exact_linear(x, self.decay_down.weight)
        logits = exact_linear(inner, self.decay_up.weight, self.decay_up.bias)
        return (logsigmoid(logits) / self.decay_temper).unflatten(-1, (self.num_heads, -1))
