"""Sequence models of the genome: prepare, pretrain, evaluate by length, embed."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fracdna.model.checkpoint import load_model

__version__ = "0.1.0"
__all__ = ["__version__", "load_model"]


def __getattr__(name: str) -> Any:
    """Import PyTorch only when a model is asked for: the command's help must not wait for it."""
    if name == "load_model":
        from fracdna.model.checkpoint import load_model

        return load_model
    raise AttributeError(f"module 'fracdna' has no attribute {name!r}")
