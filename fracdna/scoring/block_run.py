"""All sites of a run, scored block by block; what is finished outlives an interruption."""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fracdna.model.heads import LanguageModel
from fracdna.scoring.alleles import Alleles
from fracdna.scoring.journal import Journal
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
        path: of the file that keeps finished blocks.
        identity: plain values, all that the scores depend on; a file of another run is not used.

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
        path: Path,
        identity: Mapping[str, Any],
    ) -> None:
        self.sites = plan_sites(alleles, store.contigs, options)
        self._rows, self._path = len(alleles), path
        self._scorer = SiteScorer(model, store, options)
        positions = _PASSES * options.batch_bases
        self._blocks = blocks_of(self.sites, positions, split=self._scorer.split)
        rows = [len(rows_of(block)) for block in self._blocks]
        key = hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).digest()
        self._journal = Journal(path, key, [(count, WIDTH) for count in rows])
        self.finished = sum(rows[: len(self._journal.blocks)])
        self.computed = sum(rows) - self.finished

    def run(self, *, progress: bool) -> np.ndarray:
        """Score what is left.

        Args:
            progress: show positions done, their rate and the time left.

        Returns:
            (alleles, len(Values)) float64, NaN for those that are not scored.

        Raises:
            NotFinite: as SiteScorer.values; blocks before stay finished.
        """
        left = self._blocks[len(self._journal.blocks) :]
        total = sum(site.positions(split=self._scorer.split) for block in left for site in block)
        try:
            with progress_bar(total, "score", progress) as bar:
                self._scorer.advance = bar.update
                for block in left:
                    self._journal.append(self._scorer.values(block))
        except KeyboardInterrupt:
            done, of = len(self._journal.blocks), len(self._blocks)
            print(
                f"{done} of {of} blocks are finished and kept in {self._path}: give the same "
                "command again to go on",
                file=sys.stderr,
            )
            raise
        values = np.full((self._rows, WIDTH), np.nan)
        for block, found in zip(self._blocks, self._journal.blocks, strict=True):
            values[rows_of(block)] = found
        return values

    def forget(self) -> None:
        """Remove the file of finished blocks: the results are written."""
        self._journal.remove()
