"""Vectors of regions of a genome, as an array."""

from collections.abc import Iterable

import numpy as np

from fracdna.embedding.options import DEFAULTS, PER_BASE, EmbeddingOptions
from fracdna.embedding.regions import Regions, place_regions
from fracdna.embedding.rows import Rows, fill_rows
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.progress import progress_bar


def embed_regions(
    model: LanguageModel,
    store: GenomeStore,
    regions: Regions | Iterable[Interval],
    options: EmbeddingOptions = DEFAULTS,
    *,
    flank: int = 0,
    out: np.ndarray | None = None,
    progress: bool = False,
) -> np.ndarray | list[np.ndarray]:
    """The vectors of regions, in the order given.

    Args:
        model: such as load_model returns, on the device to be used.
        store: the genome; bases are read when they are due.
        regions: from place_regions, or intervals, which are then placed on the genome.
        options: layers, pooling, strand and limits.
        flank: of intervals, bases on both sides that are read as context and do not count; regions
            of place_regions have theirs.
        out: (regions, d_model) float32 to be filled, with the layers in between where options.layer
            is a tuple, 2 d_model with strand "equivariant"; None: a new array. Not with pooling
            "none".
        progress: show bases done, their rate and the time left.

    Returns:
        `out`, or a new array; rows of dropped regions keep what `out` holds, NaN in a new one. With
        pooling "none" a list of (bases, d_model) or (bases, layers, d_model), whose bases are those
        of the forward strand, none in dropped regions.

    Raises:
        InputError: an unusable option, or a contig that the genome lacks.
        NotFinite: a vector holds NaN or infinity; names the first affected row.
    """
    if not isinstance(regions, Regions):
        regions = place_regions(regions, store.contigs, flank=flank)
    elif flank:
        raise InputError(f"flank={flank}: these regions are placed; give it to place_regions")
    if out is not None and options.per_base:
        raise InputError(f"out= does not go with pooling={PER_BASE}, whose rows are unequally long")
    rows = Rows.of_regions(regions, store, options)
    values = rows.empty(model.backbone.d_model) if out is None else rows.view_of(out)
    with progress_bar(rows.positions, "embed", progress) as bar:
        try:
            fill_rows(model, rows, values, bar.update)
        except NotFinite as error:
            raise NotFinite(describe_row(regions, error.row), error.row) from None
    return rows.unpacked(values) if out is None else out


def describe_row(regions: Regions, row: int) -> str:
    """What is said of the first row whose vector is none."""
    return f"row {row} ({regions.intervals[row]}): its vector holds NaN or infinity"
