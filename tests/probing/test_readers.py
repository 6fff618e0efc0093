"""Every layout of labelled sets, and what is refused."""

import csv
import gzip

import pytest

from fracdna.probing.labelled import SplitRules, assemble
from fracdna.probing.readers import Columns, read_files, read_set
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

COLUMNS = Columns()


def told(raw):
    return [(row.sequence, row.label, row.split) for row in raw.rows]


@pytest.mark.parametrize("dev", ["dev.csv", "valid.csv", "val.tsv.gz"])
def test_a_folder_of_tables(tmp_path, dev):
    """train, dev under each of its names, and test; packed or not; in this order."""
    content = {"test.csv": "AC,1", "train.csv": "GG,0", dev: "TT,1"}
    for name, row in content.items():
        text = f"sequence,label\n{row}\n".replace(",", "\t" if ".tsv" in name else ",")
        packed = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
        (tmp_path / name).write_bytes(packed)
    raw = read_set(str(tmp_path), COLUMNS)
    assert told(raw) == [("GG", "0", "train"), ("TT", "1", "dev"), ("AC", "1", "test")]
    assert raw.rows[1].place == f"{dev}:2"


def test_files_that_share_the_beginning_of_their_names(tmp_path, write_table):
    """NAME_train.csv beside other sets; tf_1 is not tf_10."""
    for name in ("tf_1", "tf_10"):
        for split in ("train", "test"):
            write_table(tmp_path / f"{name}_{split}.csv", [(name.replace("tf_", "AC"), split)])
    with pytest.raises(InputError, match="no such file"):
        read_set(str(tmp_path / "tf"), COLUMNS)
    (tmp_path / "tf_1_train.csv").write_text("sequence,label\nACG,7\n")
    assert told(read_set(str(tmp_path / "tf_1"), COLUMNS))[0] == ("ACG", "7", "train")


def test_one_table_with_columns_of_other_names(tmp_path, write_table):
    """Splits in a column of their own, in any order of columns, beside columns nobody asked for."""
    rows = [("x", "valid", "ACGT", "enhancer"), ("y", "TEST", "GGG", "none")]
    path = write_table(tmp_path / "all.tsv", rows, ("id", "fold", "dna", "kind"), "\t")
    raw = read_set(str(path), Columns("dna", "kind", "fold"))
    assert told(raw) == [("ACGT", "enhancer", "dev"), ("GGG", "none", "test")]


def test_named_files(tmp_path, write_table):
    paths = {s: write_table(tmp_path / f"{s}.csv", [("ACG", s)]) for s in ("train", "test")}
    raw = read_files(
        {"train": str(paths["train"]), "dev": None, "test": str(paths["test"])}, COLUMNS
    )
    assert told(raw) == [("ACG", "train", "train"), ("ACG", "test", "test")]


@pytest.mark.parametrize("form", ["file", "folder", "texts"])
def test_fasta_folders(tmp_path, form):
    """A file for each class, a folder for each, or a text for each sequence."""
    for split in ("train", "test"):
        for label in ("enhancer", "other"):
            folder = tmp_path / split / (label if form != "file" else "")
            folder.mkdir(parents=True, exist_ok=True)
            if form == "texts":
                (folder / "0.txt").write_text("ACGT\n")
                (folder / "1.txt").write_text("GG")
            else:
                name = f"{label}.fa" if form == "file" else "part.fasta"
                (folder / name).write_text(">a x\nAC\nGT\n>b\nGG\n")
    expected = [
        (text, label, split)
        for split in ("test", "train")
        for label in ("enhancer", "other")
        for text in ("ACGT", "GG")
    ]
    assert told(read_set(str(tmp_path), COLUMNS)) == expected


def interval_lists(folder, join):
    """Two classes in GenomicBenchmarks' layout; `join` makes a path of its parts."""
    (folder / join("metadata.yaml")).write_text("version: 0\nclasses:\n  neg: {}\n  pos: {}\n")
    for split in ("train", "test"):
        for label in ("neg", "pos"):
            rows = ["a,chr1,100,110,+", "b,chr2,20,28,-", "c,chr1,50,60,"]
            path = folder / join(split, f"{label}.csv.gz")
            path.parent.mkdir(parents=True, exist_ok=True)
            text = "\n".join(["id,region,start,end,strand", *rows]) + "\n"
            path.write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize(("named", "join"), [("set", "/".join), ("demo", "_".join)])
