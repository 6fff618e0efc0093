import errno
import json
import shutil
import subprocess
import sys

import pytest
from Bio import bgzf

from fracdna import cli
from fracdna_prep import second_reader
from fracdna_prep.build_store import store_draft
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.prepare import PrepareOptions, prepare, read_summary, windows_path
from fracdna_prep.store_layout import CODE_OF_LETTER
from fracdna_prep.tables import read_metadata

RECORDS = {"chr1": "ACGTNacgtn" * 40, "none": "", "iupac": "RYSWKMBDHVryswkmbdhv" * 13}
GENBANK = """LOCUS       plasmid                   12 bp    DNA     linear   SYN 01-JAN-2020
ORIGIN
        1 acgtacgtac gt
//
"""
RAGGED = ">even\nACGTACGT\nACGT\n>ragged\nACGT\nACGTACGT\nACG\n"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Records of several pieces, whose borders are not those of the lines."""
    monkeypatch.setattr(second_reader, "_PIECE", 97)


@pytest.fixture
def run(tmp_path):
    """Prepares files with verify=true."""

    def call(fasta, output="out", **options):
        options = {"length": 10, "verify": True, "progress": False, **options}
        return prepare(PrepareOptions(fasta=fasta, output=tmp_path / output, **options))

    return call


def flip(path, position, value=1):
    content = bytearray(path.read_bytes())
    content[position] ^= value
    path.write_bytes(content)


@pytest.fixture
def misread(monkeypatch):
    """Lets the first reader take one record's letters for other ones."""

    def install(wrong):
        read_source = sys.modules["fracdna_prep.partial_store"].read_source

        def changed(*arguments):
            for event in read_source(*arguments):
                yield wrong(event)

        monkeypatch.setattr("fracdna_prep.partial_store.read_source", changed)

    return install


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["g.fa", "g.fa.gz", "g.bgz.gz"])
def test_both_readers_agree(name, newline, run, make_fasta, tmp_path, names_in):
    """Lower case, IUPAC letters and empty records, however packed; nothing is left anywhere."""
    path = make_fasta(RECORDS, f"in/{name}", newline=newline)
    summary = run(path)
    assert (summary.verification.contigs, summary.verification.bases) == (3, 660)
    assert summary.verification.unreadable == summary.verification.not_covered == []
    assert "verified: pyfaidx reads 3 of 3 contigs, 660 bases" in summary.describe()
    assert names_in(tmp_path / "in") == [name]
    assert names_in(tmp_path / "out") == [
        "genome", "intervals.parquet", "summary.json", "windows-10.parquet",
    ]  # fmt: skip
    assert names_in(tmp_path / "out" / "genome") == ["bases.u8", "store.json"]


@pytest.mark.parametrize(
    ("made", "name"), [("g.fa", "g.gz"), ("g.bgz.gz", "g.fasta"), ("g.fa.gz", "g.bgz")]
)
def test_the_content_tells_how_a_file_is_packed(made, name, run, make_fasta, tmp_path):
    """Not the suffix, by which pyfaidx goes."""
    path = make_fasta(RECORDS, made).rename(tmp_path / name)
    assert run(path).verification.contigs == 3


def test_long_lines_are_unpacked(run, make_fasta, monkeypatch):
    """bgzip with a chromosome on one line is not read by the slow way, and reads the same."""
    monkeypatch.setattr(second_reader, "_LONG_LINE", 300)
    opened = []
    faidx = second_reader.pyfaidx.Faidx

    def listed(path, **options):
        opened.append(path.name)
        return faidx(path, **options)

    monkeypatch.setattr(second_reader.pyfaidx, "Faidx", listed)
    for width in (300, 298):
        path = make_fasta(RECORDS, f"{width}.bgz.gz", width=width)
        assert run(path, output=str(width)).verification.bases == 660
    assert opened == ["unpacked.fa", "298.bgz.gz"]


