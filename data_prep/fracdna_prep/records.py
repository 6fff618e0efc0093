"""Small annotated genomes: GenBank and EMBL records through Biopython."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from Bio import SeqIO
from Bio.SeqFeature import SeqFeature

from fracdna_prep.bed import write_bed
from fracdna_prep.compression import open_unpacked
from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval

_FORMATS = {
    ".gb": "genbank",
    ".gbk": "genbank",
    ".gbff": "genbank",
    ".genbank": "genbank",
    ".embl": "embl",
}


@dataclass(frozen=True)
class Feature:
    """One annotated feature.

    Attributes:
        kind: the feature key, such as "gene" or "CDS".
        interval: from its first to its last base.
        parts: the pieces of a joined location in the order of the file; one for a simple location.
        qualifiers: key to values.
    """

    kind: str
    interval: Interval
    parts: tuple[Interval, ...]
    qualifiers: dict[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        """The most telling of its qualifiers; the kind when it has none of them."""
        for key in ("gene", "locus_tag", "label", "product", "organism"):
            if key in self.qualifiers:
                return self.qualifiers[key][0]
        return self.kind


@dataclass(frozen=True)
class AnnotatedRecord:
    """One record: its versioned identifier, its sequence and its features.

    The sequence is in upper case: these formats write lower case throughout, without meaning a
    soft mask.
    """

    name: str
    sequence: str
    features: tuple[Feature, ...]

    def intervals(self, kind: str) -> list[Interval]:
        """The extents of all features of a kind, in file order."""
        return [feature.interval for feature in self.features if feature.kind == kind]


def is_annotated(path: Path | str) -> bool:
    """Whether a file name is that of a GenBank or EMBL file, packed or not."""
    return _suffix(Path(path)) in _FORMATS


def read_records(path: Path | str) -> Iterator[AnnotatedRecord]:
    """Reads the records of a GenBank or EMBL file, plain or gzip.

    Raises:
        InputError: unreadable, another format, or a record without its sequence.
    """
    path = Path(path)
    if not is_annotated(path):
        raise InputError(f"{path} is neither GenBank nor EMBL: expected {', '.join(_FORMATS)}")
    found = False
    with open_unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="replace")
        records = SeqIO.parse(text, _FORMATS[_suffix(path)])
        for record in _refusing(path, records):
            found = True
            yield record
    if not found:
        raise InputError(f"{path} holds no {_FORMATS[_suffix(path)]} record")


def write_features_bed(path: Path | str, records: list[AnnotatedRecord], kind: str) -> int:
    """Writes all features of one kind as BED6, one line a feature.

    Returns:
        the number of lines.

    Raises:
        InputError: no feature is of that kind; names the kinds that exist.
    """
    features = [f for record in records for f in record.features if f.kind == kind]
    if not features:
        kinds = sorted({f.kind for record in records for f in record.features})
        raise InputError(f"no feature of kind {kind!r}; these exist: {', '.join(kinds)}")
    write_bed(path, [f.interval for f in features], names=[f.name for f in features])
    return len(features)


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), "")


def _refusing(path: Path, records: Iterator) -> Iterator[AnnotatedRecord]:
    while True:
        try:
            record = next(records)
            sequence = str(record.seq).upper()
        except StopIteration:
            return
        # Biopython raises these for a malformed record and for one without its sequence.
        except (ValueError, AssertionError, IndexError) as error:
            raise InputError(f"{path} cannot be read as an annotated record: {error}") from error
        features = (_feature(record.id, feature) for feature in record.features)
        yield AnnotatedRecord(record.id, sequence, tuple(f for f in features if f is not None))


def _feature(contig: str, feature: SeqFeature) -> Feature | None:
    """A feature of this record; None where its location lies on another record."""
    location = feature.location
    if location is None or any(part.ref for part in location.parts):
        return None
    parts = tuple(
        Interval(contig, int(part.start), int(part.end), "-" if part.strand == -1 else "+")
        for part in location.parts
    )
    extent = Interval(
        contig, int(location.start), int(location.end), "-" if location.strand == -1 else "+"
    )
    qualifiers = {key: tuple(values) for key, values in feature.qualifiers.items()}
    return Feature(feature.type, extent, parts, qualifiers)
