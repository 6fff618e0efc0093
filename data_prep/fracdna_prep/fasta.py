"""FASTA files: a first pass that refuses what is wrong, and the reading through pyfaidx."""

import contextlib
import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyfaidx

from fracdna_prep.compression import Compression, compression_of, open_unpacked
from fracdna_prep.errors import InputError
from fracdna_prep.store_layout import CODE_OF_LETTER, REFUSED

# pyfaidx reads a chromosome fifty times faster in pieces of this size than in one call.
PIECE = 1_000_000
_BLOCK = 1 << 20
_LINE_WIDTH = 1 << 16
_BLANKS = b"\r\n \t\v\f"
# What pyfaidx and Bio.bgzf raise for lines or index files that they cannot use.
_FAILURES = (
    pyfaidx.FastaIndexingError,
    LookupError,
    ValueError,
    OSError,
    RuntimeError,
    AssertionError,
    struct.error,
    zlib.error,
)


@dataclass(frozen=True)
class ScannedContig:
    """A record as the first pass saw it; `sha256` is of its bytes as a store holds them."""

    name: str
    length: int
    sha256: str


class _Record:
    def __init__(self, name: str) -> None:
        self.name = name
        self.length = 0
        self.digest = hashlib.sha256()

    def add(self, codes: bytes) -> None:
        self.length += len(codes)
        self.digest.update(codes)

    def finish(self) -> ScannedContig:
        return ScannedContig(self.name, self.length, self.digest.hexdigest())


def scan_fasta(path: Path) -> list[ScannedContig]:
    """Reads a FASTA once without storing it: names, lengths and hashes of its records.

    Raises:
        InputError: unreadable, truncated, no FASTA, a record without a name, a name used twice or
            a letter that is no nucleotide; names the line.
    """
    records: dict[str, _Record] = {}
    current = None
    with open_unpacked(path) as file:
        for line, is_header, block in _tokens(file):
            if is_header:
                current = _Record(_name(path, line, block))
                if current.name in records:
                    raise InputError(
                        f"{path}, line {line}: a second record is called {current.name!r}: give "
                        "each record its own name"
                    )
                records[current.name] = current
            elif current is None:
                _check_preamble(path, line, block)
            else:
                current.add(_codes(path, line, current.name, block))
    if not records:
        raise InputError(f"{path} holds no FASTA record: a record begins with a line '>name'")
    return [record.finish() for record in records.values()]


def _tokens(file: BinaryIO) -> Iterator[tuple[int, bool, bytes]]:
    """Cuts a FASTA in (line number, is header, bytes): whole headers, blocks of sequence lines."""
    line, header, at_line_start = 1, b"", True
    while chunk := file.read(_BLOCK):
        position = 0
        while position < len(chunk):
            if header or (at_line_start and chunk.startswith(b">", position)):
                end = chunk.find(b"\n", position) + 1 or len(chunk)
                header += chunk[position:end]
                at_line_start = header.endswith(b"\n")
                if at_line_start:
                    yield line, True, header
                    line, header = line + 1, b""
            else:
                end = chunk.find(b"\n>", position) + 1 or len(chunk)
                block = chunk[position:end]
                yield line, False, block
                line += block.count(b"\n")
                at_line_start = block.endswith(b"\n")
            position = end
    if header:
        yield line, True, header


def _name(path: Path, line: int, header: bytes) -> str:
    if b"\r" in header.rstrip(b"\r\n"):
        raise InputError(f"{path}, line {line}: lines end in CR alone: convert them to LF")
    words = header[1:].decode("utf-8", "replace").split()
    if not words:
        raise InputError(f"{path}, line {line}: a record has no name behind '>'")
    return words[0]


def _check_preamble(path: Path, line: int, block: bytes) -> None:
    for number, text in enumerate(block.splitlines(), line):
        if text.strip() and not text.startswith(b";"):
            raise InputError(
                f"{path}, line {number}: text before the first record; a FASTA record begins "
                "with a line '>name'"
            )


def _codes(path: Path, line: int, name: str, block: bytes) -> bytes:
    codes = block.translate(CODE_OF_LETTER, _BLANKS)
    if REFUSED in codes:
        position = next(i for i, byte in enumerate(block) if _refused(byte))
        raise InputError(
            f"{path}, line {line + block.count(10, 0, position)}: record {name!r} holds "
            f"{chr(block[position])!r}, which is not a nucleotide letter: a nucleotide FASTA has "
            "A, C, G, T, N and the other IUPAC letters only"
        )
    return codes


def _refused(byte: int) -> bool:
    return CODE_OF_LETTER[byte] == REFUSED and byte not in _BLANKS