def test_verifying_changes_no_result(run, make_fasta, tmp_path):
    """Tables made with and without it are the same, so neither run replaces those of the other."""
    path = make_fasta(RECORDS)
    plain = run(path, verify=False)
    table = windows_path(tmp_path / "out", 10)
    written = table.stat().st_mtime_ns
    verified = run(path)
    assert table.stat().st_mtime_ns == written
    assert plain.verification is None
    assert read_summary(tmp_path / "out")["verification"]["bases"] == verified.genome.bases
    assert "verified" not in plain.describe()


@pytest.mark.parametrize(
    ("position", "value", "words"),
    [
        (0, 1, "chr1:1: the store holds 'C', pyfaidx reads 'A'"),
        (97, 0x80, "chr1:98: the store holds 'G', pyfaidx reads 'g'"),
        (96, 0x80, "chr1:97: the store holds 'C', pyfaidx reads 'c'"),
        (659, 0x40, "iupac:260: the store holds the byte 0xc4, pyfaidx reads 'n'"),
    ],
)
def test_one_flipped_bit_of_a_store_is_found(position, value, words, run, make_fasta, tmp_path):
    """A store that is there already is verified too; the place, both bases and the remedy."""
    path = make_fasta(RECORDS)
    run(path, verify=False)
    before = (tmp_path / "out" / "summary.json").read_bytes()
    flip(tmp_path / "out" / "genome" / "bases.u8", position, value)
    with pytest.raises(InputError, match=f"damaged at {words}.*remove .*genome and run"):
        run(path)
    assert (tmp_path / "out" / "summary.json").read_bytes() == before


def test_a_store_that_was_cut_is_found(run, make_fasta, tmp_path):
    """The first base that is missing."""
    path = make_fasta(RECORDS)
    bases = GenomeStore.build(path, tmp_path / "out" / "genome").directory / "bases.u8"
    bases.write_bytes(bases.read_bytes()[:500])
    with pytest.raises(InputError, match="damaged at iupac:101: the store holds nothing"):
        run(path)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("sha256", "0" * 64, "in the checksum of contig 'chr1'"), ("name", "x", "'chr1' in .* none")],
)
def test_a_record_that_was_edited_is_found(key, value, words, run, make_fasta, tmp_path):
    """Another hash or name in store.json."""
    path = make_fasta(RECORDS)
    record = GenomeStore.build(path, tmp_path / "out" / "genome").directory / "store.json"
    content = json.loads(record.read_text())
    content["contigs"][0][key] = value
    record.write_text(json.dumps(content))
    with pytest.raises(InputError, match=words):
        run(path)


def test_a_contig_that_no_source_holds_is_found(run, make_fasta, tmp_path):
    """A record that pyfaidx does not see."""
    path = make_fasta(RECORDS)
    record = GenomeStore.build(path, tmp_path / "out" / "genome").directory / "store.json"
    content = json.loads(record.read_text())
    content["contigs"].append({**content["contigs"][1], "name": "ghost"})
    record.write_text(json.dumps(content))
    with pytest.raises(InputError, match="no record called 'ghost'"):
        run(path)


@pytest.mark.parametrize("store", [None, "elsewhere"])
def test_a_store_that_fails_is_never_seen(store, run, make_fasta, misread, tmp_path, names_in):
    """A fault of the first reader: both readings are told, and nothing is left."""
    wrong = CODE_OF_LETTER[ord("T")]

    def shift(event):
        codes = getattr(event, "codes", b"")
        if len(codes) < 300:
            return event
        return type(event)(codes[:299] + bytes([wrong]) + codes[300:], event.letters)

    misread(shift)
    path = make_fasta(RECORDS, "in/g.fa")
    options = {} if store is None else {"store": tmp_path / store / "genome"}
    with pytest.raises(InputError, match=r"disagree at chr1:300 .*'T', pyfaidx reads 'n'"):
        run(path, **options)
    assert names_in(tmp_path) == ["in"]


