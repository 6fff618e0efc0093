"""What is written of a run, whatever the kind of file, and which kind its options ask for."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fracdna.embedding.options import PER_BASE, EmbeddingOptions
from fracdna.embedding.regions import Regions
from fracdna.resumable import output_path
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.option_checks import check_choice
from fracdna_prep.tables import Column

COLUMNS = (
    Column("row", pa.int64(), "index", "position among the input regions, from 0"),
    Column("contig", pa.string(), "text", "contig name as in the genome"),
    Column("start", pa.int64(), "base, from 0", "first base; of a dropped row, as asked for"),
    Column("end", pa.int64(), "base, from 0", "behind the last base; likewise"),
    Column("window_start", pa.int64(), "base, from 0", "first base of the window with its flanks"),
    Column("window_end", pa.int64(), "base, from 0", "behind the last base of the window"),
    Column("strand", pa.string(), "+ or -", "strand of the region; + where the input has none"),
    Column("name", pa.string(), "text", "name of the region; null where the input has none"),
    Column("status", pa.string(), "text", "ok, or clipped, shifted, dropped and why"),
    Column("n_fraction", pa.float64(), "0 to 1", "share of N; null where nothing was read"),
)
DTYPES = ("float32", "float16")
_KINDS = {
    ".parquet": "a table",
    ".h5ad": "AnnData",
    ".zarr": f"every base, with pooling={PER_BASE}",
}
# package that writes a kind of file, which an extra of the same name installs
_WRITERS = {".h5ad": "anndata", ".zarr": "zarr"}
_ZARR_GROUP = "zarr.json"


@dataclass(frozen=True)
class Results:
    """Vectors of regions.

    Attributes:
        regions: with their statuses.
        store: the genome, for the shares of N.
        offsets: (regions + 1,) where the vectors of each region begin.
        values: (vectors, layers, width) float32; the width is d_model, or twice that.
        layers: their numbers.
    """

    regions: Regions
    store: GenomeStore
    offsets: np.ndarray
    values: np.ndarray
    layers: Sequence[int]

    @property
    def names(self) -> list[str]:
        """What the vectors of each layer are called: "embedding", or of several each its own."""
        if len(self.layers) == 1:
            return ["embedding"]
        return [f"embedding_{layer}" for layer in self.layers]

    def columns(self, rows: range) -> list[pa.Array]:
        """Everything but the vectors of some rows, in the order of COLUMNS."""
        regions = self.regions
        intervals = [regions.intervals[row] for row in rows]
        windows = [regions.windows[row] for row in rows]
        values = {
            "row": list(rows),
            "contig": [interval.chromosome for interval in intervals],
            "start": [interval.start for interval in intervals],
            "end": [interval.end for interval in intervals],
            "window_start": [window.start for window in windows],
            "window_end": [window.end for window in windows],
            "strand": [interval.strand for interval in intervals],
            "name": [regions.names[row] for row in rows],
            "status": [regions.statuses[row] for row in rows],
            "n_fraction": [regions.n_fraction(row, self.store) for row in rows],
        }
        return [pa.array(values[column.name], type=column.kind) for column in COLUMNS]


def check_output(output: Any, options: EmbeddingOptions, dtype: str) -> Path:
    """The absolute path of the output, if it can be written and suits what goes into it.

    Raises:
        InputError: another kind of file, a package that is missing, or a place that forbids it.
    """
    check_choice("dtype", dtype, DTYPES)
    path = output_path("output", output, _KINDS, _replaces)
    _check_kind(output, path.suffix, options, dtype)
    return path


def _replaces(path: Path) -> bool:
    """Whether what is there is a file, or a group, as would be written."""
    return (path / _ZARR_GROUP if path.suffix == ".zarr" else path).is_file()


def _check_kind(output: str, suffix: str, options: EmbeddingOptions, dtype: str) -> None:
    """Refuses vectors that a kind of file does not hold."""
    if options.per_base != (suffix == ".zarr"):
        wanted = "x.zarr" if options.per_base else "x.parquet or x.h5ad"
        raise InputError(
            f"output={output} does not go with pooling={options.pooling}: {wanted} does"
        )
    if dtype != DTYPES[0] and suffix != ".zarr":
        raise InputError(
            f"dtype={dtype} goes with pooling={PER_BASE} alone: pooled vectors are small"
        )
    package = _WRITERS.get(suffix)
    if package and find_spec(package) is None:
        raise InputError(
            f"output={output} needs the package {package}, which is missing: "
            f"pip install 'fracdna[{package}]'"
        )
