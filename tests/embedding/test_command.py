"""`fracdna embed` from its command line to the Parquet file."""

import concurrent.futures
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import fracdna
from fracdna import __version__, cli
from fracdna.embedding import block_run, command, embed_regions, pooled_states, states
from fracdna.model.checkpoint import model_hash
from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA


@pytest.fixture
def embed(checkpoint, tmp_path):
    """Run the command with progress off; returns its exit code."""

    def run(*arguments, output="out.parquet", checkpoint=checkpoint):
        places = (f"checkpoint={checkpoint}", f"output={tmp_path / output}")
        return cli.run(["embed", *places, "progress=false", *arguments])

    return run


@pytest.fixture
def read(tmp_path):
    """The rows as dictionaries, and the metadata."""

    def rows(output="out.parquet"):
        table = pq.read_table(tmp_path / output)
        return table.to_pylist(), json.loads(table.schema.metadata[b"fracdna"])

    return rows


def write_bed(folder, *rows):
    path = folder / "regions.bed"
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return path


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_rows_come_back_in_order_with_their_vectors(embed, read, models, store, tmp_path, capsys):
    """Exit 0; coordinates, names, strands, shares of N and vectors, each row as one run alone."""
    bed = write_bed(
        tmp_path,
        ("chr1", 990, 1030, "with_n", 0, "+"),
        ("chr2", 0, 301, ".", 0, "-"),
        ("chrN", 0, 40, "only_n", 0, "."),
        ("chr2", 7, 8, "one", 0, "+"),
    )
    assert embed(f"genome={store.directory}", f"regions={bed}") == 0
    rows, _ = read()
    assert [row["row"] for row in rows] == [0, 1, 2, 3]
    assert [(r["contig"], r["start"], r["end"], r["strand"]) for r in rows] == [
        ("chr1", 990, 1030, "+"), ("chr2", 0, 301, "-"), ("chrN", 0, 40, "+"), ("chr2", 7, 8, "+"),
    ]  # fmt: skip
    assert [row["name"] for row in rows] == ["with_n", None, "only_n", "one"]
    assert [row["status"] for row in rows] == ["ok"] * 4
    assert [row["n_fraction"] for row in rows] == [0.25, 0.0, 1.0, 0.0]
    for row in rows:
        interval = Interval(row["contig"], row["start"], row["end"], row["strand"])
        alone = pooled_states(models(), [store.fetch(interval)])[0]
        np.testing.assert_allclose(row["embedding"], alone, rtol=1e-5, atol=1e-5)
    output = capsys.readouterr().out
    assert "layer -1, pooling mean, strand forward" in output
    assert "rows/s" in output


def test_a_bad_row_does_not_stop_the_job(embed, read, store, tmp_path, capsys):
    """Case 35: 5 regions, the third outside its contig; 5 rows, its status and place, exit 1."""
    spans = [(0, 20), (30, 60), (301, 330), (290, 321), (5, 5)]
    bed = write_bed(tmp_path, *(("chr2", *span) for span in spans))
    assert embed(f"genome={store.directory}", f"regions={bed}") == 1
    rows, _ = read()
    assert [row["status"] for row in rows] == [
        "ok", "ok", "dropped: outside the contig", "clipped right 20", "dropped: empty interval",
    ]  # fmt: skip
    assert (rows[2]["start"], rows[2]["end"]) == (301, 330)
    assert (rows[3]["start"], rows[3]["end"]) == (290, 301)
    assert [row["embedding"] is None for row in rows] == [False, False, True, False, True]
    assert [row["n_fraction"] for row in rows] == [0.0, 0.0, None, 0.0, None]
    assert "row 2 (chr2:302-330): dropped: outside the contig" in capsys.readouterr().out


def test_a_run_may_have_no_usable_row(embed, read, store, tmp_path):
    bed = write_bed(tmp_path, ("chr2", 400, 500))
    assert embed(f"genome={store.directory}", f"regions={bed}") == 1
    assert read()[0][0]["embedding"] is None


