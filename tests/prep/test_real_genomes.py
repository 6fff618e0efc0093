import gzip
import hashlib
import re

import numpy as np
import pytest
from Bio.SeqIO.FastaIO import SimpleFastaParser

from fracdna_prep.bed import read_bed
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.prepare import PrepareOptions, prepare, windows_path
from fracdna_prep.records import read_records, write_features_bed
from fracdna_prep.tables import WindowTable
from fracdna_prep.vocabulary import DNA

LETTER_OF_ID = np.frombuffer(b"???????ACGTN", dtype=np.uint8)
SMALL = [
    "human_stretches/Homo_sapiens.GRCh38.dna_sm.primary_assembly_chr9_1_1000000.fa",
    "human_stretches/Homo_sapiens_assembly18.trimmed.fasta",
    "human_stretches/GRCh38_HLA_alts.fa.gz",
    "human_stretches/ensembl_rest.fa.gz",
    "human_stretches/gata4.fa",
    "other_genomes/ecoli_K12_MG1655.fa.gz",
    "other_genomes/sacCer3.fa.gz",
    "other_genomes/lambda_virus.fa",
    "other_genomes/ce.fa.gz",
    "other_genomes/mouse_ensembl_compara_contigs.fa.gz",
]
ODD = {
    "bedtools2/test__getfasta__test.iupac.fa": {"1": 20, "2": 20},
    "bedtools2/test__getfasta__t_fH.fa": {"chr1": 50},
    "bedtools2/test__getfasta__t.fa.gz": {"chr1": 50},
    "biopython/Tests__Fasta__dups.fasta": "line 10: a second record is called 'alpha'",
    "biopython/Tests__Fasta__f003.fa": "line 2: .*'E', which is not a nucleotide letter",
    "biopython/Tests__Fasta__aster_pearson.pro": "line 1: text before the first record",
    "biopython/Tests__Fasta__aster_blast.pro": "line 1: text before the first record",
    "biopython/Tests__Fasta__nucleotide_lib.fa": "a second record is called 'RABGSTB'",
    "biopython/Tests__Fasta__protein_lib.fa": "which is not a nucleotide letter",
    "biopython/Tests__TwoBit__sequence.fa": None,
    "biopython/Tests__TwoBit__sequence.littleendian.2bit": "twoBitToFa",
    "biopython/Tests__TwoBit__sequence.bigendian.2bit": "twoBitToFa",
    "pyfaidx/tests__data__issue_83.fasta": {"MT": 119, "GL000207.1": 60},
    "pyfaidx/tests__data__gene.bed12.fasta": {"chr17:6010-31420(-)": 1_073},
    "samtools/test__dat__depad.001.fa": r"line 2: record 'ref1' holds '\*'",
    "samtools/test__dat__dict.alias.fa": None,
    "samtools/test__dat__dict.fa": r"line 60: record 'chr9_whitespace' holds '\\x02'",
}


def text_of(store, name):
    ids = store.fetch(Interval(name, 0, store.contigs[name]))
    return LETTER_OF_ID[ids].tobytes().decode()


def parsed(path):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        for title, sequence in SimpleFastaParser(file):
            yield title.split()[0], "".join(sequence.split())


@pytest.mark.parametrize("name", SMALL)
def test_a_store_holds_what_another_parser_reads(name, shared_data, tmp_path):
    """Bases and soft mask of real genomes against Biopython's own FASTA parser."""
    path = shared_data / name
    store = GenomeStore.build(path, tmp_path / "store")
    records = dict(parsed(path))
    assert list(store.contigs) == list(records)
    for contig, sequence in records.items():
        assert text_of(store, contig) == re.sub("[^ACGT]", "N", sequence.upper())
        lower = np.frombuffer(sequence.encode(), dtype=np.uint8) >= ord("a")
        mask = store.soft_mask(Interval(contig, 0, len(sequence)))
        np.testing.assert_array_equal(mask, lower)
    assert store.verify() == store.checksum


@pytest.fixture(scope="module")
def chr20(shared_data, tmp_path_factory):
    path = shared_data / "human_large" / "GRCh37_chr20.fa.gz"
    return GenomeStore.build(path, tmp_path_factory.mktemp("chr20") / "store")


def test_the_whole_of_chromosome_20(chr20):
    """Length, counts and the MD5 that sequence dictionaries give for GRCh37's chr20."""
    (contig,) = chr20.record.contigs
    assert (contig.name, contig.length) == ("20", 63_025_520)
    assert sum(contig.counts[letter] for letter in "ACGT") == 59_505_520
    digest = hashlib.md5(text_of(chr20, "20").encode(), usedforsecurity=False)
    assert digest.hexdigest() == "0dec9660ec1efaaf33281c0d5ea2560f"


def test_start_codons_of_chromosome_20_are_atg(chr20, shared_data):
    """Coordinates and strands are right: annotated start codons read ATG."""
    table = read_bed(shared_data / "bed_hg19" / "start_codons.chr20_chrX_chr22.bed.gz")
    rows = [row for row in range(len(table)) if table.contigs[row] == "chr20"]
    found = []
    for row in rows:
        there = table.interval(row)
        if there.width == 3:
            found.append(
                DNA.decode(chr20.fetch(Interval("20", there.start, there.end, there.strand)))
            )
    assert len(found) > 300
    assert set(found) == {"ATG"}


