"""Likelihood of the same bases under windows of one length: for networks and for count models."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from tqdm import tqdm

from fracdna.evaluation.markov import MarkovCounts, MarkovModel
from fracdna.evaluation.network import base_nats
from fracdna.evaluation.tally import Cell, Reading, Tally
from fracdna.model.heads import LanguageModel
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA


def score_network(
    model: LanguageModel,
    reading: Reading,
    *,
    batch_bases: int,
    precision: torch.dtype = torch.float32,
    progress: tqdm | None = None,
) -> Cell:
    """Score what is read of every region in windows, the state empty at each window's start.

    Args:
        model: in evaluation mode, on its device.
        reading: regions, length of the windows, strand.
        batch_bases: most bases of one forward pass, as in base_nats.
        precision: compute type; the softmax and all sums stay exact.
        progress: a bar to move on by bases.

    Raises:
        NotFinite: a likelihood that is no number, with the region.
    """
    tally = Tally(reading, rows=2)
    windows = _windows(reading)
    for nats in base_nats(model, windows, batch_bases=batch_bases, precision=precision):
        tally.add(nats)
        if progress is not None:
            progress.update(nats.shape[1])
    return tally.cell(0, 1)


def score_counts(
    model: MarkovModel, reading: Reading, *, progress: tqdm | None = None
) -> list[Cell]:
    """The same for count models: one result per order, 0 first."""
    orders = range(model.max_order + 1)
    tally = Tally(reading, rows=len(orders))
    for windows in _windows(reading):
        for nats in _joined_nats(model, windows):
            tally.add(nats)
        if progress is not None:
            progress.update(windows.size)
    # no row of a count model is anything but a base
    return [tally.cell(order, order) for order in orders]


def _joined_nats(model: MarkovModel, windows: np.ndarray) -> Iterator[np.ndarray]:
    """(orders, bases) of windows in turn; joined by BOS they take one call, not one each."""
    joined = np.pad(windows, ((0, 0), (1, 0)), constant_values=DNA.bos).ravel()
    position = 0
    for nats in model.pieces(joined):
        places = np.arange(position, position + nats.shape[1])
        position += nats.shape[1]
        yield nats[:, places % (windows.shape[1] + 1) > 0]


def _windows(reading: Reading) -> Iterator[np.ndarray]:
    """The windows of each region in turn, (windows, length) uint8."""
    for region in range(len(reading.regions.intervals)):
        yield reading.ids(region).reshape(-1, reading.length)


def count_training_bases(
    store: GenomeStore, intervals: Iterable[Interval], *, progress: tqdm | None = None
) -> MarkovCounts:
    """Counts of the training split, both strands; contexts end where an interval ends."""
    counts = MarkovCounts()
    for interval in intervals:
        counts.update(store.fetch(interval), progress=progress)
    return counts
