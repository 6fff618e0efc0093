from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fracdna.evaluation.classes import BaseClasses
from fracdna.evaluation.tally import FORWARD, Reading
from fracdna_prep.genome import GenomeStore

PERIOD = 300


@pytest.fixture(scope="session")
def periodic(tmp_path_factory):
    """A contig of period 300 with one run of N, as a store."""
    folder = tmp_path_factory.mktemp("periodic")
    unit = "".join(np.random.default_rng(0).choice(list("ACGT"), PERIOD))
    bases = (unit * 60)[:16_384]
    (folder / "g.fa").write_text(f">c\n{bases[:5000]}{'N' * 50}{bases[5050:]}\n")
    return GenomeStore.build(folder / "g.fa", folder / "store")


@pytest.fixture(scope="session")
def mixed(tmp_path_factory):
    """Two contigs with lower case and N, as a store, and their letters."""
    folder = tmp_path_factory.mktemp("mixed")
    random = np.random.default_rng(3)
    letters = {}
    for name, size in (("a", 3000), ("b", 2100)):
        bases = random.choice(list("ACGT"), size, p=[0.35, 0.15, 0.2, 0.3])
        bases[100:180] = "N"
        lower = np.repeat(random.random(size // 50) < 0.4, 50)
        letters[name] = "".join(np.where(lower, np.char.lower(bases), bases))
    text = "".join(f">{name}\n{bases}\n" for name, bases in letters.items())
    (folder / "g.fa").write_text(text)
    return SimpleNamespace(store=GenomeStore.build(folder / "g.fa", folder / "store"), **letters)


@pytest.fixture(scope="session")
def copier():
    """A stub that predicts the base 300 positions back with certainty, else a uniform guess."""
    return Copier()


class Copier(torch.nn.Module):
    """What the language models of this package are called as, without weights."""

    def __init__(self):
        super().__init__()
        weight = torch.nn.Parameter(torch.zeros(1))
        self.backbone = SimpleNamespace(embedding=SimpleNamespace(weight=weight))

    def forward(self, inputs):
        logits = torch.full((*inputs.shape, 16), -1e4)
        logits[..., 7:11] = 0
        # inputs[t + 1] is base t: the base 300 before target t stands at inputs[t - 299]
        source = inputs[:, 1 : max(inputs.shape[1] - PERIOD, 0) + 1]
        known = torch.nn.functional.one_hot(source, 16) * 1e4
        logits[:, PERIOD:] = torch.where(
            (source == 11)[..., None], logits[:, PERIOD:], known.float()
        )
        return logits


@pytest.fixture(scope="session")
def read():
    """How regions are read, with the defaults of these tests."""

    def make(store, regions, length, *, span=None, target=64, strand=FORWARD, classes=None):
        classes = classes or BaseClasses(regions)
        return Reading(store, classes, length, span or regions.width, target, strand)

    return make
