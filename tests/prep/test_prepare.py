import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fracdna_prep import build_store
from fracdna_prep import prepare as prepare_module
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.prepare import (
    PrepareOptions,
    prepare,
    read_intervals_table,
    read_summary,
    store_path,
    windows_path,
)
from fracdna_prep.tables import INTERVAL_COLUMNS, WindowTable, read_table
from fracdna_prep.vocabulary import DNA


@pytest.fixture
def run(tmp_path, make_fasta):
    """Prepares records and BED text; returns the summary and a reader of the window tables."""

    def call(records, bed=None, output="out", **options):
        fasta = make_fasta(records, "in/genome.fa") if isinstance(records, dict) else records
        if bed is not None:
            (tmp_path / "in").mkdir(exist_ok=True)
            (tmp_path / "in" / "rows.bed").write_text(bed)
            options["intervals"] = tmp_path / "in" / "rows.bed"
        options = {"length": 1_000, "progress": False, **options}
        return prepare(PrepareOptions(fasta=fasta, output=tmp_path / output, **options))

    return call


@pytest.fixture
def windows(tmp_path):
    """(start, end, status) of the windows of one length."""

    def read(length=1_000, output="out"):
        table = WindowTable.read(windows_path(tmp_path / output, length))
        return list(zip(table.start.tolist(), table.end.tolist(), table.status, strict=True))

    return read


def refused(tmp_path, call, *arguments, match, **options):
    """The refusal comes before anything is written."""
    with pytest.raises(InputError, match=match) as refusal:
        call(*arguments, **options)
    assert not (tmp_path / "out").exists()
    return str(refusal.value)


def test_everything_is_written_and_described(run, tmp_path, random_sequence, names_in):
    """Store, intervals, one table a length and the summary, whose text tells the same."""
    records = {"c": random_sequence(5_000)}
    bed = "c\t0\t2000\ttrain\nc\t2500\t3500\tvalid\nc\t4000\t5000\ttest\n"
    summary = run(records, bed, length=[500, 250])
    assert names_in(tmp_path / "out") == [
        "genome", "intervals.parquet", "summary.json", "windows-250.parquet",
        "windows-500.parquet",
    ]  # fmt: skip
    assert summary.row_problems == 0
    assert summary.intervals.rows_by_split == {"train": 1, "valid": 1, "test": 1}
    assert [w.usable_by_split for w in summary.windows] == [
        {"train": 4, "valid": 2, "test": 2}, {"train": 8, "valid": 4, "test": 4},
    ]  # fmt: skip
    text = summary.describe()
    for words in ("genome: 1 contig, 5,000 bases", "split by bed", "windows of 500: 8 (ok 8)",
                  "unused 0 (0.00%)", "rows with problems: 0"):  # fmt: skip
        assert words in text
    assert read_summary(tmp_path / "out") == json.loads(json.dumps(summary.plain()))
    assert store_path(tmp_path / "out") == tmp_path / "out" / "genome"


def test_windows_read_back_from_the_store(run, tmp_path, random_sequence):
    """Table, pads and store together give exactly L ids for every usable window."""
    sequence = random_sequence(2_345)
    run({"c": sequence, "short": "ACG"}, policy="pad")
    table = WindowTable.read(windows_path(tmp_path / "out", 1_000))
    store = GenomeStore(store_path(tmp_path / "out"))
    for index in table.usable():
        window = store.fetch_window(table.interval(index), *table.pads(index))
        assert window.shape == (1_000,)
        if table.contig[index] == "c":
            assert DNA.decode(window[:10]) == sequence[table.start[index] :][:10]
    assert table.usable().tolist() == [0, 1, 2, 3]


def test_many_files_without_intervals(run, make_fasta, random_sequence, tmp_path, windows):
    """Case 8: two files of three contigs: one store, tiled, and a split by contig offered."""
    files = [
        make_fasta({f"{f}{i}": random_sequence(1_000 * i, seed=i) for i in (1, 2, 3)}, f"{f}.fa")
        for f in "ab"
    ]
    summary = run(files)
    assert list(GenomeStore(tmp_path / "out" / "genome").contigs) == [
        "a1", "a2", "a3", "b1", "b2", "b3",
    ]  # fmt: skip
    assert len(windows()) == 12
    assert "split=chromosome or split=blocks" in summary.describe()
    split = run(
        files, output="split", split="chromosome", validation_chromosomes=["a1"],
        test_chromosomes=["b2", "b3"],
    )  # fmt: skip
    assert split.windows[0].usable_by_split == {"train": 6, "valid": 1, "test": 5}


