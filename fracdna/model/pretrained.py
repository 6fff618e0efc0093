"""Folders that save_pretrained of fracdna.hf writes, read without transformers.

config.json holds plain values beside those of transformers: format version, model configuration and
vocabulary symbols as in a checkpoint, the hash of the model, one of every tensor, and what is told
about the training. Weights are one safetensors file, or several with their index. Their names are
those of a model's state, under "model." where a language model was saved and not its trunk.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fracdna.model.identity import identity, tensor_hashes
from fracdna.model.weights import check_about, check_format
from fracdna_prep.errors import InputError

MODEL_TYPE = "fracdna"
FORMAT = 1
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
PREFIX = "model."
_KINDS = {
    "format": int, "model": dict, "vocabulary": list, "model_hash": str, "tensor_hashes": dict,
    "about": dict,
}  # fmt: skip
# float32 holds every value of these, so it gives the same weights back
_EXACT_IN_FLOAT32 = (torch.float32, torch.bfloat16, torch.float16)


def facts_of(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The hashes that config.json keeps.

    Args:
        config: plain configuration of the model.
        state: its weights, under their names with or without "model.", on any device.

    Returns:
        "model_hash", that of the model as fracdna.load_model opens the folder, and "tensor_hashes".

    Raises:
        InputError: a weight that float32 does not hold, or that is not finite.
    """
    exact = _in_float32(state)
    for name, weight in exact.items():
        if not weight.isfinite().all():
            raise InputError(f"{name} is not finite: nothing is written")
    return {"model_hash": identity(config, exact), "tensor_hashes": tensor_hashes(exact)}


def check_weights(place: str | Path, facts: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """Refuse weights that are not those that config.json was written for.

    Args:
        place: what is loaded, for the message.
        facts: what config.json holds.
        state: the weights as they were loaded, under their names with or without "model.".

    Raises:
        InputError: names tensors that are missing, unknown or have other values, or says that the
            configuration is another one.
    """
    check_facts(place, facts)
    exact = _in_float32(state)
    found, told = tensor_hashes(exact), facts["tensor_hashes"]
    wrong = {
        "missing": sorted(told.keys() - found.keys()),
        "unknown": sorted(found.keys() - told.keys()),
        "with other values": sorted(x for x in told.keys() & found if told[x] != found[x]),
    }
    if any(wrong.values()):
        listed = "; ".join(f"{what}: {_some(names)}" for what, names in wrong.items() if names)
        raise InputError(
            f"{place}: tensors are not those that {CONFIG_FILE} was written for, {listed}: the "
            "folder is damaged or mixed, or a tensor was initialised anew: export the model again"
        )
    if identity(facts["model"], exact, facts["vocabulary"]) != facts["model_hash"]:
        raise InputError(
            f"{place}: {CONFIG_FILE} has another configuration or vocabulary than those that its "
            "model_hash was made of, so the weights would compute something else: export the model "
            "again"
        )


def check_facts(place: str | Path, facts: Mapping[str, Any]) -> None:
    """Refuse a config.json that lacks what a model is told by, or is of a newer version.

    Raises:
        InputError: names what is wrong.
    """
    if isinstance(facts.get("format"), int):
        check_format(Path(place), facts["format"], FORMAT)
    wrong = [key for key, kind in _KINDS.items() if not isinstance(facts.get(key), kind)]
    if wrong:
        raise InputError(
            f"{place}: {CONFIG_FILE} lacks {', '.join(wrong)}, or not as fracdna.hf writes it: "
            "without the checksums a tensor that was initialised anew would go unnoticed; export "
            "the model again"
        )
    check_about(Path(place), facts["about"])


def read_pretrained(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read and check a folder.

    Returns:
        What config.json holds, and the tensors in float32, under their names in a model.

    Raises:
        InputError: no folder of fracdna.hf, a file that is missing or damaged, or weights that are
            not those of config.json.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(
            f"{folder}: a folder without {CONFIG_FILE}: name a checkpoint file, such as "
            "checkpoints/best.ckpt of a run, or a folder that fracdna.hf wrote"
        )
    facts = _read_json(folder / CONFIG_FILE)
    if facts.get("model_type") != MODEL_TYPE:
        raise InputError(
            f"{folder}: not a folder that fracdna.hf wrote: its {CONFIG_FILE} says model_type "
            f"{facts.get('model_type')!r}, not {MODEL_TYPE!r}"
        )
    index = folder / INDEX_FILE
    names = [WEIGHTS_FILE]
    if index.is_file():
        parts = _read_json(index).get("weight_map")
        if not isinstance(parts, dict) or not all(_is_name(x) for x in parts.values()):
            raise InputError(f"{index}: no index of safetensors files: export the model again")
        names = sorted(set(parts.values()))
    state: dict[str, Tensor] = {}
    for name in names:
        state |= _read_tensors(folder / name)
    check_weights(folder, facts, state)
    return facts, _in_float32(state)


def _in_float32(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights as a model uses them, under their names in a model."""
    for name, tensor in state.items():
        if tensor.dtype not in _EXACT_IN_FLOAT32:
            raise InputError(
                f"{name} is {tensor.dtype}: weights are kept in float32, bfloat16 or float16"
            )
    return {name.removeprefix(PREFIX): tensor.detach().float() for name, tensor in state.items()}


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object: export the model again")
    return content


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(
            f"{path}: missing or not a readable safetensors file ({error}): copy the folder again"
        ) from error


def _is_name(text: Any) -> bool:
    """Whether this names a file of the folder itself."""
    return isinstance(text, str) and Path(text).name == text


def _some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
