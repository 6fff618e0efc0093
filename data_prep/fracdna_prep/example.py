"""The human DNA that ships with the package: GRCh37 chr20, bases 1,000,000 to 3,000,000."""

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "example_data"


@dataclass(frozen=True)
class ExampleFiles:
    """The bundled files; their contig is `chr20_1M_3M`, positions are relative to 1 Mb.

    Attributes:
        fasta: the two million bases, bgzip.
        splits_bed: contig, start, end and split: training, validation and test with gaps.
        regions_bed: 200 regions drawn by seed, on both strands.
        variants_vcf: about 300 variants made from the sequence by seed; nobody's genotype.
        checksums: SHA-256 of the files above.
    """

    fasta: Path
    splits_bed: Path
    regions_bed: Path
    variants_vcf: Path
    checksums: Path


def example_files() -> ExampleFiles:
    """Paths of the bundled data, in a checkout as in an installed package."""
    return ExampleFiles(
        fasta=_FOLDER / "chr20_1M_3M.fa.gz",
        splits_bed=_FOLDER / "splits.bed",
        regions_bed=_FOLDER / "regions.bed",
        variants_vcf=_FOLDER / "variants.vcf",
        checksums=_FOLDER / "SHA256SUMS",
    )
