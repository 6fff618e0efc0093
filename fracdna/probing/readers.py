"""Labelled sets on disk: tables, FASTA folders, interval lists and BED files, told by their form.

No reader guesses: what a folder or file is follows from names that are written in docs/probing.md.
"""

import contextlib
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from Bio.SeqIO.FastaIO import SimpleFastaParser

from fracdna.probing.rows import DEV, SPLIT_WORDS, SPLITS, TEST, TRAIN, Row, split_of
from fracdna_prep.bed import BedTable, read_bed
from fracdna_prep.compression import open_unpacked, reading_refusals
from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval
from fracdna_prep.wording import listed

_TABLES = (".csv", ".tsv", ".txt")
_FASTA = (".fa", ".fasta", ".fna", ".ffn")
_PACKED = (".gz", ".bgz")
_LONGEST_FIELD = 1 << 30  # letters: csv refuses more than 131,072 unless it is told otherwise
_INTERVAL_COLUMNS = ("region", "start", "end")
_LAYOUTS = (
    "a table (CSV or TSV) of sequences and labels, a labelled BED, a folder with train.csv, "
    "dev.csv and test.csv, one with train/CLASS.fa or train/CLASS/*.fa, or one with metadata.yaml "
    "and train/CLASS.csv.gz; or what such files' names begin with, as tf_0 of tf_0_train.csv.gz"
)


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a table.

    Attributes:
        sequence: letters.
        label: class.
        split: train, dev or test; read where a single table has it.
    """

    sequence: str = "sequence"
    label: str = "label"
    split: str = "split"


@dataclass(frozen=True)
class RawSet:
    """What files hold.

    Attributes:
        rows: in the order of the files.
        files: those that were read.
    """

    rows: list[Row]
    files: list[Path]

    @property
    def needs_genome(self) -> bool:
        """Whether rows are intervals."""
        return self.rows[0].interval is not None


def read_files(files: Mapping[str, str | None], columns: Columns) -> RawSet:
    """Tables named one by one.

    Args:
        files: by split; None where there is none.
        columns: of all of them.

    Raises:
        InputError: no training or test file, or one that cannot be read.
    """
    named = {split: Path(path) for split, path in files.items() if path is not None}
    for split in (TRAIN, TEST):
        if split not in named:
            raise InputError(f"{split}= is missing: name the files train= and test=, or dataset=")
    return _tables(named, columns)


def read_set(dataset: str, columns: Columns) -> RawSet:
    """The set that a path names: a file, a folder, or what files' names begin with.

    Raises:
        InputError: nothing there, another form than those known, or an unreadable file.
    """
    path = Path(dataset)
    if path.is_file():
        return _single_file(path, columns)
    found = _Layout(path)
    if found.metadata is not None:
        return _interval_lists(found)
    if found.tables:
        for split in (TRAIN, TEST):
            if split not in found.tables:
                there = ", ".join(str(file) for file in found.tables.values())
                raise InputError(
                    f"dataset={dataset} has no {split} file; there is {there}: add it, or name "
                    "files with train=, dev= and test="
                )
        return _tables(found.tables, columns)
    if path.is_dir():
        return _fasta_folder(path)
    raise InputError(f"dataset={dataset}: no such file or folder; it is {_LAYOUTS}")


class _Layout:
    """Files of a set, in a folder of its own or told from others by what their names begin with."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: Path | None = None
        self.tables: dict[str, Path] = {}
        folder, prefix = (path, "") if path.is_dir() else (path.parent, f"{path.name}_")
        for file in sorted(folder.iterdir()) if folder.is_dir() else []:
            name = file.name.removeprefix(prefix)
            if not file.is_file() or not file.name.startswith(prefix):
                continue
            stem, suffix = _parts(name)
            if name == "metadata.yaml":
                self.metadata = file
            elif suffix in _TABLES and stem in SPLIT_WORDS:
                split = SPLIT_WORDS[stem]
                if split in self.tables:
                    raise InputError(f"{self.tables[split]} and {file} are both {split}: keep one")
                self.tables[split] = file

    def interval_lists(self, names: Sequence[str]) -> dict[tuple[str, str], Path]:
        """Files by split and class: train/CLASS.csv.gz, or PREFIX_train_CLASS.csv.gz."""
        found = {}
        for split in SPLITS:
            for name in names:
                for ending in ("csv.gz", "csv"):
                    inside = self.path / split / f"{name}.{ending}"
                    beside = self.path.with_name(f"{self.path.name}_{split}_{name}.{ending}")
                    there = next((file for file in (inside, beside) if file.is_file()), None)
                    if there is not None:
                        found.setdefault((split, name), there)
        return found


