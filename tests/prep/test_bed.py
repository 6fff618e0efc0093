import gzip
import os

import pytest

from fracdna_prep.bed import read_bed, write_bed
from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval


@pytest.fixture
def bed(tmp_path):
    def read(text, name="rows.bed"):
        path = tmp_path / name
        content = text.encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return read_bed(path)

    return read


@pytest.mark.parametrize(
    "text",
    [
        "chr1\t0\t10\ttrain\nchr2\t5\t9\ttest\n",
        "chr1 0 10 train\nchr2   5  9 test\n",
        "chr1 0\t10 train\nchr2 5\t9 test\n",
        "chrom\tstart\tend\tsplit\nchr1\t0\t10\ttrain\nchr2\t5\t9\ttest\n",
        "#chrom\tstart\tend\nchr1\t0\t10\ttrain\n\nchr2\t5\t9\ttest",
        'track name="x y"\nbrowser position chr1\nchr1\t0\t10\ttrain\ntrack\nchr2\t5\t9\ttest\n',
        "chr1\t0\t10\ttrain\t\nchr2\t5\t9\ttest\t\t\n",
        "chr1\t0\t10\ttrain\r\nchr2\t5\t9\ttest\t\r\n",
    ],
    ids=["tabs", "blanks", "mixed", "header", "comment", "track", "trailing tab", "CRLF"],
)
@pytest.mark.parametrize("name", ["rows.bed", "rows.bed.gz"])
def test_dialects_read_alike(text, name, bed):
    """Case 12: blanks, header, track lines, trailing tabs and CRLF change nothing."""
    table = bed(text, name)
    assert list(table.intervals()) == [Interval("chr1", 0, 10), Interval("chr2", 5, 9)]
    assert table.names == ["train", "test"]
    assert table.strands == [".", "."]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("chr1\t0\t10\nchr1\t5\n", r"rows\.bed:2: 2 column"),
        ("chr1\t0\t10\nchr1\tx\t10\n", r"rows\.bed:2: the start is 'x'"),
        ("chr1\t0\t1e6\n", r"rows\.bed:1: the end is '1e6'"),
        ("chr1\t0\t1,000\n", r"rows\.bed:1: the end is '1,000'"),
        ("chr1\t0\t5.0\n", r"rows\.bed:1: the end is '5.0'"),
        ("chr1\tx\t10\n", r"rows\.bed:1: the start is 'x'"),
        ("a\tb\tc\nd\te\tf\n", r"rows\.bed:2: the start is 'e'"),
        ("chr1\t0\t99999999999999999999\n", r"rows\.bed:1: the end"),
        ("\t0\t5\tx\n", r"rows\.bed:1: the contig's name is empty"),
        ("c\t0\t5\tx\t0\tforward\n", r"rows\.bed:1: the sixth column is 'forward'"),
        ("", "holds no interval"),
        ("track\n#only\n", "holds no interval"),
        ("chrom start end\n", "holds no interval"),
    ],
)
def test_what_is_no_bed_is_refused_with_its_line(text, words, bed):
    """Case 12: file, line number and reason; never an empty result."""
    with pytest.raises(InputError, match=words):
        bed(text)


def test_contig_names_are_always_text(bed):
    """Case 10: a contig called 1 stays "1"."""
    table = bed("1\t0\t4\n01\t0\t4\n1e3\t0\t4\n")
    assert table.contigs == ["1", "01", "1e3"]


def test_empty_and_inverted_rows_are_kept_and_flagged(bed):
    """Case 13: rows 100-100 and 100-90 are no error of the file."""
    table = bed("c\t100\t100\nc\t100\t90\nc\t5\t10\n")
    assert table.empty.tolist() == [True, False, False]
    assert table.inverted.tolist() == [False, True, False]
    assert len(table) == 3


def test_all_columns_are_kept(bed):
    """Name, score, strand, what stands behind them, and the line numbers."""
    table = bed("#x\nc\t1\t2\tn\t5.5\t-\tthick\t9\n\nc\t3\t4\nc\t5\t6\tn\t0\t*\n")
    assert table.interval(0) == Interval("c", 1, 2, "-")
    assert table.names == ["n", "", "n"]
    assert (table.scores, table.strands) == (["5.5", "", "0"], ["-", ".", "."])
    assert table.extra == [("thick", "9"), (), ()]
    assert table.lines.tolist() == [2, 4, 5]
    assert table.place_of(1).endswith("rows.bed:4")


def test_names_with_blanks_survive_between_tabs(bed):
    """Tabs separate where there are any."""
    assert bed("chr 1\t0\t5\tmy gene\n").names == ["my gene"]
    assert bed("chr1\t0\t5\theader\n").header == ()
    assert bed("chrom\tstart\tend\nchr1\t0\t5\n").header == ("chrom", "start", "end")


def test_writing_and_reading_give_the_same_intervals(tmp_path):
    """BED6 round trip, strands included."""
    intervals = [Interval("HLA*01:01", 0, 5, "-"), Interval("1", 7, 8)]
    write_bed(tmp_path / "out.bed", intervals, names=["a b", "c"])
    table = read_bed(tmp_path / "out.bed")
    assert list(table.intervals()) == intervals
    assert table.names == ["a b", "c"]
    write_bed(tmp_path / "bare.bed", intervals)
    assert read_bed(tmp_path / "bare.bed").names == [".", "."]


def test_a_missing_bed_is_refused(tmp_path):
    """Like every other missing file."""
    with pytest.raises(InputError, match="no such file"):
        read_bed(tmp_path / "none.bed")


def test_a_pipe_is_refused():
    """As `<(zcat rows.bed.gz)` makes one: files are read more than once."""
    reading, writing = os.pipe()
    os.write(writing, b"chr1\t0\t5\n")
    os.close(writing)
    with pytest.raises(InputError, match=f"/dev/fd/{reading} is a pipe.*write it to a file"):
        read_bed(f"/dev/fd/{reading}")
    os.close(reading)


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    """Editors on Windows write one; plain or gzip, with the line numbers kept."""
    content = b"\xef\xbb\xbfchr1\t0\t5\nchr2\t1\tx\n"
    for path, packed in ((tmp_path / "a.bed", bytes), (tmp_path / "a.bed.gz", gzip.compress)):
        path.write_bytes(packed(content[:12]))
        assert read_bed(path).contigs == ["chr1"]
        path.write_bytes(packed(content))
        with pytest.raises(InputError, match=":2: the end is 'x'"):
            read_bed(path)
