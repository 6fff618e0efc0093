"""Pooled hidden states of sequences of ids: batches, long sequences in segments, strands."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fracdna.embedding.options import DEFAULTS, FINAL_NORM, EmbeddingOptions
from fracdna.embedding.pooling import Pool
from fracdna.model.backbone import Backbone
from fracdna.model.carried import state_grows
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

# query-key pairs that one step over a growing cache may have: a mask of so many entries
_PAIRS = 1 << 25


class Ids(Protocol):
    """A sequence of token ids that may be read in parts: an array, or something on a disk."""

    def __len__(self) -> int:
        """Number of ids."""

    def __getitem__(self, part: slice, /) -> np.ndarray:
        """The ids of a part."""


@dataclass(frozen=True, slots=True)
class ReverseComplement:
    """The other strand of a sequence, read in parts from its own start."""

    ids: Ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice, /) -> np.ndarray:
        first, last, _ = part.indices(len(self))
        return DNA.reverse_complement(self.ids[len(self) - last : len(self) - first])


def pooled_states(
    model: LanguageModel,
    sequences: Sequence[Ids],
    options: EmbeddingOptions = DEFAULTS,
    *,
    flipped: np.ndarray | None = None,
) -> np.ndarray:
    """One vector per sequence.

    Args:
        model: on the device to be used.
        sequences: ids without BOS, at least one each, such as DNA.encode("ACGT").
        options: layer, pooling, strand and limits.
        flipped: (sequences,) bool, those that are the reverse strand of what `centre` counts on.

    Returns:
        (sequences, d_model) float32, in the order given.

    Raises:
        InputError: a layer that the model lacks, another unusable option, or an empty sequence.
        NotFinite: a vector holds NaN or infinity.
    """
    vectors = np.empty((len(sequences), model.backbone.d_model), dtype=np.float32)
    for rows, found in pooled_batches(model, sequences, options, flipped=flipped):
        vectors[rows] = found
    return vectors


def pooled_batches(
    model: LanguageModel,
    sequences: Sequence[Ids],
    options: EmbeddingOptions = DEFAULTS,
    *,
    flipped: np.ndarray | None = None,
    advance: Callable[[int], Any] | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The vectors of pooled_states as they are computed, longest sequences first.

    Args:
        model: as in pooled_states.
        sequences: likewise; a sequence is read when it is due.
        options: likewise.
        flipped: likewise.
        advance: told the bases of every pass.

    Yields:
        positions in `sequences` (K,), and their vectors (K, d_model) float32.

    Raises:
        InputError, NotFinite: as pooled_states.
    """
    options.check()
    options.check_layer(model.backbone)
    lengths = np.array([len(ids) for ids in sequences], dtype=np.int64)
    if not lengths.all():
        raise InputError(f"sequence {int(lengths.argmin())} is empty: give at least one base")
    flips = np.zeros(len(lengths), dtype=bool) if flipped is None else np.asarray(flipped, bool)
    passes = _Passes(model.backbone, options, advance or _ignore)
    done = np.zeros(len(lengths), dtype=bool)
    with evaluating(model):
        for rows in batches(lengths, options.batch_bases, options.segment):
            vectors = passes.vectors([sequences[row] for row in rows], flips[rows])
            affected = rows[~np.isfinite(vectors).all(axis=1)]
            if affected.size:
                row = _first_affected(passes, sequences, flips, done, int(affected.min()))
                raise NotFinite(f"sequence {row}: its vector holds NaN or infinity", row)
            done[rows] = True
            yield rows, vectors


