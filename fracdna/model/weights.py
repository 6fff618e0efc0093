"""Weights-only files: tensors in X.safetensors, and in X.json beside it what they are.

The JSON holds plain values: kind and format of the file, model configuration and vocabulary symbols
as in a checkpoint, dtype of the tensors, SHA-256 of the safetensors file, and what is told about
the training. Tensors have the names of a model's state.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file

KIND = "fracdna weights"
FORMAT = 1
SUFFIX, FACTS_SUFFIX = ".safetensors", ".json"
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_KINDS = {
    "format": int, "model": dict, "vocabulary": list, "dtype": str, "sha256": str,
    "model_hash": str, "about": dict,
}  # fmt: skip


def is_weights(path: Path) -> bool:
    """Whether a path is named as one of the two files is."""
    return path.suffix in (SUFFIX, FACTS_SUFFIX)


def write_weights(
    path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write both files; whatever interrupts it, neither is ever half written.

    Both are whole under temporary names before the first is renamed, and the JSON is the last: what
    is cut off between the two is refused by the hash.

    Args:
        path: of the safetensors file; what is there is replaced.
        tensors: by their names in the model, all of the dtype that facts["dtype"] names.
        facts: the JSON without kind and sha256.

    Returns:
        What the JSON holds.

    Raises:
        InputError: a name with another ending, a JSON of something else beside it, facts that JSON
            cannot hold, or a folder that cannot be written.
    """
    if path.suffix != SUFFIX:
        raise InputError(f"{path}: weights are written to a file whose name ends in {SUFFIX}")
    facts_path = path.with_suffix(FACTS_SUFFIX)
    _check_replaceable(facts_path)
    check_about(path, facts["about"])
    from safetensors.torch import save

    # a tensor that is part of another, or shared, is written by itself
    whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    packed = save(whole, metadata={"format": "pt"})
    content = {"kind": KIND, **facts, "sha256": hashlib.sha256(packed).hexdigest()}
    text = _as_json(path, content)
    with atomic_file(facts_path) as temporary_facts, atomic_file(path) as temporary:
        temporary.write_bytes(packed)
        temporary_facts.write_text(text)
    return content


def read_weights(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read and check both files.

    Args:
        path: of either of them.

    Returns:
        What the JSON holds, and the tensors in float32.

    Raises:
        InputError: a file is missing, damaged, of another kind or format, or not the one that the
            JSON tells of; tensors of another dtype than it says.
    """
    path, facts_path = path.with_suffix(SUFFIX), path.with_suffix(FACTS_SUFFIX)
    for file, other in ((path, facts_path), (facts_path, path)):
        if not file.is_file():
            raise InputError(
                f"{file}: no such file; weights are two files with one name: {other.name} is "
                f"read together with {file.name}"
            )
    facts = _read_facts(facts_path)
    return facts, _read_tensors(path, facts)


def check_format(path: Path, given: int, known: int) -> None:
    """Refuse files of a newer version.

    Raises:
        InputError: they are.
    """
    if given > known:
        raise InputError(
            f"{path}: format {given} is newer than this version reads ({known}); upgrade fracdna"
        )


def _check_replaceable(path: Path) -> None:
    """A JSON of something else is not replaced."""
    if path.exists():
        try:
            _read_json(path)
        except InputError as error:
            raise InputError(f"{error}; it is not replaced: name another file") from error


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON of weights, of any format."""
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(facts, dict) or facts.get("kind") != KIND:
        raise InputError(f"{path}: not the JSON that fracdna.save_weights puts beside weights")
    return facts


def _read_facts(path: Path) -> dict[str, Any]:
    """A JSON of weights, checked."""
    facts = _read_json(path)
    if isinstance(facts.get("format"), int):
        check_format(path, facts["format"], FORMAT)
    wrong = [key for key, kind in _KINDS.items() if not isinstance(facts.get(key), kind)]
    if wrong or facts["format"] < 1 or facts["dtype"] not in DTYPES:
        names = ", ".join(wrong) or ("format" if facts["format"] < 1 else "dtype")
        raise InputError(
            f"{path}: {names} missing or not as in weights of fracdna; dtype is one of "
            f"{', '.join(DTYPES)}: copy the file again, or export the weights again"
        )
    check_about(path, facts["about"])
    return facts


def _read_tensors(path: Path, facts: Mapping[str, Any]) -> dict[str, Tensor]:
    """The bytes that were checked are those that are read."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != facts["sha256"]:
        raise InputError(
            f"{path}: not the file that {path.with_suffix(FACTS_SUFFIX).name} tells of: its "
            f"SHA-256 is {digest}, not {facts['sha256']}; it is damaged or another one: copy both "
            "files again"
        )
    try:
        tensors = load(content)
    except (SafetensorError, ValueError) as error:
        raise InputError(f"{path}: not a readable safetensors file: {error}") from error
    expected = DTYPES[facts["dtype"]]
    for name, tensor in tensors.items():
        if tensor.dtype != expected:
            raise InputError(
                f"{path}: {name} is {tensor.dtype}, where its JSON says {facts['dtype']}: export "
                "the weights again"
            )
    return {name: tensor.float() for name, tensor in tensors.items()}


def check_about(path: Path, about: Mapping[str, Any]) -> None:
    """What is told is free, but for the one fact that evaluations use."""
    length = about.get("training_length")
    if length is not None and (type(length) is not int or length < 1):
        raise InputError(
            f"{path}: training_length={length!r}: it is the bases of a training window, a whole "
            "number of at least 1"
        )


def _as_json(path: Path, facts: Mapping[str, Any]) -> str:
    """The text of the JSON."""
    try:
        return json.dumps(facts, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path}: what is told about the weights must be plain finite values: {error}"
        ) from error
