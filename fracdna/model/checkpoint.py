"""The one checkpoint format, weights to hand on, and the loader of both.

A checkpoint is a file of torch.save whose entry "fracdna" holds plain values: format version,
model configuration and vocabulary symbols; weights are in "state_dict" with the prefix "model.".
Lightning's own entries (optimizer, loops) stand beside them and are not needed to load a model.
Weights alone are a safetensors file with its JSON (fracdna.model.weights) or a folder in Hugging
Face's form (fracdna.model.pretrained).
"""

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate

from fracdna import __version__
from fracdna.model import pretrained, weights
from fracdna.model.backbone import Backbone
from fracdna.model.heads import LanguageModel
from fracdna.model.identity import identity
from fracdna.model.options import check_options
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

FORMAT = 1
PREFIX = "model."
# modules beside the parts of models that read and write files: nothing that a file may ask for
NO_PARTS = frozenset({__name__, weights.__name__, pretrained.__name__})
# dotted paths that moved since a format-1 checkpoint was written: old name to new name
RENAMED: dict[str, str] = {}


def build_model(config: Mapping[str, Any]) -> LanguageModel:
    """Build a model from its plain configuration, the call shared by training and loading.

    Args:
        config: arguments of Backbone; dotted paths under "_target_" name mixers and layers.

    Raises:
        InputError: a target that is no part of a model, options that a part does not take, or
            values of another kind than its signature says.
    """
    plain = _renamed(config)
    if any(key.startswith("_") for key in plain):
        raise InputError(f"model configuration has special keys at its top: {sorted(plain)}")
    _check_targets(plain)
    check_options(plain, Backbone, "model")
    try:
        backbone = instantiate(
            {**plain, "_target_": "fracdna.model.backbone.Backbone", "_convert_": "all"}
        )
    except Exception as error:
        cause = error.__cause__ or error
        raise InputError(f"model configuration cannot be built: {cause}") from error
    return LanguageModel(backbone, plain)


def description(model: LanguageModel) -> dict[str, Any]:
    """The plain values that a checkpoint keeps beside the weights."""
    return {"format": FORMAT, "model": model.config, "vocabulary": list(DNA.symbols)}


def load_model(path: str | Path, device: str | torch.device = "cpu") -> LanguageModel:
    """Open a model for use: weights loaded strictly, in float32, evaluation mode.

    Args:
        path: a checkpoint written by training, weights written by save_weights (the safetensors
            file or its JSON), or a folder written by save_pretrained of fracdna.hf.
        device: where the weights go.

    Raises:
        InputError: no file, not one of fracdna, damaged, a newer format, or another vocabulary;
            weights that do not fit the configuration, or were written for another one.
    """
    content = read_checkpoint(path)
    about, saved = content["fracdna"], content["state_dict"].items()
    state = {name.removeprefix(PREFIX): w for name, w in saved if str(name).startswith(PREFIX)}
    try:
        model = build_model(about["model"])
        model.load_state_dict(state)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except RuntimeError as error:
        raise InputError(f"{path}: weights do not fit their own configuration: {error}") from error
    # weights alone say what they are; the same tensors in another configuration compute another
    if "model_hash" in about and about["model_hash"] != identity(
        about["model"], state, about["vocabulary"]
    ):
        raise InputError(
            f"{path}: its configuration or vocabulary is not that of its model_hash, so the "
            "weights would compute something else: copy both files again"
        )
    return model.to(device).eval()


