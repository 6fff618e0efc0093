"""VCF files as records, alleles and their statuses."""

import gzip
import shutil

import pytest
from Bio.bgzf import BgzfWriter

from fracdna.scoring import check_reference, judge_alleles, read_vcf
from fracdna.scoring.alleles import STATUSES, kind_of
from fracdna.scoring.variants import Record
from fracdna_prep.errors import InputError

HEAD = "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"


def bgzip(path, packed):
    with path.open("rb") as source, BgzfWriter(packed, "wb") as target:
        shutil.copyfileobj(source, target)


@pytest.mark.parametrize("packing", ["plain", "gzip", "bgzip", "crlf"])
def test_records_are_read_however_they_are_packed(packing, write_vcf, tmp_path):
    """Positions count from 0, lines from 1, alleles are kept as they are written."""
    path = write_vcf([("1", 5, "A", "c,<DEL>"), ("chr2", 0, "acg", ".")])
    packed = tmp_path / "packed.vcf.gz"
    if packing == "gzip":
        packed.write_bytes(gzip.compress(path.read_bytes()))
    elif packing == "bgzip":
        bgzip(path, packed)
    else:
        text = path.read_text()
        packed.write_bytes((text.replace("\n", "\r\n") if packing == "crlf" else text).encode())
    assert read_vcf(packed) == [
        Record("1", 4, "rs0", "A", ("c", "<DEL>"), 4),
        Record("chr2", -1, "rs1", "acg", (".",), 5),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\t5\t.\tA\tC\t.\t.\t.\n", "in.vcf:1: no VCF: a record stands before the line #CHROM"),
        ("##fileformat=VCFv4.2\n", "no line #CHROM"),
        ("BCF\2\2", "bcftools view"),
        (HEAD + "1\t5\t.\tA\tC\n", "in.vcf:2: 5 columns"),
        (HEAD + "1 5 . A C . . .\n", "in.vcf:2: 1 column,"),
        (HEAD + "1\tx5\t.\tA\tC\t.\t.\t.\n", "in.vcf:2: POS 'x5'"),
        (HEAD + f"1\t{2**63}\t.\tA\tC\t.\t.\t.\n", "in.vcf:2: POS 922337203685477580... is on no"),
        pytest.param(
            HEAD + "1\t" + "9" * 5000 + "\t.\tA\tC\t.\t.\t.\n", "in.vcf:2: POS 9{18}... is on no",
            id="5000 digits",
        ),
        (HEAD + "1\t5\t.\tA\tC\t.\t.\t.\n" + HEAD, "in.vcf:3: a second line #CHROM"),
        (HEAD + "1\t5\t.\tA\tC,\t.\t.\t.\n", "in.vcf:2: CHROM, REF or an allele of ALT is empty"),
    ],
)  # fmt: skip
def test_what_is_no_vcf_is_refused_with_its_line(content, message, tmp_path):
    path = tmp_path / "in.vcf"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_vcf(path)


@pytest.mark.parametrize(
    ("ref", "alt", "kind"),
    [
        ("A", "c", "snv"), ("AC", "AT", "snv"), ("AC", "GT", "mnv"), ("ACC", "GCT", "mnv"),
        ("A", "AT", "insertion"), ("TA", "TAA", "insertion"), ("ATT", "A", "deletion"),
        ("CAA", "CA", "deletion"), ("AC", "GTT", "complex"), ("ACG", "TT", "complex"),
        ("AC", "ac", None),
    ],
)  # fmt: skip
def test_kinds(ref, alt, kind):
    """By what is left without the bases that both share; exchanged, insertions are deletions."""
    assert kind_of(ref, alt) == kind
    mirror = {"insertion": "deletion", "deletion": "insertion"}
    assert kind_of(alt, ref) == mirror.get(kind, kind)


