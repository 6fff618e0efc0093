import random
import tracemalloc

import numpy as np
import pytest

from fracdna_prep import window_plan
from fracdna_prep.bed import read_bed
from fracdna_prep.errors import InputError
from fracdna_prep.options import PrepareOptions
from fracdna_prep.prepare import prepare, windows_path
from fracdna_prep.rows import read_rows
from fracdna_prep.tables import WindowTable
from fracdna_prep.window_plan import check_rows, check_windows, tile_rows

# The published BED of HyenaDNA has 34,021 rows of about 131 kb for training, and these beside.
PUBLISHED = {"train": 34_021, "valid": 2_213, "test": 1_937}
WIDTH = 80_000
CONTIGS = {f"chr{i}": 250_000_000 - 8_500_000 * i for i in range(24)}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Rows like those of the published BED: on all chromosomes, in no order, splits beside."""
    places = [(c, s) for c, n in CONTIGS.items() for s in range(0, n - WIDTH, WIDTH)]
    random.Random(1).shuffle(places)
    splits = [split for split, count in PUBLISHED.items() for _ in range(count)]
    path = tmp_path_factory.mktemp("bed") / "sequences.bed"
    lines = [
        f"{c}\t{s}\t{s + WIDTH}\t{split}\n" for (c, s), split in zip(places, splits, strict=False)
    ]
    path.write_text("".join(lines))
    assert len(lines) == sum(PUBLISHED.values())
    return path


def rows_of(path, contigs=CONTIGS):
    options = PrepareOptions("genome.fa", "out", intervals=path, split="bed")
    return read_rows(options, contigs, read_bed(path)), options


def test_the_published_number_of_rows_is_checked_in_bounded_memory(published):
    """Three million windows of 1,000, of which only the rows' own arrays and one batch are held."""
    rows, options = rows_of(published)
    assert check_rows(rows, allow=False) == 0
    tracemalloc.start()
    assert check_windows(rows, 1_000, options) == 0
    windows = sum(len(batch) for batch in tile_rows(rows, 1_000, "shift"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert windows == 80 * sum(PUBLISHED.values())
    one_array = 8 * windows
    assert peak < 4 * one_array


def test_an_overlap_among_the_published_rows_is_found(published, tmp_path):
    """One test row that reaches 7 bases into a training row, 38,171 rows apart."""
    lines = published.read_text().splitlines()
    contig, start, _, _ = lines[0].split("\t")
    assert lines[0].endswith("train")
    lines = [line for line in lines if line.split("\t")[:2] != [contig, str(int(start) + WIDTH)]]
    end = int(start) + WIDTH
    lines.append(f"{contig}\t{end - 7}\t{end + 1_000}\ttest")
    (tmp_path / "bad.bed").write_text("\n".join(lines) + "\n")
    rows, options = rows_of(tmp_path / "bad.bed")
    with pytest.raises(InputError, match="train and test share 7 bases"):
        check_rows(rows, allow=False)
    with pytest.raises(InputError, match="train and test share 7 bases") as refusal:
        check_windows(rows, 1_000, options)
    assert f"{contig}:{end - 1_000}-{end} (train)" in str(refusal.value)


@pytest.mark.parametrize("policy", ["shift", "pad", "drop"])
@pytest.mark.parametrize("batch", [1, 7, 50])
def test_where_a_batch_ends_makes_no_difference(
    batch, policy, make_fasta, random_sequence, tmp_path, monkeypatch
):
    """Hashes, counts and coverage; rows in no order, some of them unusable."""
    records = {f"c{i}": random_sequence(3_000 + i, seed=i, letters="ACGTNNacgt") for i in range(3)}
    draw = random.Random(2)
    rows = ["c0\t5\t5", "c1\t9\t2", "c2\t5000\t6000", "c2\t2990\t4000", "c1\t0\t10"]
    for _ in range(30):
        start = draw.randrange(3_000)
        rows.append(f"c{draw.randrange(3)}\t{start}\t{start + draw.randrange(1, 400)}")
    draw.shuffle(rows)
    (tmp_path / "rows.bed").write_text("\n".join(rows) + "\n")
    options = {
        "fasta": make_fasta(records), "intervals": tmp_path / "rows.bed", "length": [50, 300],
        "policy": policy, "max_n_fraction": 0.21, "store": tmp_path / "store", "progress": False,
    }  # fmt: skip
    whole = prepare(PrepareOptions(output=tmp_path / "whole", **options))
    monkeypatch.setattr(window_plan, "_BATCH", batch)
    parts = prepare(PrepareOptions(output=tmp_path / "parts", **options))
    assert parts.row_problems == whole.row_problems > 0
    for one, other in zip(parts.windows, whole.windows, strict=True):
        means = "n_fraction", "masked_fraction"
        exact = vars(one).keys() - set(means)
        assert {k: vars(one)[k] for k in exact} == {k: vars(other)[k] for k in exact}
        assert [vars(one)[k] for k in means] == pytest.approx([vars(other)[k] for k in means])
        table = WindowTable.read(windows_path(tmp_path / "parts", one.length))
        assert table.verify() == one.content_hash
        order = np.lexsort((table.end, table.start, table.row))
        assert (order == np.arange(len(table))).all()
