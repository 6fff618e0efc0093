"""In which order windows are seen, and how, as a function of (seed, epoch, index) alone."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

Sample = tuple[int, int]  # epoch, index of the window
StageSample = tuple[int, int, int]  # stage, epoch, index of the window


def strand_choice(seed: int, epoch: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Whether each sample is read as its reverse complement, with probability one half.

    A counter-based generator (the finaliser of SplitMix64): no state that a worker, a device or a
    resumed run could have at another point.

    Args:
        seed: of the run.
        epoch: (n,) int.
        index: (n,) int.

    Returns:
        (n,) bool.

    Source: Steele, Lea and Flood 2014, doi 10.1145/2660193.2660195.
    """
    word = np.full(len(index), seed, dtype=np.uint64)
    for part in (epoch, index):
        word = (word + np.asarray(part, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word ^= word >> np.uint64(31)
    return (word >> np.uint64(63)).astype(bool)


class StepBatches(Sampler[list[Sample]]):
    """Batches of samples for a whole run: epoch after epoch, each a permutation of its own.

    The run is one long list of samples; batch b of device r holds positions
    ((b * devices + r) * size + i). A batch may span two epochs, so no window is left out, and the
    list does not depend on how many devices or workers share it.

    Args:
        windows: number of windows of an epoch.
        seed: of the run.
        size: windows of a batch on one device.
        total: batches of the run.
        devices: devices that share the list.
        rank: number of this device.
    """

    def __init__(
        self, windows: int, *, seed: int, size: int, total: int, devices: int = 1, rank: int = 0
    ) -> None:
        self.windows, self.seed, self.size, self.total = windows, seed, size, total
        self.devices, self.rank = devices, rank
        self.start = 0

    def __len__(self) -> int:
        """Batches of the whole run, also when it continues in the middle."""
        return self.total

    def __iter__(self) -> Iterator[list[Sample]]:
        """Batches from self.start on."""
        epoch, order = -1, np.empty(0, dtype=np.int64)
        for batch in range(self.start, self.total):
            samples = []
            first = (batch * self.devices + self.rank) * self.size
            for position in range(first, first + self.size):
                now, place = divmod(position, self.windows)
                if now != epoch:
                    epoch, order = now, self.permutation(now)
                samples.append((now, int(order[place])))
            yield samples

    def permutation(self, epoch: int) -> np.ndarray:
        """The order of one epoch: (windows,) int64."""
        return np.random.default_rng([self.seed, epoch]).permutation(self.windows)


class StagedBatches(Sampler[list[StageSample]]):
    """Batches of a run whose windows change their length: the lists of its stages, one by one.

    Args:
        stages: the batches of each stage.
    """

    def __init__(self, stages: Sequence[StepBatches]) -> None:
        self.stages = stages
        self.start = 0

    def __len__(self) -> int:
        """Batches of the whole run, also when it continues in the middle."""
        return sum(map(len, self.stages))

    def __iter__(self) -> Iterator[list[StageSample]]:
        """Batches from self.start on."""
        before = 0
        for number, batches in enumerate(self.stages):
            batches.start = min(max(self.start - before, 0), batches.total)
            before += batches.total
            for samples in batches:
                yield [(number, *sample) for sample in samples]


def stage_seed(seed: int, stages_left: int) -> int:
    """Seed of a stage's order and strands: two stages of one length show different windows first.

    Args:
        seed: of the run, below 2^32.
        stages_left: stages that follow; the last one has the seed of a run without stages.
    """
    return seed + (stages_left << 32)