def test_rows_are_split_by_their_contig(run, random_sequence):
    """A BED without a split column takes the split of its chromosomes."""
    records = {name: random_sequence(2_000) for name in ("c1", "c2", "c3")}
    bed = "c3\t0\t2000\nc1\t0\t1000\nc2\t0\t1000\n"
    options = {"validation_chromosomes": ["c2"], "test_chromosomes": ["c3"]}
    summary = run(records, bed, split="chromosome", **options)
    assert summary.windows[0].usable_by_split == {"test": 2, "train": 1, "valid": 1}


def test_only_the_first_unused_stretches_are_listed(run):
    """Hundreds of runs of N do not fill the screen."""
    sequence = ("A" * 1_000 + "N" * 1_000) * 12
    summary = run({"c": sequence})
    windows = summary.windows[0]
    assert "c:19,001-20,000, ... and 2 more" in summary.describe()
    assert windows.unused_bases == 12_000
    assert len(windows.first_unused) == 10
    assert windows.first_unused[:2] == ["c:1,001-2,000", "c:3,001-4,000"]
    assert windows.unused_stretches == 12


def test_two_preparations_agree_until_a_base_changes(run, random_sequence, tmp_path):
    """Case 9: equal hashes for equal inputs wherever they lie, another for one other base."""
    sequence = random_sequence(5_000)
    bed = "c\t0\t4000\n"
    first = run({"c": sequence}, bed)
    shutil.move(tmp_path / "in", tmp_path / "elsewhere")
    again = run({"c": sequence}, bed, output="again")
    changed = sequence[:100] + ("A" if sequence[100] != "A" else "C") + sequence[101:]
    other = run({"c": changed}, bed, output="other")
    hashes = [s.windows[0].content_hash for s in (first, again, other)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert first.genome.checksum == again.genome.checksum != other.genome.checksum
    (source,) = first.genome.sources
    assert set(source) == {"name", "bytes", "sha256", "compression"}


def test_numeric_contig_names_stay_text(run, tmp_path, windows):
    """Case 10: BED `1 0 4` reads record `1`, not the second record."""
    run({"2": "TTTTTTTT", "1": "ACGTACGT"}, "1\t0\t4\n", length=4)
    table = WindowTable.read(windows_path(tmp_path / "out", 4))
    assert table.contig.tolist() == ["1"]
    ids = GenomeStore(tmp_path / "out" / "genome").fetch(table.interval(0))
    assert DNA.decode(ids) == "ACGT"
    assert read_intervals_table(tmp_path / "out") == {"none": [Interval("1", 0, 4)]}


def test_other_names_are_refused_and_renamed_on_request(run, tmp_path, random_sequence):
    """Case 11: refused before any work with both name sets and the remedy, which then works."""
    records = {"chr1": random_sequence(3_000), "chrM": random_sequence(1_000)}
    bed = "1\t0\t1000\nMT\t0\t1000\n"
    message = refused(tmp_path, run, records, bed, match="contig '1' is not in the genome")
    for words in ("rows.bed:1", "in the intervals only: 1, MT", "in the genome only: chr1, chrM",
                  "rename=chr_prefix"):  # fmt: skip
        assert words in message
    summary = run(records, bed, rename="chr_prefix")
    assert summary.row_problems == 0
    assert "1 -> chr1" in summary.intervals.names
    pairs = tmp_path / "names.tsv"
    pairs.write_text("1 chr1\nMT chrM\n")
    assert run(records, bed, output="file", rename=str(pairs)).row_problems == 0


def test_an_unknown_contig_is_named_with_file_and_row(run, tmp_path, random_sequence):
    """Case 11: `chrZZ 0 10`, also when renaming does not explain it."""
    records = {"chr1": random_sequence(3_000)}
    bed = "#x\nchr1\t0\t1000\nchrZZ\t0\t10\n"
    refused(tmp_path, run, records, bed, match=r"rows\.bed:3: contig 'chrZZ'")
    refused(tmp_path, run, records, bed, rename="chr_prefix", match="does not explain it")


def test_empty_and_inverted_rows_get_their_status(run, tmp_path, windows):
    """Case 13: a status row for both, counted; the other row is unaffected; exit status 1."""
    summary = run({"c": "ACGT" * 500}, "c\t100\t100\nc\t100\t90\nc\t0\t1000\n")
    assert windows() == [
        (100, 100, "dropped: empty interval"),
        (100, 90, "dropped: inverted interval"),
        (0, 1_000, "ok"),
    ]
    assert summary.row_problems == 2
    assert summary.intervals.by_status == {
        "dropped: empty interval": 1, "dropped: inverted interval": 1, "ok": 1,
    }  # fmt: skip
    assert read_intervals_table(tmp_path / "out") == {"none": [Interval("c", 0, 1_000)]}


def test_the_effective_windows_of_a_wide_row_are_told(run, random_sequence):
    """Case 14: 196 kb row, L 65,536: how many windows, where, and which bases are unused."""
    records = {"c": random_sequence(200_000)}
    dropped = run(records, "c\t1000\t197000\n", length=65_536, policy="drop")
    assert "row 0: c 1,000-197,000: 2 windows from 1,000 to 132,072" in dropped.describe()
    assert dropped.windows[0].unused_bases == 196_000 - 131_072
    assert dropped.windows[0].first_unused == ["c:132,073-197,000"]
    shifted = run(records, "c\t1000\t197000\n", length=65_536, output="shift")
    assert "3 windows from 1,000 to 197,000" in shifted.describe()
    assert shifted.windows[0].unused_bases == 0


def test_rows_past_the_end_get_their_status(run, tmp_path, windows):
    """Case 16: 16,571-16,581 on 16,571 bases; a row that only reaches past it is clipped."""
    summary = run({"MT": "ACGTA" * 3_314 + "C"}, "MT\t16571\t16581\nMT\t15000\t16581\n")
    assert windows() == [
        (16_571, 16_581, "dropped: outside the contig"),
        (15_000, 16_000, "ok"),
        (15_571, 16_571, "shifted"),
    ]
    (first, second) = summary.intervals.first_problems
    assert first == (
        "row 0: MT 16,571-16,581 (contig of 16,571 bases): dropped: outside the contig"
    )
    assert second.endswith("clipped to its contig")
    assert summary.row_problems == 2
    assert read_intervals_table(tmp_path / "out") == {"none": [Interval("MT", 15_000, 16_571)]}


@pytest.mark.parametrize(
    ("policy", "expected", "unused"),
    [
        ("shift", [(0, 1_000, "ok"), (1_000, 2_000, "ok"), (1_500, 2_500, "shifted")], 0),
        ("pad", [(0, 1_000, "ok"), (1_000, 2_000, "ok"), (2_000, 2_500, "padded")], 0),
        ("drop", [(0, 1_000, "ok"), (1_000, 2_000, "ok")], 500),
    ],
)
def test_the_tail_is_covered_and_coverage_told(policy, expected, unused, run, windows):
    """Case 18: contig 2,500, L 1,000, under each policy."""
    summary = run({"c": "ACGTT" * 500}, policy=policy)
    assert windows() == expected
    assert summary.windows[0].unused_bases == unused
    assert f"covered {2_500 - unused:,} of 2,500 bases" in summary.describe()


def test_runs_of_n_are_counted_and_dropped(run, tmp_path, windows, random_sequence):
    """Case 19: 3 kb of N in 10 kb, limit 10%: status rows, counted, fractions right."""
    sequence = random_sequence(2_950) + "N" * 3_000 + random_sequence(4_050).lower()
    summary = run({"c": sequence}, max_n_fraction=0.1)
    table = WindowTable.read(windows_path(tmp_path / "out", 1_000))
    pieces = [sequence[start : start + 1_000] for start in range(0, 10_000, 1_000)]
    expected = [piece.count("N") / 1_000 for piece in pieces]
    assert table.n_fraction.tolist() == expected
    assert expected[2:6] == [0.05, 1.0, 1.0, 0.95]
    lower = [sum(map(str.islower, piece)) / 1_000 for piece in pieces]
    assert table.masked_fraction.tolist() == lower
    assert [status == "dropped: too many N" for _, _, status in windows()] == [
        fraction > 0.1 for fraction in expected
    ]
    assert summary.windows[0].by_status == {"ok": 7, "dropped: too many N": 3}
    assert summary.windows[0].first_unused == ["c:3,001-6,000"]
    assert summary.row_problems == 0


def test_a_window_at_the_limit_of_n_stays(run, windows):
    """Only windows above max_n_fraction go; 1.0 keeps everything."""
    run({"c": "N" * 500 + "A" * 500 + "N" * 501 + "A" * 499})
    assert [status for _, _, status in windows()] == ["ok", "dropped: too many N"]
    run({"c": "N" * 2_000}, output="all", max_n_fraction=1.0)
    assert [status for _, _, status in windows(output="all")] == ["ok", "ok"]


def test_rows_of_n_only_are_problems_and_do_not_stop_the_run(run, windows):
    """The row has no window left: its status row says why and the exit status is 1."""
    summary = run({"c": "N" * 1_000 + "ACGT" * 500}, "c\t0\t1000\nc\t1000\t3000\n")
    assert windows()[0] == (0, 1_000, "dropped: too many N")
    assert summary.row_problems == 1
    assert summary.windows[0].rows_without_windows == 1


def test_short_contigs_do_not_stop_the_run(run, tmp_path, windows):
    """Three bases: padded under shift, dropped and counted under drop; empty contigs are left."""
    records = {"tiny": "ACG", "c": "ACGT" * 250, "none": ""}
    summary = run(records)
    assert [status for _, _, status in windows()] == ["padded", "ok"]
    assert summary.row_problems == 0
    dropped = run(records, output="drop", policy="drop")
    assert windows(output="drop")[0] == (0, 3, "dropped: leaves the contig")
    assert dropped.row_problems == 1


def test_widened_rows_that_overlap_across_splits_are_refused(run, tmp_path):
    """Case 20: names the pair and 750 shared bases; the override is recorded."""
    records, bed = {"c": "ACGTA" * 1_000}, "c\t0\t1000\ttrain\nc\t1000\t2000\ttest\n"
    message = refused(tmp_path, run, records, bed, length=1_500, match="length=1500")
    assert "train and test share 750 bases" in message
    assert "c:0-1500 (train) and c:750-2250 (test)" in message
    summary = run(records, bed, length=1_500, allow_split_overlap=True)
    assert "ACCEPTED: 750 bases" in summary.describe()
    metadata = WindowTable.read(windows_path(tmp_path / "out", 1_500)).metadata
    assert metadata["split_overlap_bases"] == 750
    assert metadata["options"]["allow_split_overlap"] is True


def test_blocks_split_rows_and_leave_out_those_on_a_border(run, tmp_path, random_sequence):
    """A row in no single region gets its status; without a BED the regions are the rows."""
    records = {"c": random_sequence(40_000)}
    options = {"split": "blocks", "block_size": 2_000, "guard": 500, "length": 200}
    regions = run(records, output="regions", **options)
    assert regions.windows[0].usable_by_split.keys() == {"train", "valid", "test"}
    by_split = read_intervals_table(tmp_path / "regions")
    bed = "".join(f"c\t{start}\t{start + 500}\n" for start in range(0, 40_000, 500))
    summary = run(records, bed, **options)
    outside = summary.intervals.by_status["dropped: not inside one split"]
    assert summary.row_problems == outside > 0
    for split, intervals in read_intervals_table(tmp_path / "out").items():
        for interval in intervals:
            assert any(
                region.start <= interval.start and interval.end <= region.end
                for region in by_split[split]
            )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "bed"}, "split=bed needs intervals="),
        ({"split": "random"}, "split=random: choose one of auto, bed"),
        ({"policy": "wrap"}, "policy=wrap: choose one of shift"),
        ({"length": 0}, "length=0"),
        ({"length": []}, "length="),
        ({"max_n_fraction": 1.5}, "max_n_fraction=1.5"),
        ({"split": "chromosome"}, "needs validation_chromosomes"),
        ({"split": "chromosome", "test_chromosomes": ["chr8"]}, "'chr8', but the genome has c"),
        ({"split": "blocks"}, "too few"),
        ({"rename": "no_such_file"}, None),
    ],
)
def test_wrong_options_are_refused_before_any_work(options, words, run, tmp_path):
    """The option, its value and the choices are named, and nothing is written."""
    if words is None:
        refused(tmp_path, run, {"c": "ACGT" * 500}, "c\t0\t9\n", match="no_such_file", **options)
    else:
        refused(tmp_path, run, {"c": "ACGT" * 500}, match=words, **options)


