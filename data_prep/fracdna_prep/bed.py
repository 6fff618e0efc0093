import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fracdna_prep.compression import open_unpacked
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file
from fracdna_prep.interval import Interval
from fracdna_prep.wording import counted

_SKIPPED = re.compile(r"\s*(?:#.*|(?:track|browser)(?:\s.*)?)?")
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")
# What the sixth column may hold; "*" is how Bioconductor writes "either strand".
_STRANDS = {"+": "+", "-": "-", ".": ".", "*": ".", "": "."}
_NUMBER_LIKE = re.compile(r"[-+.,\d]")


@dataclass(frozen=True)
class BedTable:
    """The rows of a BED file, in file order; coordinates 0-based and half-open.

    Attributes:
        path: the file.
        contigs: names, always text.
        starts: (R,) int64.
        ends: (R,) int64; may equal or precede the start, see `empty` and `inverted`.
        names: fourth column, "" where there is none.
        scores: fifth column as text, "" where there is none.
        strands: "+", "-" or ".".
        extra: the columns behind the sixth.
        lines: (R,) int64 line numbers, counted from 1.
        header: the column names of a header line; empty without one.
    """

    path: Path
    contigs: list[str]
    starts: np.ndarray
    ends: np.ndarray
    names: list[str]
    scores: list[str]
    strands: list[str]
    extra: list[tuple[str, ...]]
    lines: np.ndarray
    header: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.contigs)

    @property
    def empty(self) -> np.ndarray:
        """(R,) bool: rows that hold no base."""
        return self.starts == self.ends

    @property
    def inverted(self) -> np.ndarray:
        """(R,) bool: rows that end before they start."""
        return self.ends < self.starts

    def interval(self, row: int) -> Interval:
        """One row; "." counts as the forward strand."""
        strand = "-" if self.strands[row] == "-" else "+"
        return Interval(self.contigs[row], int(self.starts[row]), int(self.ends[row]), strand)

    def intervals(self) -> Iterator[Interval]:
        """All rows in order."""
        return (self.interval(row) for row in range(len(self)))

    def place_of(self, row: int) -> str:
        """Where a row stands, for messages."""
        return f"{self.path}:{self.lines[row]}"


def read_bed(path: Path | str) -> BedTable:
    """Reads a BED file with three or more columns, plain or gzip.

    Tabs or blanks separate the columns; comments, track and browser lines, one header line, blank
    lines, trailing tabs and CRLF are accepted. Empty and inverted rows are kept.

    Raises:
        InputError: unreadable, no row at all, or a row that is not BED; names file and line.
    """
    path = Path(path)
    header: tuple[str, ...] = ()
    rows: list[tuple[int, list[str]]] = []
    with open_unpacked(path) as file:
        for number, raw in enumerate(file, 1):
            text = raw.decode("utf-8", "replace").rstrip("\r\n")
            if _is_skipped(text):
                continue
            fields = _fields(text)
            if not rows and not header and _is_header(fields):
                header = tuple(fields)
                continue
            _check_row(path, number, fields)
            rows.append((number, fields))
    if not rows:
        raise InputError(f"{path} holds no interval: a BED row is contig, start, end")
    return _table(path, rows, header)


def write_bed(
    path: Path | str, intervals: Iterable[Interval], names: Sequence[str] | None = None
) -> None:
    """Writes BED6, with "." for missing names and 0 as score."""
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for row, interval in enumerate(intervals):
            name = names[row] if names is not None else "."
            fields = (interval.chromosome, interval.start, interval.end, name, 0, interval.strand)
            file.write("\t".join(map(str, fields)) + "\n")


def _is_skipped(text: str) -> bool:
    # The pattern is tried only where it could fit: tables of repeats have millions of rows.
    return text.lstrip()[:1] in ("", "#", "t", "b") and _SKIPPED.fullmatch(text) is not None


def _fields(text: str) -> list[str]:
    fields = [field.strip() for field in text.rstrip("\t ").split("\t")]
    return fields if len(fields) >= 3 else text.split()


def _is_header(fields: list[str]) -> bool:
    return len(fields) >= 3 and not any(_NUMBER_LIKE.match(field) for field in fields[1:3])


def _check_row(path: Path, number: int, fields: list[str]) -> None:
    if len(fields) < 3:
        raise InputError(
            f"{path}:{number}: {counted(len(fields), 'column')}, expected contig, start and end "
            "separated by tabs"
        )
    for name, field in zip(("start", "end"), fields[1:3], strict=True):
        if not _WHOLE_NUMBER.fullmatch(field):
            raise InputError(f"{path}:{number}: the {name} is {field!r}, expected a whole number")
    if not fields[0]:
        raise InputError(f"{path}:{number}: the contig's name is empty")
    if len(fields) > 5 and fields[5] not in _STRANDS:
        raise InputError(
            f"{path}:{number}: the sixth column is {fields[5]!r}, expected the strand: '+', '-' "
            "or '.'"
        )


def _table(path: Path, rows: list[tuple[int, list[str]]], header: tuple[str, ...]) -> BedTable:
    def column(index: int, missing: str) -> list[str]:
        return [fields[index] if len(fields) > index else missing for _, fields in rows]

    return BedTable(
        path=path,
        contigs=column(0, ""),
        starts=np.array([int(fields[1]) for _, fields in rows], dtype=np.int64),
        ends=np.array([int(fields[2]) for _, fields in rows], dtype=np.int64),
        names=column(3, ""),
        scores=column(4, ""),
        strands=[_STRANDS[strand] for strand in column(5, ".")],
        extra=[tuple(fields[6:]) for _, fields in rows],
        lines=np.array([number for number, _ in rows], dtype=np.int64),
        header=header,
    )
