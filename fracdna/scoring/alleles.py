"""One row for each ALT allele: of what kind it is, and whether it can be scored."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fracdna.scoring.reference import ReferenceCheck
from fracdna.scoring.variants import Record
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

# what becomes of a row, and what that means
STATUSES = {
    "ok": "scored",
    "clipped": "scored with shorter windows: the contig ends too early",
    "same": "ALT equals REF: 0 without a pass of the model",
    "mismatch": "not scored: REF differs from the genome",
    "symbolic": "not scored: a symbolic allele such as <DEL>",
    "breakend": "not scored: a breakend",
    "star": "not scored: * stands for a deletion that another record tells",
    "no_alt": "not scored: ALT is missing (.)",
    "ambiguous": "not scored: an allele holds N or another letter that is not one base",
    "not_dna": "not scored: an allele holds what is no nucleotide letter",
    "outside": "not scored: REF is not inside its contig",
    "no_contig": "not scored: the genome lacks the contig",
    "too_many_n": "not scored: the share of N in the window is above max_n_fraction",
    "cut_off": "not scored: the windows end before the alleles differ",
}
SCORED = ("ok", "clipped", "same")
KINDS = ("snv", "mnv", "insertion", "deletion", "complex")


@dataclass(frozen=True)
class Alleles:
    """ALT alleles in the order of the records.

    Attributes:
        records: what they belong to.
        record: (rows,) int64, the record of each row.
        number: (rows,) int64, its place among the alleles of its record, from 0.
        contigs: the genome's name for the contigs of the records; lacks those it has not.
        kinds: of KINDS; None where there are no two sequences to compare, or equal ones.
        statuses: of STATUSES, as far as they are known without reading windows.
    """

    records: Sequence[Record]
    record: np.ndarray
    number: np.ndarray
    contigs: Mapping[str, str]
    kinds: list[str | None]
    statuses: list[str]

    def __len__(self) -> int:
        return len(self.record)

    def alt(self, row: int) -> str:
        """The allele of a row, as it is written."""
        return self.records[self.record[row]].alts[self.number[row]]

    def counts(self) -> dict[str, int]:
        """Rows by status, in the order of STATUSES."""
        found = Counter(self.statuses)
        return {status: found[status] for status in STATUSES if found[status]}


def judge_alleles(
    records: Sequence[Record], contigs: Mapping[str, str], check: ReferenceCheck
) -> Alleles:
    """The rows of records.

    Args:
        records: in any order.
        contigs: the genome's name for each of their contigs.
        check: of their REF alleles against the genome.
    """
    per_record = np.array([len(record.alts) for record in records], dtype=np.int64)
    record = np.repeat(np.arange(len(records)), per_record)
    number = np.arange(len(record)) - np.repeat(per_record.cumsum() - per_record, per_record)
    kinds, statuses = [], []
    for index, one in enumerate(records):
        known = one.contig in contigs
        problem = check.problems.get(index) if known else "no_contig"
        for alt in one.alts:
            status = _status(one.ref, alt, problem)
            statuses.append(status)
            sequences = status in (*SCORED, "mismatch", "outside", "no_contig")
            kinds.append(kind_of(one.ref, alt) if sequences else None)
    return Alleles(records, record, number, contigs, kinds, statuses)


def kind_of(ref: str, alt: str) -> str | None:
    """The kind of a variant, by what is left without the bases that both alleles share.

    Equal beginnings are cut first, then equal ends: TA to TAA is an insertion, AC to AT an snv.
    """
    ref, alt = ref.upper(), alt.upper()
    start = _shared(ref, alt)
    ref, alt = ref[start:], alt[start:]
    end = _shared(ref[::-1], alt[::-1])
    deleted, inserted = len(ref) - end, len(alt) - end
    if deleted == inserted:
        return {0: None, 1: "snv"}.get(deleted, "mnv")
    if deleted and inserted:
        return "complex"
    return "insertion" if inserted else "deletion"


def _shared(first: str, second: str) -> int:
    """Letters at the beginning that two texts share."""
    pairs = enumerate(zip(first, second, strict=False))
    least = min(len(first), len(second))
    return next((place for place, (one, other) in pairs if one != other), least)


def _status(ref: str, alt: str, problem: str | None) -> str:
    """What is known of a row: first what its ALT says, then its REF, then both together."""
    written = _written(alt)
    if written != "ok":
        return written
    if problem is not None:
        return problem
    if _ambiguous(ref) or _ambiguous(alt):
        return "ambiguous"
    return "same" if ref.upper() == alt.upper() else "ok"


def _written(alt: str) -> str:
    """The status that an ALT has by the way it is written."""
    if alt == ".":
        return "no_alt"
    if alt == "*":
        return "star"
    if "[" in alt or "]" in alt or alt.startswith(".") or alt.endswith("."):
        return "breakend"
    if alt.startswith("<"):
        return "symbolic"
    try:
        DNA.encode(alt)
    except InputError:
        return "not_dna"
    return "ok"


def _ambiguous(allele: str) -> bool:
    """Whether an allele holds a letter that is not one base."""
    return bool((DNA.encode(allele) == DNA.n).any())
