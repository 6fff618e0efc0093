"""One model over one contig: nats by block, in memory that does not grow with the contig."""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fracdna.data.objectives import next_base
from fracdna.evaluation.likelihood import base_nll
from fracdna.evaluation.stream_state import (
    StreamProgress,
    read_progress,
    with_tensors,
    write_progress,
)
from fracdna.model.carried import state_tensors
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval

FORMAT = 1
SAVED_SEGMENTS = 16  # between two saves; so many go to the device together
# query-key pairs that one step over a growing cache may have: a mask of so many entries
_PAIRS = 1 << 25


@dataclass(frozen=True)
class StreamSettings:
    """How contigs are read.

    Attributes:
        segment: most bases of one forward pass (at least one window where windows are batched).
        block: bases whose nats are summed together.
        precision: compute type; the softmax and all sums stay exact.
        device: where models compute.
    """

    segment: int
    block: int
    precision: torch.dtype
    device: torch.device


class ContigPass:
    """A contig read from its first base to its last, the state emptied every `window` bases.

    One window is the whole contig: then BOS stands once, at its start. Windows of at most a segment
    are read in batches, longer ones in segments that carry the state on. What was saved by an
    earlier run is gone on from: with the same segments the sums are those of an unbroken run.

    Args:
        model: in evaluation mode, on settings.device when the pass runs.
        name: of the model, for messages.
        store: the genome.
        contig: its name, of at least one base.
        window: bases between two empty states.
        settings: see StreamSettings.
        folder: where progress is kept.
        weights: hash of the model.
        grows: whether its state gets longer with the sequence, which is then read in short pieces.
        force: start again, whatever is kept.

    Attributes:
        progress: what is summed so far.
    """

    def __init__(
        self,
        model: LanguageModel,
        name: str,
        store: GenomeStore,
        contig: str,
        window: int,
        settings: StreamSettings,
        folder: Path,
        *,
        weights: str,
        grows: bool = False,
        force: bool = False,
    ) -> None:
        self.model, self.name, self.store, self.contig = model, name, store, contig
        self.settings, self.length = settings, store.contigs[contig]
        self.window = min(window, self.length)
        parts = (
            FORMAT, weights, settings.device.type, settings.precision, store.checksum, contig,
            self.window, settings.segment, settings.block,
        )  # fmt: skip
        key = hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()
        self.path = folder / f"{key[:24]}.stream"
        blocks = -(-self.length // settings.block)
        empty = StreamProgress(torch.zeros(2, blocks, dtype=torch.float64))
        self.progress = (None if force else read_progress(self.path)) or empty
        self._batched = self.window <= settings.segment
        self._stride = settings.segment
        if self._batched:
            self._stride = settings.segment // self.window * self.window
        self._piece = self._stride
        if grows and not self._batched:
            self._piece = min(self._stride, max(1, _PAIRS // self.window))

    @property
    def finished(self) -> bool:
        """Whether the contig is read to its end."""
        return self.progress.done == self.length

    @torch.inference_mode()
    def run(self, advance: Callable[[int], Any]) -> None:
        """Read on to the end of the contig, saving on the way.

        Args:
            advance: told the bases of every forward pass.

        Raises:
            NotFinite: a likelihood that is no number, with the place.
        """
        cuda, device, warm = self.settings.device.type == "cuda", self.settings.device, False
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        while not self.finished:
            before, started = self.progress.done, time.monotonic()
            state = self._read(min(before + SAVED_SEGMENTS * self._stride, self.length), advance)
            seconds = time.monotonic() - started
            # kernels compile during the first segments: they are timed only where no others follow
            if warm or (self.finished and not self.progress.timed_bases):
                self.progress.timed_bases += self.progress.done - before
                self.progress.seconds += seconds
            warm = True
            if cuda:
                peak = torch.cuda.max_memory_allocated(device)
                self.progress.peak_bytes = max(peak, self.progress.peak_bytes or 0)
            self._save(state)

    def _save(self, state: Any) -> None:
        """Keep how far the pass is, and what the model carries inside a window."""
        done = self.progress.done
        carries = done % self.window and done < self.length
        # a copy, because a slice would take what it is cut from along
        kept = [x.to("cpu", copy=True) for x in state_tensors(state)] if carries else []
        self.progress.state = kept
        write_progress(self.path, self.progress)

    def _read(self, stop: int, advance: Callable[[int], Any]) -> Any:
        """Add the nats up to a base and return the state there.

        The state before is taken as it was saved, so that a resumed run repeats an unbroken one.
        """
        start, state = self.progress.done, self._saved_state()
        first = max(start - 1, 0)
        ids = self.store.fetch(Interval(self.contig, first, stop))
        ids = torch.from_numpy(ids).to(self.settings.device)
        places, sums = [], []
        for begin, end in self._pieces(start, stop):
            # where a window goes on, its first input is the base before
            lead = min(begin % self.window, 1)
            nats, state = self._nats(ids[begin - lead - first : end - first], lead, state)
            cuts = self._by_block(begin, end)
            places += cuts
            widths = [right - left for left, right in cuts]
            sums += [part.sum(1) for part in nats.double().split(widths, dim=1)]
            advance(end - begin)
        self._add(places, torch.stack(sums, dim=1).cpu())
        self.progress.done = stop
        return state

    def _saved_state(self) -> Any:
        """The state of the last save on the device; empty at the start of a window."""
        state = self.model.initial_state(1)
        saved = [x.to(self.settings.device) for x in self.progress.state]
        return with_tensors(state, iter(saved)) if saved else state

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """What forward passes read, one after the other."""
        while start < stop:
            border = stop if self._batched else start - start % self.window + self.window
            end = min(start + self._piece, border, stop)
            yield start, end
            start = end

    def _by_block(self, start: int, end: int) -> list[tuple[int, int]]:
        """A piece cut at the borders of blocks."""
        block = self.settings.block
        inner = range(start - start % block + block, end, block)
        return list(zip([start, *inner], [*inner, end], strict=True))

    def _nats(self, ids: Tensor, lead: int, state: Any) -> tuple[Tensor, Any]:
        """Nats (2, bases) of a piece, and the state after it.

        Args:
            ids: (lead + bases,) of the piece, and of the base before it where a window goes on.
            lead: 1 there, 0 where a window begins.
            state: before the piece; not used where a window begins.
        """
        low = self.settings.precision != torch.float32
        with torch.autocast(self.settings.device.type, dtype=self.settings.precision, enabled=low):
            if self._batched:
                return self._windows(ids), state
            inputs, targets = next_base(ids[None])
            state = state if lead else self.model.initial_state(1)
            logits, state = self.model.step(inputs[:, lead:], state)
        return base_nll(logits, targets[:, lead:])[:, 0], state

    def _windows(self, ids: Tensor) -> Tensor:
        """Nats (2, bases) of whole windows in a batch, and of a shorter one at the contig's end."""
        whole = len(ids) - len(ids) % self.window
        nats = []
        for rows in (ids[:whole].view(-1, self.window), ids[None, whole:]):
            if rows.numel():
                inputs, targets = next_base(rows)
                nats.append(base_nll(self.model(inputs), targets).flatten(1))
        return torch.cat(nats, dim=1)

    def _add(self, places: list[tuple[int, int]], sums: Tensor) -> None:
        """Add sums (2, pieces) to their blocks.

        Raises:
            NotFinite: one that is no number.
        """
        for piece in (~sums.isfinite().all(0)).nonzero()[:, 0].tolist():
            start, end = places[piece]
            raise NotFinite(
                f"{self.name}: {Interval(self.contig, start, end)} in a pass over the contig: the "
                f"likelihood is {float(sums[:, piece].sum())}; check the weights, or compute with "
                "precision=float32"
            )
        blocks = torch.tensor([start // self.settings.block for start, _ in places])
        self.progress.sums.index_add_(1, blocks, sums)