def batches(lengths: np.ndarray, batch_bases: int, segment: int) -> Iterator[np.ndarray]:
    """Rows of like length together, the longest first; one longer than a segment stands alone.

    Args:
        lengths: (R,) bases, at least 1.
        batch_bases: most positions of a batch of several rows, padding and BOS included.
        segment: most bases of one pass.

    Yields:
        (K,) rows; every row once.
    """
    order = np.argsort(-lengths, kind="stable")
    first = 0
    while first < len(order):
        longest = int(lengths[order[first]])
        count = 1 if longest > segment else max(1, batch_bases // (longest + 1))
        yield order[first : first + count]
        first += count


class _Passes:
    """Passes of a backbone over sequences, from ids to pooled vectors."""

    def __init__(
        self, backbone: Backbone, options: EmbeddingOptions, advance: Callable[[int], Any]
    ) -> None:
        self._backbone = backbone
        self._options = options
        self._advance = advance
        self._device = backbone.embedding.weight.device

    def vectors(self, sequences: Sequence[Ids], flipped: np.ndarray) -> np.ndarray:
        """(batch, d_model) float32; in a batch of several, none is longer than a segment."""
        pooled = []
        if self._options.strand != "reverse":
            pooled.append(self._pooled(sequences, flipped))
        if self._options.strand != "forward":
            pooled.append(self._pooled([ReverseComplement(s) for s in sequences], ~flipped))
        return np.mean(pooled, axis=0).astype(np.float32)

    @torch.inference_mode()
    def _pooled(self, sequences: Sequence[Ids], flipped: np.ndarray) -> np.ndarray:
        """(batch, d_model) float64 of one strand."""
        lengths = [len(ids) for ids in sequences]
        flips = torch.tensor(flipped, device=self._device)
        pool = Pool(self._options.pooling, torch.tensor(lengths, device=self._device), flips)
        if max(lengths) <= self._options.segment:
            states, _ = self._states(_padded([ids[:] for ids in sequences]), None)
            pool.add(states[:, 1:], 0)
            self._advance(sum(lengths))
        else:
            self._stream(sequences[0], pool)
        return pool.result().cpu().numpy()

    def _stream(self, ids: Ids, pool: Pool) -> None:
        """One long sequence, in segments that carry the state on."""
        state = self._backbone.initial_state(1)
        piece = self._piece_length(len(ids))
        for start in range(0, len(ids), piece):
            part = ids[start : start + piece]
            states, state = self._states(_padded([part]) if start == 0 else part[None], state)
            pool.add(states[:, 1:] if start == 0 else states, start)
            self._advance(len(part))

    def _piece_length(self, length: int) -> int:
        """Bases of one step: a segment, or fewer where every step looks at a growing cache."""
        if not state_grows(self._backbone):
            return self._options.segment
        return min(self._options.segment, max(1, _PAIRS // length))

    def _states(self, ids: np.ndarray, state: list[Any] | None) -> tuple[Tensor, list[Any] | None]:
        """The chosen layer of whole sequences (state None) or of a continuation."""
        kept: list[Tensor] = []

        def observe(number: int, stream: Tensor) -> None:
            if number == self._options.layer:
                kept.append(stream)

        tokens = torch.from_numpy(ids).to(self._device)
        half = self._options.precision == "bf16"
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=half):
            if state is None:
                output = self._backbone(tokens, observe=observe)
            else:
                output, state = self._backbone.step(tokens, state, observe=observe)
        return (output if self._options.layer == FINAL_NORM else kept[0]), state


def _padded(parts: Sequence[np.ndarray]) -> np.ndarray:
    """(batch, 1 + longest) uint8: BOS, the ids, then PAD on the right."""
    ids = np.full((len(parts), 1 + max(map(len, parts))), DNA.pad, dtype=np.uint8)
    ids[:, 0] = DNA.bos
    for row, part in zip(ids, parts, strict=True):
        row[1 : 1 + len(part)] = part
    return ids


def _first_affected(
    passes: _Passes, sequences: Sequence[Ids], flipped: np.ndarray, done: np.ndarray, known: int
) -> int:
    """The first sequence whose vector is not finite; `known` is one, rows of `done` are not.

    Batches go by length, so an earlier row may still wait; it is looked at alone.
    """
    for row in np.flatnonzero(~done[:known]):
        if not np.isfinite(passes.vectors([sequences[row]], flipped[row : row + 1])).all():
            return int(row)
    return known


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; the caller's model is left as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _ignore(bases: int) -> None:
    """Progress that nobody watches."""
