"""`fracdna embed` to Zarr, a vector for every base, and to AnnData."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

import fracdna
from fracdna import cli
from fracdna.embedding import command, embed_regions
from fracdna.embedding.options import EmbeddingOptions
from fracdna_prep.interval import Interval

REGIONS = "regions=[chr1:1-200,chr2:5-90:-,chr2:900-950,chr1:995-1020]"
ASKED = [
    Interval("chr1", 0, 200), Interval("chr2", 4, 90, "-"), Interval("chr2", 899, 950),
    Interval("chr1", 994, 1020),
]  # fmt: skip


@pytest.fixture
def embed(checkpoint, store, tmp_path):
    """Run the command on four regions, of which the third is outside its contig."""

    def run(output, *arguments):
        words = (f"checkpoint={checkpoint}", f"genome={store.directory}", REGIONS)
        places = (f"output={tmp_path / output}", "device=cpu", "progress=false")
        return cli.run(["embed", *words, *places, *arguments])

    return run


@pytest.fixture
def zarr():
    return pytest.importorskip("zarr", reason="the extra zarr is not installed")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_every_base_goes_into_one_array(zarr, embed, models, store, tmp_path):
    """Regions one behind the other, as offsets tell, a long one streamed; equal to the Python door,
    bit for bit.
    """
    assert embed("out.zarr", "pooling=none", "strand=average", "segment=100") == 1
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    offsets = group["offsets"][:]
    assert offsets.tolist() == [0, 200, 286, 286, 312]
    states, width = group["embedding"], models().backbone.d_model
    assert states.shape == (312, width)
    assert states.dtype == np.float32
    assert states.compressors
    options = EmbeddingOptions(pooling="none", strand="average", segment=100)
    expected = embed_regions(models(), store, ASKED, options)
    for row, found in enumerate(expected):
        np.testing.assert_array_equal(states[offsets[row] : offsets[row + 1]], found)
    assert group["contig"][:].tolist() == ["chr1", "chr2", "chr2", "chr1"]
    assert group["start"][:].tolist() == [0, 4, 899, 994]
    assert group["strand"][:].tolist() == ["+", "-", "+", "+"]
    assert group["name"][:].tolist() == [""] * 4
    assert group["status"][2] == "dropped: outside the contig"
    np.testing.assert_allclose(group["n_fraction"][:], [0, 0, np.nan, 10 / 26])
    assert group["start"].attrs["unit"] == "base, from 0"
    assert group.attrs["fracdna"]["pooling"] == "none"
    assert names(tmp_path) == ["out.zarr"]


def test_bases_of_several_layers(zarr, embed, models, store, tmp_path, monkeypatch):
    """Case 34: two layers and no pooling; names accepted and told, an array (bases, d_model) each.

    Chunks that end within regions change nothing.
    """
    width = models().backbone.d_model
    monkeypatch.setattr("fracdna.embedding.arrays._CHUNK_BYTES", 4 * width * 50)
    monkeypatch.setattr("fracdna.embedding.arrays._ROWS_PER_CHUNK", 3)
    assert embed("out.zarr", "pooling=none", "layer=[2,-1]") == 1
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    about = group.attrs["fracdna"]
    assert (about["layer"], about["pooling"]) == ([2, -1], "none")
    expected = embed_regions(models(), store, ASKED, EmbeddingOptions((2, -1), "none"))
    for number, layer in enumerate((2, -1)):
        array = group[f"embedding_{layer}"]
        assert array.chunks == (50, width)
        assert array.metadata.dimension_names == ("base", "channel")
        np.testing.assert_array_equal(array[:], np.concatenate(expected)[:, number])
    assert group["row"][:].tolist() == [0, 1, 2, 3]


def test_half_precision_tells_what_it_loses(zarr, embed, tmp_path, capsys):
    """Case 36: only on request, with the largest loss said and kept; float32 loses nothing."""
    assert embed("exact.zarr", "pooling=none") == 1
    assert "float16" not in capsys.readouterr().out
    assert embed("half.zarr", "pooling=none", "dtype=float16") == 1
    exact, half = (
        zarr.open_group(tmp_path / name, mode="r")["embedding"]
        for name in ("exact.zarr", "half.zarr")
    )
    assert half.dtype == np.float16
    assert "largest_error" not in exact.attrs
    loss = np.abs(half[:].astype(np.float32) - exact[:]).max()
    assert loss > 0
    assert half.attrs["largest_error"] == loss
    told = f"embedding is float16 on request: the largest difference to float32 is {loss:.2g}"
    assert told in capsys.readouterr().out


def test_small_differences_survive_the_arrays(zarr, embed, tmp_path, monkeypatch):
    """Case 36: two vectors that differ by 1e-4 around 1, bit for bit."""
    close = np.float32(1) + np.float32(1e-4) * np.arange(312, dtype=np.float32)[:, None, None] % 2

    def run(work, **_):
        work._kept.values[:] = close
        return work._kept.values

    monkeypatch.setattr(command.BlockRun, "run", run)
    assert embed("out.zarr", "pooling=none") == 1
    stored = zarr.open_group(tmp_path / "out.zarr", mode="r")["embedding"][:]
    np.testing.assert_array_equal(stored, np.broadcast_to(close[:, 0], stored.shape))


def test_what_float16_cannot_hold_is_refused(zarr, embed, tmp_path, monkeypatch, capsys):
    """What was computed is kept, and float32 writes it."""
    run = command.BlockRun.run

    def larger(work, *, progress):
        return run(work, progress=progress) * 1e6

    with monkeypatch.context() as patched:
        patched.setattr(command.BlockRun, "run", larger)
        assert embed("out.zarr", "pooling=none", "dtype=float16") == 2
    assert "dtype=float16 ends at 65,504" in capsys.readouterr().err
    assert names(tmp_path) == [".out.zarr.unfinished"]
    assert embed("out.zarr", "pooling=none") == 1
    assert "3 rows of an interrupted run: not computed again" in capsys.readouterr().out
    assert names(tmp_path) == ["out.zarr"]


def test_only_a_group_is_replaced(zarr, embed, tmp_path, capsys):
    """An older one gives way to a complete one; a folder of something else is left alone."""
    assert embed("out.zarr", "pooling=none") == 1
    assert embed("out.zarr", "pooling=none", "layer=0") == 1
    about = zarr.open_group(tmp_path / "out.zarr", mode="r").attrs["fracdna"]
    assert about["layer"] == 0
    (tmp_path / "mine.zarr").mkdir()
    assert embed("mine.zarr", "pooling=none") == 2
    assert "is a folder of something else" in capsys.readouterr().err
    assert names(tmp_path) == ["mine.zarr", "out.zarr"]


@pytest.mark.parametrize(
    ("package", "output", "pooling"),
    [("zarr", "out.zarr", "none"), ("anndata", "out.h5ad", "mean")],
)
def test_a_missing_package_is_named(embed, tmp_path, monkeypatch, capsys, package, output, pooling):
    """Case 28: the extra that brings it, before any work."""
    monkeypatch.setattr("fracdna.embedding.output.find_spec", lambda name: None)
    assert embed(output, f"pooling={pooling}") == 2
    message = capsys.readouterr().err
    assert (
        f"needs the package {package}, which is missing: pip install 'fracdna[{package}]'"
        in message
    )
    assert names(tmp_path) == []


def test_annotated_vectors(embed, tmp_path):
    """X in float32, NaN where a region is dropped; coordinates in obs, settings in uns."""
    anndata = pytest.importorskip("anndata", reason="the extra anndata is not installed")
    assert embed("out.h5ad") == 1
    assert embed("out.parquet") == 1
    data = anndata.read_h5ad(tmp_path / "out.h5ad")
    table = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert data.X.dtype == np.float32
    assert np.isnan(data.X[2]).all()
    for row in (0, 1, 3):
        np.testing.assert_array_equal(data.X[row], np.float32(table[row]["embedding"]))
    for name in ("contig", "start", "end", "window_start", "strand", "status"):
        assert data.obs[name].tolist() == [row[name] for row in table]
    assert data.obs_names.tolist() == ["0", "1", "2", "3"]
    assert data.obs["name"].tolist() == [""] * 4
    assert json.loads(data.uns["fracdna"])["version"] == fracdna.__version__


def test_annotated_layers(embed, tmp_path):
    """X is the first layer, and each has its name."""
    anndata = pytest.importorskip("anndata", reason="the extra anndata is not installed")
    assert embed("out.h5ad", "layer=[2,-1]") == 1
    data = anndata.read_h5ad(tmp_path / "out.h5ad")
    assert set(data.layers) == {"embedding_2", "embedding_-1"}
    np.testing.assert_array_equal(data.X, data.layers["embedding_2"])
    assert embed("out.h5ad", "layer=-1") == 1
    alone = anndata.read_h5ad(tmp_path / "out.h5ad")
    np.testing.assert_array_equal(alone.X, data.layers["embedding_-1"])
    assert not alone.layers
