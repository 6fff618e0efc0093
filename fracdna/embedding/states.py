"""Hidden states of sequences of ids: batches, long sequences in segments, strands."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fracdna.embedding.options import DEFAULTS, EQUIVARIANT, FINAL_NORM, PER_BASE, EmbeddingOptions
from fracdna.embedding.pooling import PerBase, Pool
from fracdna.embedding.reads import Ids, Read, whole_reads
from fracdna.model.backbone import Backbone
from fracdna.model.carried import state_grows, state_tensors
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

__all__ = [
    "Embedder",
    "Ids",
    "batches",
    "evaluating",
    "padded",
    "pooled_batches",
    "pooled_states",
]

# query-key pairs that one step over a growing cache may have: a mask of so many entries
_PAIRS = 1 << 25
_LOOKED_AT_ONCE = 1 << 14


def pooled_states(
    model: LanguageModel,
    sequences: Sequence[Ids],
    options: EmbeddingOptions = DEFAULTS,
    *,
    flipped: np.ndarray | None = None,
) -> np.ndarray:
    """One vector per sequence and layer.

    Args:
        model: on the device to be used.
        sequences: ids without BOS, at least one each, such as DNA.encode("ACGT").
        options: layers, pooling (not "none"), strand and limits.
        flipped: (sequences,) bool, those that are the reverse strand of what `centre` counts on.

    Returns:
        (sequences, d_model) float32, in the order given; (sequences, layers, d_model) where
        options.layer is a tuple; 2 d_model with strand "equivariant".

    Raises:
        InputError: a layer that the model lacks, another unusable option, or an empty sequence.
        NotFinite: a vector holds NaN or infinity.
    """
    single = isinstance(options.layer, int)
    middle = () if single else (len(options.layers),)
    width = options.width(model.backbone.d_model)
    vectors = np.empty((len(sequences), *middle, width), dtype=np.float32)
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
        positions in `sequences` (K,), and their vectors (K, d_model) float32, with the layers in
        between as in pooled_states.

    Raises:
        InputError, NotFinite: as pooled_states.
    """
    if options.per_base:
        raise InputError(f"pooling={PER_BASE}: call fracdna.embed for a vector of every base")
    embedder = Embedder(model, options, advance)
    reads = whole_reads(sequences, flipped)
    layers, width = len(options.layers), options.width(model.backbone.d_model)
    done = np.zeros(len(reads), dtype=bool)
    for rows in embedder.plan(reads):
        vectors = np.empty((len(rows), 1, layers, width), dtype=np.float32)
        affected = embedder.fill_batch(reads, rows, list(vectors))
        if affected is not None:
            row = embedder.first_affected(reads, done, affected)
            raise NotFinite(f"sequence {row}: its vector holds NaN or infinity", row)
        done[rows] = True
        yield rows, vectors[:, 0, 0] if isinstance(options.layer, int) else vectors[:, 0]


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


