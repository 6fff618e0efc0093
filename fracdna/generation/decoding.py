"""A batch of sequences on a model: prompts in segments, then base after base."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fracdna.embedding.states import Ids
from fracdna.generation.options import GenerationOptions
from fracdna.generation.sampling import choose
from fracdna.model.carried import state_leaves, state_tensors
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna_prep.vocabulary import DNA

BLOCK = 128  # positions between two looks of the host
# query-key pairs that one pass over a growing cache may have: a mask of so many entries
_PAIRS = 1 << 25


class Decoder:
    """Sequences that have read their prompts and are continued position by position.

    The state is all that is carried. Where it keeps its size, a CUDA device runs a position as one
    captured graph on buffers that stay where they are; the host only hands over noise and takes
    letters, BLOCK positions at a time. Autocast, if any, must last as long as the decoder: its low
    copies of the weights are part of the graph.

    Args:
        model: on the device to be used.
        prompts: ids without BOS of each sequence; read when they are due.
        options: see GenerationOptions.
        advance: told the bases of every pass over prompts.

    Attributes:
        grows: whether the state gets longer with the sequence, as a cache of keys does.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Ids],
        options: GenerationOptions,
        advance: Callable[[int], Any],
    ) -> None:
        self._model, self._options = model, options
        self._device = model.backbone.embedding.weight.device
        rows = len(prompts)
        self._letters = torch.tensor(options.ids, device=self._device)
        self._noise = torch.zeros(BLOCK, rows, len(options.ids), device=self._device)
        self._chosen = torch.zeros(BLOCK, rows, dtype=torch.long, device=self._device)
        self._position = torch.zeros(1, dtype=torch.long, device=self._device)
        self._finite = torch.ones((), dtype=torch.bool, device=self._device)
        self._state = model.initial_state(rows)
        self._logits = torch.zeros(
            rows, model.backbone.embedding.num_embeddings, device=self._device
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        self.grows = False
        self._read(prompts, advance)

    def next(self, noise: np.ndarray | None, positions: int) -> np.ndarray:
        """Continue every sequence.

        Args:
            noise: (positions, rows, letters) from Noise; None where the most probable is taken.
            positions: at most BLOCK.

        Returns:
            (rows, positions) uint8 ids.

        Raises:
            NotFinite: a logit is NaN or infinite.
        """
        if noise is not None:
            self._noise[:positions].copy_(torch.from_numpy(noise))
        self._position.zero_()
        for _ in range(positions):
            self._step()
        self.check_finite()
        return self._chosen[:positions].T.to(torch.uint8).cpu().numpy()

    def check_finite(self) -> None:
        """Wait for the device and look whether all logits so far were numbers.

        Raises:
            NotFinite: they were not.
        """
        if not self._finite:
            raise NotFinite("a logit is NaN or infinite")

    def state_bytes(self) -> int:
        """Bytes carried, all sequences together."""
        return sum(x.numel() * x.element_size() for x in state_tensors(self._state))

    def _read(self, prompts: Sequence[Ids], advance: Callable[[int], Any]) -> None:
        """BOS and the prompts, in segments that carry the state on."""
        lengths = np.array([1 + len(ids) for ids in prompts], dtype=np.int64)
        start, longest = 0, int(lengths.max())
        while start < longest:
            width = min(self._piece(len(prompts), longest), longest - start)
            part = np.stack([_part(ids, start, start + width) for ids in prompts])
            valid = (lengths - start).clip(0, width)
            padded = torch.from_numpy(valid).to(self._device) if (valid < width).any() else None
            logits = self._pass(torch.from_numpy(part).to(self._device), padded)
            last = torch.from_numpy(np.maximum(valid - 1, 0)).to(self._device)
            ends = torch.from_numpy((valid > 0) & (lengths <= start + width)).to(self._device)
            ending = logits[torch.arange(len(prompts), device=self._device), last]
            self._logits.copy_(torch.where(ends[:, None], ending, self._logits))
            start += width
            advance(int(valid.sum()))
        self._finite.copy_(self._logits.isfinite().all())

    def _piece(self, rows: int, longest: int) -> int:
        """Positions of one pass over prompts: fewer where each looks back at a growing cache."""
        piece = self._options.segment // rows
        if self.grows:
            piece = min(piece, _PAIRS // (rows * longest))
        return max(1, piece)

    def _step(self) -> None:
        """One position; the first one is run plainly, which prepares every kernel of a graph.

        A number that is no tensor would be frozen in a graph, so a state with one has none.
        """
        if self._graph is not None:
            self._graph.replay()
            return
        self._draw()
        plain = all(isinstance(leaf, Tensor) for leaf in state_leaves(self._state))
        if self._device.type == "cuda" and plain and not self.grows:
            self._capture()

    def _capture(self) -> None:
        """Record a position on the present buffers."""
        graph, kept = torch.cuda.CUDAGraph(), self._state
        with torch.cuda.device(self._device), torch.cuda.graph(graph):
            self._draw()
            for buffer, after in zip(state_tensors(kept), state_tensors(self._state), strict=True):
                buffer.copy_(after)
        self._state, self._graph = kept, graph

    def _draw(self) -> None:
        """Choose a letter for every row and pass it through the model."""
        noise = self._noise.index_select(0, self._position)[0]
        options = self._options
        column = choose(
            self._logits[:, self._letters], noise,
            options.temperature, options.top_k, options.top_p,
        )  # fmt: skip
        ids = self._letters[column]
        self._chosen.index_copy_(0, self._position, ids[None])
        self._position.add_(1)
        self._logits.copy_(self._pass(ids[:, None], None)[:, -1])
        self._finite.logical_and_(self._logits.isfinite().all())

    def _pass(self, ids: Tensor, lengths: Tensor | None) -> Tensor:
        """Logits of a continuation; the state moves on."""
        sizes = [x.shape for x in state_tensors(self._state)]
        logits, self._state = self._model.step(ids, self._state, lengths=lengths)
        self.grows |= sizes != [x.shape for x in state_tensors(self._state)]
        return logits.float()


def _part(ids: Ids, start: int, end: int) -> np.ndarray:
    """(end - start,) uint8: positions of BOS and the ids, PAD past their end."""
    row = np.full(end - start, DNA.pad, dtype=np.uint8)
    if start == 0:
        row[0] = DNA.bos
    first, last = max(start - 1, 0), min(end - 1, len(ids))
    if first < last:
        offset = first + 1 - start
        row[offset : offset + last - first] = ids[first:last]
    return row
