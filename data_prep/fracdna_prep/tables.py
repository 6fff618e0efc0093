"""Parquet files: the window table, which is the manifest of what a run reads, and its intervals."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fracdna_prep.compression import reading_refusals
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file
from fracdna_prep.interval import Interval
from fracdna_prep.splits import canonical_split

VERSION = 1
WINDOWS_FORMAT = f"fracdna windows {VERSION}"
_METADATA_KEY = b"fracdna"
# Apart from the others, because it is known only when all rows are written.
HASH_KEY = b"fracdna_content_hash"
TEXT = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class Column:
    """One column of a table on disk."""

    name: str
    kind: pa.DataType
    unit: str
    meaning: str


class Texts(NamedTuple):
    """A column of few distinct texts: (W,) positions in `words`, which may hold more of them."""

    codes: np.ndarray
    words: Sequence[str]


WINDOW_COLUMNS = (
    Column("row", pa.int64(), "index", "row of intervals.parquet that the window was made from"),
    Column("contig", TEXT, "text", "contig name as in the genome"),
    Column("start", pa.int64(), "base, from 0", "first base of the window on the contig"),
    Column("end", pa.int64(), "base, from 0", "behind the last base of the window on the contig"),
    Column("strand", TEXT, "+ or -", "strand of the interval"),
    Column("split", TEXT, "text", "train, valid, test or none"),
    Column("n_fraction", pa.float64(), "0 to 1", "share of N; NaN where nothing can be read"),
    Column("masked_fraction", pa.float64(), "0 to 1", "share of soft-masked bases; likewise"),
    Column("status", TEXT, "text", "ok, shifted, padded, or dropped and why"),
    Column("shift", pa.int64(), "bases", "how far the window was moved to the right"),
    Column("pad_left", pa.int64(), "positions", "padding before the start, forward strand"),
    Column("pad_right", pa.int64(), "positions", "padding behind the end, forward strand"),
)

INTERVAL_COLUMNS = (
    Column("row", pa.int64(), "index", "position among the input intervals, from 0"),
    Column("contig", TEXT, "text", "contig name as in the genome"),
    Column("start", pa.int64(), "base, from 0", "first base, as in the input"),
    Column("end", pa.int64(), "base, from 0", "behind the last base, as in the input"),
    Column("strand", TEXT, "+ or -", "strand; + where the input has none"),
    Column("name", pa.string(), "text", "fourth column of the input"),
    Column("split", TEXT, "text", "train, valid, test or none"),
    Column("status", TEXT, "text", "ok, clipped to its contig, or dropped and why"),
)


@dataclass(frozen=True)
class WindowTable:
    """Windows of one length, with what became of each; WINDOW_COLUMNS says what columns mean.

    Numbers are (W,) arrays of int64 or float64, texts are (W,) object arrays of str. `metadata`
    holds plain values: format, length, genome checksum, policy, seed and all options.
    """

    row: np.ndarray
    contig: np.ndarray
    start: np.ndarray
    end: np.ndarray
    strand: np.ndarray
    split: np.ndarray
    n_fraction: np.ndarray
    masked_fraction: np.ndarray
    status: np.ndarray
    shift: np.ndarray
    pad_left: np.ndarray
    pad_right: np.ndarray
    metadata: dict[str, Any]
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.row)

    @property
    def length(self) -> int:
        """Positions of every readable window, padding included."""
        return int(self.metadata["length"])

    @cached_property
    def content_hash(self) -> str:
        """Hash of the sorted rows, the length and the genome: the same on any machine."""
        return self.metadata.get("content_hash") or self._hash()

    def usable(self, split: str | None = None) -> np.ndarray:
        """Indices of the windows that can be read.

        Args:
            split: "train", "valid", "test" or "none"; None takes all of them.

        Returns:
            (K,) int64, ascending.

        Raises:
            InputError: a split of another name.
        """
        wanted = np.isin(self.status, ("ok", "shifted", "padded"))
        if split is not None:
            wanted &= self.split == canonical_split(split)
        return np.flatnonzero(wanted)

    def interval(self, index: int) -> Interval:
        """The part of a window that lies on its contig."""
        return Interval(
            self.contig[index], int(self.start[index]), int(self.end[index]), self.strand[index]
        )

    def pads(self, index: int) -> tuple[int, int]:
        """Positions missing before and behind a window, on the forward strand."""
        return int(self.pad_left[index]), int(self.pad_right[index])

    @classmethod
    def read(cls, path: Path | str, *, verify: bool = True) -> Self:
        """Reads a window table.

        Args:
            path: the file.
            verify: compare the rows with the content hash, at about 0.4 s per million rows.

        Raises:
            InputError: missing, unreadable, not a window table of this version, or changed.
        """
        columns, metadata = read_table(path, WINDOW_COLUMNS)
        if metadata.get("format") != WINDOWS_FORMAT:
            raise InputError(
                f"{path} is no window table of version {VERSION}: make it with `fracdna prepare`"
            )
        if verify:
            verify_windows(path)
        return cls(**columns, metadata=metadata, path=Path(path).absolute())

    def verify(self) -> str:
        """Computes the content hash from the rows and returns it.

        Raises:
            InputError: it is not the one in the metadata.
        """
        found = self._hash()
        _check_hash(self.path, found, self.metadata)
        return found

    def _hash(self) -> str:
        order = np.lexsort((self.end, self.start, self.row))
        return hash_windows(self.metadata, lambda column: [self._block(column, order)])

    def _block(self, column: Column, order: np.ndarray) -> np.ndarray | Texts:
        values = getattr(self, column.name)[order]
        if column.kind != TEXT:
            return values
        encoded = pa.array(values, type=pa.string()).dictionary_encode()
        return Texts(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())


def hash_windows(
    metadata: Mapping[str, Any], blocks: Callable[[Column], Iterable[np.ndarray | Texts]]
) -> str:
    """The content hash of a window table, from its columns in pieces.

    Args:
        metadata: length and genome checksum count.
        blocks: of one column, in the order of (row, start, end); asked twice for texts.

    Returns:
        SHA-256 as hexadecimal text, the same on any machine.
    """
    head = [metadata.get("length"), metadata.get("genome_checksum")]
    digest = hashlib.sha256(json.dumps(head).encode())
    for column in WINDOW_COLUMNS:
        values = blocks(column)
        if column.kind == TEXT:
            words = sorted({word for block in values for word in _used(block)})
            digest.update(json.dumps(words).encode())
            values = (_ranks(block, words) for block in blocks(column))
        digest.update(column.name.encode())
        for block in values:
            little_endian = block.dtype.newbyteorder("<")
            digest.update(np.ascontiguousarray(block, dtype=little_endian).data)
    return digest.hexdigest()


def _check_hash(path: Path | str | None, found: str, metadata: Mapping[str, Any]) -> None:
    """Refuses a window table whose content is not that of its hash."""
    if found != metadata.get("content_hash"):
        raise InputError(
            f"{path} was changed, its content is not that of its hash: remove it and make it "
            "again with `fracdna prepare`"
        )


def write_table(
    path: Path | str,
    columns: tuple[Column, ...],
    values: Mapping[str, np.ndarray | Sequence[str]],
    metadata: Mapping[str, Any],
) -> None:
    """Writes a Parquet file whose schema tells unit and meaning of every column.

    Raises:
        InputError: the folder cannot be written.
    """
    arrays = [_to_arrow(values[column.name], column.kind) for column in columns]
    table = pa.Table.from_arrays(arrays, schema=schema_of(columns, metadata))
    with atomic_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def schema_of(columns: tuple[Column, ...], metadata: Mapping[str, Any]) -> pa.Schema:
    """The schema of a file, with unit and meaning of every column."""
    fields = [
        pa.field(
            column.name, column.kind, metadata={"unit": column.unit, "meaning": column.meaning}
        )
        for column in columns
    ]
    return pa.schema(fields, metadata={_METADATA_KEY: json.dumps(dict(metadata), sort_keys=True)})


def read_table(
    path: Path | str, columns: tuple[Column, ...]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads columns as numpy arrays, and the metadata.

    Raises:
        InputError: missing, unreadable, or without one of the columns.
    """
    with _open_table(path, [column.name for column in columns]) as file:
        rows = file.metadata.num_rows
        values = {column.name: np.empty(rows, dtype=_dtype(column.kind)) for column in columns}
        first = 0
        for batch in _row_groups(file, list(values)):
            for name, found in batch.items():
                if isinstance(found, Texts):
                    found = np.array(found.words, dtype=object)[found.codes]
                values[name][first : first + len(found)] = found
            first += len(found)
        return values, _metadata_of(file.metadata)