def test_metadata_tell_what_the_vectors_are(embed, read, checkpoint, models, store):
    """Case 37: compute type, kernel and device; hashes of weights and genome; every choice."""
    arguments = (f"genome={store.directory}", "regions=chr1:1-80")
    assert embed(*arguments, "layer=2", "pooling=centre", "strand=average", "segment=50") == 0
    rows, about = read()
    model = models()
    expected = {
        "checkpoint": str(checkpoint),
        "model_hash": model_hash(model),
        "model": json.loads(json.dumps(model.config)),
        "genome_checksum": store.checksum,
        "genome": ["genome.fa"],
        "regions": "chr1:1-80",
        "layer": 2,
        "pooling": "centre",
        "strand": "average",
        "segment": 50,
        "compute_dtype": "float32",
        "device": "cpu",
        "kernel_form": {"Frac": "auto"},
        "version": __version__,
        "torch": torch.__version__,
    }
    assert {name: about[name] for name in expected} == expected
    assert embed(*arguments, "precision=bf16", output="low.parquet") == 0
    low, about_low = read("low.parquet")
    assert about_low["compute_dtype"] == "bf16"
    assert low[0]["embedding"] != rows[0]["embedding"]


def test_columns_tell_unit_and_meaning(embed, store, tmp_path):
    assert embed(f"genome={store.directory}", "regions=chr1:1-20") == 0
    schema = pq.read_schema(tmp_path / "out.parquet")
    assert schema.names[-1] == "embedding"
    assert str(schema.field("embedding").type).startswith("fixed_size_list<element: float")
    assert schema.field("start").metadata[b"unit"] == b"base, from 0"
    assert all(field.metadata[b"meaning"] for field in schema)


@pytest.fixture
def fixed_values(monkeypatch):
    """Let the command write given vectors instead of computing them."""

    def give(values):
        def run(work, **_):
            out = work._kept.values
            out[:] = values[: len(out), None, None]
            return out

        monkeypatch.setattr(command.BlockRun, "run", run)

    return give


# two vectors that differ by 1e-4 around 1
CLOSE = np.float32(1) + np.float32(1e-4) * np.arange(2, dtype=np.float32)


def test_small_differences_survive_the_file(embed, read, store, fixed_values):
    """Case 36: vectors are stored in float32, bit for bit."""
    fixed_values(CLOSE)
    assert embed(f"genome={store.directory}", "regions=[chr1:1-20,chr1:2-20]") == 0
    stored = np.array([row["embedding"] for row in read()[0]], dtype=np.float32)
    np.testing.assert_array_equal(stored, np.repeat(CLOSE[:, None], stored.shape[1], axis=1))


@pytest.fixture
def broken(models, save_checkpoint, tmp_path):
    """A checkpoint with one weight NaN."""
    model = models("attention")
    weight = model.backbone.blocks[0].mixer.out_projection.weight
    before = weight[0, 0].item()
    with torch.no_grad():
        weight[0, 0] = float("nan")
    path = save_checkpoint(model, tmp_path / "broken.ckpt")
    with torch.no_grad():
        weight[0, 0] = before
    return path


def test_nan_ends_the_run(broken, embed, store, tmp_path, capsys):
    """Case 38: one weight NaN; exit 1, the first row with a base is named, no file is left."""
    bed = write_bed(tmp_path, ("chr2", 900, 950), ("chr2", 5, 25), ("chr1", 0, 900))
    assert embed(f"genome={store.directory}", f"regions={bed}", checkpoint=broken) == 1
    message = capsys.readouterr().err
    assert "row 1 (chr2:6-25): its vector holds NaN or infinity; nothing was written" in message
    assert files(tmp_path) == ["broken.ckpt", "regions.bed"]


