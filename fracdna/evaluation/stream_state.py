"""How far a pass over a contig has come, on disk: a kill costs what came after the last save."""

import hashlib
import io
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fracdna_prep.files import atomic_file

_DIGEST_BYTES = 32


@dataclass
class StreamProgress:
    """What a pass has summed so far, and all that it needs to go on; tensors are on the CPU.

    Attributes:
        sums: (2, blocks) float64 nats of each block, over all rows of the head and over A, C, G, T.
        done: bases read.
        timed_bases: bases whose reading was timed.
        seconds: that they took.
        peak_bytes: most device memory in use; None: not measured.
        state: tensors of the model's state; empty before the start and at the end.
    """

    sums: Tensor
    done: int = 0
    timed_bases: int = 0
    seconds: float = 0.0
    peak_bytes: int | None = None
    state: list[Tensor] = field(default_factory=list)


def write_progress(path: Path, progress: StreamProgress) -> None:
    """Write a digest and the tensors and plain values that it is of."""
    buffer = io.BytesIO()
    torch.save(vars(progress), buffer)
    content = buffer.getbuffer()
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        file.write(hashlib.sha256(content).digest())
        file.write(content)


def read_progress(path: Path) -> StreamProgress | None:
    """What a file holds; None where there is none that is whole: the pass starts again then."""
    try:
        content = memoryview(path.read_bytes())
        digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        # the reader of PyTorch does not notice a flipped bit
        if hashlib.sha256(content).digest() != digest:
            return None
        return StreamProgress(**torch.load(io.BytesIO(content), weights_only=True))
    except (OSError, TypeError, RuntimeError, pickle.UnpicklingError):
        return None


def with_tensors(like: Any, tensors: Iterator[Tensor]) -> Any:
    """The nest of a model's state around other tensors.

    Args:
        like: a state of the model.
        tensors: in the order of fracdna.generation.decoding.state_tensors.

    Raises:
        TypeError: something else than tensors in tuples, lists and mappings.
    """
    if isinstance(like, Tensor):
        return next(tensors)
    if isinstance(like, Mapping):
        return {name: with_tensors(part, tensors) for name, part in like.items()}
    if isinstance(like, list | tuple):
        parts = [with_tensors(part, tensors) for part in like]
        return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)
    raise TypeError(
        f"a model's state holds a {type(like).__name__}: only tensors in tuples, lists and "
        "mappings can be kept on disk"
    )
