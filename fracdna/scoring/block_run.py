"""All sites of a run, scored block by block; what is finished outlives an interruption."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fracdna.model.heads import LanguageModel
from fracdna.resumable import Resumable
from fracdna.scoring.alleles import Alleles
from fracdna.scoring.options import ScoringOptions
from fracdna.scoring.scores import WIDTH, SiteScorer
from fracdna.scoring.windows import blocks_of, plan_sites, rows_of
from fracdna_prep.genome import GenomeStore
from fracdna_prep.progress import progress_bar

# passes between two saves: what an interruption costs
_PASSES = 16


class BlockRun:
    """The values of all alleles that can be scored.

    Args:
        model: on the device to be used.
        store: the genome.
        alleles: those with status "ok" are scored.
        options: windows and limits.
        folder: for the values while they are computed.
        identity: plain values, all that the scores depend on; a folder of another run is not used.

    Attributes:
        sites: what is read.
        finished: rows that an interrupted run has left.
        computed: rows that run() has computed.
    """

    def __init__(
        self,
        model: LanguageModel,
        store: GenomeStore,
        alleles: Alleles,
        options: ScoringOptions,
        folder: Path,
        identity: Mapping[str, Any],
    ) -> None:
        self.sites = plan_sites(alleles, store.contigs, options)
        self._scorer = SiteScorer(model, store, options)
        positions = _PASSES * options.batch_bases
        self._blocks = blocks_of(self.sites, positions, split=self._scorer.split)
        self._rows = [rows_of(block) for block in self._blocks]
        self._kept = Resumable(
            folder,
            identity,
            (len(alleles), WIDTH),
            np.float64,
            len(self._blocks),
            lambda number: [self._rows[number]],
        )
        self.finished = sum(len(self._rows[number]) for number in self._kept.finished)
        self.computed = sum(map(len, self._rows)) - self.finished

    def run(self, *, progress: bool) -> np.ndarray:
        """Score what is left.

        Args:
            progress: show positions done, their rate and the time left.

        Returns:
            (alleles, len(Values)) float64, NaN for those that are not scored.

        Raises:
            NotFinite: as SiteScorer.values; blocks before stay finished.
        """
        left, split = self._kept.left, self._scorer.split
        total = sum(site.positions(split=split) for number in left for site in self._blocks[number])
        with (
            self._kept.kept_when_interrupted(),
            progress_bar(total, "score", progress) as bar,
        ):
            self._scorer.advance = bar.update
            for number in left:
                self._kept.values[self._rows[number]] = self._scorer.values(self._blocks[number])
                self._kept.finish(number)
        return np.array(self._kept.values)

    def forget(self) -> None:
        """Remove the folder: the results are written."""
        self._kept.remove()
