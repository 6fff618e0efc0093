"""Writing a window table a row group at a time, in memory that does not grow with it."""

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fracdna_prep.files import atomic_file
from fracdna_prep.tables import (
    HASH_KEY,
    TEXT,
    WINDOW_COLUMNS,
    WINDOWS_FORMAT,
    Column,
    Texts,
    hash_windows,
    schema_of,
)

Batch = Mapping[str, np.ndarray | Texts]
_BLOCK = 1 << 20
_DTYPES = {
    column.name: np.int64 if column.kind == TEXT else column.kind.to_pandas_dtype()
    for column in WINDOW_COLUMNS
}


def write_windows(path: Path | str, batches: Iterable[Batch], metadata: Mapping[str, Any]) -> str:
    """Writes a window table, a row group for each batch, with its content hash in the metadata.

    Args:
        path: of the file.
        batches: the columns of WINDOW_COLUMNS by name, in the order of (row, start, end); the
            words of a text column are the same in all of them.
        metadata: length, genome checksum and all that made the table.

    Returns:
        the content hash.

    Raises:
        InputError: the folder cannot be written.
    """
    path = Path(path)
    metadata = {**metadata, "format": WINDOWS_FORMAT}
    schema = schema_of(WINDOW_COLUMNS, metadata)
    with (
        atomic_file(path) as temporary,
        _files_without_name(path.parent) as files,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        spill = _Spill(files)
        for batch in batches:
            spill.add(batch)
            arrays = [_to_arrow(batch[column.name], column) for column in WINDOW_COLUMNS]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
        content_hash = hash_windows(metadata, spill.blocks)
        writer.add_key_value_metadata({HASH_KEY: content_hash})
    return content_hash


@contextlib.contextmanager
def _files_without_name(folder: Path) -> Iterator[dict[str, BinaryIO]]:
    """A file for each column, of which nothing is left even by SIGKILL."""
    with contextlib.ExitStack() as opened:
        yield {
            column.name: opened.enter_context(tempfile.TemporaryFile(dir=folder))
            for column in WINDOW_COLUMNS
        }


class _Spill:
    """Keeps columns in files, because the hash takes one column after the other."""

    def __init__(self, files: Mapping[str, BinaryIO]) -> None:
        self._files = files
        self._words: dict[str, Sequence[str]] = {}

    def add(self, batch: Batch) -> None:
        for name, file in self._files.items():
            values = batch[name]
            if isinstance(values, Texts):
                values, self._words[name] = values
            file.write(np.ascontiguousarray(values, dtype=_DTYPES[name]).data)

    def blocks(self, column: Column) -> Iterator[np.ndarray | Texts]:
        file = self._files[column.name]
        file.seek(0)
        while block := file.read(_BLOCK):
            values = np.frombuffer(block, dtype=_DTYPES[column.name])
            yield Texts(values, self._words[column.name]) if column.kind == TEXT else values


def _to_arrow(values: np.ndarray | Texts, column: Column) -> pa.Array:
    if isinstance(values, Texts):
        codes = pa.array(values.codes, type=pa.int32())
        return pa.DictionaryArray.from_arrays(codes, pa.array(values.words, type=pa.string()))
    return pa.array(values, type=column.kind)