def test_every_allele_has_its_status(store, letters):
    """Symbolic and missing alleles, ambiguous letters, wrong places and contigs."""
    text = letters["chr1"]
    other = "A" if text[9] != "A" else "C"
    records = [
        Record("chr1", 9, ".", text[9].lower(), (other.lower(), "<DEL>", "*", "A[2:5[", "A.")),
        Record("chr1", 9, ".", text[9], (".", "N", "R", "A?", text[9], "<*>")),
        Record("chr1", 9, ".", other, (text[9], "<DEL>")),
        Record("chr1", 450, ".", "R", ("A",)),
        Record("chr1", 450, ".", "A", ("C",)),
        Record("chr1", 305, ".", "N", ("A",)),
        Record("chr1", 599, ".", text[599] + "A", ("A",)),
        Record("chr1", -1, ".", "N", ("A",)),
        Record("chr1", 9, ".", "x?", ("A",)),
        Record("chr9", 9, ".", "A", ("C",)),
    ]
    names = {"chr1": "chr1"}
    check = check_reference(records, names, store)
    alleles = judge_alleles(records, names, check)
    assert alleles.statuses == [
        "ok", "symbolic", "star", "breakend", "breakend",
        "no_alt", "ambiguous", "ambiguous", "not_dna", "same", "symbolic",
        "mismatch", "symbolic", "ambiguous", "mismatch", "ambiguous",
        "outside", "outside", "not_dna", "no_contig",
    ]  # fmt: skip
    assert set(alleles.statuses) == STATUSES.keys() - {"clipped", "too_many_n", "cut_off"}
    assert alleles.record.tolist() == [0] * 5 + [1] * 6 + [2] * 2 + [3, 4, 5, 6, 7, 8, 9]
    assert [alleles.alt(row) for row in (0, 4, 5, 12)] == [other.lower(), "A.", ".", "<DEL>"]
    assert (check.checked, check.mismatches) == (6, 2)
    assert check.genome == {2: text[9], 4: "N"}


def shifted(letters, by, count=40):
    """SNVs whose REF is the genome's base `by` places from their own."""
    text = letters["chr1"]
    return [Record("chr1", p, ".", text[p + by], ("A",)) for p in range(20, 20 + 3 * count, 3)]


@pytest.mark.parametrize(("by", "words"), [(1, "one too small"), (-1, "one too large")])
def test_a_shift_by_one_is_recognised(by, words, store, letters):
    """The file matches at the other place and not at its own: it says so, with the figures."""
    check = check_reference(shifted(letters, by), {"chr1": "chr1"}, store)
    assert check.is_another_genome
    assert check.shift == by
    assert check.matched[by] == check.checked == 40
    text = check.describe()
    assert words in text
    assert "40 (100.0%)" in text
    assert "looks shifted by one" in text


def test_another_assembly_is_no_shift(store, letters):
    """Nothing matches anywhere: neither place explains it."""
    check = check_reference(shifted(letters, 7), {"chr1": "chr1"}, store)
    assert check.is_another_genome
    assert check.shift is None
    assert "another assembly" in check.describe()


@pytest.mark.parametrize("inside", [0, 50])
def test_positions_of_another_assembly_are_told(inside, store, letters):
    """Records behind the end of their contig count as those that differ, however many match."""
    beyond = [Record("chr1", 10**6 + place, ".", "A", ("C",)) for place in range(10)]
    check = check_reference(shifted(letters, 0, inside) + beyond, {"chr1": "chr1"}, store)
    assert (check.checked, check.mismatches, check.outside) == (inside, 0, 10)
    assert check.is_another_genome
    assert "; 10 records outside the contig; neither looks right" in check.describe()
    nine = check_reference(beyond[:9], {"chr1": "chr1"}, store)
    assert not nine.is_another_genome


def test_a_few_wrong_rows_are_no_wrong_file(store, letters):
    """Nine of a hundred, or all of a handful: reported row by row."""
    right = shifted(letters, 0, 91)
    wrong = [Record(r.contig, r.position, ".", "ACGT"["ACGT".index(r.ref) - 1], ("A",))
             for r in right[:9]]  # fmt: skip
    for records in (right + wrong, wrong):
        check = check_reference(records, {"chr1": "chr1"}, store)
        assert check.mismatches == 9
        assert not check.is_another_genome
        assert "9 differ" in check.describe()


def test_right_files_say_so(store, letters):
    check = check_reference(shifted(letters, 0), {"chr1": "chr1"}, store)
    assert check.describe() == "all 40 REF alleles match the genome"
    assert not check_reference([], {}, store).is_another_genome
