"""Pooled vectors with their coordinates as a Parquet file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fracdna.embedding.regions import Regions
from fracdna_prep.files import atomic_file
from fracdna_prep.genome import GenomeStore
from fracdna_prep.tables import Column

COLUMNS = (
    Column("row", pa.int64(), "index", "position among the input regions, from 0"),
    Column("contig", pa.string(), "text", "contig name as in the genome"),
    Column("start", pa.int64(), "base, from 0", "first base read; of a dropped row, as asked for"),
    Column("end", pa.int64(), "base, from 0", "behind the last base read; likewise"),
    Column("strand", pa.string(), "+ or -", "strand of the region; + where the input has none"),
    Column("name", pa.string(), "text", "name of the region; null where the input has none"),
    Column("status", pa.string(), "text", "ok, clipped and by how much, or dropped and why"),
    Column("n_fraction", pa.float64(), "0 to 1", "share of N; null where nothing was read"),
)
_METADATA_KEY = b"fracdna"
_ROWS_PER_GROUP = 1 << 14


def write_embeddings(
    path: Path,
    regions: Regions,
    store: GenomeStore,
    vectors: np.ndarray,
    metadata: Mapping[str, Any],
) -> None:
    """Writes one row per region, in row groups; the file appears when it is complete.

    Args:
        path: the Parquet file.
        regions: with their statuses.
        store: the genome, for the shares of N.
        vectors: (regions, d_model) float32; rows of dropped regions are written as null.
        metadata: plain values, written as JSON under the key "fracdna" of the schema.

    Raises:
        InputError: the folder cannot be written or is full.
    """
    schema = _schema(vectors.shape[1], metadata)
    with (
        atomic_file(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        for start in range(0, len(regions), _ROWS_PER_GROUP):
            rows = range(start, min(start + _ROWS_PER_GROUP, len(regions)))
            arrays = [*_columns(regions, store, rows), _vectors(regions, vectors, rows)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _schema(width: int, metadata: Mapping[str, Any]) -> pa.Schema:
    """Column names and types; every column tells its unit and meaning."""
    vector = Column(
        "embedding",
        pa.list_(pa.float32(), width),
        "activation",
        "pooled hidden state; null where the row is dropped",
    )
    fields = [
        pa.field(c.name, c.kind, metadata={"unit": c.unit, "meaning": c.meaning})
        for c in (*COLUMNS, vector)
    ]
    text = json.dumps(dict(metadata), sort_keys=True)
    return pa.schema(fields, metadata={_METADATA_KEY: text})


def _columns(regions: Regions, store: GenomeStore, rows: range) -> list[pa.Array]:
    """Everything but the vectors, in the order of COLUMNS."""
    intervals = [regions.intervals[row] for row in rows]
    values = {
        "row": list(rows),
        "contig": [interval.chromosome for interval in intervals],
        "start": [interval.start for interval in intervals],
        "end": [interval.end for interval in intervals],
        "strand": [interval.strand for interval in intervals],
        "name": [regions.names[row] for row in rows],
        "status": [regions.statuses[row] for row in rows],
        "n_fraction": [regions.n_fraction(row, store) for row in rows],
    }
    return [pa.array(values[column.name], type=column.kind) for column in COLUMNS]


def _vectors(regions: Regions, vectors: np.ndarray, rows: range) -> pa.Array:
    """A fixed-size list per row, null where the row is dropped."""
    dropped = ~np.isin(np.arange(rows.start, rows.stop), regions.usable)
    values = np.ascontiguousarray(vectors[rows.start : rows.stop], dtype=np.float32)
    return pa.FixedSizeListArray.from_arrays(
        pa.array(values.reshape(-1)),
        vectors.shape[1],
        mask=pa.array(dropped),
    )
