"""The files a genome store is built from, each read once: FASTA, or GenBank and EMBL records."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from fracdna_prep.compression import compression_of, open_unpacked, reading_refusals
from fracdna_prep.errors import InputError, Unfinished
from fracdna_prep.fasta import count_letters, read_fasta
from fracdna_prep.files import sha256_file
from fracdna_prep.records import is_annotated, read_records
from fracdna_prep.store_layout import CODE_OF_LETTER, REFUSED, Piece, RecordStart, SourceRecord

_BLOCK = 1 << 20


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


def size_of_source(path: Path) -> int:
    """Bytes of one file on disk; what its first and last bytes tell is refused.

    Raises:
        InputError: unreadable, truncated or packed in a foreign way.
    """
    compression_of(path)
    with reading_refusals(path):
        return path.stat().st_size


class HashedFile:
    """A file whose bytes are hashed as they are read, each once, however often it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with reading_refusals(path):
            self._file = path.open("rb")
        self._digest = hashlib.sha256()
        self.hashed = 0

    def read(self, size: int = -1) -> bytes:
        """As of any file.

        Raises:
            Unfinished: the system fails.
        """
        start = self._file.tell()
        try:
            block = self._file.read(size)
        except OSError as error:
            raise Unfinished(
                f"{self._path} cannot be read ({error.strerror}): see to its disk and give the "
                "same command again"
            ) from error
        new = start + len(block) - self.hashed
        if new > 0:
            self._digest.update(memoryview(block)[-new:])
            self.hashed += new
        return block

    def seek(self, position: int, whence: int = 0) -> int:
        """As of any file; what is passed over has to be hashed already."""
        return self._file.seek(position, whence)

    def tell(self) -> int:
        """As of any file."""
        return self._file.tell()

    def hash_until(self, end: int) -> str:
        """Hashes what is missing of the first `end` bytes and goes back to the first.

        Returns:
            their SHA-256.
        """
        self._file.seek(self.hashed)
        while self.hashed < end and self.read(min(_BLOCK, end - self.hashed)):
            pass
        self._file.seek(0)
        return self.sha256

    @property
    def sha256(self) -> str:
        """Of the bytes from the beginning to the furthest that was read."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_source(
    path: Path, raw: HashedFile, position: int = 0, line: int = 1
) -> Iterator[RecordStart | Piece]:
    """The records of one source, from its beginning or from a record; afterwards all is hashed.

    Args:
        path: the file.
        raw: the same file.
        position: where a record of a FASTA begins, in unpacked bytes.
        line: the number of the line there.

    Raises:
        InputError: whatever makes the source unusable.
    """
    if is_annotated(path):
        yield from _read_annotated(path)
    else:
        with open_unpacked(path, raw) as file:
            if position:
                file.seek(position)
            yield from read_fasta(path, file, position or file.tell(), line)
    raw.hash_until(size_of_source(path))


def _read_annotated(path: Path) -> Iterator[RecordStart | Piece]:
    for record in read_records(path):
        sequence = record.sequence.encode("latin-1", "replace")
        codes = sequence.translate(CODE_OF_LETTER)
        if REFUSED in codes:
            raise InputError(
                f"{path}: record {record.name!r} holds "
                f"{record.sequence[codes.index(REFUSED)]!r}, which is not a nucleotide letter"
            )
        yield RecordStart(record.name, None, 1)
        yield Piece(codes, count_letters(sequence))
