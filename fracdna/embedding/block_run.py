"""All batches of a run, by one process or one for each device; finished ones are kept."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from fracdna.embedding.rows import Rows
from fracdna.embedding.states import Embedder
from fracdna.model.checkpoint import load_model
from fracdna.model.heads import LanguageModel
from fracdna.resumable import Resumable, open_values
from fracdna_prep.errors import Unfinished
from fracdna_prep.progress import progress_bar


@dataclass(frozen=True)
class Workplaces:
    """Where batches are computed.

    Attributes:
        checkpoint: of the model, for processes that open it themselves.
        devices: one for each process.
    """

    checkpoint: str
    devices: Sequence[torch.device]


class BlockRun:
    """The vectors of all rows, gone on with where an earlier call was interrupted.

    Batches do not depend on who computes them, so that the numbers of one process are those of
    several, and every row is computed once.

    Args:
        model: on the first of the devices.
        rows: what is read.
        places: where.
        folder: for the values while they are computed.
        identity: plain values, all that the vectors depend on; a folder of another run is not used.

    Attributes:
        resumed: rows that an interrupted run has left.

    Raises:
        InputError: reads that are too long for the model, or a folder that cannot be written.
        Unfinished: no space for the values.
    """

    def __init__(
        self,
        model: LanguageModel,
        rows: Rows,
        places: Workplaces,
        folder: Path,
        identity: Mapping[str, Any],
    ) -> None:
        self._model, self._rows, self._places = model, rows, places
        self._batches = Embedder(model, rows.options).plan(rows.reads)
        self._kept = Resumable(
            folder,
            identity,
            rows.shape(model.backbone.d_model),
            np.float32,
            len(self._batches),
            lambda number: map(rows.place, self._batches[number]),
        )
        self.resumed = sum(len(self._batches[number]) for number in self._kept.finished)

    @property
    def positions(self) -> int:
        """Bases that the passes still to be computed read."""
        return sum(self._positions(number) for number in self._kept.left)

    def run(self, *, progress: bool) -> np.ndarray:
        """Compute what is left.

        Args:
            progress: show bases done, their rate and the time left.

        Returns:
            (vectors, layers, width) float32, mapped; NaN for rows that are not read.

        Raises:
            NotFinite: a vector holds NaN or infinity; names the first affected row.
            Unfinished: a process was killed; finished batches are kept.
        """
        compute = self._alone if len(self._places.devices) == 1 else self._together
        with (
            self._kept.kept_when_interrupted(),
            progress_bar(self.positions, "embed", progress) as bar,
            contextlib.closing(compute(self._kept.left, bar)) as found,
        ):
            for number, affected in found:
                if affected is not None:
                    raise self._rows.not_finite(self._first_affected(affected))
                self._kept.finish(number)
        return self._kept.values

    def forget(self) -> None:
        """Remove the folder: the results are written, or will never be."""
        self._kept.remove()

    def _positions(self, number: int) -> int:
        """Bases that the passes of a batch read."""
        reads, strand = self._rows.reads, self._rows.options.strand
        return sum(reads[read].positions(strand) for read in self._batches[number])

    def _alone(self, left: Sequence[int], bar: tqdm) -> Generator[tuple[int, int | None]]:
        """Each batch, computed here, and its first read that is not finite."""
        rows, values = self._rows, self._kept.values
        embedder = Embedder(self._model, rows.options, bar.update)
        for number in left:
            yield number, _compute(embedder, rows, self._batches[number], values)

    def _together(self, left: Sequence[int], bar: tqdm) -> Generator[tuple[int, int | None]]:
        """The same by a process for each device, in the order in which batches end."""
        context = multiprocessing.get_context("spawn")
        count, others = len(self._places.devices), set(multiprocessing.active_children())
        devices = context.SimpleQueue()
        for device in self._places.devices:
            devices.put(str(device))
        threads = max(1, torch.get_num_threads() // count)
        place = self._kept.values_path, self._kept.values.shape
        given = devices, self._places.checkpoint, self._rows, place, threads
        pool = concurrent.futures.ProcessPoolExecutor(count, context, _begin, given)
        try:
            waiting = {pool.submit(_compute_here, self._batches[n]): n for n in left}
            for future in concurrent.futures.as_completed(waiting):
                number = waiting[future]
                bar.update(self._positions(number))
                yield number, future.result()
        except concurrent.futures.BrokenExecutor:
            raise Unfinished(
                f"a process ended before its batch was finished, perhaps for lack of memory; "
                f"{self._kept.describe()}: give the same command again, with fewer devices= or a "
                "smaller batch_bases= where memory is short"
            ) from None
        finally:
            # whoever was interrupted does not wait for passes under way
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()

    def _first_affected(self, known: int) -> int:
        """The first read that is not finite, also of those that still wait."""
        done = np.zeros(len(self._rows.reads), dtype=bool)
        for number in self._kept.finished:
            done[self._batches[number]] = True
        return Embedder(self._model, self._rows.options).first_affected(
            self._rows.reads, done, known
        )


@dataclass(frozen=True)
class _Worker:
    """What a process holds between batches."""

    embedder: Embedder
    rows: Rows
    values: np.ndarray


_workers: list[_Worker] = []


def _begin(
    devices: SimpleQueue,
    checkpoint: str,
    rows: Rows,
    place: tuple[Path, tuple[int, int, int]],
    threads: int,
) -> None:
    """Open the model in a process of its own."""
    # Ctrl-C reaches every process of a terminal; the first one ends the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    torch.set_num_threads(threads)
    model = load_model(checkpoint, devices.get())
    _workers.append(_Worker(Embedder(model, rows.options), rows, open_values(*place, np.float32)))


def _end_with_the_first() -> None:
    """A first process that was killed cannot end the others: they would go on without it."""
    first = multiprocessing.parent_process()
    if first is not None:
        first.join()
        os._exit(1)


def _compute_here(batch: np.ndarray) -> int | None:
    """A batch by the model of this process."""
    return _compute(_workers[0].embedder, _workers[0].rows, batch, _workers[0].values)


def _compute(embedder: Embedder, rows: Rows, batch: np.ndarray, values: np.ndarray) -> int | None:
    """Fill in the vectors of a batch; the first of its reads that is not finite."""
    targets = [values[rows.place(read)] for read in batch]
    return embedder.fill_batch(rows.reads, batch, targets)
