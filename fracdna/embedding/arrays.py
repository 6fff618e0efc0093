"""Vectors of every base with their coordinates as a Zarr group."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fracdna.embedding.output import COLUMNS, Results
from fracdna_prep.errors import InputError
from fracdna_prep.files import remove, writing_refusals

if TYPE_CHECKING:
    import zarr

_CHUNK_BYTES = 1 << 22
_ROWS_PER_CHUNK = 1 << 14


def write_arrays(
    path: Path, results: Results, metadata: Mapping[str, Any], dtype: str
) -> dict[str, float]:
    """Writes one array per layer, (bases, width), the regions one behind the other.

    `offsets` tells where each region begins; the columns of the table are arrays of the same names,
    "" for no name, NaN for no share of N. Settings are in the attribute "fracdna" of the group. It
    appears when it is complete.

    Args:
        path: the folder of the group.
        results: of one vector for each base and layer.
        metadata: plain values.
        dtype: "float32", or "float16", whose largest error is an attribute of each array.

    Returns:
        the largest error by array, none in float32.

    Raises:
        InputError: the folder cannot be written or is full, or a value that float16 cannot hold.
    """
    # an extra: whoever does not ask for it need not have it
    import zarr

    with _atomic_folder(path) as temporary:
        group = zarr.create_group(temporary, zarr_format=3)
        group.attrs["fracdna"] = dict(metadata)
        _write_columns(group, results)
        return {
            name: error
            for number, name in enumerate(results.names)
            if (error := _write_layer(group, name, results.values[:, number], dtype)) is not None
        }


def _write_columns(group: "zarr.Group", results: Results) -> None:
    """Offsets, and what the table has beside its vectors."""
    count = len(results.regions)
    offsets = group.create_array("offsets", shape=(count + 1,), dtype="int64")
    offsets[:] = results.offsets
    offsets.attrs["meaning"] = "region n has the bases offsets[n] to offsets[n + 1] - 1"
    kinds = {pa.int64(): "int64", pa.float64(): "float64", pa.string(): str}
    arrays = []
    for column in COLUMNS:
        array = group.create_array(
            column.name, shape=(count,), chunks=(_ROWS_PER_CHUNK,), dtype=kinds[column.kind]
        )
        array.attrs.update({"unit": column.unit, "meaning": column.meaning})
        arrays.append(array)
    for start in range(0, count, _ROWS_PER_CHUNK):
        rows = range(start, min(start + _ROWS_PER_CHUNK, count))
        for array, column in zip(arrays, results.columns(rows), strict=True):
            empty = {pa.string(): "", pa.float64(): np.nan}.get(column.type)
            filled = column if empty is None else column.fill_null(empty)
            array[rows.start : rows.stop] = filled.to_numpy(zero_copy_only=False)


def _write_layer(group: "zarr.Group", name: str, values: np.ndarray, dtype: str) -> float | None:
    """All bases of one layer by the chunk; the largest error where they are rounded."""
    bases, width = values.shape
    chunk = max(1, _CHUNK_BYTES // (4 * width))
    array = group.create_array(
        name,
        shape=(bases, width),
        chunks=(chunk, width),
        dtype=dtype,
        dimension_names=("base", "channel"),
    )
    array.attrs["meaning"] = "hidden state of every base, in the order of the forward strand"
    errors = [0.0]
    for start in range(0, bases, chunk):
        exact = values[start : start + chunk]
        with np.errstate(over="ignore"):
            stored = exact.astype(dtype)
        if not np.isfinite(stored).all():
            raise InputError(
                f"dtype={dtype} ends at 65,504, and {name} holds {np.abs(exact).max():,.0f}: give "
                "the same command with dtype=float32; nothing is computed again"
            )
        errors.append(float(np.abs(stored.astype(np.float32) - exact).max()))
        array[start : start + chunk] = stored
    if dtype == "float32":
        return None
    array.attrs["largest_error"] = max(errors)
    return max(errors)


@contextmanager
def _atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place when the block ends well."""
    token = secrets.token_hex(4)
    temporary, older = (path.with_name(f".{token}.{part}{path.name}") for part in ("", "older."))
    with writing_refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            if path.exists():
                path.rename(older)
            temporary.rename(path)
        finally:
            remove(temporary)
            remove(older)
