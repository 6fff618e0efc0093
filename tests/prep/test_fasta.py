import gzip
import hashlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracdna_prep import fasta, partial_store
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.store_layout import CODE_OF_LETTER
from fracdna_prep.vocabulary import DNA


@pytest.fixture
def read(tmp_path):
    """The contigs that a store makes of a FASTA text, as text."""

    def build(content, name="genome.fa"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        store = GenomeStore.build(path, tmp_path / "store")
        return {
            name: DNA.decode(store.fetch(Interval(name, 0, length)))
            for name, length in store.contigs.items()
        }

    return build


@pytest.mark.parametrize(
    "text",
    [
        ">a x\nACGT\nACGT\nAC\n>b\nGG\n",
        ">a\nACGT\nACGT\nAC\n>b\nGG",
        ">a\nACGTACGTAC\n\n>b\nGG\n\n\n\n",
        ">a\nACGT\n\nACGT\nAC\n>b\nGG\n",
        ">a\nACGT\nAC\nGT\nAC\n>b\nG\nG\n",
        ">a\nACGT\nACGTAC\n>b\nGG\n",
        ">a\r\nACGT\r\nACGT\r\nAC\r\n>b\r\nGG\r\n",
        ">a\nACGT\r\nACGT\nAC\n>b\nGG\n",
        ">a\nACGT \nACGT\nA\v\fC\t\n>b\nGG\n",
        ";an old comment\n\n>a\nACGTACGTAC\n>b\nGG\n",
        "> a\nACGTACGTAC\n>b\nGG\n",
    ],
    ids=["plain", "no last newline", "blank lines at the end", "blank line inside", "short line",
         "long last line", "CRLF", "one CRLF", "blanks at line ends", "comment first",
         "blank before the name"],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_any_length_give_the_same_bases(text, packed, read):
    """Case 5: blank and ragged lines, inside or at the end, are read correctly."""
    content = gzip.compress(text.encode()) if packed else text
    assert read(content) == {"a": "ACGTACGTAC", "b": "GG"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (">a\nACGT\nACQT\n", "line 3: record 'a' holds 'Q'"),
        (">a\nAC\n>b\nAC*T\n", "line 4: record 'b' holds '\\*'"),
        (">a\nAC\n;note\nAC\n", "line 3: record 'a' holds ';'"),
        ("ACGT\n", "line 1: text before the first record"),
        ("\n;x\nchr1 5\n>a\nA\n", "line 3: text before the first record"),
        (">\nACGT\n", "line 1: a record has no name"),
        (">a\nA\n>b\nC\n>a\nG\n", "line 5: a second record is called 'a'"),
        (">a\rACGT\rACGT\r", "line 1: lines end in CR alone"),
        ("", "holds no FASTA record"),
        ("\n\n", "holds no FASTA record"),
    ],
)
def test_what_is_no_nucleotide_fasta_is_refused_with_its_line(
    text, words, read, tmp_path, names_in
):
    """Line and reason are named, and no store is left behind."""
    with pytest.raises(InputError, match=words):
        read(text)
    assert names_in(tmp_path) == ["genome.fa"]


def test_the_same_name_in_two_files_is_refused(make_fasta, tmp_path):
    """Both files are named."""
    one, two = make_fasta({"a": "AC"}, "1.fa"), make_fasta({"a": "GT"}, "2.fa")
    with pytest.raises(InputError, match=r"2\.fa and .*1\.fa both hold a record called 'a'"):
        GenomeStore.build([one, two], tmp_path / "store")


def test_no_file_and_the_same_file_twice_are_refused(make_fasta, tmp_path):
    """Lists are checked before anything is read."""
    path = make_fasta({"a": "AC"})
    with pytest.raises(InputError, match="no FASTA named"):
        GenomeStore.build([], tmp_path / "store")
    with pytest.raises(InputError, match="named twice"):
        GenomeStore.build([path, str(path)], tmp_path / "store")


@pytest.mark.parametrize("name", ["genome.fa.gz", "genome.bgz.gz"])
@pytest.mark.parametrize("kept", [0.999, 0.5, 0.01])
def test_truncated_archives_are_refused(
    name, kept, make_fasta, random_sequence, tmp_path, names_in
):
    """A cut anywhere is noticed before anything is written; the remedy is named."""
    path = make_fasta({"a": random_sequence(200_000)}, name)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(InputError, match=r"truncated.*(copy|download)"):
        GenomeStore.build(path, tmp_path / "store")
    assert names_in(tmp_path) == [name]


def test_a_bgzip_file_cut_between_blocks_is_refused(make_fasta, random_sequence, tmp_path):
    """Such a file is valid gzip: only the missing end marker shows that bases are lost."""
    path = make_fasta({"a": random_sequence(200_000)}, "genome.bgz.gz")
    path.write_bytes(path.read_bytes()[:-28])
    with pytest.raises(InputError, match="no bgzip end marker"):
        GenomeStore.build(path, tmp_path / "store")


def test_a_damaged_archive_is_refused(make_fasta, random_sequence, tmp_path):
    """A flipped byte fails the checksum of gzip."""
    path = make_fasta({"a": random_sequence(50_000)}, "genome.fa.gz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        GenomeStore.build(path, tmp_path / "store")


@pytest.mark.parametrize(
    ("magic", "remedy"), [(b"BZh9", "bunzip2"), (b"PK\x03\x04", "unzip"), (b"\xfd7zXZ\0", "unxz"),
                          (b"\x28\xb5\x2f\xfd", "unzstd"), (b"\x43\x27\x41\x1a", "twoBitToFa")]
)  # fmt: skip
def test_foreign_archives_name_their_tool(magic, remedy, read):
    """Told by their first bytes."""
    with pytest.raises(InputError, match=remedy):
        read(magic + bytes(100))


def test_missing_files_and_folders_are_told_apart(tmp_path, open_folder, without_privileges):
    """Case 3: "no such file", "is a folder" and "no permission" are three messages."""
    with pytest.raises(InputError, match="no such file"):
        GenomeStore.build(tmp_path / "none.fa", tmp_path / "store")
    with pytest.raises(InputError, match="is a folder"):
        GenomeStore.build(tmp_path, tmp_path / "store")
    secret = open_folder / "secret.fa"
    secret.write_text(">a\nA\n")
    secret.chmod(0o000)
    with pytest.raises(InputError, match="no permission to read"):
        without_privileges(lambda: GenomeStore.build(secret, open_folder / "store"))


def test_errors_of_the_system_are_not_taken_for_bad_lines(make_fasta, tmp_path, monkeypatch):
    """A full disk is told as such; where nothing was finished nothing is left."""
    path = make_fasta({"a": "ACGT"}, "in/genome.fa.gz")

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(partial_store.Checkpoint, "as_json", full)
    with pytest.raises(InputError, match="no space left"):
        GenomeStore.build(path, tmp_path / "out" / "store")
    assert not (tmp_path / "out").exists()


def test_headers_that_are_not_utf8_are_read(read):
    """The description behind the name may hold anything."""
    assert read(b">a caf\xe9\nACGT\n>b\nG\n") == {"a": "ACGT", "b": "G"}


RECORDS = st.lists(
    st.tuples(
        st.lists(st.text(alphabet="ACGTNacgtnRy", max_size=12), max_size=6),
        st.sampled_from(["\n", "\r\n"]),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(records=RECORDS, block=st.integers(1, 9), pairs=st.booleans())
def test_any_lines_cut_in_any_blocks_give_the_same_bases(records, block, pairs, tmp_path_factory):
    """Where a block of the file ends, and how letters are counted, makes no difference."""
    folder = tmp_path_factory.mktemp("blocks")
    text = "".join(
        f">r{i} text{newline}" + "".join(line + newline for line in lines)
        for i, (lines, newline) in enumerate(records)
    )
    path = folder / "g.fa"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fasta, "_BLOCK", block)
        patch.setattr(fasta, "_FEW_BYTES", 0 if pairs else 1 << 17)
        store = GenomeStore.build(path, folder / "store")
    for number, (lines, _) in enumerate(records):
        sequence = "".join(lines)
        contig = store.record.contigs[number]
        codes = sequence.encode().translate(CODE_OF_LETTER)
        assert (contig.name, contig.length) == (f"r{number}", len(sequence))
        letters = Counter(sequence.upper())
        assert (contig.counts, contig.soft_masked) == (letters, sum(map(str.islower, sequence)))
        assert contig.sha256 == hashlib.sha256(codes).hexdigest()
        whole = Interval(contig.name, 0, contig.length)
        assert store.fetch(whole).tolist() == DNA.encode(sequence).tolist()
        assert store.soft_mask(whole).tolist() == [letter.islower() for letter in sequence]
    assert store.verify() == store.checksum