def _parts(name: str) -> tuple[str, str]:
    """A file's name without its endings, and the ending that tells its form."""
    path = Path(name)
    while path.suffix.lower() in _PACKED:
        path = path.with_suffix("")
    return path.stem, path.suffix.lower()


def _single_file(path: Path, columns: Columns) -> RawSet:
    """One table, or a labelled BED."""
    suffix = _parts(path.name)[1]
    if suffix == ".bed":
        return RawSet(_bed_rows(read_bed(path)), [path])
    if suffix in _FASTA:
        raise InputError(
            f"dataset={path}: a FASTA alone names no classes: name the folder of train/CLASS.fa "
            "and test/CLASS.fa"
        )
    if suffix not in _TABLES:
        raise InputError(f"dataset={path}: of no known form; it is {_LAYOUTS}")
    return RawSet(_require(list(_table_rows(path, columns, None)), path), [path])


def _tables(files: Mapping[str, Path], columns: Columns) -> RawSet:
    """A table for each split; dev may be missing."""
    order = [split for split in (TRAIN, DEV, TEST) if split in files]
    rows = []
    for split in order:
        rows += _require(list(_table_rows(files[split], columns, split)), files[split])
    return RawSet(rows, [files[split] for split in order])


def _require(rows: list[Row], path: Path) -> list[Row]:
    """Rows of a file, if there are any."""
    if not rows:
        raise InputError(f"{path} holds no row")
    return rows


