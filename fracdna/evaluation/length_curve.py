"""Likelihood of the same bases under windows of one length: for networks and for count models."""

import hashlib
from collections.abc import Iterable
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
        bucket_nats: (buckets,) float64, by position in the window; bucket b holds the positions
            from 2^b - 1 to 2^(b+1) - 2, counted from 0.
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
    """Bucket of each position of a window: floor(log2(position + 1)), (length,) int64."""
    return np.floor(np.log2(np.arange(1, length + 1))).astype(np.int64)


class _Tally:
    """Sums of one model at one length while they grow."""

    def __init__(self, regions: Regions, length: int) -> None:
        count = len(regions.intervals)
        self.regions, self.length = regions, length
        self.nats, self.nats_acgt = np.zeros((2, count))
        self.tokens = np.zeros(count, dtype=np.int64)
        self.skipped = {"n": 0, "pad": 0}
        self.digest = hashlib.sha256()
        self.buckets = position_buckets(length)
        self.bucket_nats = np.zeros(self.buckets[-1] + 1)
        self.bucket_tokens = np.zeros(self.buckets[-1] + 1, dtype=np.int64)

    def add(self, region: int, ids: np.ndarray, counted: np.ndarray) -> None:
        """Count the targets of one region, (windows, length)."""
        interval = self.regions.intervals[region]
        place = f"{interval.chromosome}\t{interval.start}\t{interval.end}\n"
        self.digest.update(place.encode() + np.packbits(counted.ravel()).tobytes())
        self.tokens[region] += counted.sum()
        self.skipped["pad"] += int((ids == DNA.pad).sum())
        self.skipped["n"] += int((~counted & (ids != DNA.pad)).sum())
        by_position = counted.sum(0)
        self.bucket_tokens += np.bincount(self.buckets, by_position).astype(np.int64)

    def result(self) -> RegionScores:
        """The sums so far."""
        return RegionScores(
            self.nats, self.nats_acgt, self.tokens, self.skipped["n"], self.skipped["pad"],
            self.digest.hexdigest(), self.bucket_nats, self.bucket_tokens,
        )  # fmt: skip


def read_windows(store: GenomeStore, interval: Interval, length: int) -> np.ndarray:
    """A region cut in consecutive windows, (windows, length) uint8 ids."""
    return store.fetch(interval).reshape(-1, length)


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
        FloatingPointError: a likelihood that is no number, with the region.
    """
    device = model.backbone.embedding.weight.device
    tally = _Tally(regions, length)
    size = max(batch_bases // length, 1)
    buckets = torch.from_numpy(tally.buckets).to(device)
    for region, interval in enumerate(regions.intervals):
        windows = read_windows(store, interval, length)
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        by_bucket = torch.zeros(len(tally.bucket_nats), dtype=torch.float64, device=device)
        counted = []
        for ids in torch.from_numpy(windows).split(size):
            inputs, targets = next_base(ids.to(device))
            low = precision != torch.float32
            with torch.autocast(device.type, dtype=precision, enabled=low):
                logits = model(inputs)
            nll = token_nll(logits, targets).double()
            sums += torch.stack([nll.sum(), _nll_acgt(logits, targets).double().sum()])
            by_bucket.index_add_(0, buckets, nll.sum(0))
            counted.append((targets != IGNORED).cpu().numpy())
        tally.nats[region], tally.nats_acgt[region] = sums.cpu().numpy()
        tally.bucket_nats += by_bucket.cpu().numpy()
        tally.add(region, windows, np.concatenate(counted))
        if not np.isfinite(tally.nats[region]):
            raise FloatingPointError(f"likelihood of region {interval} is {tally.nats[region]}")
        if progress is not None:
            progress.update(interval.width)
    return tally.result()


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
    tallies = [_Tally(regions, length) for _ in range(model.max_order + 1)]
    bos = np.array([DNA.bos], dtype=np.uint8)
    for region, interval in enumerate(regions.intervals):
        windows = read_windows(store, interval, length)
        counted = np.isin(windows, DNA.bases)
        joined = np.concatenate([np.concatenate([bos, window]) for window in windows])
        nats, _ = model.sums(joined)
        for tally, total in zip(tallies, nats, strict=True):
            tally.nats[region] = tally.nats_acgt[region] = total
            tally.add(region, windows, counted)
        if progress is not None:
            progress.update(interval.width)
    return [tally.result() for tally in tallies]


def count_training_bases(
    store: GenomeStore, intervals: Iterable[Interval], *, progress: tqdm | None = None
) -> MarkovCounts:
    """Counts of the training split, both strands; contexts end where an interval ends."""
    counts = MarkovCounts()
    for interval in intervals:
        counts.update(store.fetch(interval), progress=progress)
    return counts