def test_a_run_interrupted_before_its_first_batch_leaves_nothing(
    embed, store, tmp_path, monkeypatch
):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(states.Embedder, "fill", interrupt)
    assert embed(f"genome={store.directory}", "regions=chr1:1-20") == 130
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C in the batch of a number; how many batches were begun."""
    fill, begun = states.Embedder.fill, []

    def interrupt_at(number):
        def counting(self, reads, targets):
            begun.append(len(reads))
            if len(begun) == number:
                targets[0][:] = 7.0
                raise KeyboardInterrupt
            fill(self, reads, targets)

        begun.clear()
        monkeypatch.setattr(states.Embedder, "fill", counting)
        return begun

    return interrupt_at


SEVEN = "regions=[chr1:1-200,chr2:5-300,chr1:7-60:-,chr1:900-1100,chr2:9-9,chr1:1-7,chr1:1-300]"


def test_an_interrupted_run_goes_on(embed, store, tmp_path, interrupted, capsys):
    """Finished batches are kept and not computed again; the file is that of an unbroken run."""
    arguments = (f"genome={store.directory}", SEVEN, "batch_bases=310", "strand=average")
    begun = interrupted(None)
    assert embed(*arguments, output="whole.parquet") == 0
    total = len(begun)
    assert total > 4
    interrupted(4)
    assert embed(*arguments) == 130
    assert f"3 of {total} batches are finished and kept in" in capsys.readouterr().err
    assert not (tmp_path / "out.parquet").exists()
    begun = interrupted(None)
    assert embed(*arguments) == 0
    assert len(begun) == total - 3
    assert "rows of an interrupted run: not computed again" in capsys.readouterr().out
    whole, gone_on = ((tmp_path / f"{name}.parquet").read_bytes() for name in ("whole", "out"))
    assert whole == gone_on
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.parquet", "whole.parquet"]


def damage_values(folder):
    (folder / "values").write_bytes(bytes((folder / "values").stat().st_size))


def cut_list(folder):
    (folder / "finished").write_text((folder / "finished").read_text()[:-5])


def keep_all(folder):
    pass


@pytest.mark.parametrize(
    ("damage", "further", "kept"),
    [
        (keep_all, (), 3),
        (damage_values, (), 0),
        (cut_list, (), 2),
        (keep_all, ("layer=2",), 0),
        (keep_all, ("flank=3",), 0),
    ],
)
def test_only_what_is_whole_and_of_the_same_run_is_kept(
    embed, read, store, tmp_path, interrupted, damage, further, kept
):
    arguments = (f"genome={store.directory}", SEVEN, "batch_bases=310")
    begun = interrupted(None)
    assert embed(*arguments, *further, output="whole.parquet") == 0
    total = len(begun)
    interrupted(4)
    assert embed(*arguments) == 130
    damage(tmp_path / ".out.parquet.unfinished")
    begun = interrupted(None)
    assert embed(*arguments, *further) == 0
    assert len(begun) == total - kept
    assert read() == read("whole.parquet")


def test_two_processes_give_the_rows_of_one(embed, read, store, tmp_path, interrupted, capsys):
    """One row per region exactly once, in the order given, after an interruption too."""
    arguments = (f"genome={store.directory}", SEVEN, "batch_bases=310", "strand=average")
    assert embed(*arguments, "device=cpu", output="one.parquet") == 0
    interrupted(2)
    assert embed(*arguments, "device=cpu") == 130
    assert embed(*arguments, "device=cpu", "devices=2") == 0
    assert "row of an interrupted run: not computed again" in capsys.readouterr().out
    (one, _), (two, _) = read("one.parquet"), read()
    assert [row["row"] for row in two] == list(range(7))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a.pop("embedding"), b.pop("embedding"), rtol=1e-5, atol=1e-5)
        assert a == b
    assert files(tmp_path) == ["one.parquet", "out.parquet"]


@pytest.mark.slow
def test_no_process_outlives_the_first(checkpoint, store, tmp_path):
    """One that was killed ends no other, and they must not write into a later run's values."""
    words = (
        f"checkpoint={checkpoint}",
        f"genome={store.directory}",
        f"output={tmp_path / 'x.zarr'}",
    )
    many = "[" + ",".join(["chr1:1-3000"] * 300) + "]"
    further = (f"regions={many}", "pooling=none", "segment=100", "device=cpu", "devices=2")
    first = subprocess.Popen([sys.executable, "-m", "fracdna", "embed", *words, *further])
    folder = Path(f"/proc/{first.pid}/task/{first.pid}/children")
    listed = tmp_path / ".x.zarr.unfinished" / "finished"
    while not listed.is_file() or listed.read_text().count("\n") < 3:
        assert first.poll() is None
        time.sleep(0.1)
    others = folder.read_text().split()
    first.kill()
    first.wait()
    assert len(others) > 2
    ends = time.monotonic() + 30
    while any(Path(f"/proc/{other}").exists() for other in others):
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_processes_have_devices_of_their_own(monkeypatch):
    """Of a GPU that is named there is one; several on a CPU share it."""
    monkeypatch.setattr(command, "choose_device", lambda name, precision: torch.device(name))
    chosen = {"device": "cuda", "devices": 3}
    assert [str(x) for x in command._devices(chosen, "float32")] == ["cuda:0", "cuda:1", "cuda:2"]
    assert [x.type for x in command._devices(chosen | {"device": "cpu"}, "float32")] == ["cpu"] * 3
    with pytest.raises(InputError, match="device=cuda:1 is one device: devices=3 goes with"):
        command._devices(chosen | {"device": "cuda:1"}, "float32")


