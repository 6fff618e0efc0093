"""Associative recall as a benchmark: what is trained, tested, and told beside accuracies."""

from collections.abc import Mapping
from typing import Any

import torch

from fracdna.benchmarks.associative_recall import (
    AssociativeRecall,
    Kind,
    RecallTest,
    accuracy_by_lag,
)
from fracdna.benchmarks.probe_tables import Row
from fracdna_prep.errors import InputError

TITLE = "Associative recall: the value of a key that was shown before"
CHANCE = 0.0
details = accuracy_by_lag


def variants(options: Mapping[str, Any]) -> list[RecallTest]:
    """A test for every filler and power of the slots' weights.

    Raises:
        InputError: options that make no sense together.
    """
    parts = _parts(options)
    if not parts:
        raise InputError(
            "nothing to test: set task.persist, task.capacity (with task.lengths) or task.tests"
        )
    kinds = tuple(Kind(kind["length"], kind["pairs"]) for kind in options["training"])
    names = ("vocabulary_rows", "examples_per_kind", "passes")
    common = {name: options[name] for name in names}
    return [
        RecallTest(
            AssociativeRecall(kinds, power=power, filler=filler, **common),
            parts,
            options["sequences"],
        )
        for filler in options["fillers"]
        for power in options["powers"]
    ]


def _parts(options: Mapping[str, Any]) -> tuple[tuple[str, Kind], ...]:
    """Kinds of test sequences by the names of their parts."""
    lengths, persist, share = options["lengths"], options["persist"], options["capacity"]
    parts = []
    if persist is not None:
        parts += [(f"persist {persist} pairs", Kind(length, persist)) for length in lengths]
    if share is not None:
        parts += [(f"capacity length/{share} pairs", Kind(t, max(1, t // share))) for t in lengths]
    given = [Kind(kind["length"], kind["pairs"]) for kind in options["tests"]]
    return (*parts, *((f"{kind.pairs} pairs", kind) for kind in given))


def references(test: RecallTest, device: torch.device) -> tuple[list[Row], dict[str, int]]:
    """None: a table of pairs knows everything; and every key has its value."""
    return [], {}


def recipe_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Steps of the optimizer, and how the learning rate moves.

    Raises:
        InputError: another word for that.
    """
    if options["decay"] not in ("epochs", "cosine"):
        raise InputError(f"task.decay={options['decay']}: choose epochs or cosine")
    samples = options["examples_per_kind"] * len(options["training"]) * options["epochs"]
    by_epoch = options["epochs"] if options["decay"] == "epochs" else None
    return {"steps": max(1, samples // options["batch"]), "epochs": by_epoch}
