"""What a user meets at the command line when an input cannot be used: one message, exit code 2."""

import gzip

import pytest

from fracdna import cli
from fracdna_prep.example import example_files


@pytest.fixture
def prepare(tmp_path, capsys):
    """Run `fracdna prepare` into an output folder; give the exit code, messages and the folder."""

    def run(**options):
        output = tmp_path / "out"
        given = {"fasta": example_files().fasta, "length": "[1024]", "progress": "false"} | options
        words = [f"{name}={value}" for name, value in given.items()]
        code = cli.run(["prepare", *words, f"output={output}"])
        return code, capsys.readouterr(), output

    return run


def assert_refused(result, *words):
    code, printed, output = result
    assert code == 2
    assert printed.err.startswith("fracdna prepare: ")
    assert "Traceback" not in printed.err
    assert all(word in printed.err for word in words)
    assert not output.exists()


def test_a_missing_contig(prepare, tmp_path):
    """Case 11: row, both name sets, and the option that may help."""
    bed = tmp_path / "rows.bed"
    bed.write_text("chr20_1M_3M\t0\t5000\ttrain\nchrZZ\t0\t10\ttest\n")
    assert_refused(prepare(intervals=bed), "rows.bed", "chrZZ", "chr20_1M_3M", "rename=chr_prefix")


@pytest.mark.parametrize("kind", ["gzip", "bgzip"])
def test_a_truncated_file(prepare, tmp_path, kind):
    """Nothing of a damaged download is kept."""
    path = tmp_path / "cut.fa.gz"
    packed = example_files().fasta.read_bytes()
    if kind == "gzip":
        packed = gzip.compress(gzip.decompress(packed)[:300_000])
    path.write_bytes(packed[: len(packed) * 2 // 3])
    assert_refused(prepare(fasta=path), "cut.fa.gz")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.fa.gz"]


def test_rows_that_cannot_be_used_get_their_status_and_the_run_goes_on(prepare, tmp_path):
    """Only N, a 3-base contig, a row past the end: exit code 1, a status each, the rest is done."""
    fasta, bed = tmp_path / "g.fa", tmp_path / "rows.bed"
    fasta.write_text(f">a\n{'ACGT' * 1000}\n>n\n{'N' * 3000}\n>tiny\nACG\n")
    rows = ["a 0 4000 train", "n 0 3000 train", "tiny 0 3 valid", "a 9000 9500 test"]
    bed.write_text("\n".join(rows).replace(" ", "\t") + "\n")
    code, printed, output = prepare(fasta=fasta, intervals=bed)
    assert code == 1
    for status in ("too many N", "padded", "outside the contig"):
        assert status in printed.out
    assert (output / "windows-1024.parquet").is_file()
