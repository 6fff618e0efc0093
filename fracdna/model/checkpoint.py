"""The one checkpoint format and its loader.

A checkpoint is a file of torch.save whose entry "fracdna" holds plain values: format version,
model configuration and vocabulary symbols; weights are in "state_dict" with the prefix "model.".
Lightning's own entries (optimizer, loops) stand beside them and are not needed to load a model.
"""

import hashlib
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from fracdna.model.heads import LanguageModel
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

FORMAT = 1
PREFIX = "model."
# dotted paths that moved since a format-1 checkpoint was written: old name to new name
RENAMED: dict[str, str] = {}


def build_model(config: Mapping[str, Any]) -> LanguageModel:
    """Build a model from its plain configuration, the call shared by training and loading.

    Args:
        config: arguments of Backbone; dotted paths under "_target_" start with "fracdna.".

    Raises:
        InputError: a target outside fracdna, or options that a part does not take.
    """
    plain = _renamed(config)
    _check_targets(plain)
    try:
        backbone = instantiate(
            {"_target_": "fracdna.model.backbone.Backbone", "_convert_": "all", **plain}
        )
    except Exception as error:
        cause = error.__cause__ or error
        raise InputError(f"model configuration cannot be built: {cause}") from error
    return LanguageModel(backbone, plain)


def description(model: LanguageModel) -> dict[str, Any]:
    """The plain values that a checkpoint keeps beside the weights."""
    return {"format": FORMAT, "model": model.config, "vocabulary": list(DNA.symbols)}


def load_model(path: str | Path, device: str | torch.device = "cpu") -> LanguageModel:
    """Open a checkpoint for use: weights loaded strictly, evaluation mode.

    Args:
        path: a checkpoint written by training.
        device: where the weights go.

    Raises:
        InputError: no file, not a checkpoint of fracdna, a newer format, or another vocabulary.
    """
    content = read_checkpoint(path)
    model = build_model(content["fracdna"]["model"])
    weights = content["state_dict"].items()
    state = {name.removeprefix(PREFIX): w for name, w in weights if name.startswith(PREFIX)}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"{path}: weights do not fit their own configuration: {error}") from error
    return model.to(device).eval()


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read and check a checkpoint file without building its model; raises as load_model does."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise InputError(f"{path}: not a readable checkpoint ({_first_line(error)})") from error
    if not isinstance(content, dict) or "fracdna" not in content:
        raise InputError(f"{path}: not a fracdna checkpoint; train one with `fracdna train`")
    about = content["fracdna"]
    if about["format"] > FORMAT:
        raise InputError(
            f"{path}: format {about['format']} is newer than this version reads ({FORMAT}); "
            "upgrade fracdna"
        )
    if not DNA.extends(about["vocabulary"]):
        raise InputError(
            f"{path}: its vocabulary {about['vocabulary']} is not that of this version "
            f"{list(DNA.symbols)}: ids would change their meaning; use the version that wrote it"
        )
    return content


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over names, shapes and values of all weights: the identity of a model in results."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(_raw_bytes(tensor))
    return digest.hexdigest()


def _raw_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor, whatever its dtype."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _first_line(error: Exception) -> str:
    """The part of an error that fits in a sentence."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _renamed(config: Any) -> Any:
    """A plain copy in which moved targets have their present names."""
    if isinstance(config, Mapping):
        copy = {str(key): _renamed(value) for key, value in config.items()}
        if "_target_" in copy:
            copy["_target_"] = RENAMED.get(copy["_target_"], copy["_target_"])
        return copy
    if isinstance(config, Iterable) and not isinstance(config, str):
        return [_renamed(value) for value in config]
    return config


def _check_targets(config: Any) -> None:
    """A checkpoint is data: it may only name parts of this package."""
    if isinstance(config, Mapping):
        target = config.get("_target_", "fracdna.")
        if not str(target).startswith("fracdna."):
            raise InputError(f"model configuration names {target!r}, outside fracdna: refused")
        for value in config.values():
            _check_targets(value)
    elif isinstance(config, list):
        for value in config:
            _check_targets(value)
