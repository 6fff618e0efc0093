"""Rebuilds the bundled example data from GRCh37 chromosome 20.

    python scripts/make_example_genome.py 20.fa.gz

The source is `usr/share/doc/vt/examples/ref/20.fa.gz` of the Debian package vt-examples, record
`20`; the reference assembly is free of copyright. Regions and variants are drawn by seed from the
sequence itself, with `random.Random.random` only: the one generator whose numbers Python promises
to keep.
"""

import argparse
import hashlib
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from Bio import bgzf

from fracdna_prep.example import ExampleFiles, example_files
from fracdna_prep.files import sha256_file
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA

CONTIG = "chr20_1M_3M"
SOURCE = Interval("20", 1_000_000, 3_000_000)
DESCRIPTION = "GRCh37 chr20:1000001-3000000, positions relative to 1 Mb (add 1,000,000)"
LINE_WIDTH = 60
SEED = 2222

GUARD = 16_384
HELD_OUT = 11 * 16_384
TRAIN = 1_600_000

REGIONS = 200
# How many variants of each kind.
VARIANTS = (("SNV", 200), ("INS", 40), ("DEL", 40), ("MULTI", 20))
LONGEST_INDEL = 12


def main(arguments_given: Sequence[str] | None = None) -> None:
    """Reads the command line and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("source", type=Path, help="FASTA with the whole of chromosome 20")
    parser.add_argument("--output", type=Path, help="another folder than the package's own")
    arguments = parser.parse_args(arguments_given)
    folder = arguments.output or example_files().fasta.parent
    folder.mkdir(parents=True, exist_ok=True)
    write_all(read_sequence(arguments.source), in_folder(folder))


def in_folder(folder: Path) -> ExampleFiles:
    """The names of the example files in another folder."""
    return ExampleFiles(**{key: folder / path.name for key, path in vars(example_files()).items()})


def read_sequence(source: Path) -> str:
    """The bases of the example, in upper case."""
    with tempfile.TemporaryDirectory() as scratch:
        store = GenomeStore.build(source, Path(scratch) / "genome")
        return DNA.decode(store.fetch(SOURCE))


def write_all(sequence: str, files: ExampleFiles) -> None:
    """Writes the data and its checksums."""
    write_fasta(files.fasta, sequence)
    files.splits_bed.write_text(splits())
    files.regions_bed.write_text(regions(len(sequence)))
    files.variants_vcf.write_text(variants(sequence))
    data = (files.fasta, files.splits_bed, files.regions_bed, files.variants_vcf)
    files.checksums.write_text("".join(f"{sha256_file(path)}  {path.name}\n" for path in data))


def write_fasta(path: Path, sequence: str) -> None:
    """One record, bgzip at a fixed level."""
    lines = [sequence[i : i + LINE_WIDTH] for i in range(0, len(sequence), LINE_WIDTH)]
    text = f">{CONTIG} {DESCRIPTION}\n" + "\n".join(lines) + "\n"
    with bgzf.BgzfWriter(str(path), "wb", compresslevel=9) as writer:
        writer.write(text.encode())


def splits() -> str:
    """Four fifths for training, then validation and test, with a guard before each."""
    rows, start = [(0, TRAIN, "train")], TRAIN
    for split in ("valid", "test"):
        start += GUARD
        rows.append((start, start + HELD_OUT, split))
        start += HELD_OUT
    return "".join(f"{CONTIG}\t{start}\t{end}\t{split}\n" for start, end, split in rows)


def regions(length: int) -> str:
    """BED6: widths of 200 to 2,000 bases, on both strands, in order of position."""
    draw = Draw("regions")
    rows = []
    for _ in range(REGIONS):
        width = draw.below(1_801) + 200
        start = draw.below(length - width)
        rows.append((start, start + width, draw.one_of("+-")))
    lines = [
        f"{CONTIG}\t{start}\t{end}\tregion_{number:03d}\t0\t{strand}"
        for number, (start, end, strand) in enumerate(sorted(rows), 1)
    ]
    return "\n".join(lines) + "\n"


def variants(sequence: str) -> str:
    """VCF 4.3; every REF is the sequence, no two variants touch."""
    draw = Draw("variants")
    digest = hashlib.sha256(sequence.encode()).hexdigest()
    header = [
        "##fileformat=VCFv4.3",
        "##source=make_example_genome.py, drawn by seed from the sequence; not observed variants",
        f"##reference={CONTIG}.fa.gz (sha256 of the bases {digest})",
        f"##contig=<ID={CONTIG},length={len(sequence)},assembly=GRCh37>",
        '##FILTER=<ID=PASS,Description="All filters passed">',
        '##INFO=<ID=KIND,Number=1,Type=String,Description="SNV, INS, DEL or MULTI">',
        "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO",
    ]
    kinds = [kind for kind, count in VARIANTS for _ in range(count)]
    slot = len(sequence) // len(kinds)
    rows = []
    for number, kind in enumerate(draw.shuffled(kinds)):
        position = number * slot + draw.below(slot - 2 * LONGEST_INDEL)
        reference, alternatives = alleles(kind, sequence[position:], draw)
        fields = (CONTIG, position + 1, f"variant_{number + 1:03d}", reference, alternatives)
        rows.append("\t".join(map(str, (*fields, ".", "PASS", f"KIND={kind}"))))
    return "\n".join([*header, *rows]) + "\n"


def alleles(kind: str, ahead: str, draw: "Draw") -> tuple[str, str]:
    """REF and the comma-separated ALT of a variant at the first base of `ahead`."""
    first = ahead[0]
    others = "".join(base for base in "ACGT" if base != first)
    if kind == "SNV":
        return first, draw.one_of(others)
    size = draw.below(LONGEST_INDEL) + 1
    inserted = first + "".join(draw.one_of("ACGT") for _ in range(size))
    if kind == "INS":
        return first, inserted
    if kind == "DEL":
        return ahead[: size + 1], first
    return first, f"{draw.one_of(others)},{inserted}"


class Draw:
    """Random choices that stay the same in every version of Python."""

    def __init__(self, purpose: str) -> None:
        self._random = random.Random(f"{SEED} {purpose}")

    def below(self, bound: int) -> int:
        """A whole number from 0 to bound - 1."""
        return int(self._random.random() * bound)

    def one_of(self, choices: str) -> str:
        """One character."""
        return choices[self.below(len(choices))]

    def shuffled(self, items: list[str]) -> list[str]:
        """The items in another order."""
        return [item for _, item in sorted((self._random.random(), item) for item in items)]


if __name__ == "__main__":
    main()
