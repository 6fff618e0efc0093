"""The windows of a variant: equally long with REF and with ALT, cut once on the reference strand.

A window is `left` bases, the variant, `right` bases. Where ALT is shorter than REF its window is
refilled from the genome at the right end, where it is longer its window is cut there. At an end of
the contig both windows are shorter.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fracdna.scoring.alleles import Alleles
from fracdna.scoring.options import ScoringOptions
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA


@dataclass(frozen=True, slots=True)
class Site:
    """ALT alleles of one record whose windows are equally long, so that they share that of REF.

    Attributes:
        rows: of the alleles.
        contig: as the genome names it.
        start: first base of the windows.
        length: bases of each window.
        offset: place of the variant in the windows.
        ref_length: bases of REF.
        alts: the alleles.
        clipped: whether an end of the contig made the windows shorter.
    """

    rows: tuple[int, ...]
    contig: str
    start: int
    length: int
    offset: int
    ref_length: int
    alts: tuple[str, ...]
    clipped: bool

    @property
    def right(self) -> int:
        """Bases behind REF in its window; negative where the window ends inside REF."""
        return self.length - self.offset - self.ref_length

    def read_once(self, *, reverse: bool) -> int:
        """Bases in reading direction before which all windows agree, whatever follows an indel."""
        if not reverse:
            return self.offset
        return self.right if all(len(alt) == self.ref_length for alt in self.alts) else 0

    def positions(self, *, split: bool, windows: int | None = None) -> int:
        """What both strands take: positions of passes, BOS included.

        Args:
            split: whether what windows share is read once.
            windows: how many of them are distinct; None: REF and all alleles.
        """
        windows = 1 + len(self.alts) if windows is None else windows
        shared = [self.read_once(reverse=reverse) * split for reverse in (False, True)]
        return sum(once + windows * (1 + self.length - once) for once in shared)


def plan_sites(alleles: Alleles, contigs: Mapping[str, int], options: ScoringOptions) -> list[Site]:
    """Where the windows of all rows lie that can be scored.

    Args:
        alleles: those with status "ok" are placed.
        contigs: lengths of the genome's contigs.
        options: reach of the windows.

    Returns:
        in the order of the rows, but for alleles of one record with windows of several lengths.
    """
    sites: list[Site] = []
    for index, rows in _by_record(alleles):
        record = alleles.records[index]
        contig = alleles.contigs[record.contig]
        start = max(0, record.position - options.left)
        offset, ref_length = record.position - start, len(record.ref)
        asked = options.left + ref_length + options.right
        by_length: dict[int, list[int]] = {}
        for row in rows:
            # both windows end inside the contig: that of REF, and that of ALT with its refill
            room = contigs[contig] - start + min(0, len(alleles.alt(row)) - ref_length)
            by_length.setdefault(min(offset + ref_length + options.right, room), []).append(row)
        for length, together in by_length.items():
            alts = tuple(alleles.alt(row) for row in together)
            sites.append(
                Site(
                    tuple(together), contig, start, length, offset, ref_length, alts,
                    clipped=length < asked,
                )
            )  # fmt: skip
    return sites


def site_windows(store: GenomeStore, site: Site) -> tuple[np.ndarray, np.ndarray]:
    """Ids on the reference strand.

    Returns:
        (length,) with REF, and (alleles, length) with each ALT; uint8, without BOS.
    """
    refill = max(0, *(site.ref_length - len(alt) for alt in site.alts))
    end = site.start + site.length + refill
    genome = store.fetch(Interval(site.contig, site.start, end))
    before, behind = genome[: site.offset], genome[site.offset + site.ref_length :]
    alts = [np.concatenate([before, DNA.encode(alt), behind])[: site.length] for alt in site.alts]
    return genome[: site.length], np.stack(alts)


def blocks_of(sites: Sequence[Site], positions: int, *, split: bool) -> list[Sequence[Site]]:
    """Consecutive sites that take at least so many positions together, but for the last ones."""
    blocks, first, taken = [], 0, 0
    for index, site in enumerate(sites):
        taken += site.positions(split=split)
        if taken >= positions or index == len(sites) - 1:
            blocks.append(sites[first : index + 1])
            first, taken = index + 1, 0
    return blocks


def rows_of(sites: Iterable[Site]) -> np.ndarray:
    """(rows,) int64 of all alleles of some sites, in their order."""
    return np.array([row for site in sites for row in site.rows], dtype=np.int64)


def _by_record(alleles: Alleles) -> Iterator[tuple[int, list[int]]]:
    """Rows that can be scored, by record."""
    rows: dict[int, list[int]] = {}
    for row, (index, status) in enumerate(zip(alleles.record, alleles.statuses, strict=True)):
        if status == "ok":
            rows.setdefault(int(index), []).append(row)
    yield from rows.items()
