"""REF alleles against the genome, also one base before and behind their position."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fracdna.scoring.variants import Record
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA
from fracdna_prep.wording import counted

OFFSETS = (-1, 0, 1)
# so many mismatches, and so large a share of them, are a wrong file and not some wrong rows
_MANY, _SHARE = 10, 0.1
# a shift explains a file when it makes that share match
_EXPLAINED = 0.9


@dataclass(frozen=True)
class ReferenceCheck:
    """How the REF alleles of some records match a genome.

    Attributes:
        checked: records whose REF is a sequence inside its contig.
        matched: how many of them match at POS - 1, POS and POS + 1.
        problems: "mismatch", "outside" or "not_dna" by index of record.
        genome: the letters of the genome in the place of REF, for each mismatch.
    """

    checked: int
    matched: Mapping[int, int]
    problems: Mapping[int, str]
    genome: Mapping[int, str]

    @property
    def mismatches(self) -> int:
        """Checked records whose REF is not what the genome has."""
        return self.checked - self.matched[0]

    @property
    def is_another_genome(self) -> bool:
        """Whether so much differs or lies outside that the file as a whole must be wrong."""
        wrong = self.mismatches + self.outside
        return wrong >= _MANY and wrong > _SHARE * (self.checked + self.outside)

    @property
    def outside(self) -> int:
        """Records whose REF is not inside its contig."""
        return sum(problem == "outside" for problem in self.problems.values())

    @property
    def shift(self) -> int | None:
        """The offset at which REF alleles match when they do not at POS; None: neither does."""
        enough = _EXPLAINED * self.checked
        better = [offset for offset in (-1, 1) if self.matched[offset] >= enough]
        explained = self.matched[0] < enough and len(better) == 1
        return better[0] if explained else None

    def describe(self) -> str:
        """The figures in one line, and what they look like where anything is wrong."""
        return f"{self._compared()}{self._beyond()}{self._looks()}"

    def _compared(self) -> str:
        if not self.checked:
            return "no REF allele could be compared with the genome"
        if not self.mismatches:
            return f"all {self.checked:,} REF alleles match the genome"
        at = {offset: self._share(offset) for offset in OFFSETS}
        return (
            f"of {counted(self.checked, 'REF allele')}, {self.mismatches:,} differ from the "
            f"genome: {at[0]} match at POS, {at[-1]} at POS - 1, {at[1]} at POS + 1"
        )

    def _beyond(self) -> str:
        outside = counted(self.outside, "record")
        return f"; {outside} outside the contig" if self.outside else ""

    def _looks(self) -> str:
        if self.shift is not None:
            low = "too small, as where it counts from 0" if self.shift == 1 else "too large"
            return f"; it looks shifted by one: every POS is one {low}"
        if self.is_another_genome:
            return "; neither looks right: is the VCF of another assembly?"
        return ""

    def _share(self, offset: int) -> str:
        matched = self.matched[offset]
        return f"{matched:,} ({matched / self.checked:.1%})"


def check_reference(
    records: Sequence[Record], contigs: Mapping[str, str], store: GenomeStore
) -> ReferenceCheck:
    """Compares REF alleles with the genome; lower case counts as upper case.

    A letter that is not one base matches only what is no base in the genome either.

    Args:
        records: in any order; those of contigs that the genome lacks are left out.
        contigs: the genome's name for each of their contigs.
        store: the genome.
    """
    lengths, matched = store.contigs, dict.fromkeys(OFFSETS, 0)
    checked, problems, genome = 0, {}, {}
    for index, record in enumerate(records):
        if record.contig not in contigs:
            continue
        contig = contigs[record.contig]
        try:
            ref = DNA.encode(record.ref)
        except InputError:
            problems[index] = "not_dna"
            continue
        if not 0 <= record.position <= lengths[contig] - len(ref):
            problems[index] = "outside"
            continue
        checked += 1
        around = _around(store, contig, record.position, len(ref), lengths[contig])
        for offset in OFFSETS:
            there = around[1 + offset : 1 + offset + len(ref)]
            matched[offset] += bool(np.array_equal(there, ref))
        if not np.array_equal(around[1:-1], ref):
            problems[index] = "mismatch"
            genome[index] = DNA.decode(around[1:-1])
    return ReferenceCheck(checked, matched, problems, genome)


def _around(store: GenomeStore, contig: str, position: int, width: int, length: int) -> np.ndarray:
    """(width + 2,) ids with one base on either side, PAD where the contig ends."""
    start, end = max(position - 1, 0), min(position + width + 1, length)
    missing = start - position + 1, position + width + 1 - end
    return store.fetch_window(Interval(contig, start, end), *missing)
