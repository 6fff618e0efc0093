"""Hidden states of genomic regions: the command's entry point and its Python doors."""

from fracdna.embedding.command import run
from fracdna.embedding.options import EmbeddingOptions
from fracdna.embedding.region_states import embed_regions
from fracdna.embedding.regions import Regions, place_regions, read_regions
from fracdna.embedding.sequences import embed
from fracdna.embedding.states import pooled_batches, pooled_states

__all__ = [
    "EmbeddingOptions",
    "Regions",
    "embed",
    "embed_regions",
    "place_regions",
    "pooled_batches",
    "pooled_states",
    "read_regions",
    "run",
]