def _table_rows(path: Path, columns: Columns, split: str | None) -> Iterator[Row]:
    """Rows of one table; its own column of splits counts where the file is the whole set."""
    own = split is None
    for line, fields in _records(path, (columns.sequence, columns.label)):
        place = f"{path.name}:{line}"
        if own and columns.split in fields:
            split = split_of(fields[columns.split], place)
        yield Row(place, fields[columns.label].strip(), split, fields[columns.sequence].strip())


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    """Sequences may be longer than csv allows; its limit is of the process, and is put back."""
    before = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _records(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and fields by column of a table with a header, plain or gzip."""
    with _long_fields(), open_unpacked(path) as raw, reading_refusals(path):
        file = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="")
        header = file.readline()
        reader = csv.reader(file, delimiter="\t" if "\t" in header else ",")
        names = [name.strip() for name in next(csv.reader([header], reader.dialect), [])]
        missing = [name for name in needed if name not in names]
        if missing:
            raise InputError(
                f"{path} has no column {missing[0]!r}; its first line has {listed(names)}: write a "
                "header, or name columns with sequence_column= and label_column="
            )
        for fields in reader:
            if not fields:
                continue
            line = reader.line_num + 1
            if len(fields) != len(names):
                raise InputError(
                    f"{path}:{line}: {len(fields)} fields, and the header has {len(names)}"
                )
            yield line, dict(zip(names, fields, strict=True))


def _fasta_folder(path: Path) -> RawSet:
    """train/CLASS.fa, or train/CLASS/ with any number of files; without train and test one set."""
    folders = {
        SPLIT_WORDS[sub.name]: sub
        for sub in sorted(path.iterdir())
        if sub.is_dir() and sub.name in SPLIT_WORDS
    }
    for split in (TRAIN, TEST) if folders else ():
        if split not in folders:
            raise InputError(f"dataset={path} has no folder {split}/: it has {listed(folders)}")
    rows, files = [], []
    for split, folder in folders.items() or [(None, path)]:
        for label, file in _class_files(folder):
            rows += [Row(f"{file.name}:{n}", label, split, text) for n, text in _letters(file)]
            files.append(file)
    if not rows:
        raise InputError(f"dataset={path} holds no set; it is {_LAYOUTS}")
    return RawSet(rows, files)


def _class_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Classes and their files: a file each, or a folder each with FASTA or one text a sequence."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            for file in sorted(entry.iterdir()):
                if _parts(file.name)[1] in (*_FASTA, ".txt"):
                    yield entry.name, file
        elif _parts(entry.name)[1] in _FASTA:
            yield _parts(entry.name)[0], entry


def _letters(path: Path) -> Iterator[tuple[str, str]]:
    """Names and letters of the records of a FASTA; of a text file all it holds."""
    with open_unpacked(path) as raw, reading_refusals(path):
        file = io.TextIOWrapper(raw, encoding="utf-8", errors="replace")
        if _parts(path.name)[1] in _FASTA:
            try:
                for number, (title, letters) in enumerate(SimpleFastaParser(file), 1):
                    yield (title.split() or [str(number)])[0], letters
            except ValueError as error:
                raise InputError(f"{path} is no FASTA: {error}") from error
        else:
            yield "1", "".join(file.read().split())


def _interval_lists(layout: _Layout) -> RawSet:
    """GenomicBenchmarks: a list for each split and class, and a YAML that names the classes.

    Coordinates are 0-based and half-open there: its own loader slices text with them. "-" is
    reverse-complemented, and anything else is the forward strand.
    """
    with reading_refusals(layout.metadata):
        try:
            classes = yaml.safe_load(layout.metadata.read_text())["classes"]
            names = [str(name) for name in classes]
        except (yaml.YAMLError, KeyError, TypeError) as error:
            raise InputError(f"{layout.metadata} names no classes: {error}") from error
    files = layout.interval_lists(names)
    for split in (TRAIN, TEST):
        for name in names:
            if (split, name) not in files:
                raise InputError(
                    f"{layout.metadata} names the class {name!r}, of which there is no list "
                    f"{split}/{name}.csv.gz"
                )
    rows = []
    for (split, name), file in files.items():
        rows += _require(list(_list_rows(file, name, split)), file)
    return RawSet(rows, list(files.values()))


def _list_rows(path: Path, label: str, split: str) -> Iterator[Row]:
    """Rows of one list of intervals."""
    for line, fields in _records(path, _INTERVAL_COLUMNS):
        place = f"{path.name}:{line}"
        try:
            start, end = int(fields["start"]), int(fields["end"])
        except ValueError:
            raise InputError(
                f"{path}:{line}: start {fields['start']!r} and end {fields['end']!r} are no whole "
                "numbers"
            ) from None
        strand = "-" if fields.get("strand", "").strip() == "-" else "+"
        interval = Interval(fields["region"].strip(), start, end, strand)
        yield Row(place, label, split, interval=interval)


def _bed_rows(bed: BedTable) -> list[Row]:
    """The fourth column is the class; the fifth or the seventh the split, where all name one."""
    extra = [(fields or ("",))[0] for fields in bed.extra]
    words = next((column for column in (bed.scores, extra) if _are_splits(column)), None)
    rows = []
    for number in range(len(bed)):
        split = None if words is None else split_of(words[number], bed.place_of(number))
        place = f"{bed.path.name}:{bed.lines[number]}"
        rows.append(Row(place, bed.names[number], split, interval=bed.interval(number)))
    return rows


def _are_splits(column: Sequence[str]) -> bool:
    """Whether every row names a split."""
    return all(word.strip().lower() in SPLIT_WORDS for word in column)
