import gzip
import multiprocessing
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from Bio import bgzf


def fasta_text(records, width=60, newline="\n"):
    lines = []
    for name, sequence in records.items():
        lines.append(f">{name}")
        lines += [sequence[i : i + width] for i in range(0, len(sequence), width)]
    return newline.join(lines) + newline


@pytest.fixture
def make_fasta(tmp_path):
    """Writes records as FASTA; the suffix .gz packs with gzip, .bgz.gz with bgzip."""

    def make(records, name="genome.fa", width=60, newline="\n"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = fasta_text(records, width, newline).encode()
        if name.endswith(".bgz.gz"):
            with bgzf.BgzfWriter(str(path), "wb") as writer:
                writer.write(content)
        elif name.endswith(".gz"):
            path.write_bytes(gzip.compress(content))
        else:
            path.write_bytes(content)
        return path

    return make


@pytest.fixture
def random_sequence():
    """Random bases of a given length, the same for the same seed."""

    def make(length, seed=0, letters="ACGT"):
        return "".join(random.Random(seed).choices(letters, k=length))

    return make


@pytest.fixture
def names_in():
    """The sorted names in a folder."""
    return lambda folder: sorted(path.name for path in folder.iterdir())


@pytest.fixture
def open_folder():
    """A folder that any user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="fracdna-"))
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def without_privileges():
    """Runs a function in a process for which permission bits count, even when root runs tests."""

    def run(function):
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()

        def child():
            if os.getuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            try:
                queue.put(("value", function()))
            except Exception as error:
                queue.put(("error", error))

        process = context.Process(target=child)
        process.start()
        process.join()
        kind, result = queue.get()
        if kind == "error":
            raise result
        return result

    return run