def test_a_source_that_changes_meanwhile_is_found(make_fasta, run, misread, tmp_path):
    """Its hash is not that of the bytes the store was read from."""
    path = make_fasta(RECORDS, "in/g.fa")

    def change(event):
        if getattr(event, "name", "") == "iupac":
            flip(path, len(path.read_bytes()) - 2, 0x20)
        return event

    misread(change)
    with pytest.raises(InputError, match=r"g\.fa was changed after .*nothing was kept"):
        run(path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("packed", [False, True])
def test_what_pyfaidx_cannot_read_is_told(packed, run, tmp_path, make_fasta):
    """Lines of several lengths: the store is made, the other files are verified, exit status 1."""
    path = tmp_path / "ragged.fa"
    if packed:
        with bgzf.BgzfWriter(str(path), "wb") as writer:
            writer.write(RAGGED.encode())
    else:
        path.write_text(RAGGED)
    summary = run([path, make_fasta({"c": "ACGT" * 50})])
    assert (summary.verification.contigs, summary.verification.bases) == (1, 200)
    (reason,) = summary.verification.unreadable
    assert reason.startswith(f"pyfaidx cannot read {path}: Line length of fasta file is not")
    assert summary.row_problems == 0
    assert summary.has_problems
    assert f"NOT VERIFIED: {reason}" in summary.describe()
    assert "1 of 3 contigs" in summary.describe()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (">c\nACGT \nACGT \n", "it counts ' ' as a base in c:1-10"),
        (">d\nACGT\n>c\nAC\nACGTACGT\n>e\nACGT\n", "it counts '>' as a base in c:1-10"),
        (">c\nAC\n" + "ACGT" * 90, "it gives 144 bases for c:1-97"),
        ("\ufeff>c\nACGT\n", "Unexpected text before"),
        (">c\nACGT\n>é\nAC\n", "'utf-8' codec can't decode"),
    ],
)
def test_what_pyfaidx_misreads_is_no_fault_of_the_store(text, words, run, tmp_path):
    """Blanks within lines, a last line that is longer, a byte order mark, names in Latin-1."""
    path = tmp_path / "odd.fa"
    path.write_bytes(text.encode("latin-1" if "é" in text else "utf-8"))
    (reason,) = run(path).verification.unreadable
    assert reason.startswith(f"pyfaidx cannot read {path}: {words}")


def test_bases_that_pyfaidx_cannot_read_keep_their_checksum(run, tmp_path):
    """Damage behind a file that it does not read is found without a place."""
    path = tmp_path / "ragged.fa"
    path.write_text(RAGGED)
    run(path, verify=False)
    flip(tmp_path / "out" / "genome" / "bases.u8", 20)
    with pytest.raises(InputError, match="damaged in contig 'ragged': remove"):
        run(path)


def test_annotated_records_are_told(run, make_fasta, tmp_path):
    """GenBank is not covered, which is no problem; the FASTA beside it is verified."""
    (tmp_path / "plasmid.gb").write_text(GENBANK)
    summary = run([tmp_path / "plasmid.gb", make_fasta({"c": "ACGT" * 5})])
    assert summary.verification.not_covered == ["plasmid.gb"]
    assert summary.verification.contigs == 1
    assert not summary.has_problems
    assert "NOT VERIFIED: plasmid.gb: pyfaidx reads neither" in summary.describe()


def test_a_full_disk_is_no_fault_of_the_file(run, make_fasta, monkeypatch, tmp_path, names_in):
    """pyfaidx hides what the system refused; it is told, and the store need not be read again."""

    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = make_fasta(RECORDS, "in/g.fa")
    with monkeypatch.context() as patch:
        patch.setattr("pyfaidx.TemporaryFile", full)
        with pytest.raises(InputError, match="no space left"):
            run(path)
    assert names_in(tmp_path / "out") == [".genome.partial"]
    bases = (tmp_path / "out" / ".genome.partial" / "bases.u8").stat().st_ino
    run(path)
    assert (tmp_path / "out" / "genome" / "bases.u8").stat().st_ino == bases