def test_interval_lists_are_cut_as_their_own_loader_cuts(tmp_path, store, letters, named, join):
    """Python's slices: 0-based, half-open; "-" reversed; no strand is the forward one."""
    prefix = "" if named == "set" else "demo_"
    folder = tmp_path / "set" if named == "set" else tmp_path
    folder.mkdir(exist_ok=True)
    interval_lists(folder, lambda *parts: prefix + join(parts))
    raw = read_set(str(tmp_path / named), COLUMNS)
    data = assemble(raw.rows, store, SplitRules())
    reverse = letters["chr2"][20:28][::-1].translate(str.maketrans("ACGT", "TGCA"))
    expected = [letters["chr1"][100:110], reverse, letters["chr1"][50:60]] * 4
    assert [DNA.decode(ids) for ids in data.sequences] == expected
    assert data.classes == ("neg", "pos")
    assert data.counts()["test"] == {"neg": 3, "pos": 3}


@pytest.mark.parametrize("column", [5, 7])
def test_a_labelled_bed(tmp_path, column):
    """The fourth column is the class; the split may be the fifth or the seventh."""
    split = {5: "{}", 7: "0\t+\t{}"}[column]
    rows = [
        f"chr1\t{n}\t{n + 9}\tc{n % 2}\t{split.format(s)}" for n, s in enumerate(["train", "val"])
    ]
    path = tmp_path / "set.bed"
    path.write_text("\n".join(rows) + "\n")
    raw = read_set(str(path), COLUMNS)
    assert [(str(r.interval), r.label, r.split) for r in raw.rows] == [
        ("chr1:1-9", "c0", "train"),
        ("chr1:2-10", "c1", "dev"),
    ]


REFUSED = {
    "no header": ({"train.csv": "ACGT,1\n", "test.csv": "ACGT,1\n"}, "'sequence'"),
    "fields": ({"train.csv": "sequence,label\nAC,1,2\n", "test.csv": "x"}, "train.csv:2: 3 fields"),
    "empty table": ({"train.csv": "sequence,label\n", "test.csv": "x"}, "holds no row"),
    "empty file": ({"train.csv": "", "test.csv": "x"}, "no column"),
    "no train": ({"dev.csv": "x", "test.csv": "x"}, "no train file"),
    "two dev": ({"dev.csv": "x", "valid.csv": "x"}, "both dev"),
    "split": ({"set.csv": "sequence,label,split\nAC,1,fold3\n"}, "set.csv:2: the split is 'fold3'"),
    "fasta alone": ({"set.fa": ">a\nAC\n"}, "names no classes"),
    "other file": ({"set.xlsx": "?"}, "no known form"),
    "no test": ({"train/a.fa": ">a\nAC\n"}, "no folder test/"),
    "nothing": ({"readme.md": "?"}, "holds no set"),
    "class": ({"metadata.yaml": "classes: {a: {}}", "train/b.csv": "x"}, "the class 'a'"),
    "metadata": ({"metadata.yaml": "version: 0"}, "names no classes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(tmp_path, case):
    """The message names the file and what is wrong with it."""
    files, words = REFUSED[case]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    single = next(iter(files)) if next(iter(files)).startswith("set.") else ""
    with pytest.raises(InputError, match=words):
        read_set(str(tmp_path / single), COLUMNS)


def test_real_sets(shared_data):
    """GUE and GenomicBenchmarks as they are: rows, as the specification counts them."""
    raw = read_set(str(shared_data / "tasks_GUE" / "mouse_3"), COLUMNS)
    counts = [sum(row.split == split for row in raw.rows) for split in ("train", "dev", "test")]
    assert counts == [1904, 239, 239]
    raw = read_set(str(shared_data / "tasks_genomic_benchmarks" / "human_enhancers_cohn"), COLUMNS)
    counts = [sum(row.split == split for row in raw.rows) for split in ("train", "test")]
    assert counts == [20843, 6948]
    with pytest.raises(InputError, match="no train file"):
        read_set(str(shared_data / "tasks_GUE" / "mouse_1"), COLUMNS)


def test_the_limit_of_fields_is_put_back(tmp_path):
    """It is of the whole process: another table with a field that is too long is still refused."""
    before = csv.field_size_limit()
    path = tmp_path / "set.csv"
    path.write_text(f"sequence,label,split\n{'ACGT' * 50_000},1,train\n")
    rows = list(read_set(str(path), Columns()).rows)
    assert len(rows[0].sequence) == 200_000
    assert csv.field_size_limit() == before
