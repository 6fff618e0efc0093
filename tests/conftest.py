import copy
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from interpreter import quicken
from matplotlib.figure import Figure
from tracing import untraced

from fracdna import configuration
from fracdna_prep.options import PrepareOptions
from fracdna_prep.prepare import prepare

if not torch.cuda.is_available():
    # Triton reads this when kernels are defined: without a GPU they run in its interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")
    quicken()


@pytest.fixture(scope="session", autouse=True)
def untraced_pictures():
    """Matplotlib draws without a tracer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", untraced(Figure.savefig))
        yield


@pytest.fixture(scope="session", autouse=True)
def compositions():
    """Hydra takes a fifth of a second to compose what it has composed before: it is kept."""
    compose, folder, kept = configuration._compose, configuration.configs_folder(), {}

    def compose_once(verb, overrides):
        if configuration.configs_folder() != folder:
            return compose(verb, overrides)
        key = verb, *overrides
        if key not in kept:
            kept[key] = untraced(compose)(verb, overrides)
        return copy.deepcopy(kept[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configuration, "_compose", compose_once)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real genomes named by FRACDNA_DATA; the test is skipped without it."""
    folder = os.environ.get("FRACDNA_DATA")
    if not folder:
        pytest.skip("FRACDNA_DATA is unset: it names a folder with data/ of real genomes")
    data = Path(folder) / "data"
    if not data.is_dir():
        pytest.skip(f"{data} is not a folder")
    return data


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    """A small prepared genome: three contigs, split by BED, windows of 64 and 256 bases."""
    folder = tmp_path_factory.mktemp("genome")
    random = np.random.default_rng(5)
    sizes = {"one": 40_000, "two": 9_000, "three": 9_100}
    with (folder / "small.fa").open("w") as fasta:
        for name, size in sizes.items():
            # a repeat with mutations: something that a model can learn within a few steps
            unit = random.choice(list("ACGT"), 7, p=[0.4, 0.1, 0.1, 0.4])
            bases = np.resize(unit, size)
            changed = random.random(size) < 0.2
            bases[changed] = random.choice(list("ACGT"), changed.sum())
            bases[300:340] = "N"
            fasta.write(f">{name}\n{''.join(bases)}\n")
    rows = ["one 0 40000 train", "two 0 9000 valid", "three 0 9100 test"]
    (folder / "splits.bed").write_text("\n".join(rows).replace(" ", "\t") + "\n")
    prepare(
        PrepareOptions(
            fasta=folder / "small.fa",
            intervals=folder / "splits.bed",
            split="bed",
            length=[64, 256],
            output=folder / "prepared",
            progress=False,
        )
    )
    return folder / "prepared"
