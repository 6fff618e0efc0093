"""Sequence models of the genome: prepare, pretrain, evaluate by length, embed, generate."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fracdna.embedding import embed
    from fracdna.generation import generate
    from fracdna.model.checkpoint import load_model, save_weights
    from fracdna.model.reverse_complement import StrandEquivariant

__version__ = "0.1.0"
__all__ = ["StrandEquivariant", "__version__", "embed", "generate", "load_model", "save_weights"]
_DOORS = {
    "StrandEquivariant": "fracdna.model.reverse_complement",
    "embed": "fracdna.embedding",
    "generate": "fracdna.generation",
    "load_model": "fracdna.model.checkpoint",
    "save_weights": "fracdna.model.checkpoint",
}


def __getattr__(name: str) -> Any:
    """Import PyTorch only when a model is asked for: the command's help must not wait for it."""
    if name in _DOORS:
        return getattr(importlib.import_module(_DOORS[name]), name)
    raise AttributeError(f"module 'fracdna' has no attribute {name!r}")
