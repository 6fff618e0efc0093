"""Opening plain, gzip and bgzip files alike, by what they hold rather than what they are called."""

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from fracdna_prep.errors import InputError

# The empty block that ends every bgzip file (SAM specification, section 4.1.2).
_BGZF_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
# Editors on Windows put it before text in UTF-8.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FOREIGN = {
    b"BZh": "bzip2: unpack it with bunzip2",
    b"\xfd7zXZ": "xz: unpack it with unxz",
    b"PK\x03\x04": "zip: unpack it with unzip",
    b"\x28\xb5\x2f\xfd": "zstandard: unpack it with unzstd",
    b"\x43\x27\x41\x1a": "2bit: convert it with twoBitToFa",
    b"\x1a\x41\x27\x43": "2bit: convert it with twoBitToFa",
}


class Compression(StrEnum):
    """How a file is packed."""

    PLAIN = "plain"
    GZIP = "gzip"
    BGZIP = "bgzip"


@contextlib.contextmanager
def reading_refusals(path: Path | str) -> Iterator[None]:
    """Turns what can go wrong while reading `path` into an InputError that says what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder: name a file") from error
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read this file") from error
    except EOFError as error:
        raise InputError(f"{path} is truncated: copy or download it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is damaged ({error}): copy or download it again") from error


def compression_of(path: Path | str) -> Compression:
    """How a file is packed, from its first bytes; a truncated bgzip file is refused.

    Raises:
        InputError: another kind of archive, a truncated bgzip file, a pipe, or an unreadable file.
    """
    with reading_refusals(path), Path(path).open("rb") as file:
        if not file.seekable():
            raise InputError(f"{path} is a pipe, and is read more than once: write it to a file")
        head = file.read(18)
        for magic, what in _FOREIGN.items():
            if head.startswith(magic):
                raise InputError(f"{path} is packed as {what}")
        if not head.startswith(b"\x1f\x8b"):
            return Compression.PLAIN
        if not (len(head) == 18 and head[3] & 4 and head[12:14] == b"BC"):
            return Compression.GZIP
        file.seek(0, 2)
        file.seek(max(0, file.tell() - len(_BGZF_END)))
        # A cut between two blocks leaves a valid gzip file, so only this marker shows it.
        if file.read() != _BGZF_END:
            raise InputError(
                f"{path} is truncated (no bgzip end marker): copy or download it again, or "
                "recompress it with bgzip"
            )
        return Compression.BGZIP


@contextlib.contextmanager
def open_unpacked(path: Path | str, raw: BinaryIO | None = None) -> Iterator[BinaryIO]:
    """The unpacked bytes of a file, behind its byte order mark where it has one.

    Args:
        path: the file.
        raw: the same file, opened already; it stays open.

    Raises:
        InputError: unreadable, truncated, damaged or packed in another way; also while reading.
    """
    packed = compression_of(path) is not Compression.PLAIN
    with contextlib.ExitStack() as opened, reading_refusals(path):
        if raw is None:
            raw = opened.enter_context(Path(path).open("rb"))
        file = opened.enter_context(gzip.GzipFile(fileobj=raw)) if packed else raw
        if file.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
            file.seek(0)
        yield file