class FastaReader:
    """The records of one FASTA, read through pyfaidx in one process.

    Nothing is written beside the file: the index lies in `scratch`, and so does the unpacked text
    of a plain gzip file. Three ways are tried in turn, and the caller moves on to the next one
    when the bases are not those of the first pass: an index found beside the file, an index made
    here, and a copy with lines of one length for a file whose lines differ inside a record.
    """

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path = path
        self._scratch = scratch
        self._ways = iter((self._with_index_found, self._with_own_index, self._with_equal_lines))
        self._faidx: pyfaidx.Faidx | None = None

    def next_way(self) -> bool:
        """Opens the file the next way; false when no way is left."""
        for way in self._ways:
            self.close()
            with _tolerated():
                self._faidx = way()
            if self._faidx is not None:
                return True
        return False

    def pieces(self, contig: ScannedContig) -> Iterator[bytes]:
        """The letters of one record, in pieces; ends early where pyfaidx fails."""
        for start in range(0, contig.length, PIECE):
            end = min(start + PIECE, contig.length)
            piece = b""
            with _tolerated():
                # Faidx counts from 1 and includes the end.
                piece = self._faidx.fetch(contig.name, start + 1, end).encode()
            if not piece:
                return
            yield piece

    def close(self) -> None:
        """Closes the file."""
        if self._faidx is not None:
            self._faidx.close()
        self._faidx = None

    def _with_index_found(self) -> pyfaidx.Faidx | None:
        packed = compression_of(self._path)
        suffixes = [".fai", ".gzi"] if packed is Compression.BGZIP else [".fai"]
        found = [Path(f"{self._path}{suffix}") for suffix in suffixes]
        modified = self._path.stat().st_mtime
        if packed is Compression.GZIP or any(
            not index.is_file() or index.stat().st_mtime < modified for index in found
        ):
            return None
        folder = self._folder("found")
        for index, suffix in zip(found, suffixes, strict=True):
            (folder / f"index{suffix}").write_bytes(index.read_bytes())
        return self._open(self._path, packed, folder)

    def _with_own_index(self) -> pyfaidx.Faidx:
        packed = compression_of(self._path)
        folder = self._folder("indexed")
        if packed is not Compression.GZIP:
            return self._open(self._path, packed, folder)
        unpacked = folder / "unpacked.fa"
        with open_unpacked(self._path) as source, unpacked.open("wb") as target:
            while block := source.read(_BLOCK):
                target.write(block)
        return self._open(unpacked, Compression.PLAIN, folder)

    def _with_equal_lines(self) -> pyfaidx.Faidx:
        folder = self._folder("equal_lines")
        copy = folder / "equal_lines.fa"
        with copy.open("wb") as target:
            _write_equal_lines(self._path, target)
        return self._open(copy, Compression.PLAIN, folder)

    def _folder(self, name: str) -> Path:
        folder = self._scratch / name
        folder.mkdir(exist_ok=True)
        return folder

    def _open(self, path: Path, packed: Compression, folder: Path) -> pyfaidx.Faidx:
        # pyfaidx goes by the suffix alone, so it is shown a name that tells the truth.
        expected = (".gz", ".bgz") if packed is Compression.BGZIP else (".fa", ".fasta", ".fna")
        if not path.name.lower().endswith(expected):
            link = folder / f"source{expected[0]}"
            link.symlink_to(path.resolve())
            path = link
        return pyfaidx.Faidx(
            path,
            indexname=folder / "index.fai",
            gzi_indexname=folder / "index.gzi",
            as_raw=True,
        )


@contextlib.contextmanager
def _tolerated() -> Iterator[None]:
    """Passes over what pyfaidx cannot read, but not over errors of the system."""
    try:
        yield
    except _FAILURES as failure:
        # pyfaidx raises OSError for bad indexes too, though without an error number.
        if getattr(failure, "errno", None) is not None:
            raise


def _write_equal_lines(path: Path, target: BinaryIO) -> None:
    pending = b""
    with open_unpacked(path) as file:
        for line, is_header, block in _tokens(file):
            if is_header:
                target.write(pending + b"\n" if pending else b"")
                pending = b""
                target.write(b">%s\n" % _name(path, line, block).encode())
                continue
            pending += block.translate(None, _BLANKS)
            whole = len(pending) // _LINE_WIDTH * _LINE_WIDTH
            for start in range(0, whole, _LINE_WIDTH):
                target.write(pending[start : start + _LINE_WIDTH] + b"\n")
            pending = pending[whole:]
    target.write(pending + b"\n" if pending else b"")
