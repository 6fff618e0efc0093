"""Classes of bases: repeats, intervals of BED files and GC content, fixed on the forward strand."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fracdna.evaluation.regions import Regions
from fracdna_prep.bed import BedTable, read_bed
from fracdna_prep.coverage import union
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.names import check_rename, match_names, require_names, resolve_names
from fracdna_prep.vocabulary import DNA

ALL, CHROMOSOME, SOFT_MASK, GC = "all", "chromosome", "soft_mask", "gc"
RESERVED = (ALL, CHROMOSOME, SOFT_MASK, GC)
SIDES = ("inside", "outside")
GC_BLOCK = 1024  # bases whose share of G and C ranks them
MOST_CLASSES = 10  # every combination of classes has a sum of its own while a region is read

Spans = dict[str, tuple[np.ndarray, np.ndarray]]  # by contig: disjoint sorted starts and ends


class Part(NamedTuple):
    """One way to divide bases into groups.

    Attributes:
        name: as in the column `part` of the tables.
        groups: names of the groups, in the order of the labels.
        labels: number of a region to (width,) integers, the group of each base on the forward
            strand.
    """

    name: str
    groups: tuple[str, ...]
    labels: Callable[[int], np.ndarray]


@dataclass(frozen=True)
class ClassBed:
    """The bases that a BED file covers.

    Attributes:
        name: of the class.
        path: of the file.
        spans: its bases in the genome's names.
        rows: rows of the file.
        elsewhere: contigs of the file that the genome lacks; their rows are left out.
        cut: rows of which a part or all lies past the end of its contig.
    """

    name: str
    path: Path
    spans: Spans
    rows: int
    elsewhere: tuple[str, ...]
    cut: int

    def covers(self, interval: Interval) -> np.ndarray:
        """(width,) bool on the forward strand."""
        starts, ends = self.spans.get(interval.chromosome, (np.empty(0, int), np.empty(0, int)))
        low = np.searchsorted(ends, interval.start, side="right")
        high = np.searchsorted(starts, interval.end)
        inner = np.stack([starts[low:high], ends[low:high]], axis=1).ravel() - interval.start
        edges = np.concatenate([[0], inner.clip(0, interval.width), [interval.width]])
        return np.repeat(np.arange(len(edges) - 1) % 2 == 1, np.diff(edges))


@dataclass(frozen=True)
class BaseClasses:
    """All divisions of the scored bases at once.

    A base has one label, the combination of its groups in every part, so that one count over
    labels gives the sums of all groups.

    Attributes:
        regions: what is scored.
        parts: the divisions.
        digest: of what the labels depend on besides regions and genome.
        about: plain values for result.json.
    """

    regions: Regions
    parts: tuple[Part, ...] = ()
    digest: str = ""
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Part and group of every column of sums; all bases are the first."""
        return [(ALL, ALL), *((part.name, group) for part in self.parts for group in part.groups)]

    @property
    def membership(self) -> np.ndarray:
        """(labels, groups) int64: 1 where bases of a label are in a group."""
        combinations = list(product(*(range(len(part.groups)) for part in self.parts)))
        columns = [np.ones((len(combinations), 1), dtype=np.int64)]
        for place, part in enumerate(self.parts):
            chosen = np.array([combination[place] for combination in combinations])
            columns.append((chosen[:, None] == np.arange(len(part.groups))).astype(np.int64))
        return np.concatenate(columns, axis=1)

    def labels(self, region: int) -> np.ndarray:
        """(width,) int32 label of every base of a region, on the forward strand."""
        labels = np.zeros(self.regions.width, dtype=np.int32)
        for part in self.parts:
            labels *= len(part.groups)
            labels += part.labels(region)
        return labels


def read_classes(
    paths: Mapping[str, str] | None, contigs: Mapping[str, int], rename: str
) -> list[ClassBed]:
    """The BED file of each class.

    Args:
        paths: name of a class to its file; None: no class.
        contigs: length of each contig of the genome.
        rename: how names in the files become the genome's, as in `fracdna prepare`.

    Raises:
        InputError: a name that tables use already, an unreadable file, no known contig, or a row
            that is no interval.
    """
    if paths is None:
        return []
    if not isinstance(paths, Mapping):
        raise InputError(f"classes={paths}: name each file, as in 'classes={{exons: exons.bed}}'")
    if len(paths) > MOST_CLASSES:
        raise InputError(f"classes= has {len(paths)} files: give at most {MOST_CLASSES} at a time")
    taken = [name for name in paths if name in RESERVED]
    if taken:
        raise InputError(
            f"classes.{taken[0]}: tables use {', '.join(RESERVED)} already; choose another name"
        )
    check_rename(rename)
    return [_read_class(str(name), path, contigs, rename) for name, path in paths.items()]