def save_weights(
    model: LanguageModel,
    path: str | Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write weights to hand on: a safetensors file and a JSON beside it, which load_model opens.

    Args:
        model: its configuration, vocabulary and weights are kept, nothing of its training.
        path: X.safetensors; X.json is written too. Files of weights that are there are replaced.
        dtype: torch.bfloat16 or torch.float32; weights are rounded to it, and are float32 again
            when they are loaded.
        about: free plain values to be told, such as seed and learning rate; "training_length" is
            the bases of a training window, at which evaluations empty the state.

    Returns:
        What the JSON holds; "model_hash" is that of the model that load_model gives.

    Raises:
        InputError: another dtype or ending of the name, a model that was not built from a
            configuration, weights that are not finite, a value of `about` that JSON cannot hold, a
            JSON of something else in the place, or a folder that cannot be written.
    """
    path = Path(path)
    names = {known: name for name, known in weights.DTYPES.items()}
    if dtype not in names:
        raise InputError(f"dtype={dtype}: weights are written in {' or '.join(weights.DTYPES)}")
    if not model.config:
        raise InputError(f"{path}: the model has no configuration: build it with build_model")
    state = {name: w.detach().to("cpu", dtype) for name, w in model.state_dict().items()}
    for name, weight in state.items():
        if not weight.isfinite().all():
            raise InputError(f"{path}: {name} is not finite in {names[dtype]}: nothing is written")
    facts = description(model) | {
        "format": weights.FORMAT,
        "fracdna": __version__,
        "dtype": names[dtype],
        "parameters": sum(p.numel() for p in model.parameters()),
        "model_hash": identity(model.config, {name: w.float() for name, w in state.items()}),
        "about": dict(about or {}),
    }
    return weights.write_weights(path, state, facts)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read and check a checkpoint file without building its model; raises as load_model does.

    Weights alone come in the same form: "fracdna" is what their JSON holds.
    """
    path = Path(path)
    if weights.is_weights(path) or path.is_dir():
        read = pretrained.read_pretrained if path.is_dir() else weights.read_weights
        facts, tensors = read(path)
        content = {"state_dict": {PREFIX + name: tensor for name, tensor in tensors.items()}}
        content["fracdna"] = facts
    else:
        content = _read_training_file(path)
    check_vocabulary(path, content["fracdna"]["vocabulary"])
    return content


def check_vocabulary(place: str | Path, symbols: Sequence[str]) -> None:
    """Refuse ids that do not mean here what they meant where the model was trained.

    Raises:
        InputError: symbols that this version's vocabulary does not extend.
    """
    if not symbols or not DNA.extends(symbols):
        raise InputError(
            f"{place}: its vocabulary {symbols} is not that of this version "
            f"{list(DNA.symbols)}: ids would change their meaning; use the version that wrote it"
        )


def _read_training_file(path: Path) -> dict[str, Any]:
    """A checkpoint of training, all but its vocabulary checked."""
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read or is damaged ({error.strerror}); a run's other checkpoints "
            "stand beside it"
        ) from error
    except Exception as error:  # what damaged bytes raise has no common type
        raise InputError(
            f"{path}: not a readable checkpoint: the file is damaged, of another kind, or holds "
            "more than tensors and plain values"
        ) from error
    about = content.get("fracdna") if isinstance(content, dict) else None
    kinds = {"format": int, "model": dict, "vocabulary": list}
    known = isinstance(about, dict) and isinstance(content.get("state_dict"), dict)
    if not known or not all(isinstance(about.get(k), kind) for k, kind in kinds.items()):
        raise InputError(f"{path}: not a fracdna checkpoint; train one with `fracdna train`")
    weights.check_format(path, about["format"], FORMAT)
    return content


def model_hash(model: LanguageModel) -> str:
    """SHA-256 over vocabulary, configuration and all weights: the identity of a model in results.

    The configuration counts because it changes what the same weights compute (gain, time scales);
    only what is of training alone does not.
    """
    return identity(model.config, model.state_dict())


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
    """A checkpoint is data: it may only name classes and functions that models are made of."""
    if isinstance(config, Mapping):
        if "_target_" in config:
            _check_target(str(config["_target_"]))
        for value in config.values():
            _check_targets(value)
    elif isinstance(config, list):
        for value in config:
            _check_targets(value)


def _check_target(target: str) -> None:
    """Refuse what is not defined in a module of mixers or models, also what one merely imports."""
    match = re.fullmatch(r"(fracdna\.(?:mixers|model)\.\w+)\.(\w+)", target)
    if match and match[1] not in NO_PARTS:
        module, name = match.groups()
        try:
            part = getattr(importlib.import_module(module), name, None)
        except ImportError:
            part = None
        if getattr(part, "__module__", None) == module:
            return
    raise InputError(f"model configuration names {target!r}, which is no part of a model: refused")