def test_a_column_that_only_sometimes_names_a_split_is_refused(run, tmp_path):
    """Case 12: a misspelt split does not turn into rows without one."""
    records = {"c": "ACGT" * 500}
    bed = "c\t0\t1000\ttrain\nc\t1000\t2000\ttets\n"
    refused(tmp_path, run, records, bed, match=r"rows\.bed:2: the fourth column is 'tets'")
    summary = run(records, "c\t0\t1000\tgene1\n")
    assert summary.intervals.split_rule == "none"


def test_bad_input_files_are_refused_before_any_work(run, tmp_path, random_sequence):
    """Truncated archives, empty genomes, an output that is a file."""
    (tmp_path / "t.fa.gz").write_bytes(gzip.compress(b">c\n" + b"ACGT" * 9_999)[:-9])
    refused(tmp_path, run, tmp_path / "t.fa.gz", match="truncated")
    refused(tmp_path, run, {"c": ""}, match="holds no base")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        run({"c": "ACGT"}, output="file")


def test_an_output_that_cannot_be_written_is_refused_first(
    make_fasta, open_folder, without_privileges, names_in
):
    """Case 3: permission is checked before the store is built, wherever the store lies."""
    fasta = open_folder / "g.fa"
    shutil.copy(make_fasta({"c": "ACGT" * 500}), fasta)
    free = open_folder / "free"
    free.mkdir()
    free.chmod(0o777)
    open_folder.chmod(0o555)
    for output, store in (("out", free / "store"), ("free/out", open_folder / "store")):
        options = PrepareOptions(fasta, open_folder / output, store=store, progress=False)
        with pytest.raises(InputError, match="no permission to write"):
            without_privileges(lambda options=options: prepare(options))
    assert names_in(free) == []