def divide(store: GenomeStore, regions: Regions, beds: Sequence[ClassBed]) -> BaseClasses:
    """Repeats by soft mask where the genome has any, each BED inside and outside, GC fifths."""
    places = regions.intervals
    parts = []
    if any(contig.soft_masked for contig in store.record.contigs):
        parts.append(Part(SOFT_MASK, SIDES, lambda region: ~store.soft_mask(places[region])))
    for bed in beds:
        outside = lambda region, bed=bed: ~bed.covers(places[region])  # noqa: E731
        parts.append(Part(bed.name, SIDES, outside))
    fifths, ranges = _gc_fifths(store, regions)
    widths = _block_widths(regions.width)
    in_fifth = lambda region: np.repeat(fifths[region], widths)  # noqa: E731
    parts.append(Part(GC, tuple(ranges), in_fifth))
    files = {
        bed.name: {
            "file": str(bed.path),
            "rows": bed.rows,
            "contigs_not_in_genome": list(bed.elsewhere),
            "rows_past_contig_ends": bed.cut,
            "bases_in_genome": sum(int((end - start).sum()) for start, end in bed.spans.values()),
        }
        for bed in beds
    }
    about = {"files": files, "gc_block": GC_BLOCK, "gc_share_of_fifths": ranges}
    return BaseClasses(regions, tuple(parts), _digest(beds), about)


def _read_class(name: str, path: Any, contigs: Mapping[str, int], rename: str) -> ClassBed:
    """One file; rows are cut at the ends of their contigs."""
    if not isinstance(path, str):
        raise InputError(f"classes.{name}={path}: name a BED file")
    bed = read_bed(path)
    wrong = np.flatnonzero(bed.inverted | (bed.starts < 0))
    if wrong.size:
        raise InputError(
            f"{bed.place_of(wrong[0])}: bases {bed.starts[wrong[0]]} to {bed.ends[wrong[0]]} are "
            "no interval: a BED row starts at 0 or later and ends at or after its start"
        )
    names = _names(name, bed, contigs, rename)
    mine = np.array([names.get(contig, "") for contig in bed.contigs], dtype=object)
    reach = np.array([contigs.get(contig, 0) for contig in mine], dtype=np.int64)
    known = mine != ""
    ends = np.minimum(bed.ends, reach)[known]
    spans = _spans(mine[known], np.minimum(bed.starts, reach)[known], ends)
    elsewhere = tuple(contig for contig in dict.fromkeys(bed.contigs) if contig not in names)
    cut = int(np.count_nonzero(bed.ends[known] > reach[known]))
    return ClassBed(name, Path(path).absolute(), spans, len(bed), elsewhere, cut)


def _names(name: str, bed: BedTable, contigs: Mapping[str, int], rename: str) -> Mapping[str, str]:
    """The genome's name of each contig of a file that it has.

    An annotation may be of more contigs than the genome: those are left out. But names that differ
    in spelling alone would turn a contig's bases to "outside" without a word.

    Raises:
        InputError: no name is known, or one is under rename=chr_prefix.
    """
    report = match_names(bed.contigs, contigs, rename)
    spelt = match_names(report.missing, contigs, "chr_prefix").renamed if rename == "none" else {}
    refused = set(spelt) if report.matched else set(report.missing)
    if refused:
        rows = [row for row, contig in enumerate(bed.contigs) if contig in refused]
        places = [bed.place_of(row) for row in rows]
        try:
            require_names([bed.contigs[row] for row in rows], places, contigs, rename)
        except InputError as error:
            raise InputError(f"classes.{name}: {error}") from error
    return resolve_names(bed.contigs, contigs, rename)


def _spans(contigs: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Spans:
    """Disjoint sorted intervals of each contig; rows without a base are left out."""
    filled = starts < ends
    spans = {}
    for contig in dict.fromkeys(contigs[filled]):
        rows = filled & (contigs == contig)
        spans[contig] = union(starts[rows], ends[rows])
    return spans


def _digest(beds: Sequence[ClassBed]) -> str:
    """SHA-256 over names and coordinates of the classes."""
    digest = hashlib.sha256(f"{GC_BLOCK}".encode())
    for bed in beds:
        for contig, (starts, ends) in sorted(bed.spans.items()):
            digest.update(f"\n{bed.name}\t{contig}\t".encode())
            digest.update(np.stack([starts, ends]).astype("<i8").tobytes())
        digest.update(f"\n{bed.name}".encode())
    return digest.hexdigest()


def _block_widths(width: int) -> np.ndarray:
    """Bases of each block of a region; the last one may be shorter."""
    starts = np.arange(0, width, GC_BLOCK)
    return np.diff(np.append(starts, width))


def _gc_fifths(
    store: GenomeStore, regions: Regions
) -> tuple[np.ndarray, dict[str, tuple[float, float]]]:
    """Blocks ranked by their share of G and C, in five groups of equal size, 0 the lowest.

    Returns:
        (regions, blocks) group of each block, and lowest and highest share of each group by its
        name, 1 to 5.
    """
    shares = np.stack([_gc_shares(store.fetch(place)) for place in regions.intervals])
    order = np.argsort(shares, axis=None, kind="stable")
    fifths = np.empty(shares.size, dtype=np.int32)
    fifths[order] = np.arange(shares.size) * 5 // shares.size
    fifths = fifths.reshape(shares.shape)
    ranges = {}
    for group in range(5):
        mine = shares[fifths == group]
        ranges[str(group + 1)] = (float(mine.min()), float(mine.max())) if mine.size else (0.0, 0.0)
    return fifths, ranges


def _gc_shares(ids: np.ndarray) -> np.ndarray:
    """(blocks,) share of G and C among the A, C, G and T of each block; 0 where there are none."""
    _, c, g, _ = DNA.bases
    starts = np.arange(0, len(ids), GC_BLOCK)
    gc = np.add.reduceat(((ids == c) | (ids == g)).astype(np.int64), starts)
    bases = np.add.reduceat(np.isin(ids, DNA.bases).astype(np.int64), starts)
    return gc / np.maximum(bases, 1)
