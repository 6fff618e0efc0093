"""pyfaidx as a second reader of FASTA files, which shares no code with the first."""

import contextlib
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyfaidx

from fracdna_prep.compression import Compression, compression_of, open_unpacked
from fracdna_prep.store_layout import CODE_OF_LETTER, REFUSED

# pyfaidx reads a chromosome fifty times faster in pieces of this size than in one call.
_PIECE = 1_000_000
# Bio.bgzf takes a minute for a line of 63 Mbase: the time grows with the square of the length.
_LONG_LINE = 1 << 20
# What pyfaidx and Bio.bgzf raise for lines that they cannot use.
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
# pyfaidx goes by the suffix alone.
_BGZIP_SUFFIXES = (".gz", ".bgz")
_NEVER_PLAIN = (*_BGZIP_SUFFIXES, ".bz2", ".zip")


class SecondReaderError(Exception):
    """pyfaidx cannot read a file that the first reader takes; the message names it and says why."""


class SecondReader:
    """One FASTA as pyfaidx reads it; as a context manager it closes itself.

    Memory: one piece, and while the index is made the longest line.

    Args:
        path: plain, bgzip or gzip.
        scratch: an empty folder for index files and the unpacked text of a file that is plain gzip,
            or bgzip with very long lines; nothing is written or read beside `path`.

    Raises:
        SecondReaderError: records with lines of several lengths, and whatever else pyfaidx refuses.
    """

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path, self._opened = path, _under_a_true_name(path, scratch)
        with self._failures_told():
            self._faidx = pyfaidx.Faidx(
                self._opened,
                indexname=scratch / "index.fai",
                gzi_indexname=scratch / "index.gzi",
                as_raw=True,
            )

    @property
    def names(self) -> list[str]:
        """The records, in the order of the file."""
        return list(self._faidx.index)

    def pieces(self, name: str) -> Iterator[bytes]:
        """One record as a store holds it, in pieces.

        Raises:
            SecondReaderError: pyfaidx fails, or counts something as a base that is none.
        """
        length = self._faidx.index[name].rlen
        for start in range(0, length, _PIECE):
            end = min(start + _PIECE, length)
            with self._failures_told():
                # Faidx counts from 1 and includes the end.
                text = self._faidx.fetch(name, start + 1, end).encode()
            codes = text.translate(CODE_OF_LETTER)
            place = f"{name}:{start + 1:,}-{end:,}"
            if REFUSED in codes:
                letter = chr(text[codes.index(REFUSED)])
                raise self._error(f"it counts {letter!r} as a base in {place}")
            if len(codes) != end - start:
                raise self._error(f"it gives {len(codes):,} bases for {place}")
            yield codes

    def __enter__(self) -> "SecondReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._faidx.close()

    @contextlib.contextmanager
    def _failures_told(self) -> Iterator[None]:
        """Tells what pyfaidx cannot read; errors of the system, such as no space left, pass."""
        try:
            yield
        except _FAILURES as failure:
            system = _error_of_the_system(failure)
            if system is not None:
                raise system from failure
            reason = str(failure).replace(str(self._opened), self._path.name)
            raise self._error(reason or type(failure).__name__) from failure

    def _error(self, reason: str) -> SecondReaderError:
        return SecondReaderError(f"pyfaidx cannot read {self._path}: {reason}")


def _under_a_true_name(path: Path, scratch: Path) -> Path:
    """A path whose suffix tells pyfaidx how the file is packed; it never is plain gzip."""
    packed, suffix = compression_of(path), path.suffix.lower()
    if packed is Compression.GZIP or (packed is Compression.BGZIP and _has_long_lines(path)):
        unpacked = scratch / "unpacked.fa"
        with open_unpacked(path) as source, unpacked.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        return unpacked
    if packed is Compression.BGZIP and suffix not in _BGZIP_SUFFIXES:
        link = scratch / "source.gz"
    elif packed is Compression.PLAIN and suffix in _NEVER_PLAIN:
        link = scratch / "source.fa"
    else:
        return path
    link.symlink_to(path.resolve())
    return link


def _has_long_lines(path: Path) -> bool:
    """Whether the first record is one line of a chromosome's size."""
    with open_unpacked(path) as file:
        file.readline()
        return len(file.readline(_LONG_LINE)) == _LONG_LINE


def _error_of_the_system(failure: BaseException | None) -> OSError | None:
    """What the system refused, where that is behind a failure; pyfaidx hides it in its own."""
    while failure is not None:
        if isinstance(failure, OSError) and failure.errno is not None:
            return failure
        failure = failure.__context__
    return None