def test_an_old_table_is_replaced_only_by_a_complete_one(embed, read, store, monkeypatch):
    arguments = (f"genome={store.directory}", "regions=chr1:1-20")
    assert embed(*arguments) == 0
    before = read()

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("fracdna.embedding.table._vectors", interrupt)
        assert embed(*arguments, "pooling=last") == 130
    assert read() == before
    assert embed(*arguments, "pooling=last") == 0
    assert read()[0] != before[0]


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_run(embed, store, tmp_path, monkeypatch, capsys):
    """Refused with the remedy rather than waited for; nothing is written."""
    monkeypatch.setattr(block_run, "_compute_here", leave)
    assert embed(f"genome={store.directory}", SEVEN, "devices=2", "device=cpu") == 2
    message = capsys.readouterr().err
    assert "a process ended before its batch was finished" in message
    assert "give the same command again, with fewer devices=" in message
    assert not (tmp_path / "out.parquet").exists()


def leave(batch):
    os._exit(9)


class Here(concurrent.futures.Executor):
    """Does at once, in this process, what others would do."""

    def __init__(self, count, context, begin, given):
        begin(*given)

    def submit(self, work, batch):
        done = concurrent.futures.Future()
        done.set_result(work(batch))
        return done


def test_nan_in_another_process_ends_the_run(broken, embed, store, tmp_path, monkeypatch, capsys):
    """Case 38: the first row with a base by the order given, whichever batch ends first."""
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(block_run.signal, "signal", lambda *_: None)
    monkeypatch.setattr(block_run, "_workers", [])
    bed = write_bed(tmp_path, ("chr2", 900, 950), ("chr2", 5, 25), ("chr1", 0, 900))
    arguments = (f"genome={store.directory}", f"regions={bed}", "devices=2", "device=cpu")
    assert embed(*arguments, "batch_bases=100", checkpoint=broken) == 1
    assert "row 1 (chr2:6-25): its vector holds NaN or infinity" in capsys.readouterr().err
    assert files(tmp_path) == ["broken.ckpt", "regions.bed"]


