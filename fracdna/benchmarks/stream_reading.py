"""Hidden states at a few places of long streams, in memory that does not grow with the stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fracdna.model.backbone import Backbone
from fracdna.model.carried import state_grows


@dataclass(frozen=True)
class Reading:
    """How test streams are read.

    Attributes:
        precision: of the computation.
        segment: positions that are read at a time, with the state carried.
        batch_positions: most positions of one pass.
        growing_limit: longest stream for networks whose state grows with it.
    """

    precision: torch.dtype
    segment: int
    batch_positions: int
    growing_limit: int


class StreamReader:
    """Reads streams through a backbone.

    A network whose state grows with the sequence reads streams whole, others in segments.

    Args:
        backbone: in evaluation mode.
        reading: see Reading.
        advance: told of positions that were read.
    """

    def __init__(
        self, backbone: Backbone, reading: Reading, advance: Callable[[int], object]
    ) -> None:
        self._backbone, self._reading, self._advance = backbone, reading, advance
        self.grows = state_grows(backbone)

    def reaches(self, length: int) -> bool:
        """Whether this network is to read streams of a length."""
        return not self.grows or length <= self._reading.growing_limit

    def batch(self, length: int) -> int:
        """Streams of a length that are read together."""
        at_once = length if self.grows else min(length, self._reading.segment)
        return max(1, self._reading.batch_positions // at_once)

    @torch.inference_mode()
    def whole(self, ids: Tensor) -> Tensor:
        """Hidden states of all positions, of one pass over sequences that fit in memory.

        Args:
            ids: (n, length).

        Returns:
            (n, length, d_model).
        """
        low = self._reading.precision != torch.float32
        with torch.autocast(ids.device.type, self._reading.precision, enabled=low):
            hidden = self._backbone(ids)
        self._advance(ids.numel())
        return hidden

    @torch.inference_mode()
    def hidden_at(self, ids: Tensor, places: Sequence[int]) -> Tensor:
        """Hidden states of a pass over streams.

        Args:
            ids: (n, length).
            places: rising positions, from 0.

        Returns:
            (n, places, d_model), as if each stream were read whole.
        """
        if self.grows:
            return self.whole(ids)[:, list(places)]
        low = self._reading.precision != torch.float32
        with torch.autocast(ids.device.type, self._reading.precision, enabled=low):
            return self._carried(ids, places)

    def _carried(self, ids: Tensor, places: Sequence[int]) -> Tensor:
        """In segments; each segment's states are dropped but for the asked places."""
        state, found, start = self._backbone.initial_state(len(ids)), [], 0
        for piece in ids[:, : max(places) + 1].split(self._reading.segment, dim=1):
            hidden, state = self._backbone.step(piece, state)
            inside = [p - start for p in places if start <= p < start + piece.shape[1]]
            if inside:
                found.append(hidden[:, inside])
            start += piece.shape[1]
            self._advance(piece.numel())
        return torch.cat(found, dim=1)
