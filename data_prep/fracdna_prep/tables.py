"""Parquet files: the window table, which is the manifest of what a run reads, and its intervals."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fracdna_prep.compression import reading_refusals
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file
from fracdna_prep.interval import Interval
from fracdna_prep.splits import canonical_split

VERSION = 1
_METADATA_KEY = b"fracdna"
_TEXT = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class Column:
    """One column of a table on disk."""

    name: str
    kind: pa.DataType
    unit: str
    meaning: str


WINDOW_COLUMNS = (
    Column("row", pa.int64(), "index", "row of intervals.parquet that the window was made from"),
    Column("contig", _TEXT, "text", "contig name as in the genome"),
    Column("start", pa.int64(), "base, from 0", "first base of the window on the contig"),
    Column("end", pa.int64(), "base, from 0", "behind the last base of the window on the contig"),
    Column("strand", _TEXT, "+ or -", "strand of the interval"),
    Column("split", _TEXT, "text", "train, valid, test or none"),
    Column("n_fraction", pa.float64(), "0 to 1", "share of N; NaN where nothing can be read"),
    Column("masked_fraction", pa.float64(), "0 to 1", "share of soft-masked bases; likewise"),
    Column("status", _TEXT, "text", "ok, shifted, padded, or dropped and why"),
    Column("shift", pa.int64(), "bases", "how far the window was moved to the right"),
    Column("pad_left", pa.int64(), "positions", "padding before the start, forward strand"),
    Column("pad_right", pa.int64(), "positions", "padding behind the end, forward strand"),
)

INTERVAL_COLUMNS = (
    Column("row", pa.int64(), "index", "position among the input intervals, from 0"),
    Column("contig", _TEXT, "text", "contig name as in the genome"),
    Column("start", pa.int64(), "base, from 0", "first base, as in the input"),
    Column("end", pa.int64(), "base, from 0", "behind the last base, as in the input"),
    Column("strand", _TEXT, "+ or -", "strand; + where the input has none"),
    Column("name", pa.string(), "text", "fourth column of the input"),
    Column("split", _TEXT, "text", "train, valid, test or none"),
    Column("status", _TEXT, "text", "ok, clipped to its contig, or dropped and why"),
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

    def write(self, path: Path | str) -> Self:
        """Writes the table with its metadata and content hash; returns it with its path.

        Raises:
            InputError: the folder cannot be written.
        """
        metadata = {**self.metadata, "format": f"fracdna windows {VERSION}"}
        metadata["content_hash"] = self._hash()
        columns = {column.name: getattr(self, column.name) for column in WINDOW_COLUMNS}
        write_table(path, WINDOW_COLUMNS, columns, metadata)
        return type(self)(**columns, metadata=metadata, path=Path(path).absolute())

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
        if metadata.get("format") != f"fracdna windows {VERSION}":
            raise InputError(
                f"{path} is no window table of version {VERSION}: make it with `fracdna prepare`"
            )
        table = cls(**columns, metadata=metadata, path=Path(path).absolute())
        if verify:
            table.verify()
        return table

    def verify(self) -> str:
        """Computes the content hash from the rows and returns it.

        Raises:
            InputError: it is not the one in the metadata.
        """
        found = self._hash()
        if found != self.metadata.get("content_hash"):
            raise InputError(
                f"{self.path} was changed, its content is not that of its hash: remove it and make "
                "it again with `fracdna prepare`"
            )
        return found

    def _hash(self) -> str:
        order = np.lexsort((self.end, self.start, self.row))
        head = [self.metadata.get("length"), self.metadata.get("genome_checksum")]
        digest = hashlib.sha256(json.dumps(head).encode())
        for column in WINDOW_COLUMNS:
            values = getattr(self, column.name)
            if column.kind == _TEXT:
                values, texts = _ranks(values)
                digest.update(json.dumps(texts).encode())
            little_endian = values.dtype.newbyteorder("<")
            digest.update(column.name.encode())
            digest.update(np.ascontiguousarray(values[order], dtype=little_endian).data)
        return digest.hexdigest()


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
    fields = [
        pa.field(
            column.name, column.kind, metadata={"unit": column.unit, "meaning": column.meaning}
        )
        for column in columns
    ]
    schema = pa.schema(fields, metadata={_METADATA_KEY: json.dumps(dict(metadata), sort_keys=True)})
    arrays = [_to_arrow(values[column.name], column.kind) for column in columns]
    with atomic_file(path) as temporary:
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), temporary, compression="zstd")


def read_table(
    path: Path | str, columns: tuple[Column, ...]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads columns as numpy arrays, and the metadata.

    Raises:
        InputError: missing, unreadable, or without one of the columns.
    """
    with reading_refusals(path), _damage_refusals(path):
        # Without threads, so that a process that forked may read too.
        file = pq.ParquetFile(path)
        names = [column.name for column in columns]
        missing = [name for name in names if name not in file.schema_arrow.names]
        if missing:
            raise InputError(
                f"{path} lacks the columns {', '.join(missing)}: make it again with "
                "`fracdna prepare`"
            )
        table = file.read(names, use_threads=False)
        metadata = _metadata_of(table.schema)
        return {name: _to_numpy(table.column(name)) for name in names}, metadata


def read_metadata(path: Path | str) -> dict[str, Any]:
    """Only the metadata of a table; empty when there is no such file or no metadata."""
    try:
        return _metadata_of(pq.read_schema(path))
    except (OSError, ValueError, pa.ArrowException):
        return {}


def _metadata_of(schema: pa.Schema) -> dict[str, Any]:
    metadata = json.loads((schema.metadata or {}).get(_METADATA_KEY, b"{}"))
    return metadata if isinstance(metadata, dict) else {}


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
    if kind == _TEXT:
        return pa.array(values, type=pa.string()).dictionary_encode()
    return pa.array(values, type=kind)


def _to_numpy(column: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_dictionary(column.type):
        encoded = column.unify_dictionaries().combine_chunks()
        texts = np.array(encoded.dictionary.to_pylist(), dtype=object)
        return texts[encoded.indices.to_numpy()]
    return column.to_numpy()


def _ranks(texts: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Each text's position among the distinct ones in alphabetical order, and those."""
    encoded = pa.array(texts, type=pa.string()).dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    ordered = sorted(distinct)
    position = {text: index for index, text in enumerate(ordered)}
    rank = np.array([position[text] for text in distinct], dtype=np.int64)
    return rank[encoded.indices.to_numpy()], ordered
