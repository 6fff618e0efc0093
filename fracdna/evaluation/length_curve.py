"""Likelihood of the same bases under windows of one length: for networks and for count models."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from fracdna.data.objectives import IGNORED, next_base
from fracdna.evaluation.likelihood import token_nll
from fracdna.evaluation.markov import MarkovCounts, MarkovModel
from fracdna.evaluation.regions import Regions
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA


@dataclass
class RegionScores:
    """What one model made of every region at one length.

    Attributes:
        nats: (regions,) float64, summed over the counted bases.
        nats_acgt: (regions,) float64, the same with the softmax over A, C, G and T alone.
        tokens: (regions,) int64 counted bases.
        n_skipped: N among the targets.
        pad_skipped: PAD among the targets.
        scored: SHA-256 over coordinates and counted positions: equal at every length.
        bucket_nats: (buckets,) float64 by bases of context, NaN for count models; bucket 0 has
            none, bucket b those with 2^(b-1) to 2^b - 1 bases before them.
        bucket_tokens: (buckets,) int64.
    """

    nats: np.ndarray
    nats_acgt: np.ndarray
    tokens: np.ndarray
    n_skipped: int
    pad_skipped: int
    scored: str
    bucket_nats: np.ndarray
    bucket_tokens: np.ndarray


def position_buckets(length: int) -> np.ndarray:
    """Bucket of each position of a window by the bases before it: 0 has none, b at least 2^(b-1).

    Returns:
        (length,) int64.
    """
    edges = 2 ** np.arange(int(length - 1).bit_length())  # 1, 2, 4, ..
    return np.searchsorted(edges, np.arange(length), side="right")


Scores = dict[str, dict[int, RegionScores]]  # by model, by length


class _Tally:
    """What is counted, whatever the model; the sums of nats come to it when they are known."""

    def __init__(self, regions: Regions, length: int) -> None:
        self.regions, self.length = regions, length
        self.tokens = np.zeros(len(regions.intervals), dtype=np.int64)
        self.n_skipped = self.pad_skipped = 0
        self.digest = hashlib.sha256()
        self.buckets = position_buckets(length)
        self.bucket_tokens = np.zeros(self.buckets[-1] + 1, dtype=np.int64)

    def read(self, store: GenomeStore) -> Iterator[np.ndarray]:
        """The windows of each region in turn, (windows, length) uint8, counted on the way."""
        for region, interval in enumerate(self.regions.intervals):
            ids = store.fetch(interval).reshape(-1, self.length)
            counted = np.isin(ids, DNA.bases)
            place = f"{interval.chromosome}\t{interval.start}\t{interval.end}\n"
            self.digest.update(place.encode() + np.packbits(counted.ravel()).tobytes())
            self.tokens[region] = counted.sum()
            pads = int((ids == DNA.pad).sum())
            self.pad_skipped += pads
            self.n_skipped += int((~counted).sum()) - pads
            by_bucket = np.bincount(self.buckets, counted.sum(0))
            self.bucket_tokens += by_bucket.astype(np.int64)
            yield ids

    def result(
        self, nats: np.ndarray, nats_acgt: np.ndarray, bucket_nats: np.ndarray
    ) -> RegionScores:
        """Everything together.

        Raises:
            NotFinite: nats that are no number, with the region.
        """
        for region in np.flatnonzero(~np.isfinite(nats)):
            interval = self.regions.intervals[region]
            raise NotFinite(
                f"region {interval} at length {self.length}: the likelihood is {nats[region]}; "
                "check the weights, or compute with precision=float32",
                int(region),
            )
        return RegionScores(
            nats=nats,
            nats_acgt=nats_acgt,
            tokens=self.tokens,
            n_skipped=self.n_skipped,
            pad_skipped=self.pad_skipped,
            scored=self.digest.hexdigest(),
            bucket_nats=bucket_nats,
            bucket_tokens=self.bucket_tokens,
        )


@torch.inference_mode()
def score_network(
    model: LanguageModel,
    store: GenomeStore,
    regions: Regions,
    length: int,
    *,
    batch_bases: int,
    precision: torch.dtype = torch.float32,
    progress: tqdm | None = None,
) -> RegionScores:
    """Score every region in windows of one length, the state empty at each window's start.

    Args:
        model: in evaluation mode, on its device.
        store: the genome.
        regions: what to score.
        length: divides the regions' width.
        batch_bases: most bases of one forward pass (at least one window).
        precision: compute type; the softmax and all sums stay exact.
        progress: a bar to move on by bases.

    Raises:
        NotFinite: a likelihood that is no number, with the region.
    """
    device = model.backbone.embedding.weight.device
    tally = _Tally(regions, length)
    position_nats = torch.zeros(length, dtype=torch.float64, device=device)
    window_nats = []
    for ids in _batches(tally.read(store), max(batch_bases // length, 1)):
        inputs, targets = next_base(torch.from_numpy(ids).to(device))
        low = precision != torch.float32
        with torch.autocast(device.type, dtype=precision, enabled=low):
            logits = model(inputs)
        nll = token_nll(logits, targets).double()
        acgt = _nll_acgt(logits, targets).double()
        window_nats.append(torch.stack([nll.sum(1), acgt.sum(1)]))
        position_nats += nll.sum(0)
        if progress is not None:
            progress.update(ids.size)
    # read once at the end: a look at every batch would make the device wait
    windows = torch.cat(window_nats, dim=1).cpu().numpy()
    nats, nats_acgt = windows.reshape(2, len(regions.intervals), -1).sum(-1)
    bucket_nats = np.bincount(tally.buckets, position_nats.cpu().numpy())
    return tally.result(nats, nats_acgt, bucket_nats)


def _batches(windows: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Windows of all regions in batches of one size, the last one smaller."""
    waiting: list[np.ndarray] = []
    for ids in windows:
        waiting += list(ids)
        while len(waiting) >= size:
            yield np.stack(waiting[:size])
            waiting = waiting[size:]
    if waiting:
        yield np.stack(waiting)


def _nll_acgt(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats with the softmax renormalised over the four bases."""
    first = min(DNA.bases)
    kept = torch.where(targets == IGNORED, IGNORED, targets - first)
    return token_nll(logits[..., first : max(DNA.bases) + 1], kept)


def score_counts(
    model: MarkovModel,
    store: GenomeStore,
    regions: Regions,
    length: int,
    *,
    progress: tqdm | None = None,
) -> list[RegionScores]:
    """The same for count models: one result per order, 0 first."""
    tally = _Tally(regions, length)
    bos = np.array([DNA.bos], dtype=np.uint8)
    nats = []
    for windows in tally.read(store):
        joined = np.concatenate([np.concatenate([bos, window]) for window in windows])
        nats.append(model.sums(joined)[0])
        if progress is not None:
            progress.update(windows.size)
    # no row of a count model is anything but a base, and by position nothing is kept
    unknown = np.full(len(tally.bucket_tokens), np.nan)
    return [tally.result(order, order, unknown) for order in np.stack(nats, axis=1)]


def count_training_bases(
    store: GenomeStore, intervals: Iterable[Interval], *, progress: tqdm | None = None
) -> MarkovCounts:
    """Counts of the training split, both strands; contexts end where an interval ends."""
    counts = MarkovCounts()
    for interval in intervals:
        counts.update(store.fetch(interval), progress=progress)
    return counts
