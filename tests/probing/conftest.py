import csv

import numpy as np
import pytest
import torch
from models import tiny_model

import fracdna
from fracdna import cli
from fracdna.probing import figures
from fracdna_prep.genome import GenomeStore

MOTIF = "TTGACATTTATGCTTCCGGCATAC"


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tiny tensors: threads that wait for each other cost more than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def model():
    torch.manual_seed(0)
    return tiny_model("frac")


@pytest.fixture(scope="session")
def checkpoint(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "tiny.safetensors"
    fracdna.save_weights(model, path, dtype=torch.float32)
    return path


@pytest.fixture(scope="session")
def random_letters():
    """Letters by seed."""

    def draw(length, seed):
        return "".join(np.random.default_rng(seed).choice(list("ACGT"), length))

    return draw


@pytest.fixture(scope="session")
def planted(random_letters):
    """Rows (sequence, label) of 40 bases, every second with a motif; different for each seed."""

    def rows(count, seed=0):
        found = []
        for number in range(count):
            letters = random_letters(40, [seed, number])
            if number % 2:
                letters = letters[:10] + MOTIF + letters[10 + len(MOTIF) :]
            found.append((letters, str(number % 2)))
        return found

    return rows


@pytest.fixture
def write_table():
    """A table of rows with a header."""

    def write(path, rows, header=("sequence", "label"), delimiter=","):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(header)
            writer.writerows(rows)
        return path

    return write


@pytest.fixture
def small_set(tmp_path, planted, write_table):
    """A folder with 24 training and 16 test rows."""
    write_table(tmp_path / "set" / "train.csv", planted(24, 1))
    write_table(tmp_path / "set" / "test.csv", planted(16, 2))
    return tmp_path / "set"


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """Run the command quietly with fits in this process; returns its exit code.

    Pictures take longer than all else, so they are drawn where a test asks for them.
    """

    def run(*words, output="out", pictures=False):
        quiet = ("progress=false", f"output={tmp_path / output}")
        jobs = () if any(word.startswith("jobs=") for word in words) else ("jobs=1",)
        with monkeypatch.context() as patch:
            if not pictures:
                patch.setattr(figures, "draw_all", lambda *_: None)
            return cli.run(["probe", *quiet, *jobs, *words])

    return run


@pytest.fixture(scope="session")
def letters(random_letters):
    """chr1 of 4,000 bases, chr2 of 1,000."""
    return {"chr1": random_letters(4000, 1), "chr2": random_letters(1000, 2)}


@pytest.fixture(scope="session")
def store(letters, tmp_path_factory):
    folder = tmp_path_factory.mktemp("genome")
    fasta = folder / "genome.fa"
    fasta.write_text("".join(f">{name}\n{text}\n" for name, text in letters.items()))
    return GenomeStore.build(fasta, folder / "store")
