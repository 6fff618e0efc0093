"""How a genome store lies on disk: one byte a base, and a JSON that is written last."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import AMBIGUOUS_LETTERS, Vocabulary

FORMAT = "fracdna genome store"
VERSION = 1
BASES_FILE = "bases.u8"
RECORD_FILE = "store.json"

# The low bits of a byte: A, C, G, T, then N for every ambiguous letter.
CODED_LETTERS = "ACGTN"
N_CODE = 4
SOFT_MASKED = 0x80
REFUSED = 0xFF
_BLOCK = 1 << 20


def _code_of_letter() -> bytes:
    table = bytearray([REFUSED]) * 256
    for letter in AMBIGUOUS_LETTERS + CODED_LETTERS:
        code = CODED_LETTERS.index(letter) if letter in CODED_LETTERS else N_CODE
        table[ord(letter)] = code
        table[ord(letter.lower())] = code | SOFT_MASKED
    return bytes(table)


CODE_OF_LETTER = _code_of_letter()


def id_tables(vocabulary: Vocabulary) -> tuple[bytes, bytes]:
    """Tables for bytes.translate: stored byte to token id, on the forward and reverse strand."""
    forward = np.full(256, vocabulary.unk, dtype=np.uint8)
    for code, identifier in enumerate((*vocabulary.bases, vocabulary.n)):
        forward[[code, code | SOFT_MASKED]] = identifier
    return forward.tobytes(), vocabulary.complement[forward].tobytes()


@dataclass(frozen=True, slots=True)
class RecordStart:
    """A record of a source begins.

    Attributes:
        name: up to the first blank.
        position: in unpacked bytes; None where reading cannot begin in the middle.
        line: its number, from 1.
    """

    name: str
    position: int | None
    line: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a record: bytes as a store holds them, and (256,) counts of the source's bytes."""

    codes: bytes
    letters: np.ndarray


@dataclass(frozen=True)
class ContigRecord:
    """One contig of a store.

    Attributes:
        name: as in the source, up to the first blank.
        length: in bases.
        offset: of its first base in the bases file, in bytes.
        sha256: of its stored bytes.
        counts: bases by upper-case letter; other letters than A, C, G, T are stored as N.
        soft_masked: bases in lower case.
    """

    name: str
    length: int
    offset: int
    sha256: str
    counts: dict[str, int]
    soft_masked: int


@dataclass(frozen=True)
class SourceRecord:
    """One file that a store was built from; `bytes` is its size on disk."""

    name: str
    bytes: int
    sha256: str
    compression: str


@dataclass(frozen=True)
class StoreRecord:
    """What store.json holds; `checksum` covers names, bases and soft mask of all contigs."""

    checksum: str
    contigs: tuple[ContigRecord, ...]
    sources: tuple[SourceRecord, ...]

    @property
    def length(self) -> int:
        """Bases of all contigs."""
        return sum(contig.length for contig in self.contigs)

    def write(self, directory: Path) -> None:
        """Writes store.json."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "length": self.length,
            "encoding": f"low bits: position in {CODED_LETTERS}; top bit: soft mask",
            "checksum": self.checksum,
            # Not asdict, which copies every value: a draft assembly has contigs by the million.
            "contigs": [vars(contig) for contig in self.contigs],
            "sources": [vars(source) for source in self.sources],
        }
        (directory / RECORD_FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> "StoreRecord":
        """Reads store.json.

        Raises:
            InputError: no store, an unfinished one, or one of another format version.
        """
        try:
            content = json.loads((directory / RECORD_FILE).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(
                f"{directory} holds no complete genome store: build it with `fracdna prepare`"
            ) from error
        except PermissionError as error:
            raise InputError(f"no permission to read the genome store {directory}") from error
        except json.JSONDecodeError as error:
            raise InputError(f"{directory / RECORD_FILE} is damaged: build it again") from error
        if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise InputError(
                f"{directory / RECORD_FILE} has format {content.get('format')!r} version "
                f"{content.get('version')}, this program reads {FORMAT!r} version {VERSION}: "
                "build the store again"
            )
        try:
            return cls(
                content["checksum"],
                tuple(ContigRecord(**contig) for contig in content["contigs"]),
                tuple(SourceRecord(**source) for source in content["sources"]),
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"{directory / RECORD_FILE} is damaged: build it again") from error


def content_checksum(contigs: Iterable[ContigRecord]) -> str:
    """A hash of what the genome is, whatever the order, packing and names of its files."""
    digest = hashlib.sha256(f"{FORMAT} {VERSION}\n".encode())
    for contig in sorted(contigs, key=lambda contig: contig.name):
        digest.update(f"{contig.name}\t{contig.length}\t{contig.sha256}\n".encode())
    return digest.hexdigest()


def sha256_of_next(file: BinaryIO, length: int) -> str:
    """The SHA-256 of the next `length` bytes of a file."""
    digest = hashlib.sha256()
    for start in range(0, length, _BLOCK):
        digest.update(file.read(min(_BLOCK, length - start)))
    return digest.hexdigest()