def test_several_layers_have_columns(embed, read, store):
    """Case 34: names are accepted, told in the metadata, and each column is that of one layer."""
    arguments = (f"genome={store.directory}", "regions=[chr1:1-20,chr2:5-90,chr2:900-950]")
    assert embed(*arguments, "layer=[2,-1]") == 1
    rows, about = read()
    assert about["layer"] == [2, -1]
    for layer in (2, -1):
        assert embed(*arguments, f"layer={layer}", output="one.parquet") == 1
        alone = [row["embedding"] for row in read("one.parquet")[0]]
        assert [row[f"embedding_{layer}"] for row in rows] == alone
        assert alone[2] is None
    assert list(rows[0])[-2:] == ["embedding_2", "embedding_-1"]


def test_flanks_are_told(embed, read, store, models, capsys):
    """Case 17: windows stand beside the regions; one at the end of its contig is no problem."""
    arguments = (f"genome={store.directory}", "regions=[chr1:101-140,chr2:282-291]")
    assert embed(*arguments, "flank=50") == 0
    rows, about = read()
    assert about["flank"] == 50
    spans = [tuple(row[x] for x in ("start", "end", "window_start", "window_end")) for row in rows]
    assert spans == [(100, 140, 50, 190), (281, 291, 191, 301)]
    assert [row["status"] for row in rows] == ["ok", "shifted by -40"]
    output = capsys.readouterr().out
    assert "flanks of 50 bases" in output
    assert "1 row shifted" in output
    regions = [Interval("chr1", 100, 140), Interval("chr2", 281, 291)]
    expected = embed_regions(models(), store, regions, flank=50)
    np.testing.assert_array_equal([row["embedding"] for row in rows], expected)


def test_sequences_have_no_flanks(embed, tmp_path, capsys):
    records = tmp_path / "records.fa"
    records.write_text(">one\nACGT\n")
    assert embed(f"regions={records}", "flank=3") == 2
    assert "have no bases beside them: leave out flank=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pooling", "strand"),
    [("mean", "forward"), ("centre", "reverse"), ("last", "average"), ("mean", "equivariant")],
)
def test_the_python_call_gives_the_same_numbers(embed, read, models, tmp_path, pooling, strand):
    """Bit for bit, for records of a file and their letters."""
    texts = ["ACGTNACGTAC" * 9, "TT", "gattaca" * 4, "ACGTNACGTAC"]
    records = tmp_path / "records.fa"
    records.write_text("".join(f">r{n}\n{text}\n" for n, text in enumerate(texts)))
    options = {"pooling": pooling, "strand": strand, "batch_bases": 60, "segment": 50}
    words = [f"{name}={value}" for name, value in options.items()]
    assert embed(f"regions={records}", "layer=[0,-1]", *words) == 0
    vectors = fracdna.embed(models(), texts, layer=[0, -1], **options)
    for number, layer in enumerate((0, -1)):
        stored = np.array([row[f"embedding_{layer}"] for row in read()[0]], dtype=np.float32)
        np.testing.assert_array_equal(stored, vectors[:, number])


