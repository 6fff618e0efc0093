"""What tells one model from another: hashes of vocabulary, configuration and weights."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fracdna_prep.vocabulary import DNA

# options of Backbone that leave alone what its weights compute when they are used
TRAINING_ALONE = frozenset({"activation_checkpointing", "embedding_dropout"})


def identity(
    config: Mapping[str, Any], state: Mapping[str, Tensor], symbols: Sequence[str] = DNA.symbols
) -> str:
    """SHA-256 over vocabulary, configuration and all weights.

    Args:
        config: plain configuration of the model; what is of training alone does not count.
        state: weights by their names, in the dtype in which they are used.
        symbols: of the vocabulary.
    """
    counts = {k: v for k, v in config.items() if k not in TRAINING_ALONE}
    digest = hashlib.sha256(json.dumps([list(symbols), counts], sort_keys=True).encode())
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(_raw_bytes(tensor))
    return digest.hexdigest()


def tensor_hashes(state: Mapping[str, Tensor]) -> dict[str, str]:
    """SHA-256 of the bytes of every tensor, by its name: says which one differs."""
    return {name: hashlib.sha256(_raw_bytes(w)).hexdigest() for name, w in sorted(state.items())}


def _raw_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor, whatever its dtype."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