def test_what_a_killed_verification_left_goes_away(run, make_fasta, tmp_path, names_in):
    """By the next run, with or without a verification."""
    path = make_fasta(RECORDS)
    expected = None
    for verify in (True, False):
        leftover = tmp_path / "out" / ".verification" / "source"
        leftover.mkdir(parents=True)
        (leftover / "unpacked.fa").touch()
        run(path, verify=verify)
        expected = expected or names_in(tmp_path / "out")
        assert names_in(tmp_path / "out") == expected
        assert not leftover.exists()


@pytest.mark.parametrize("packed", ["g.fa", "g.bgz.gz"])
def test_read_only_inputs_are_left_alone(
    packed, run, make_fasta, open_folder, without_privileges, names_in
):
    """Source and store may be read-only: index files lie in the output folder meanwhile."""
    source = open_folder / "readonly"
    source.mkdir()
    shutil.copy(make_fasta(RECORDS, packed), source / packed)
    GenomeStore.build(source / packed, source / "genome")
    before = names_in(source)
    source.chmod(0o555)
    open_folder.chmod(0o777)
    options = PrepareOptions(
        fasta=source / packed, output=open_folder / "out", store=source / "genome", length=10,
        verify=True, progress=False,
    )  # fmt: skip
    assert without_privileges(lambda: prepare(options).verification.contigs) == 3
    assert names_in(source) == before


def test_the_command_verifies(make_fasta, tmp_path, capsys):
    """verify=true: 0 where all is well, 1 where pyfaidx cannot read, 2 where the store differs."""
    good, ragged = make_fasta({"chr1": RECORDS["chr1"]}), tmp_path / "ragged.fa"
    ragged.write_text(RAGGED)
    command = ["prepare", "length=10", "verify=true"]
    arguments = [*command, f"fasta={good}", f"output={tmp_path / 'good'}"]
    assert cli.run(["prepare", "length=10", f"fasta={good}", f"output={tmp_path / 'no'}"]) == 0
    assert "verified" not in capsys.readouterr().out
    assert cli.run(arguments) == 0
    captured = capsys.readouterr()
    assert "verified: pyfaidx reads 1 of 1 contig, 400 bases" in captured.out
    assert "verification: 100%" in captured.err
    assert cli.run([*command, f"fasta={ragged}", f"output={tmp_path / 'ragged'}"]) == 1
    assert f"NOT VERIFIED: pyfaidx cannot read {ragged}" in capsys.readouterr().out
    flip(tmp_path / "good" / "genome" / "bases.u8", 5)
    assert cli.run(arguments) == 2
    assert "damaged at chr1:6" in capsys.readouterr().err


def test_pyfaidx_is_loaded_for_a_verification_only():
    """A preparation without one does not wait for it."""
    code = (
        "import sys\nimport fracdna.preparation, fracdna_prep.verification\n"
        "assert 'pyfaidx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_draft_knows_its_files(make_fasta, tmp_path):
    """Before and after it is published the bases lie in its folder."""
    path = make_fasta(RECORDS)
    with store_draft(path, tmp_path / "store") as draft:
        assert draft.folder != draft.directory
        assert (draft.folder / "bases.u8").stat().st_size == draft.record.length == 660
        draft.publish()
        assert draft.folder == draft.directory
    assert GenomeStore(tmp_path / "store").record == draft.record


def test_the_metadata_tell_of_it(run, make_fasta, tmp_path):
    """All options are recorded, also those that change no result."""
    run(make_fasta(RECORDS))
    assert read_metadata(windows_path(tmp_path / "out", 10))["options"]["verify"] is True