def test_chr_prefix_joins_the_tables_with_the_genome(chr20, shared_data, tmp_path):
    """Case 11 on real files: `chr20` in the BED, `20` in the FASTA."""
    islands = read_bed(shared_data / "bed_hg19" / "CpG_islands.chr20_chrX_chr22.bed.gz")
    bed = tmp_path / "islands.bed"
    bed.write_text(
        "".join(
            f"{i.chromosome}\t{i.start}\t{i.end}\n"
            for i in islands.intervals()
            if i.chromosome == "chr20"
        )
    )
    options = {
        "fasta": shared_data / "human_large" / "GRCh37_chr20.fa.gz", "output": tmp_path / "out",
        "intervals": bed, "store": chr20.directory, "progress": False,
    }  # fmt: skip
    with pytest.raises(InputError, match="rename=chr_prefix"):
        prepare(PrepareOptions(**options))
    summary = prepare(PrepareOptions(**options, rename="chr_prefix"))
    assert summary.row_problems == 0
    table = WindowTable.read(windows_path(tmp_path / "out", 1_024))
    first = chr20.fetch(table.interval(0))
    assert set(table.contig) == {"20"}
    assert DNA.decode(first).count("CG") > 30


def test_two_chromosomes_split_by_position(shared_data, tmp_path):
    """133 Mb of chr20 and X, of which a BED gives stretches to training, validation and test."""
    bed = tmp_path / "splits.bed"
    bed.write_text(
        "chrX\t0\t70000000\ttrain\nchr20\t0\t45000000\ttrain\n"
        "chr20\t45000000\t50000000\tvalid\nchr20\t50000000\t63025520\ttest\n"
    )
    large = shared_data / "human_large"
    summary = prepare(
        PrepareOptions(
            fasta=[large / "GRCh37_chr20.fa.gz", large / "GRCh37_chrX_1-69999930.fa.gz"],
            intervals=bed, split="bed", rename="chr_prefix", length=[16_384, 65_536],
            output=tmp_path / "out", progress=False,
        )
    )  # fmt: skip
    assert summary.genome.bases == 133_025_450
    # the file of X ends 70 bases short of 70 Mb: its row is clipped, and told
    assert summary.row_problems == 1
    assert summary.intervals.shared_bases == 0
    table = WindowTable.read(windows_path(tmp_path / "out", 16_384))
    for split, contig, low, high in (("valid", "20", 45e6, 50e6), ("test", "20", 50e6, 63_025_520)):
        usable = table.usable(split)
        assert set(table.contig[usable]) == {contig}
        assert low <= table.start[usable].min() < table.end[usable].max() <= high
        width = high - low
        assert len(usable) * 16_384 > 0.9 * width


@pytest.mark.slow
def test_a_large_plain_gzip_file(shared_data, tmp_path):
    """70 Mb of chrX in plain gzip against another parser."""
    path = shared_data / "human_large" / "GRCh37_chrX_1-69999930.fa.gz"
    store = GenomeStore.build(path, tmp_path / "store")
    ((name, sequence),) = parsed(path)
    assert store.contigs == {name: len(sequence)}
    assert text_of(store, name) == sequence.upper()


@pytest.mark.slow
def test_a_large_soft_masked_genome(shared_data, tmp_path):
    """23 Mb in 14 contigs."""
    test_a_store_holds_what_another_parser_reads(
        "other_genomes/pfalciparum_MAL1-14.fa.gz", shared_data, tmp_path
    )


@pytest.mark.parametrize("name", ODD)
def test_odd_fasta_files_are_read_or_refused_with_a_reason(name, shared_data, tmp_path, names_in):
    """Files from the test suites of other tools."""
    path, expected = shared_data / "edge_cases" / name, ODD[name]
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            GenomeStore.build(path, tmp_path / "store")
        assert names_in(tmp_path) == []
        return
    lengths = expected or {title: len(sequence) for title, sequence in parsed(path)}
    assert GenomeStore.build(path, tmp_path / "store").contigs == lengths


def test_bed_files_of_other_tools_are_read_or_refused_with_a_line(shared_data):
    """Every BED of the collection: rows, or file and reason; nothing else is raised."""
    read, refused = [], []
    for path in sorted((shared_data / "edge_cases").rglob("*.bed*")):
        if ".bed" not in path.name[-7:]:
            continue
        try:
            read.append(len(read_bed(path)))
        except InputError as error:
            refused.append((path.name, str(error)))
    assert min(read) > 0
    assert len(read) > 200
    assert len(refused) < 20
    for name, message in refused:
        assert re.search(rf"{re.escape(name)}(:\d+:| holds no interval)", message)


@pytest.mark.parametrize(
    ("name", "contig", "length", "kind"),
    [
        ("sc_chrom1.gb", "NC_001133.9", 230_218, "CDS"),
        ("NC_000932.gb", "NC_000932.1", 154_478, "tRNA"),
    ],
)
def test_annotated_genomes_give_stores_and_features(
    name, contig, length, kind, shared_data, tmp_path
):
    """GenBank files of yeast chromosome I and a chloroplast; coding sequences begin with ATG."""
    path = shared_data / "other_genomes" / name
    store = GenomeStore.build(path, tmp_path / "store")
    assert store.contigs == {contig: length}
    (record,) = read_records(path)
    assert len(record.intervals(kind)) > 20
    written = write_features_bed(tmp_path / "features.bed", [record], kind)
    assert list(read_bed(tmp_path / "features.bed").intervals()) == record.intervals(kind)
    assert written == len(record.intervals(kind))
    if kind == "CDS":
        starts = [DNA.decode(store.fetch(interval))[:3] for interval in record.intervals("CDS")]
        assert starts.count("ATG") > 0.9 * len(starts)
