"""FASTA files, read in one pass that checks every byte: codes, letter counts and places."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fracdna_prep.errors import InputError
from fracdna_prep.store_layout import CODE_OF_LETTER, REFUSED, Piece, RecordStart

_BLOCK = 1 << 20
_BLANKS = b"\r\n \t\v\f"
_NEWLINE = ord("\n")
_IS_REFUSED = np.array([c == REFUSED for c in CODE_OF_LETTER]) & ~np.isin(range(256), [*_BLANKS])
# Below this size a table of all pairs of bytes costs more than it saves.
_FEW_BYTES = 1 << 17


def read_fasta(
    path: Path, file: BinaryIO, position: int = 0, line: int = 1
) -> Iterator[RecordStart | Piece]:
    """Reads a FASTA once, from its beginning or from a record: names, and what a store holds.

    Lines may be of any length, blank, or end in CRLF.

    Args:
        path: for messages.
        file: its unpacked bytes; read from where it stands.
        position: where that is, in unpacked bytes.
        line: the number of the line that begins there.

    Yields:
        the start of each record, followed by the pieces of its sequence.

    Raises:
        InputError: no FASTA, a record without a name or a letter that is no nucleotide; names the
            line.
    """
    name = None
    for block, is_header in _tokens(file):
        if is_header:
            name = _name(path, line, block)
            yield RecordStart(name, position, line)
            line += 1
        else:
            letters = count_letters(block)
            if name is None:
                _check_preamble(path, line, block)
            else:
                yield Piece(_codes(path, line, name, block, letters), letters)
            line += int(letters[_NEWLINE])
        position += len(block)
    if name is None:
        raise InputError(f"{path} holds no FASTA record: a record begins with a line '>name'")


def count_letters(block: bytes) -> np.ndarray:
    """How often each byte occurs: (256,) int64."""
    letters = np.frombuffer(block, dtype=np.uint8)
    if len(letters) < _FEW_BYTES:
        return np.bincount(letters, minlength=256)
    # Twice as fast by pairs; the sum over the other byte of the pair undoes it.
    even = len(letters) & ~1
    pairs = np.bincount(letters[:even].view(np.uint16), minlength=1 << 16).reshape(256, 256)
    counts = pairs.sum(axis=0) + pairs.sum(axis=1)
    counts[letters[even:]] += 1
    return counts


def _tokens(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Cuts a FASTA in (bytes, is header): whole header lines, blocks of sequence lines."""
    header, at_line_start = b"", True
    while chunk := file.read(_BLOCK):
        position = 0
        while position < len(chunk):
            if header or (at_line_start and chunk.startswith(b">", position)):
                end = chunk.find(b"\n", position) + 1 or len(chunk)
                header += chunk[position:end]
                at_line_start = header.endswith(b"\n")
                if at_line_start:
                    yield header, True
                    header = b""
            else:
                end = _next_header(chunk, position)
                yield chunk[position:end], False
                at_line_start = chunk.endswith(b"\n", position, end)
            position = end
    if header:
        yield header, True


def _next_header(chunk: bytes, position: int) -> int:
    """Where the first line behind `position` begins with ">"; the chunk's length if none does."""
    # One letter is found several times faster than two.
    found = chunk.find(b">", position + 1)
    while found >= 0 and chunk[found - 1] != _NEWLINE:
        found = chunk.find(b">", found + 1)
    return found if found >= 0 else len(chunk)


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


def _codes(path: Path, line: int, name: str, block: bytes, letters: np.ndarray) -> bytes:
    if letters[_IS_REFUSED].any():
        position = next(i for i, byte in enumerate(block) if _IS_REFUSED[byte])
        raise InputError(
            f"{path}, line {line + block.count(10, 0, position)}: record {name!r} holds "
            f"{chr(block[position])!r}, which is not a nucleotide letter: a nucleotide FASTA has "
            "A, C, G, T, N and the other IUPAC letters only"
        )
    return block.translate(CODE_OF_LETTER, _BLANKS)
