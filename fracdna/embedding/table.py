"""Pooled vectors with their coordinates as a Parquet file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fracdna.embedding.output import COLUMNS, Results
from fracdna.embedding.regions import Regions
from fracdna_prep.files import atomic_file
from fracdna_prep.tables import Column

_METADATA_KEY = b"fracdna"
_ROWS_PER_GROUP = 1 << 14


def write_table(path: Path, results: Results, metadata: Mapping[str, Any]) -> None:
    """Writes one row per region, in row groups; the file appears when it is complete.

    Args:
        path: the Parquet file.
        results: of one vector for each region and layer; dropped regions are written as null.
        metadata: plain values, written as JSON under the key "fracdna" of the schema.

    Raises:
        InputError: the folder cannot be written or is full.
    """
    schema = _schema(results, metadata)
    count = len(results.regions)
    with (
        atomic_file(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        for start in range(0, count, _ROWS_PER_GROUP):
            rows = range(start, min(start + _ROWS_PER_GROUP, count))
            arrays = results.columns(rows)
            for layer in range(len(results.layers)):
                arrays.append(_vectors(results.regions, results.values[:, layer], rows))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _schema(results: Results, metadata: Mapping[str, Any]) -> pa.Schema:
    """Column names and types; every column tells its unit and meaning."""
    kind = pa.list_(pa.float32(), results.values.shape[2])
    meaning = "pooled hidden state; null where the row is dropped"
    vectors = [Column(name, kind, "activation", meaning) for name in results.names]
    fields = [
        pa.field(c.name, c.kind, metadata={"unit": c.unit, "meaning": c.meaning})
        for c in (*COLUMNS, *vectors)
    ]
    text = json.dumps(dict(metadata), sort_keys=True)
    return pa.schema(fields, metadata={_METADATA_KEY: text})


def _vectors(regions: Regions, vectors: np.ndarray, rows: range) -> pa.Array:
    """A fixed-size list per row, null where the row is dropped."""
    dropped = ~np.isin(np.arange(rows.start, rows.stop), regions.usable)
    values = np.ascontiguousarray(vectors[rows.start : rows.stop], dtype=np.float32)
    return pa.FixedSizeListArray.from_arrays(
        pa.array(values.reshape(-1)),
        vectors.shape[1],
        mask=pa.array(dropped),
    )