def read_windows(path: Path | str, names: Iterable[str]) -> Iterator[dict[str, np.ndarray | Texts]]:
    """The row groups of a window table in turn.

    Args:
        path: the file.
        names: of the columns.

    Yields:
        column name to values.

    Raises:
        InputError: missing, unreadable, or without one of the columns.
    """
    names = list(names)
    with _open_table(path, names) as file:
        yield from _row_groups(file, names)


def verify_windows(path: Path | str) -> str:
    """Computes the content hash of a window table from its rows and returns it.

    Raises:
        InputError: not a window table, or one that was changed.
    """
    metadata = read_metadata(path)

    def blocks(column: Column) -> Iterator[np.ndarray | Texts]:
        return (batch[column.name] for batch in read_windows(path, [column.name]))

    found = hash_windows(metadata, blocks)
    _check_hash(path, found, metadata)
    return found


@contextlib.contextmanager
def _open_table(path: Path | str, names: Sequence[str]) -> Iterator[pq.ParquetFile]:
    """A Parquet file that has some columns.

    Raises:
        InputError: missing, unreadable, or without one of the columns; also while reading.
    """
    with reading_refusals(path), _damage_refusals(path), pq.ParquetFile(path) as file:
        missing = [name for name in names if name not in file.schema_arrow.names]
        if missing:
            raise InputError(
                f"{path} lacks the columns {', '.join(missing)}: make it again with "
                "`fracdna prepare`"
            )
        yield file


