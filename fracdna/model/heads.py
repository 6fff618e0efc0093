"""What a backbone's hidden states are turned into."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import linear

from fracdna.model.backbone import Backbone


class LanguageModel(nn.Module):
    """Next-token logits with a head tied to the embedding.

    Args:
        backbone: the trunk.
        config: the plain dictionary that the model was built from; travels with checkpoints.
    """

    def __init__(self, backbone: Backbone, config: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.config = config or {}

    def forward(self, ids: Tensor, *, cu_seqlens: Tensor | None = None) -> Tensor:
        """(batch, length) ids to (batch, length, rows) logits; see Backbone.forward."""
        return self.logits(self.backbone(ids, cu_seqlens=cu_seqlens))

    def initial_state(self, batch: int) -> list[Any]:
        """An empty state for every layer."""
        return self.backbone.initial_state(batch)

    def step(
        self, ids: Tensor, state: list[Any], *, lengths: Tensor | None = None
    ) -> tuple[Tensor, list[Any]]:
        """Logits of a continuation and the new state; see Backbone.step."""
        hidden, state = self.backbone.step(ids, state, lengths=lengths)
        return self.logits(hidden), state

    def logits(self, hidden: Tensor) -> Tensor:
        """The tied head: (..., d_model) hidden states of the backbone to (..., rows) logits."""
        return linear(hidden, self.backbone.embedding.weight)
