"""`fracdna embed` from its command line to the Parquet file."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fracdna import __version__, cli
from fracdna.embedding import command, pooled_states
from fracdna.model.checkpoint import model_hash
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


def test_small_differences_survive_the_file(embed, read, models, store, monkeypatch):
    """Case 36: vectors are stored in float32, bit for bit."""
    width = models().backbone.d_model
    exact = np.float32(1) + np.float32(1e-4) * np.arange(2, dtype=np.float32)

    def two_vectors(*_, out, **__):
        out[:] = exact[:, None]

    monkeypatch.setattr(command, "embed_regions", two_vectors)
    assert embed(f"genome={store.directory}", "regions=[chr1:1-20,chr1:2-20]") == 0
    stored = np.array([row["embedding"] for row in read()[0]], dtype=np.float32)
    np.testing.assert_array_equal(stored, np.repeat(exact[:, None], width, axis=1))


def test_nan_ends_the_run(embed, models, save_checkpoint, store, tmp_path, capsys):
    """Case 38: one weight NaN; exit 1, the first row with a base is named, no file is left."""
    model = models("attention")
    weight = model.backbone.blocks[0].mixer.out_projection.weight
    before = weight[0, 0].item()
    with torch.no_grad():
        weight[0, 0] = float("nan")
    broken = save_checkpoint(model, tmp_path / "broken.ckpt")
    with torch.no_grad():
        weight[0, 0] = before
    bed = write_bed(tmp_path, ("chr2", 900, 950), ("chr2", 5, 25), ("chr1", 0, 900))
    assert embed(f"genome={store.directory}", f"regions={bed}", checkpoint=broken) == 1
    message = capsys.readouterr().err
    assert "row 1 (chr2:6-25): its vector holds NaN or infinity; nothing was written" in message
    assert files(tmp_path) == ["broken.ckpt", "regions.bed"]


def test_an_interrupted_run_leaves_nothing(embed, store, tmp_path, monkeypatch):
    """Ctrl-C while rows are computed or written: exit 130, and no file, whole or half."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    arguments = (f"genome={store.directory}", "regions=chr1:1-20")
    for function in ("embed_regions", "write_embeddings"):
        with monkeypatch.context() as patched:
            patched.setattr(command, function, interrupt)
            assert embed(*arguments) == 130
        assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as patched:
        patched.setattr("fracdna.embedding.table._vectors", interrupt)
        assert embed(*arguments) == 130
    assert list(tmp_path.iterdir()) == []


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
        (["output=table.csv"], "name it so: x.parquet"),
        (["layer=9"], "layer=9: this model has 0"),
        (["pooling=max"], "pooling=max: choose one of"),
        (["device=tpu"], "device=tpu: choose auto, cpu, cuda"),
        (["device=meta"], "device=meta: choose auto, cpu, cuda"),
        (["device=cuda:99"], "device=cuda:99: PyTorch sees"),
        (["segment=many"], "segment"),
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