def read_metadata(path: Path | str) -> dict[str, Any]:
    """Only the metadata of a table; empty when there is no such file or no metadata."""
    try:
        return _metadata_of(pq.read_metadata(path))
    except (OSError, ValueError, pa.ArrowException):
        return {}


def _metadata_of(file: pq.FileMetaData) -> dict[str, Any]:
    found = file.metadata or {}
    metadata = json.loads(found.get(_METADATA_KEY, b"{}"))
    if not isinstance(metadata, dict):
        return {}
    if HASH_KEY in found:
        metadata["content_hash"] = found[HASH_KEY].decode()
    return metadata


@contextlib.contextmanager
def _damage_refusals(path: Path | str) -> Iterator[None]:
    """Turns what a damaged Parquet file makes of its reader into an InputError."""
    try:
        yield
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        # pyarrow raises OSError for damage too, though without an error number.
        if getattr(error, "errno", None) is not None:
            raise
        raise InputError(
            f"{path} is no Parquet file, or a damaged one: remove it and make it again with "
            f"`fracdna prepare` ({error})"
        ) from error


def _to_arrow(values: np.ndarray | Sequence[str], kind: pa.DataType) -> pa.Array:
    if kind == TEXT:
        return pa.array(values, type=pa.string()).dictionary_encode()
    return pa.array(values, type=kind)


def _row_groups(file: pq.ParquetFile, names: list[str]) -> Iterator[dict[str, np.ndarray | Texts]]:
    for group in range(file.num_row_groups):
        # Without threads, so that a process that forked may read too.
        table = file.read_row_group(group, columns=names, use_threads=False)
        yield {name: _from_arrow(table.column(name)) for name in names}


def _from_arrow(column: pa.ChunkedArray) -> np.ndarray | Texts:
    if not pa.types.is_dictionary(column.type):
        return column.to_numpy()
    encoded = column.unify_dictionaries().combine_chunks()
    return Texts(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())


def _dtype(kind: pa.DataType) -> type[np.generic]:
    return np.object_ if kind == TEXT else kind.to_pandas_dtype()


def _used(texts: Texts) -> list[str]:
    return [texts.words[code] for code in np.flatnonzero(np.bincount(texts.codes))]


def _ranks(texts: Texts, words: list[str]) -> np.ndarray:
    """Each text's position among some words; what no text uses need not be among them."""
    position = {word: index for index, word in enumerate(words)}
    ranks = np.array([position.get(word, -1) for word in texts.words], dtype=np.int64)
    return ranks[texts.codes]
