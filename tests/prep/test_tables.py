import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval
from fracdna_prep.tables import (
    INTERVAL_COLUMNS,
    WINDOW_COLUMNS,
    Texts,
    WindowTable,
    read_metadata,
    verify_windows,
)
from fracdna_prep.window_files import write_windows


def texts(*values):
    return np.array(values, dtype=object)


def numbers(*values):
    return np.array(values, dtype=np.int64)


@pytest.fixture
def table():
    return WindowTable(
        row=numbers(0, 0, 1, 2),
        contig=texts("1", "1", "chrX", "1"),
        start=numbers(0, 10, 5, 90),
        end=numbers(10, 20, 12, 99),
        strand=texts("+", "+", "-", "+"),
        split=texts("train", "train", "test", "valid"),
        n_fraction=np.array([0.0, 0.25, 0.0, np.nan]),
        masked_fraction=np.array([0.0, 1.0, 0.5, np.nan]),
        status=texts("ok", "shifted", "padded", "dropped: outside the contig"),
        shift=numbers(0, -3, 0, 0),
        pad_left=numbers(0, 0, 1, 0),
        pad_right=numbers(0, 0, 2, 0),
        metadata={"length": 10, "genome_checksum": "abc", "seed": 2222},
    )


def shuffled(table, order):
    columns = {column.name: getattr(table, column.name)[order] for column in WINDOW_COLUMNS}
    return WindowTable(**columns, metadata=dict(table.metadata))


def write(table, path):
    """Writes a table row by row; returns its content hash."""
    batches = [
        {column.name: piece(getattr(table, column.name), row) for column in WINDOW_COLUMNS}
        for row in range(len(table))
    ]
    return write_windows(path, batches, table.metadata)


def piece(values, row):
    if values.dtype != object:
        return values[row : row + 1]
    words = sorted(set(values), reverse=True)
    return Texts(numbers(words.index(values[row])), words)


def test_a_table_survives_the_disk(table, tmp_path):
    """Columns, metadata and hash are those written; contig names stay text (case 10)."""
    written = write(table, tmp_path / "windows.parquet")
    read = WindowTable.read(tmp_path / "windows.parquet")
    for column in WINDOW_COLUMNS:
        np.testing.assert_array_equal(getattr(read, column.name), getattr(table, column.name))
    assert read.contig.tolist() == ["1", "1", "chrX", "1"]
    assert read.metadata["seed"] == 2222
    assert (
        read.content_hash
        == written
        == verify_windows(read.path)
        == table.content_hash
        == read.verify()
    )
    assert read.path == tmp_path / "windows.parquet"
    assert (len(read), read.length) == (4, 10)


def test_the_schema_tells_unit_and_meaning(table, tmp_path):
    """Whoever opens the file elsewhere reads what a column is."""
    write(table, tmp_path / "windows.parquet")
    schema = pq.read_schema(tmp_path / "windows.parquet")
    assert schema.names == [column.name for column in WINDOW_COLUMNS]
    for field in schema:
        assert field.metadata[b"unit"]
        assert field.metadata[b"meaning"]
    assert {column.name for column in INTERVAL_COLUMNS} >= {"row", "split", "status"}


def test_usable_windows_are_those_that_can_be_read(table):
    """Dropped rows are never handed out; splits by any of their names."""
    assert table.usable().tolist() == [0, 1, 2]
    assert table.usable("train").tolist() == [0, 1]
    assert table.usable("valid").tolist() == []
    assert table.usable("testing").tolist() == [2]
    assert table.usable().dtype == np.int64
    with pytest.raises(InputError, match="'all'"):
        table.usable("all")


def test_single_windows_are_intervals_and_pads(table):
    """What the store is asked for."""
    assert table.interval(2) == Interval("chrX", 5, 12, "-")
    assert table.pads(2) == (1, 2)
    assert isinstance(table.interval(2).start, int)


def test_the_hash_is_of_the_sorted_content(table):
    """The order of rows, how texts are stored and the other metadata do not count; content does."""
    assert shuffled(table, [3, 1, 0, 2]).content_hash == table.content_hash
    other_seed = shuffled(table, [0, 1, 2, 3])
    other_seed.metadata["seed"] = 1
    assert other_seed.content_hash == table.content_hash
    for key, value in (("genome_checksum", "abd"), ("length", 11)):
        other = shuffled(table, [0, 1, 2, 3])
        other.metadata[key] = value
        assert other.content_hash != table.content_hash
    for column in WINDOW_COLUMNS:
        other = shuffled(table, [0, 1, 2, 3])
        values = getattr(other, column.name)
        values[2] = "other" if values.dtype == object else 77
        assert other.content_hash != table.content_hash, column.name


def test_the_hash_is_pinned(table):
    """The same on any machine and in any later version."""
    assert table.content_hash == PINNED


PINNED = "87d7add1dba9607c3561cbc15066f25716cb42d17002b80ae0bc681d9aaf2e10"


def test_changed_rows_are_noticed(table, tmp_path):
    """Reading compares the rows with the hash in the metadata, unless told not to."""
    path = tmp_path / "windows.parquet"
    write(table, path)
    arrow = pq.read_table(path)
    index = arrow.column_names.index("start")
    changed = arrow.set_column(index, arrow.field("start"), pa.array([1, 10, 5, 90]))
    pq.write_table(changed, path)
    for read in (WindowTable.read, verify_windows):
        with pytest.raises(InputError, match=r"changed.*`fracdna prepare`"):
            read(path)
    unchecked = WindowTable.read(path, verify=False)
    assert unchecked.start.tolist() == [1, 10, 5, 90]
    with pytest.raises(InputError, match="changed"):
        unchecked.verify()


def test_foreign_files_are_refused(table, tmp_path):
    """Missing, no Parquet, other columns, another version."""
    path = tmp_path / "windows.parquet"
    with pytest.raises(InputError, match="no such file"):
        WindowTable.read(path)
    path.write_text("contig\tstart\n")
    with pytest.raises(InputError, match="no Parquet file"):
        WindowTable.read(path)
    assert read_metadata(path) == {}
    pq.write_table(pa.table({"row": [1]}), path)
    with pytest.raises(InputError, match="lacks the columns contig, start"):
        WindowTable.read(path)
    write(table, path)
    arrow = pq.read_table(path)
    pq.write_table(arrow.replace_schema_metadata({}), path)
    with pytest.raises(InputError, match="no window table of version 1"):
        WindowTable.read(path)


def test_a_table_travels_to_workers(table):
    """Picklable, with equal content."""
    assert pickle.loads(pickle.dumps(table)).content_hash == table.content_hash