class Embedder:
    """Passes of a model over reads, from ids to vectors.

    Args:
        model: on the device to be used.
        options: layers, pooling, strand and limits.
        advance: told the bases of every pass.

    Raises:
        InputError: an unusable option, or a layer that the model lacks.
    """

    def __init__(
        self,
        model: LanguageModel,
        options: EmbeddingOptions,
        advance: Callable[[int], Any] | None = None,
    ) -> None:
        options.check()
        options.check_layer(model.backbone)
        self._model, self._backbone = model, model.backbone
        self._device = model.backbone.embedding.weight.device
        self._options = options.on(self._device)
        self._advance = advance or _ignore

    def plan(self, reads: Sequence[Read]) -> list[np.ndarray]:
        """The rows of every batch, in the order in which they are due.

        Raises:
            InputError: a read whose keys and values the device cannot hold.
        """
        strand = self._options.strand
        lengths = [max(read.stop for read in one.by_strand(strand)) for one in reads]
        longest = max(lengths, default=0)
        if longest > self._options.segment:
            _check_cache(self._backbone, longest, self._device)
        array = np.array(lengths, dtype=np.int64)
        return list(batches(array, self._options.batch_bases, self._options.segment))

    def fill_batch(
        self, reads: Sequence[Read], rows: np.ndarray, targets: Sequence[np.ndarray]
    ) -> int | None:
        """The vectors of one batch.

        Args:
            reads: all of them.
            rows: a batch of plan().
            targets: of each row of the batch (bases, layers, width) float32 to be filled; with a
                pooling (1, layers, width).

        Returns:
            the first row of the batch whose vectors hold NaN or infinity; None: all are sound.
        """
        self.fill([reads[row] for row in rows], targets)
        affected = [r for r, one in zip(rows, targets, strict=True) if not _is_finite(one)]
        return int(min(affected)) if affected else None

    def fill(self, reads: Sequence[Read], targets: Sequence[np.ndarray]) -> None:
        """The vectors of reads, into targets; of several, none is longer than a pass."""
        strands = zip(*(read.by_strand(self._options.strand) for read in reads), strict=True)
        side_by_side = self._options.strand == EQUIVARIANT
        with evaluating(self._model):
            if self._options.per_base:
                for turn, strand in enumerate(strands):
                    places = targets
                    if side_by_side:
                        places = [np.split(target, 2, axis=-1)[turn] for target in targets]
                    mixed = turn > 0 and not side_by_side
                    self._read(strand, PerBase(strand, places, second=mixed))
                return
            pooled = []
            for strand in strands:
                pool = Pool(self._options.pooling, strand, self._device)
                self._read(strand, pool)
                pooled.append(pool.result())
        vectors = np.concatenate(pooled, axis=-1) if side_by_side else np.mean(pooled, axis=0)
        for target, vector in zip(targets, vectors, strict=True):
            target[0] = vector

    def first_affected(self, reads: Sequence[Read], done: np.ndarray, known: int) -> int:
        """The first read whose vectors are not finite; `known` is one, rows of `done` are not.

        Batches go by length, so an earlier row may still wait; it is looked at alone.
        """
        shape = len(self._options.layers), self._options.width(self._backbone.d_model)
        for row in np.flatnonzero(~done[:known]):
            read = reads[row]
            target = np.empty((read.bases if self._options.per_base else 1, *shape), np.float32)
            self.fill([read], [target])
            if not _is_finite(target):
                return int(row)
        return known

    @torch.inference_mode()
    def _read(self, reads: Sequence[Read], into: Pool | PerBase) -> None:
        """One strand of reads."""
        longest = max(read.stop for read in reads)
        # the model is asked whether its state grows only where that decides
        if longest > self._shortest_limit and longest > self._longest_pass:
            self._stream(reads[0], into)
            return
        layers, _ = self._states(padded([read.ids[: read.stop] for read in reads]), None)
        into.add([states[:, 1:] for states in layers], 0)
        self._advance(sum(read.stop for read in reads))

    def _stream(self, read: Read, into: Pool | PerBase) -> None:
        """One long read, in segments that carry the state on."""
        state = self._backbone.initial_state(1)
        piece = self._piece_length(read.stop)
        for start in range(0, read.stop, piece):
            part = read.ids[start : min(start + piece, read.stop)]
            layers, state = self._states(padded([part]) if start == 0 else part[None], state)
            into.add([x[:, 1:] for x in layers] if start == 0 else layers, start)
            self._advance(len(part))

    @property
    def _shortest_limit(self) -> int:
        """Bases that every model reads at once."""
        return min(self._options.segment, self._options.batch_bases)

    @cached_property
    def _longest_pass(self) -> int:
        """Bases that are read at once: a segment, or a batch where the state has a fixed size."""
        return self._options.segment if state_grows(self._backbone) else self._shortest_limit

    def _piece_length(self, length: int) -> int:
        """Bases of one step: fewer where every step looks at a growing cache."""
        if not state_grows(self._backbone):
            return self._longest_pass
        return min(self._longest_pass, max(1, _PAIRS // length))

    def _states(
        self, ids: np.ndarray, state: list[Any] | None
    ) -> tuple[list[Tensor], list[Any] | None]:
        """The chosen layers of whole sequences (state None) or of a continuation."""
        kept: dict[int, Tensor] = {}

        def observe(number: int, stream: Tensor) -> None:
            if number in self._options.layers:
                kept[number] = stream

        tokens = torch.from_numpy(ids).to(self._device)
        half = self._options.precision == "bf16"
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=half):
            if state is None:
                output = self._backbone(tokens, observe=observe)
            else:
                output, state = self._backbone.step(tokens, state, observe=observe)
        kept[FINAL_NORM] = output
        return [kept[layer] for layer in self._options.layers], state


def padded(parts: Sequence[np.ndarray]) -> np.ndarray:
    """(batch, 1 + longest) uint8: BOS, the ids, then PAD on the right."""
    ids = np.full((len(parts), 1 + max(map(len, parts))), DNA.pad, dtype=np.uint8)
    ids[:, 0] = DNA.bos
    for row, part in zip(ids, parts, strict=True):
        row[1 : 1 + len(part)] = part
    return ids


def _is_finite(values: np.ndarray) -> bool:
    """Whether no value is NaN or infinite; by the piece, of what may be a mapped file."""
    starts = range(0, len(values), _LOOKED_AT_ONCE)
    return all(np.isfinite(values[start : start + _LOOKED_AT_ONCE]).all() for start in starts)


@torch.inference_mode()
def _check_cache(backbone: Backbone, length: int, device: torch.device) -> None:
    """Refuses a length at which keys and values would fill the memory.

    Raises:
        InputError: names the longest that would fit.
    """
    if not state_grows(backbone):
        return
    base = torch.full((1, 1), DNA.bos, device=device)
    _, one = backbone.step(base, backbone.initial_state(1))
    _, two = backbone.step(base, one)
    each = _bytes(state_tensors(two)) - _bytes(state_tensors(one))
    # a cache is copied when it grows
    room = _memory(device) // 2
    if each * length > room:
        raise InputError(
            f"a region of {length:,} bases: this model keeps {each:,} bytes for every base that it "
            f"has read, {each * length / 2**30:,.1f} GiB, and half of the memory is "
            f"{room / 2**30:,.1f} GiB: embed regions of at most {room // each:,} bases with their "
            "flanks, or use a model whose state has a fixed size, such as mixer=frac"
        )


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Memory of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _memory(device: torch.device) -> int:
    """Bytes of the device's memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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
