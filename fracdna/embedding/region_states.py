"""Vectors of regions of a genome, as an array."""

from collections.abc import Iterable

import numpy as np

from fracdna.embedding.options import DEFAULTS, EmbeddingOptions
from fracdna.embedding.regions import RegionIds, Regions, place_regions
from fracdna.embedding.states import pooled_batches
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.progress import progress_bar


def embed_regions(
    model: LanguageModel,
    store: GenomeStore,
    regions: Regions | Iterable[Interval],
    options: EmbeddingOptions = DEFAULTS,
    *,
    out: np.ndarray | None = None,
    progress: bool = False,
) -> np.ndarray:
    """One vector per region, in the order given.

    Args:
        model: such as load_model returns, on the device to be used.
        store: the genome; bases are read when they are due.
        regions: from place_regions, or intervals, which are then placed on the genome.
        options: layer, pooling, strand and limits.
        out: (regions, d_model) float32 to be filled; None: a new array.
        progress: show bases done, their rate and the time left.

    Returns:
        `out`, or a new array; rows of dropped regions keep what `out` holds, NaN in a new one.

    Raises:
        InputError: an unusable option, or a contig that the genome lacks.
        NotFinite: a vector holds NaN or infinity; names the first affected row.
    """
    if not isinstance(regions, Regions):
        regions = place_regions(regions, store.contigs)
    if out is None:
        out = np.full((len(regions), model.backbone.d_model), np.nan, dtype=np.float32)
    usable = regions.usable
    read = [regions.intervals[row] for row in usable]
    flipped = np.array([region.strand == "-" for region in read], dtype=bool)
    sequences = [RegionIds(store, region) for region in read]
    passes = 2 if options.strand == "average" else 1
    with progress_bar(passes * regions.bases, "embed", progress) as bar:
        found = pooled_batches(model, sequences, options, flipped=flipped, advance=bar.update)
        try:
            for rows, vectors in found:
                out[usable[rows]] = vectors
        except NotFinite as error:
            row = int(usable[error.row])
            message = f"row {row} ({regions.intervals[row]}): its vector holds NaN or infinity"
            raise NotFinite(message, row) from None
    return out
