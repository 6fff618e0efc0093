"""The weights in docs/results/pretrained are what their JSON says, and predict human DNA."""

import gzip
import math
from pathlib import Path

import pytest
import torch

import fracdna
from fracdna.data.objectives import next_base
from fracdna.evaluation.likelihood import base_nll
from fracdna.model.checkpoint import model_hash, read_checkpoint
from fracdna_prep.example import example_files
from fracdna_prep.vocabulary import DNA

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "pretrained"
NAMES = ("frac_7m", "transformer_7m")
MOST_BYTES = 14 * 2**20
WINDOW = 8192
# perplexity of the best table of counts on chr20 50-63 Mb: docs/results/dna_length_study.md
COUNTS = 3.51


@pytest.fixture(scope="module")
def window() -> torch.Tensor:
    """(1, WINDOW) ids from the middle of the bundled chromosome 20, which was trained on."""
    with gzip.open(example_files().fasta, "rt") as fasta:
        text = "".join(line.strip() for line in fasta if not line.startswith(">"))
    return torch.from_numpy(DNA.encode(text[1_000_000 : 1_000_000 + WINDOW]))[None]


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_what_their_json_says(name: str) -> None:
    """One file of at most 14 MiB, opened by its path alone, with the hash that it is known by."""
    path = FOLDER / f"{name}.safetensors"
    facts = read_checkpoint(path)["fracdna"]
    model = fracdna.load_model(path)
    assert path.stat().st_size <= MOST_BYTES
    assert model_hash(model) == facts["model_hash"]
    assert sum(p.numel() for p in model.parameters()) == facts["parameters"]
    assert facts["dtype"] == "bfloat16"
    assert facts["about"]["training_length"] == WINDOW


@pytest.mark.parametrize("name", NAMES)
def test_they_predict_better_than_counts(name: str, window: torch.Tensor) -> None:
    """Known weights on known bases: a model that had lost its training would be near 4."""
    inputs, targets = next_base(window)
    with torch.inference_mode():
        _, nats = base_nll(fracdna.load_model(FOLDER / f"{name}.safetensors")(inputs), targets)
    assert math.exp(nats.double().mean().item()) < COUNTS - 0.05
