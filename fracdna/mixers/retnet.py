"""RetNet: linear attention with one fixed decay per head and rotary positions."""

import torch
from torch import Tensor

from fracdna.mixers.linear_attention import LinearAttention
from fracdna.mixers.post import TaperedGate
from fracdna.model.layers import rotary_angles, rotate


class RetNet(LinearAttention):
    """Multi-scale retention: g_h = log(1 - 2^(-5-h)), h = 0 .. H-1, queries and keys rotated.

    Args:
        d_model: width of the stream.
        num_heads: H; head h remembers for about 2^(5+h) positions.
        key_width: K of each head, even; as published K = D / H.
        value_width: V of each head; as published V = 2D / H.
        layer_index: number of the layer (unused: all layers are alike).
        num_layers: depth of the network (unused: the output map is not rescaled).
        rope_base: wave-length base of the rotary positions.
        form: form of decay_attention.
        post: the decay is that of TaperedGate, and nothing is rotated: the same model as GLA with
            post.
        post_length: positions of a training sequence, needed with post.
        post_span: full | strict, see TaperedSpectrum.
        post_reset: packed sequences count from 1 each; when false as in the release, whose count
            goes on through their borders.

    Raises:
        ValueError: an odd key width, whose channels do not pair; post without a length, or with an
            unknown span.

    Source: arXiv 2307.08621; post: arXiv 2604.07658.
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
        rope_base: float = 10000.0,
        form: str = "auto",
        post: bool = False,
        post_length: int | None = None,
        post_span: str = "full",
        post_reset: bool = True,
    ) -> None:
        if key_width % 2 and not post:
            raise ValueError(f"key_width={key_width} must be even: its channels turn in pairs")
        super().__init__(
            d_model, num_heads=num_heads, key_width=key_width, value_width=value_width, form=form,
            reset=post_reset or not post,  # without post it is rotation that counts positions
        )  # fmt: skip
        self.rope_base = rope_base
        self.tapered_gate: TaperedGate | None = None
        if post:
            self.tapered_gate = TaperedGate(
                d_model, num_heads=num_heads, key_width=key_width,
                length=post_length, span=post_span,
            )  # fmt: skip
            return
        lost = torch.exp2(-5.0 - torch.arange(num_heads, dtype=torch.float64))
        fixed = torch.log1p(-lost).to(self.norm_weight.dtype)
        self.register_buffer("fixed_decay", fixed, persistent=False)

    def log_decay(self, x: Tensor, positions: Tensor) -> Tensor:
        """See LinearAttention.log_decay; without post (batch, length, heads), all alike."""
        if self.tapered_gate is not None:
            return self.tapered_gate(x, positions)
        exact = torch.promote_types(self.fixed_decay.dtype, torch.float32)
        return self.fixed_decay.to(exact).expand(*x.shape[:2], -1)

    def placed(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys turned by the angle of their position; under post as they are."""
        if self.tapered_gate is not None:
            return q, k
        angle = rotary_angles(positions, self.key_width, self.rope_base)
        return rotate(q, angle), rotate(k, angle)
