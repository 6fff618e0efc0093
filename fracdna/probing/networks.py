"""The networks of a probe, and their vectors of all rows of a set."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fracdna.embedding.block_run import BlockRun, Workplaces
from fracdna.embedding.options import EmbeddingOptions
from fracdna.embedding.reads import whole_reads
from fracdna.embedding.rows import Rows
from fracdna.evaluation.run import run_name
from fracdna.model.checkpoint import build_model, load_model, model_hash
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna.probing.kept import key_of
from fracdna.probing.labelled import LabelledSet
from fracdna_prep.errors import InputError

NETWORK, UNTRAINED, BASELINE = "network", "untrained", "baseline"


@dataclass(frozen=True)
class Network:
    """A network under the name that tables call it by.

    Attributes:
        name: in tables.
        kind: NETWORK or UNTRAINED.
        model: on the CPU until it is used.
        checkpoint: its file; of an untrained one that of the network it is like.
    """

    name: str
    kind: str
    model: LanguageModel
    checkpoint: str


def open_networks(
    checkpoints: Sequence[str], names: Sequence[str] | None, untrained_seed: int | None
) -> list[Network]:
    """Networks in the order given, then each kind of them with initial weights.

    Args:
        checkpoints: their files.
        names: what to call them; None: the folders of their runs, or their files.
        untrained_seed: of the initial weights; None: no untrained networks.

    Raises:
        InputError: a file that is no checkpoint, or names that do not fit.
    """
    if names and len(names) != len(checkpoints):
        raise InputError(f"names= has {len(names)} names for {len(checkpoints)} checkpoints")
    called = list(names or [run_name(Path(path)) for path in checkpoints])
    double = next((name for name in called if called.count(name) > 1), None)
    if double is not None:
        raise InputError(f"two checkpoints are called {double!r}: tell them apart with names=")
    found = [
        Network(name, NETWORK, load_model(path), path)
        for name, path in zip(called, checkpoints, strict=True)
    ]
    if untrained_seed is None:
        return found
    # networks of one configuration have the same initial weights: they are one row
    kinds = {key_of(network.model.config): network for network in reversed(found)}
    return found + [
        Network(
            f"{network.name}, untrained",
            UNTRAINED,
            _initial(network.model, untrained_seed),
            network.checkpoint,
        )
        for network in reversed(kinds.values())
    ]


def _initial(model: LanguageModel, seed: int) -> LanguageModel:
    """The same network with weights as training begins with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_model(model.config).eval()


def identity_of(network: Network, data: LabelledSet, options: EmbeddingOptions) -> dict[str, Any]:
    """All that a network's vectors of a set depend on, in plain values."""
    return {
        "vectors": model_hash(network.model),
        "set": data.digest(),
        "layer": options.layer,
        "pooling": options.pooling,
        "strand": options.strand,
        "batch_bases": options.batch_bases,
        "segment": options.segment,
        "precision": options.precision,
        "device": network.model.backbone.embedding.weight.device.type,
    }


def compute_vectors(
    network: Network,
    data: LabelledSet,
    options: EmbeddingOptions,
    device: torch.device,
    folder: Path,
    *,
    progress: bool,
) -> tuple[np.ndarray, dict[str, Any], float]:
    """A vector for each row, by the code of `fracdna embed`; those in the folder are read.

    Args:
        network: whose vectors; on the device while they are computed.
        data: the set.
        options: layer, pooling, strand and limits.
        device: where.
        folder: of the vectors of all networks.
        progress: show bases done.

    Returns:
        (rows, d_model) float32, mapped; what they depend on; seconds that computing took.

    Raises:
        NotFinite: a vector holds NaN or infinity; names the row.
        InputError, Unfinished: as of `fracdna embed`.
    """
    network.model.to(device)
    about = identity_of(network, data, options)
    rows = Rows.of_reads(whole_reads(data.sequences), options)
    places = Workplaces(network.checkpoint, [device])
    work = BlockRun(network.model, rows, places, folder / key_of(about), about)
    print(f"{network.name}: {work.resumed:,} of {len(data):,} vectors are there")
    started = time.perf_counter()
    try:
        values = work.run(progress=progress)
    except NotFinite as error:
        work.forget()
        raise NotFinite(
            f"{data.rows[error.row].place}: the vector of {network.name} holds NaN or infinity; "
            f"check the weights of {network.checkpoint}, or compute with precision=float32",
            error.row,
        ) from None
    finally:
        network.model.to("cpu")
    return values[:, 0], about, time.perf_counter() - started