def test_the_same_run_gives_the_same_bytes(embed, store, tmp_path):
    arguments = (f"genome={store.directory}", "regions=[chr1:1-200,chr2:5-30,chr1:7-60:-]")
    for name in ("one.parquet", "two.parquet"):
        assert embed(*arguments, output=name) == 0
    one, two = ((tmp_path / f"{name}.parquet").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_genome_may_be_a_prepared_folder_or_a_fasta(embed, read, store, fasta, tmp_path, capsys):
    """A folder with genome/ inside; a FASTA with store=, which is kept; alone it is refused."""
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    (prepared / "genome").symlink_to(store.directory)
    region = "regions=chr1:1-20"
    assert embed(f"genome={prepared}", region) == 0
    expected, _ = read()
    for _ in range(2):
        assert embed(f"genome={fasta}", f"store={tmp_path / 'kept'}", region) == 0
        assert read()[0] == expected
        assert read()[1]["genome_checksum"] == store.checksum
    assert embed(f"genome={fasta}", region, output="refused.parquet") == 2
    assert "add store=FOLDER" in capsys.readouterr().err
    assert not (tmp_path / "refused.parquet").exists()


def test_records_of_a_fasta_are_regions(embed, read, models, tmp_path):
    """No genome is needed; an empty record is a status row."""
    records = tmp_path / "records.fa"
    records.write_text(">first one\nACGTnacgt\nAC\n>empty\n>second\nTT\n")
    assert embed(f"regions={records}") == 1
    rows, about = read()
    assert [(row["name"], row["start"], row["end"]) for row in rows] == [
        ("first", 0, 11), ("empty", 0, 0), ("second", 0, 2),
    ]  # fmt: skip
    assert [row["status"] for row in rows] == ["ok", "dropped: empty interval", "ok"]
    assert about["genome"] == ["records.fa"]
    expected = pooled_states(models(), [DNA.encode("ACGTNACGTAC")])[0]
    np.testing.assert_allclose(rows[0]["embedding"], expected, rtol=1e-5, atol=1e-5)


def test_names_may_be_mapped(embed, read, store, tmp_path, capsys):
    """Refused with both name sets and the remedy, with which it works."""
    bed = write_bed(tmp_path, ("2", 0, 10))
    arguments = (f"genome={store.directory}", f"regions={bed}")
    assert embed(*arguments) == 2
    message = capsys.readouterr().err
    assert f"{bed}:1: contig '2' is not in the genome" in message
    assert "rename=chr_prefix would read 2 -> chr2" in message
    assert not (tmp_path / "out.parquet").exists()
    assert embed(*arguments, "rename=chr_prefix") == 0
    assert read()[0][0]["contig"] == "chr2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["regions=null"], "regions= is missing: name a BED"),
        (["genome=null"], "genome= is missing: name a genome store"),
        (["genome=nowhere"], "holds no complete genome store"),
        (["regions=nowhere.bed"], "there is no such file"),
        (["regions={fasta}"], "leave out genome="),
        (["checkpoint=nowhere.ckpt"], "no such checkpoint file"),
        (["checkpoint=null"], "checkpoint= is missing"),
        (
            ["output=table.csv"],
            "name it x.parquet (a table) or x.h5ad (AnnData) or x.zarr (every",
        ),
        (["output=.parquet"], "output=.parquet: name it x.parquet"),
        ([f"output={'a' * 260}.parquet"], "cannot be written (File name too long)"),
        (["layer=9"], "layer=9: this model has 0"),
        (["pooling=max"], "pooling=max: choose one of"),
        (["device=tpu"], "device=tpu: choose auto, cpu, cuda"),
        (["device=meta"], "device=meta: choose auto, cpu, cuda"),
        (["device=cuda:99"], "device=cuda:99: PyTorch sees"),
        (["segment=many"], "segment"),
        (["layer=[1,1]"], "layer=[1, 1]: name each layer once"),
        (["flank=-1"], "flank=-1 must be at least 0 and finite"),
        (["devices=0"], "devices=0 must be at least 1 and at most 1024"),
        (["pooling=none"], "out.parquet does not go with pooling=none: x.zarr does"),
        (["output=out.zarr"], "output=out.zarr does not go with pooling=mean: x.parquet"),
        (["dtype=float16"], "dtype=float16 goes with pooling=none alone"),
        (["dtype=int8"], "dtype=int8: choose one of float32, float16"),
    ],
)
def test_what_cannot_work_is_refused_before_work(
    embed, store, fasta, tmp_path, capsys, arguments, message
):
    """Exit 2, one message with the remedy, nothing written."""
    given = [f"genome={store.directory}", "regions=chr1:1-9"]
    assert embed(*given, *(text.format(fasta=fasta) for text in arguments)) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
