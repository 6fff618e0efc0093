"""Pooled vectors with their coordinates as an AnnData file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fracdna.embedding.output import COLUMNS, Results
from fracdna_prep.files import atomic_file


def write_annotated(path: Path, results: Results, metadata: Mapping[str, Any]) -> None:
    """Writes one observation per region, in the order given.

    X is the first layer, (regions, width) float32, NaN where a region is dropped; of several,
    each is under its name in `layers`. Columns of the table are in `obs`, "" for no name, settings
    as JSON in uns["fracdna"]. AnnData keeps all of it in memory.

    Args:
        path: the h5ad file.
        results: of one vector for each region and layer.
        metadata: plain values.

    Raises:
        InputError: the folder cannot be written or is full.
    """
    # an extra: whoever does not ask for it need not have it
    from anndata import AnnData

    rows = range(len(results.regions))
    table = pa.table(results.columns(rows), names=[column.name for column in COLUMNS])
    observations = table.to_pandas()
    observations["name"] = observations["name"].fillna("")
    observations.index = observations["row"].astype(str)
    observations.index.name = None
    # what is mapped counts as another kind of array
    values = np.asarray(results.values)
    by_name = {name: values[:, layer] for layer, name in enumerate(results.names)}
    data = AnnData(
        X=values[:, 0],
        obs=observations,
        layers=by_name if len(by_name) > 1 else None,
        uns={"fracdna": json.dumps(dict(metadata), sort_keys=True)},
    )
    with atomic_file(path) as temporary:
        data.write_h5ad(temporary, compression="gzip")
