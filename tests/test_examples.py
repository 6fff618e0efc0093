"""Every example in docs/examples runs, on few bases with a tiny model."""

import csv
import runpy
import sys
from pathlib import Path

import pytest
import torch
from models import tiny_model

import fracdna

FOLDER = Path(__file__).parents[1] / "docs" / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))
COUNT = 4


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    fracdna.save_weights(tiny_model("attention"), path)
    return path


@pytest.fixture
def written(weights, tmp_path, monkeypatch):
    """Run an example; the folder that it writes into."""

    def run(name):
        if name != "score_variants":
            pytest.importorskip("sklearn", reason="scikit-learn is not installed")
        monkeypatch.syspath_prepend(FOLDER)  # as where a script is started by its name
        words = [tmp_path / "out", "--model", weights, "--count", COUNT]
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return tmp_path / "out"

    return run


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_leaves_pictures_and_tables(written, name):
    """All of them take a folder, a model and how many."""
    folder = written(name)
    pictures = list(folder.glob("*.png"))
    assert pictures
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert all(read(table) for table in folder.glob("*.csv"))
    assert list(folder.glob("*.csv"))


def test_windows_have_the_class_that_their_bases_say(written):
    rows = read(written("embed_regions") / "components.csv")
    assert [row["class"] for row in rows] == ["CpG-rich"] * COUNT + ["other"] * COUNT
    assert len({row["start"] for row in rows}) == 2 * COUNT
    assert len({row["first"] for row in rows}) == 2 * COUNT
    assert abs(sum(float(row["first"]) for row in rows)) < 1e-3


def test_a_probe_of_windows_compares_models_on_the_same_windows(written):
    """The classes are made from composition, so that counts of letters tell them apart."""
    folder = written("probe_regions")
    rows = read(folder / "windows.csv")
    models = {row["model"] for row in rows}
    assert models > {"GC and length", "k-mers", "network", "network, untrained"}
    windows = {(row["region"], row["label"]) for row in rows}
    assert {label for _, label in windows} == {"CpG-rich", "other"}
    assert len(rows) == len(models) * len(windows)
    sure = [float(row["right_mean"]) for row in rows if row["model"] == "k-mers"]
    assert sum(sure) / len(sure) > 0.5
    assert {row["model"] for row in read(folder / "probe" / "table.csv")} == models


def test_the_strongest_variants_come_first_in_each_kind(written):
    rows = read(written("score_variants") / "strongest.csv")
    assert len(rows) == COUNT
    for kind in {row["kind"] for row in rows}:
        sizes = [abs(float(row["score"])) for row in rows if row["kind"] == kind]
        assert sizes == sorted(sizes, reverse=True)
