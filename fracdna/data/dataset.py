"""Windows of a prepared genome as tensors."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fracdna.data.order import Sample, StageSample, strand_choice
from fracdna_prep.genome import GenomeStore
from fracdna_prep.tables import WindowTable

Batch = dict[str, Tensor]


class WindowDataset(Dataset[Batch]):
    """Batches of windows by (epoch, index); the index counts the usable windows of one split.

    Args:
        store: the genome.
        table: windows on it.
        split: "train", "valid" or "test".
        seed: of the strand choices.
        reverse_complement: read half of the samples from the other strand.
        soft_mask: give the soft mask beside the ids.
    """

    def __init__(
        self,
        store: GenomeStore,
        table: WindowTable,
        split: str,
        *,
        seed: int = 0,
        reverse_complement: bool = False,
        soft_mask: bool = False,
    ) -> None:
        self.store, self.table, self.seed = store, table, seed
        self.rows = table.usable(split)
        self.reverse_complement, self.soft_mask = reverse_complement, soft_mask

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, sample: Sample) -> Batch:
        """A batch of one."""
        return self.__getitems__([sample])

    def __getitems__(self, samples: Sequence[Sample]) -> Batch:
        """The windows of a batch in one call.

        Returns:
            ids (batch, length) uint8 and, if asked for, soft_mask (batch, length) bool.
        """
        epochs, indices = np.array(samples, dtype=np.int64).reshape(-1, 2).T
        if self.reverse_complement:
            reverse = strand_choice(self.seed, epochs, indices)
        else:
            reverse = np.zeros(len(indices), dtype=bool)
        ids = np.empty((len(indices), self.table.length), dtype=np.uint8)
        mask = np.zeros(ids.shape, dtype=bool)
        for place, (index, flip) in enumerate(zip(indices, reverse, strict=True)):
            row = int(self.rows[index])
            left, right = self.table.pads(row)
            interval = self.table.interval(row)
            ids[place] = self.store.fetch_window(interval, left, right, reverse=bool(flip))
            if self.soft_mask:
                known = self.store.soft_mask(interval)
                first = right if flip != (interval.strand == "-") else left
                mask[place, first : first + len(known)] = known[::-1] if flip else known
        batch = {"ids": torch.from_numpy(ids)}
        return batch | {"soft_mask": torch.from_numpy(mask)} if self.soft_mask else batch


class StagedWindows(Dataset[Batch]):
    """The windows of a run whose stages have lengths of their own.

    Args:
        stages: the windows of each stage.
    """

    def __init__(self, stages: Sequence[WindowDataset]) -> None:
        self.stages = stages

    def __len__(self) -> int:
        return sum(map(len, self.stages))

    def __getitem__(self, sample: StageSample) -> Batch:
        """A batch of one."""
        return self.__getitems__([sample])

    def __getitems__(self, samples: Sequence[StageSample]) -> Batch:
        """The windows of a batch, which are all of one stage; see WindowDataset."""
        return self.stages[samples[0][0]].__getitems__([sample[1:] for sample in samples])


def as_is(batch: Batch) -> Batch:
    """The dataset makes whole batches: nothing is left to collate."""
    return batch
