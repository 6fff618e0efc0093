"""The files a genome store is built from: FASTA, or GenBank and EMBL records."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fracdna_prep.compression import compression_of, reading_refusals
from fracdna_prep.errors import InputError
from fracdna_prep.fasta import PIECE, FastaReader, ScannedContig, scan_fasta
from fracdna_prep.files import sha256_file
from fracdna_prep.records import is_annotated, read_records
from fracdna_prep.store_layout import CODE_OF_LETTER, REFUSED, SourceRecord


@dataclass(frozen=True)
class ScannedSource:
    """One source file after the first pass: what it is, and the records in it."""

    path: Path
    record: SourceRecord
    contigs: tuple[ScannedContig, ...]


def source_paths(sources: Path | str | Iterable[Path | str]) -> list[Path]:
    """The source files as a list of absolute paths.

    Raises:
        InputError: no file at all, or the same one twice.
    """
    listed = [sources] if isinstance(sources, str | Path) else list(sources)
    paths = [Path(source).absolute() for source in listed]
    if not paths:
        raise InputError("no FASTA named: give one or more files")
    for path in paths:
        if paths.count(path) > 1:
            raise InputError(f"{path} is named twice: name each file once")
    return paths


def describe_source(path: Path) -> SourceRecord:
    """Name, size, hash and packing of one file.

    Raises:
        InputError: unreadable, truncated or packed in a foreign way.
    """
    compression = compression_of(path)
    with reading_refusals(path):
        return SourceRecord(path.name, path.stat().st_size, sha256_file(path), str(compression))


def scan_sources(paths: Iterable[Path]) -> list[ScannedSource]:
    """The first pass over all files; nothing is stored.

    Raises:
        InputError: whatever makes one of them unusable, or a contig name found in two of them.
    """
    scanned, owner = [], {}
    for path in paths:
        contigs = _scan_annotated(path) if is_annotated(path) else scan_fasta(path)
        for contig in contigs:
            if contig.name in owner:
                raise InputError(
                    f"{path} and {owner[contig.name]} both hold a record called "
                    f"{contig.name!r}: give each record its own name"
                )
            owner[contig.name] = path
        scanned.append(ScannedSource(path, describe_source(path), tuple(contigs)))
    return scanned


def _scan_annotated(path: Path) -> list[ScannedContig]:
    contigs = []
    for record in read_records(path):
        codes = record.sequence.encode("latin-1", "replace").translate(CODE_OF_LETTER)
        if REFUSED in codes:
            raise InputError(
                f"{path}: record {record.name!r} holds "
                f"{record.sequence[codes.index(REFUSED)]!r}, which is not a nucleotide letter"
            )
        contigs.append(ScannedContig(record.name, len(codes), hashlib.sha256(codes).hexdigest()))
    return contigs


class AnnotatedReader:
    """The sequences of a GenBank or EMBL file, with the methods of FastaReader."""

    def __init__(self, path: Path) -> None:
        self._ways = iter([path])
        self._sequences: dict[str, str] = {}

    def next_way(self) -> bool:
        """Reads the file; true the first time only."""
        for path in self._ways:
            self._sequences = {record.name: record.sequence for record in read_records(path)}
            return True
        return False

    def pieces(self, contig: ScannedContig) -> Iterator[bytes]:
        """The letters of one record, in pieces."""
        sequence = self._sequences[contig.name]
        for start in range(0, contig.length, PIECE):
            yield sequence[start : start + PIECE].encode()

    def close(self) -> None:
        """Forgets the sequences."""
        self._sequences = {}


def open_source(path: Path, scratch: Path) -> FastaReader | AnnotatedReader:
    """A reader of one source; FASTA readers put their index into the folder `scratch`."""
    return AnnotatedReader(path) if is_annotated(path) else FastaReader(path, scratch)
