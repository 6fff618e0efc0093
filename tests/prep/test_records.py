import gzip

import pytest
from Bio.Seq import Seq
from Bio.SeqFeature import CompoundLocation, SeqFeature, SimpleLocation
from Bio.SeqIO import write
from Bio.SeqRecord import SeqRecord

from fracdna_prep.bed import read_bed
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.records import is_annotated, read_records, write_features_bed
from fracdna_prep.vocabulary import DNA


def record(sequence="ACGTACGTACGTNN", name="TEST.1"):
    joined = CompoundLocation([SimpleLocation(8, 10, -1), SimpleLocation(2, 5, -1)])
    features = [
        SeqFeature(SimpleLocation(0, 12, 1), type="gene", qualifiers={"gene": ["abcA"]}),
        SeqFeature(joined, type="CDS", qualifiers={"product": ["protein a", "b"]}),
        SeqFeature(SimpleLocation(1, 2), type="misc_feature"),
    ]
    return SeqRecord(
        Seq(sequence), id=name, name="TEST", features=features,
        annotations={"molecule_type": "DNA"},
    )  # fmt: skip


@pytest.fixture(params=["t.gb", "t.gbk", "t.embl"])
def annotated(request, tmp_path):
    path = tmp_path / request.param
    write(record(), path, "embl" if path.suffix == ".embl" else "genbank")
    return path


def test_records_give_sequence_and_features(annotated):
    """Half-open intervals; a joined location keeps its parts; strands are kept."""
    (found,) = read_records(annotated)
    assert (found.name, found.sequence) == ("TEST.1", "ACGTACGTACGTNN")
    gene, coding, other = found.features
    assert (gene.kind, gene.name, gene.interval) == ("gene", "abcA", Interval("TEST.1", 0, 12))
    assert coding.interval == Interval("TEST.1", 2, 10, "-")
    assert {(part.start, part.end, part.strand) for part in coding.parts} == {
        (2, 5, "-"), (8, 10, "-"),
    }  # fmt: skip
    assert coding.qualifiers["product"] == ("protein a", "b")
    assert other.name == "misc_feature"
    assert found.intervals("CDS") == [coding.interval]


def test_a_store_is_built_from_annotated_records(annotated, tmp_path):
    """The same content as from the FASTA of the same name and case."""
    store = GenomeStore.build(annotated, tmp_path / "store")
    assert DNA.decode(store.fetch(Interval("TEST.1", 8, 14))) == "ACGTNN"
    (found,) = read_records(annotated)
    (tmp_path / "t.fa").write_text(f">TEST.1\n{found.sequence}\n")
    assert GenomeStore.build(tmp_path / "t.fa", tmp_path / "fasta").checksum == store.checksum


def test_features_of_one_kind_become_bed(annotated, tmp_path):
    """One line a feature; an unknown kind names those that exist."""
    found = list(read_records(annotated))
    assert write_features_bed(tmp_path / "genes.bed", found, "gene") == 1
    table = read_bed(tmp_path / "genes.bed")
    assert (table.interval(0), table.names) == (Interval("TEST.1", 0, 12), ["abcA"])
    with pytest.raises(InputError, match="CDS, gene, misc_feature"):
        write_features_bed(tmp_path / "none.bed", found, "exon")


def test_packed_records_are_read(tmp_path):
    """By suffix before .gz."""
    write(record(), tmp_path / "t.gb", "genbank")
    packed = tmp_path / "t.gb.gz"
    packed.write_bytes(gzip.compress((tmp_path / "t.gb").read_bytes()))
    assert is_annotated(packed)
    assert next(read_records(packed)).name == "TEST.1"


def test_what_is_no_annotated_record_is_refused(tmp_path):
    """Another suffix, another content, no sequence, letters that are no nucleotides."""
    assert not is_annotated("genome.fa.gz")
    with pytest.raises(InputError, match="neither GenBank nor EMBL"):
        next(read_records(tmp_path / "t.fa"))
    path = tmp_path / "t.gb"
    path.write_text(">c\nACGT\n")
    with pytest.raises(InputError, match="holds no genbank record"):
        list(read_records(path))
    path.write_text("LOCUS       broken\nACGT\n//\n")
    with pytest.raises(InputError):
        GenomeStore.build(path, tmp_path / "store")
    protein = record("MKELV")
    protein.features = []
    write(protein, path, "genbank")
    with pytest.raises(InputError, match=r"'TEST\.1' holds 'E'"):
        GenomeStore.build(path, tmp_path / "store")


def test_features_of_other_records_are_left_out(tmp_path):
    """A location that lies on another record is none of this one's intervals."""
    path = tmp_path / "t.gb"
    write(record(), path, "genbank")
    path.write_text(path.read_text().replace("1..12", "J00194.1:1..12"))
    (found,) = read_records(path)
    assert [feature.kind for feature in found.features] == ["CDS", "misc_feature"]
