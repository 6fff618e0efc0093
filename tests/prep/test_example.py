import gzip
import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from fracdna_prep.bed import read_bed
from fracdna_prep.example import example_files
from fracdna_prep.files import sha256_file
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.prepare import PrepareOptions, prepare
from fracdna_prep.vocabulary import DNA

CONTIG = "chr20_1M_3M"
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_example_genome.py"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return GenomeStore.build(example_files().fasta, tmp_path_factory.mktemp("example") / "store")


@pytest.fixture(scope="module")
def script():
    specification = importlib.util.spec_from_file_location("make_example_genome", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def variant_rows():
    lines = example_files().variants_vcf.read_text().splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def test_the_bundled_files_have_their_checksums():
    """What ships is what was made."""
    files = example_files()
    listed = dict(line.split()[::-1] for line in files.checksums.read_text().splitlines())
    data = (files.fasta, files.splits_bed, files.regions_bed, files.variants_vcf)
    assert {path.name: sha256_file(path) for path in data} == listed


def test_the_bundled_genome_is_two_million_bases_without_n(store):
    """One record, bgzip, upper case; its header says where position 0 lies."""
    assert store.contigs == {CONTIG: 2_000_000}
    (contig,) = store.record.contigs
    assert set(contig.counts) == set("ACGT")
    assert contig.soft_masked == 0
    assert store.record.sources[0].compression == "bgzip"
    with gzip.open(example_files().fasta, "rt") as file:
        assert "chr20:1000001-3000000, positions relative to 1 Mb" in file.readline()


def test_the_bundled_splits_hold_windows_and_leave_gaps():
    """80% for training; 11 windows of 16,384 each for validation and test; guards of 16,384."""
    table = read_bed(example_files().splits_bed)
    assert table.names == ["train", "valid", "test"]
    assert table.ends[0] - table.starts[0] == 0.8 * 2_000_000
    assert ((table.ends - table.starts)[1:] >= 11 * 16_384).all()
    assert (table.starts[1:] - table.ends[:-1] >= 16_384).all()
    assert table.ends[-1] <= 2_000_000


def test_the_bundled_splits_prepare_without_problems(tmp_path):
    """The first command of the manual: no problem rows, no overlap, at every length."""
    files = example_files()
    summary = prepare(
        PrepareOptions(
            files.fasta, tmp_path, intervals=files.splits_bed, length=[1_024, 16_384],
            progress=False,
        )
    )  # fmt: skip
    assert summary.row_problems == 0
    assert summary.intervals.split_rule == "bed"
    assert summary.windows[1].usable_by_split == {"train": 98, "valid": 11, "test": 11}
    assert summary.windows[0].unused_bases == summary.windows[1].unused_bases == 0


def test_the_bundled_regions_lie_inside(store):
    """200 regions of 200 to 2,000 bases on both strands, sorted, with distinct names."""
    table = read_bed(example_files().regions_bed)
    assert len(table) == len(set(table.names)) == 200
    widths = table.ends - table.starts
    assert 200 <= widths.min() <= 300
    assert 1_900 <= widths.max() <= 2_000
    assert min(Counter(table.strands)[strand] for strand in "+-") > 60
    assert (table.starts[1:] >= table.starts[:-1]).all()
    assert all(len(store.fetch(interval)) == interval.width for interval in table.intervals())


def test_the_bundled_variants_agree_with_the_sequence(store):
    """Every REF is the genome; SNVs, insertions, deletions and two alternatives occur."""
    kinds = Counter()
    previous_end = 0
    for chromosome, position, _, reference, alternatives, quality, passed, info in variant_rows():
        start = int(position) - 1
        found = store.fetch(Interval(chromosome, start, start + len(reference)))
        assert DNA.decode(found) == reference
        assert start >= previous_end
        previous_end = start + len(reference)
        assert (quality, passed) == (".", "PASS")
        for alternative in alternatives.split(","):
            assert alternative != reference
            assert set(alternative) <= set("ACGT")
            shape = (len(reference) > 1, len(alternative) > 1)
            assert shape != (True, True)
            if shape != (False, False):
                assert alternative[0] == reference[0]
        kinds[info] += 1
    assert kinds == {"KIND=SNV": 200, "KIND=INS": 40, "KIND=DEL": 40, "KIND=MULTI": 20}


def test_the_variant_file_has_a_valid_header():
    """VCF 4.3: version first, the contig with its length, then the eight fixed columns."""
    lines = example_files().variants_vcf.read_text().splitlines()
    assert lines[0] == "##fileformat=VCFv4.3"
    assert f"##contig=<ID={CONTIG},length=2000000,assembly=GRCh37>" in lines
    header = next(line for line in lines if line.startswith("#CHROM"))
    assert header == "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO"


def test_regions_and_variants_follow_from_the_sequence(store, script):
    """Drawn again from the bundled bases, they have the bundled bytes."""
    files = example_files()
    sequence = DNA.decode(store.fetch(Interval(CONTIG, 0, 2_000_000)))
    assert script.splits() == files.splits_bed.read_text()
    assert script.regions(len(sequence)) == files.regions_bed.read_text()
    assert script.variants(sequence) == files.variants_vcf.read_text()


def test_the_bundled_data_can_be_rebuilt_from_the_source(shared_data, script, tmp_path):
    """From the whole chromosome: the same FASTA text, and the same bytes of all other files."""
    source = shared_data / "human_large" / "GRCh37_chr20.fa.gz"
    script.main([str(source), "--output", str(tmp_path)])
    rebuilt, bundled = script.in_folder(tmp_path), example_files()
    with gzip.open(rebuilt.fasta) as new, gzip.open(bundled.fasta) as old:
        assert new.read() == old.read()
    for name in ("splits_bed", "regions_bed", "variants_vcf"):
        assert getattr(rebuilt, name).read_bytes() == getattr(bundled, name).read_bytes()


def test_the_bundled_bases_are_those_of_another_copy(shared_data, store):
    """An independent FASTA of chr20:1,000,001-2,000,000 holds the first half."""
    text = (shared_data / "human_stretches" / "z.fa").read_text().split("\n", 1)[1]
    expected = text.replace("\n", "")[:1_000_000].upper()
    assert DNA.decode(store.fetch(Interval(CONTIG, 0, 1_000_000))) == expected