def test_a_store_may_be_shared(run, tmp_path, random_sequence):
    """Another folder for the store, used by two preparations, built once."""
    records = {"c": random_sequence(3_000)}
    run(records, store=tmp_path / "shared")
    built = (tmp_path / "shared" / "bases.u8").stat().st_ino
    run(records, output="other", store=tmp_path / "shared", length=500)
    assert (tmp_path / "shared" / "bases.u8").stat().st_ino == built
    assert store_path(tmp_path / "other") == tmp_path / "shared"
    assert not (tmp_path / "other" / "genome").exists()


def test_an_interrupted_run_goes_on(run, tmp_path, random_sequence, monkeypatch):
    """What is complete is kept, and until the end there is no summary."""
    records = {"c": random_sequence(3_000)}
    calls = []
    window_batches = prepare_module.window_batches

    def interrupted(rows, length, *arguments):
        calls.append(length)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return window_batches(rows, length, *arguments)

    monkeypatch.setattr(prepare_module, "window_batches", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(records, length=[500, 250])
    with pytest.raises(InputError, match="no finished preparation"):
        read_summary(tmp_path / "out")
    built = (tmp_path / "out" / "genome" / "bases.u8").stat().st_ino
    run(records, length=[500, 250])
    assert calls == [500, 250, 250]
    assert (tmp_path / "out" / "genome" / "bases.u8").stat().st_ino == built
    monkeypatch.undo()
    once = run(records, output="once", length=[500, 250])
    again = read_summary(tmp_path / "out")["windows"]
    assert [w["content_hash"] for w in again] == [w.content_hash for w in once.windows]


def test_other_options_replace_the_tables(run, tmp_path, random_sequence):
    """Tables that no longer fit are gone; another length with equal options stands beside."""
    records = {"c": random_sequence(3_000)}
    run(records, length=500)
    run(records, length=250)
    assert windows_path(tmp_path / "out", 500).exists()
    first = WindowTable.read(windows_path(tmp_path / "out", 250))
    foreign = windows_path(tmp_path / "out", 1)
    foreign.write_text("kept")
    run(records, length=250, policy="drop")
    assert foreign.read_text() == "kept"
    assert not windows_path(tmp_path / "out", 500).exists()
    second = WindowTable.read(windows_path(tmp_path / "out", 250))
    assert (first.metadata["policy"], second.metadata["policy"]) == ("shift", "drop")


def test_progress_is_shown_for_store_and_tables(run, random_sequence, capsys):
    """A bar each, to the end; what is there already needs none."""
    records = {"c": random_sequence(3_000)}
    run(records, length=[500, 250], progress=True)
    shown = capsys.readouterr().err
    for name in ("genome store", "windows of 500", "windows of 250"):
        assert f"{name}: 100%" in shown
    assert "3.00k/3.00k" in shown
    run(records, length=[500, 250], progress=True)
    assert capsys.readouterr().err == ""


def test_what_a_killed_run_left_is_cleared(run, tmp_path, random_sequence, names_in):
    """Half-written tables under temporary names, and the lock."""
    (tmp_path / "out").mkdir()
    for name in (".0123abcd.windows-500.parquet", ".prepare.lock", ".genome.lock"):
        (tmp_path / "out" / name).touch()
    run({"c": random_sequence(3_000)}, length=500)
    assert names_in(tmp_path / "out") == [
        "genome", "intervals.parquet", "summary.json", "windows-500.parquet",
    ]  # fmt: skip


def test_a_bad_bed_is_refused_before_the_genome_is_read(run, tmp_path, monkeypatch):
    """Minutes of reading do not come before a misspelt coordinate."""
    monkeypatch.setattr(build_store, "_read", lambda *arguments: pytest.fail("was read"))
    refused(tmp_path, run, {"c": "ACGT" * 500}, "c\t0\tx\n", match=r"rows\.bed:1: the end is 'x'")


def test_the_intervals_table_has_one_row_an_input_row(run, tmp_path, random_sequence):
    """Name, strand and status of every row, in the order of the input."""
    bed = "c\t0\t100\tr1\t0\t-\nc\t50\t40\tr2\nc\t5\t9\n"
    run({"c": random_sequence(3_000)}, bed)
    columns, metadata = read_table(tmp_path / "out" / "intervals.parquet", INTERVAL_COLUMNS)
    assert columns["row"].tolist() == [0, 1, 2]
    assert columns["name"].tolist() == ["r1", "r2", ""]
    assert columns["strand"].tolist() == ["-", "+", "+"]
    assert columns["status"].tolist() == ["ok", "dropped: inverted interval", "ok"]
    assert metadata["contigs"] == {"c": 3_000}
    with pytest.raises(
        InputError, match=r"nowhere holds no finished preparation: make it with `fracdna prepare"
    ):
        read_intervals_table(tmp_path / "nowhere")


def test_letters_other_than_acgtn_are_told_by_contig(run):
    """The summary shows which letters were read as N, and where."""
    summary = run({"c": "ACGTRRY" * 300, "d": "ACGTN" * 300})
    assert summary.genome.other_letters == {"c": {"R": 600, "Y": 300}}
    assert "c: letters read as N: R 600, Y 300" in summary.describe()
    assert summary.genome.n == 900 + 300


def test_metadata_hold_all_that_made_the_table(run, tmp_path, random_sequence):
    """Genome checksum, L, policy, seed, options, sources and the hash of the content."""
    summary = run({"c": random_sequence(3_000)}, "c\t0\t3000\n", seed=7)
    table = WindowTable.read(windows_path(tmp_path / "out", 1_000))
    metadata = table.metadata
    assert metadata["genome_checksum"] == summary.genome.checksum
    assert (metadata["length"], metadata["policy"], metadata["seed"]) == (1_000, "shift", 7)
    assert metadata["options"]["max_n_fraction"] == 0.5
    assert metadata["files"]["intervals"]["name"] == "rows.bed"
    assert metadata["sources"][0]["name"] == "genome.fa"
    assert metadata["content_hash"] == table.verify()
    assert np.isfinite(table.n_fraction).all()


def test_a_second_builder_of_other_sources_is_refused(run, make_fasta, tmp_path):
    """The store of another genome is never replaced behind somebody's back."""
    run({"c": "ACGT" * 500})
    other = make_fasta({"c": "ACGA" * 500}, "other.fa")
    with pytest.raises(InputError, match="other sources"):
        run(other)
    source, store = tmp_path / "in" / "genome.fa", tmp_path / "out" / "genome"
    with build_store.store_draft(source, store) as draft:
        assert draft.complete


def test_rows_that_overlap_across_splits_are_refused_under_every_policy(run, tmp_path):
    """Evaluation and count models read the rows: 400 shared bases, though no window is shared."""
    records = {"c": "ACGTA" * 1_000}
    bed = "c\t0\t1900\ttrain\nc\t1500\t2600\ttest\n"
    message = refused(tmp_path, run, records, bed, policy="drop", match="rows of different splits")
    assert "train and test share 400 bases" in message
    assert "c:0-1900 (train) and c:1500-2600 (test)" in message
    assert "widening" not in message
    summary = run(records, bed, policy="drop", allow_split_overlap=True)
    assert "ACCEPTED: 400 bases in rows of two splits" in summary.describe()
    assert summary.intervals.shared_bases == 400
    metadata = read_table(tmp_path / "out" / "intervals.parquet", INTERVAL_COLUMNS)[1]
    assert metadata["split_overlap_bases"] == 400
    assert metadata["options"]["allow_split_overlap"] is True


def test_rows_are_compared_as_they_are_read(run, random_sequence):
    """What a row claims outside its contig, and dropped rows, share nothing."""
    bed = "c\t0\t1000\ttrain\nc\t1000\t9000\tvalid\nc\t5000\t9000\ttest\nc\t9\t2\ttest\n"
    summary = run({"c": random_sequence(3_000)}, bed)
    assert summary.intervals.shared_bases == 0
    assert summary.row_problems == 3


def test_the_report_of_names_tells_what_renaming_did(run, tmp_path, random_sequence):
    """Renamed names count as matched, in the summary and in a refusal; nothing is proposed."""
    records = {"20": random_sequence(2_000), "X": random_sequence(2_000)}
    names = run(records, "chr20\t0\t1000\n", rename="chr_prefix", output="one").intervals.names
    assert names.splitlines() == [
        "renamed chr20 -> 20",
        "names matched: 20",
        "in the intervals only: none",
        "in the genome only: X",
    ]
    bed = "chr20\t0\t1000\nchrZZ\t0\t9\n"
    message = refused(tmp_path, run, records, bed, rename="chr_prefix", match="contig 'chrZZ'")
    for line in ("renamed chr20 -> 20", "names matched: 20", "in the intervals only: chrZZ"):
        assert line in message.splitlines()
    assert "would read" not in message


def test_blocks_are_described(run, random_sequence):
    """Sizes used, bases left out, shares asked for and obtained."""
    summary = run({"c": random_sequence(48_502)}, split="blocks", length=[250, 500])
    blocks = summary.intervals.blocks
    assert (blocks.block_size, blocks.guard) == (2_000, 500)
    assert blocks.requested == {"train": 0.8, "valid": 0.1, "test": 0.1}
    assert blocks.left_out == 48_502 - sum(summary.intervals.bases_by_split.values())
    assert sum(blocks.obtained.values()) == pytest.approx(1 - blocks.left_out / 48_502)
    text = summary.describe()
    assert (
        f"blocks of 2,000 bases, guards of 500 bases, which leave out {blocks.left_out:,}" in text
    )
    assert f"valid {blocks.obtained['valid']:.1%} (10.0%)" in text


def test_chosen_blocks_follow_the_longest_length(run, tmp_path, random_sequence):
    """Rows of other blocks replace the tables; equal sizes, chosen or given, keep them."""
    records = {"c": random_sequence(48_502)}
    run(records, split="blocks", length=[250, 500])
    assert run(records, split="blocks", length=500).removed == []
    assert run(records, split="blocks", length=1_000).removed == [
        "windows-250.parquet", "windows-500.parquet",
    ]  # fmt: skip


def test_removed_and_earlier_tables_are_told(run, tmp_path, random_sequence, names_in):
    """The summary lists what lies in the folder, and what went because it no longer fits."""
    records = {"c": random_sequence(3_000)}
    run(records, length=512)
    summary = run(records, length=[256])
    assert [(w.length, w.earlier) for w in summary.windows] == [(256, False), (512, True)]
    assert "also there, made earlier: windows-512.parquet, 6 windows of 512" in summary.describe()
    summary = run(records, length=128, policy="drop")
    assert summary.removed == ["windows-256.parquet", "windows-512.parquet"]
    assert "removed windows-512.parquet, made with other options" in summary.describe()
    listed = [w["table"] for w in read_summary(tmp_path / "out")["windows"]]
    assert listed == [name for name in names_in(tmp_path / "out") if name.startswith("windows")]


def test_a_changed_table_is_made_again(run, tmp_path, random_sequence):
    """A damaged table of this run's length is replaced; of another length it is not listed."""
    records = {"c": random_sequence(3_000)}
    first = run(records, length=[500, 250])
    path = windows_path(tmp_path / "out", 500)
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    assert [w.length for w in run(records, length=250).windows] == [250]
    again = run(records, length=500)
    assert again.windows[0].content_hash == first.windows[0].content_hash
    assert WindowTable.read(path).verify() == first.windows[0].content_hash


@pytest.mark.parametrize("option", ["output", "store"])
def test_a_folder_inside_a_file_is_refused(option, make_fasta, tmp_path):
    """Also where no folder can be made, or under a name that no system allows."""
    fasta = make_fasta({"c": "ACGT" * 500})
    (tmp_path / "file").touch()
    places = (tmp_path / "file" / "x", tmp_path / "file" / "x" / "y", tmp_path / ("a" * 300))
    for place in (*places, *([Path("/proc/x")] if Path("/proc").is_dir() else [])):
        options = {"output": tmp_path / "out", option: place, "progress": False}
        with pytest.raises(InputError, match="name another folder"):
            prepare(PrepareOptions(fasta, **options))
    with pytest.raises(InputError, match="is a file: name a folder"):
        prepare(PrepareOptions(fasta, **{"output": tmp_path / "out", option: tmp_path / "file"}))
    assert not (tmp_path / "out").exists()


def test_a_missing_file_of_names_is_refused_without_intervals_too(run, tmp_path):
    """Before the store is built."""
    refused(tmp_path, run, {"c": "ACGT" * 500}, rename="nope", match="rename=nope: nope: no such")


def test_a_length_that_no_contig_has_is_refused(run, tmp_path):
    """With the longest contig as the reason; contigs below an ordinary length are padded."""
    records = {"c": "ACGT" * 500, "d": "ACGT"}
    refused(
        tmp_path, run, records, length=[10, 10**12],
        match=r"length=1000000000000: the longest contig, 'c', has 2,000 bases",
    )  # fmt: skip
    assert run(records, length=2_000).row_problems == 0
    padded = run(records, output="padded", length=4_000).windows[0]
    assert sum(padded.usable_by_split.values()) == 2


def test_chromosome_lists_are_names_however_written(run, random_sequence):
    """A number is a name, one name needs no list, and null is none."""
    records = {name: random_sequence(1_000) for name in ("1", "2", "3")}
    for output, validation, test in (("a", 2, ["3"]), ("b", ["2"], "3"), ("c", "2", [3])):
        summary = run(
            records, output=output, split="chromosome", validation_chromosomes=validation,
            test_chromosomes=test,
        )  # fmt: skip
        assert summary.windows[0].usable_by_split == {"train": 1, "valid": 1, "test": 1}
        assert summary.options["validation_chromosomes"] == ["2"]
    summary = run(
        records, output="d", split="chromosome", validation_chromosomes=None, test_chromosomes="1"
    )
    assert summary.windows[0].usable_by_split == {"test": 1, "train": 2}


def test_a_damaged_preparation_says_how_to_make_it_again(run, tmp_path, random_sequence):
    """Cut or overwritten files of a preparation are refused with the remedy."""
    run({"c": random_sequence(3_000)})
    for content in (b"{", b"[]", b"\xff\xfe", b"", b"{}"):
        (tmp_path / "out" / "summary.json").write_bytes(content)
        with pytest.raises(InputError, match=r"summary.json is damaged: run `fracdna prepare`"):
            store_path(tmp_path / "out")
    table = tmp_path / "out" / "intervals.parquet"
    whole = table.read_bytes()
    for content in (b"", whole[:-9], whole[:4] + bytes(300) + whole[304:], b"PAR1" * 9):
        table.write_bytes(content)
        with pytest.raises(InputError, match=r"intervals.parquet.*damaged.*`fracdna prepare`"):
            read_intervals_table(tmp_path / "out")


def test_numbers_and_nouns_of_the_summary_agree(run, random_sequence):
    """One row, two rows, thousands apart, and lists that stop at ten say so."""
    records = {"c": random_sequence(30_000)}
    text = run(
        records, "".join(f"c\t{i}\t{i + 1000}\n" for i in range(0, 12_000, 1_000))
    ).describe()
    assert "intervals: 12 rows of" in text
    assert "row 9: c 9,000-10,000: 1 window from 9,000 to 10,000\n  ... and 2 more\n" in text
    bad = run(records, "".join(f"c\t{i}\t{i}\n" for i in range(11)) + "c\t0\t1\n", output="bad")
    text = bad.describe()
    assert "dropped: empty interval\n  ... and 1 more\n" in text
    assert "none: 1 row, 1 base\n" in text
    assert "(s)" not in text
