"""What values the options of the command may have, checked before any work.

Kinds follow from the defaults in the YAML: a number stays a number, a list of numbers one of
numbers (a single one counts as a list). What a default cannot tell stands in the tables here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fracdna_prep.errors import InputError

# options whose default is null or auto, with what they are otherwise
OPTIONAL = {
    "fasta": "texts",
    "checkpoint": "texts",
    "names": "texts",
    "regions": "texts",
    "output": "text",
    "intervals": "text",
    "store": "text",
    "genome": "text",
    "prepared": "text",
    "data.prepared": "text",
    "data.bases_per_batch": "whole number, or auto",
    "batch_bases": "whole number, or auto",
    "schedule.start_lr": "number",
    "schedule.final_lr": "number",
    "logger.name": "text",
    "reset": "whole number",
    "logger.group": "text",
    "logger.entity": "text",
    "logger.id": "text",
    "block_size": "whole number",
    "guard": "whole number",
    "dataset": "text",
    "train": "text",
    "dev": "text",
    "test": "text",
    "max_train": "whole number",
    "jobs": "whole number",
    "batch_positions": "whole number, or auto",
    "task.d_model": "whole number",
    "task.persist": "whole number",
    "task.capacity": "whole number",
}
# options with another default that may be null
NULLABLE = ("trainer.gradient_clip_val", "task.persist", "task.capacity", "task.d_model")
# lists of records: what each has, whole numbers of at least 1
RECORDS = {
    "data.stages": ("length", "steps"),
    "task.training": ("length", "pairs"),
    "task.tests": ("length", "pairs"),
}
# lists that may be empty although their default is not
EMPTIABLE = ("lengths", "task.lengths", "task.tests")
# lowest and highest value, of lists each value
RANGES = {
    "steps": (1, math.inf),
    "seed": (0, 2**32 - 1),
    "schedule.warmup": (0, 1),
    "schedule.final": (0, 1),
    "schedule.start_lr": (0, math.inf),
    "schedule.final_lr": (0, math.inf),
    "soft_mask_weight": (0, 1),
    "validate_every": (1, math.inf),
    "checkpoint_every": (1, math.inf),
    "log_every": (1, math.inf),
    "target": (1, math.inf),
    "reset": (1, math.inf),
    "stream_block": (1, math.inf),
    "data.length": (1, math.inf),
    "data.bases_per_step": (1, math.inf),
    "data.bases_per_batch": (1, math.inf),
    "data.validation_bases": (1, math.inf),
    "data.workers": (0, 1024),
    "optimizer.lr": (0, math.inf),
    "optimizer.weight_decay": (0, math.inf),
    "optimizer.betas": (0, 1),
    "trainer.gradient_clip_val": (0, math.inf),
    "lengths": (1, math.inf),
    "regions": (1, math.inf),
    "max_n_fraction": (0, 1),
    "batch_bases": (1, math.inf),
    "segment": (1, math.inf),
    "flank": (0, math.inf),
    "devices": (1, 1024),
    "jobs": (1, 1024),
    "batch_positions": (1, math.inf),
    "task.learning_rates": (0, math.inf),
    "task.seeds": (0, 2**32 - 1),
    "task.d_model": (1, math.inf),
    "task.length": (1, math.inf),
    "task.steps": (1, math.inf),
    "task.batch": (1, math.inf),
    "task.validation": (1, math.inf),
    "task.streams": (1, math.inf),
    "task.lengths": (1, math.inf),
    "task.gammas": (0, math.inf),
    "task.event_rate": (0, 1),
    "task.event_count": (1, math.inf),
    "task.min_margin": (0, math.inf),
    "task.first_dense": (1, math.inf),
    "task.weight_decay": (0, math.inf),
    "task.warmup": (0, 1),
    "task.final": (0, 1),
    "task.clip": (0, math.inf),
    "task.growing_limit": (1, math.inf),
    "task.vocabulary_rows": (8, math.inf),
    "task.examples_per_kind": (1, math.inf),
    "task.passes": (1, math.inf),
    "task.powers": (0, math.inf),
    "task.epochs": (1, math.inf),
    "task.sequences": (1, math.inf),
    "task.persist": (1, math.inf),
    "task.capacity": (4, math.inf),
}
# of several kinds: the first are left to Lightning, the others are checked where they are used
FREE = (
    "trainer.devices",
    "trainer.strategy",
    "trainer.precision",
    "cuda_graphs",
    "model.activation_checkpointing",
)
# options under which others stand, and how they are exchanged as a whole
CHOSEN_BY = {"model.mixer": "mixer=gdn"}
KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text (quote a number: \"key='2024'\")",
}


def check_values(defaults: Sequence[DictConfig], config: DictConfig) -> None:
    """Refuse values of another kind or out of range; a single value for a list becomes one.

    Args:
        defaults: resolved configurations without values of the user; the first that has an option
            says its kind.
        config: the one to check, and to put lists of one into.

    Raises:
        InputError: names the option, its value and what it may be.
    """
    before = dict(item for default in reversed(defaults) for item in _leaves(default))
    for name, value in _leaves(config):
        if value == "???":
            raise InputError(f"{name}=??? needs a value")
        if name in FREE or str(value).startswith("${"):
            continue
        _check_place(name, value, before)
        if name in before:  # one added with a plus is checked where it is used
            _check_kind(name, before[name], value)
        if isinstance(before.get(name), list) and not isinstance(value, list):
            OmegaConf.update(config, name, [value])
        low, high = RANGES.get(name, (None, None))
        for number in value if isinstance(value, list) else [value]:
            numeric = isinstance(number, (int, float)) and not isinstance(number, bool)
            if low is not None and numeric and not (low <= number <= high and number < math.inf):
                upper = " and finite" if high == math.inf else f" and at most {high}"
                raise InputError(f"{name}={shown(value)} must be at least {low}{upper}")


def option_names(config: DictConfig) -> list[str]:
    """Dotted names of all options."""
    return [name for name, _ in _leaves(config)]


def shown(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, list):
        return "[" + ",".join(map(shown, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {shown(part)}" for name, part in value.items()) + "}"
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _check_place(name: str, value: Any, before: Mapping[str, Any]) -> None:
    """One value neither replaces options that stand under its name nor stands under a value."""
    under = [key for key in before if key.startswith(f"{name}.") and "._" not in key]
    # a part of a model may be left out; one that it needs is missed where it is built
    if under and not (value is None and name.startswith("model.")):
        whole = f", or all with {CHOSEN_BY[name]}" if name in CHOSEN_BY else ""
        raise InputError(
            f"{name}={shown(value)} would stand for several options: set one, as in "
            f"{under[0]}={shown(before[under[0]])}{whole}"
        )
    above = name.rpartition(".")[0]
    if before.get(above) is not None:
        raise InputError(f"{above} is one value and takes no options: {above}={before[above]}")


def _check_kind(name: str, default: Any, value: Any) -> None:
    """One value against its default, or against the tables where that says too little."""
    if name in RECORDS:
        _check_records(name, value)
    elif value is None and (default is None or name in NULLABLE):
        return
    elif default is None or (default == "auto" and name in OPTIONAL):
        kind = OPTIONAL.get(name)
        fits = {
            None: True,
            "text": _is_text(value),
            "texts": _is_text(value) or (_is_list(value, str) and all(map(_is_text, value))),
            "whole number": _is(value, int),
            "whole number, or auto": _is(value, int) or value == "auto",
            "number": _is(value, float),
        }
        if not fits[kind]:
            words = {"texts": "text, or a list of texts", "text": "text"}
            raise InputError(f"{name}={shown(value)} needs {words.get(kind, f'a {kind}')}")
    elif isinstance(default, list):
        kind = type(default[0]) if default else None
        listed = value if isinstance(value, list) else [value]
        empty = value == [] and name in EMPTIABLE
        if value is None or (kind is not None and not empty and not _is_list(listed, kind)):
            raise InputError(f"{name}={shown(value)} needs a list: {name}={shown(default)}")
    elif type(default) in KINDS and not _is(value, type(default)):
        raise InputError(f"{name}={shown(value)} needs {KINDS[type(default)]}")


def _check_records(name: str, value: Any) -> None:
    """A list of records that have all of their whole numbers and nothing else."""
    fields = RECORDS[name]
    for record in value if isinstance(value, list) else [value]:
        numbers = isinstance(record, dict) and set(record) == set(fields) and record.values()
        if not numbers or not all(_is(number, int) and number >= 1 for number in numbers):
            example = ", ".join(f"{field}: 1000" for field in fields)
            raise InputError(
                f"{name}={shown(value)} needs a list of {' and '.join(fields)}, whole numbers of "
                f'at least 1: "{name}=[{{{example}}}]"'
            )


def _is(value: Any, kind: type) -> bool:
    """Whether a value is of a kind; a whole number is a number, a switch is none."""
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is str:
        return _is_text(value)
    return isinstance(value, (int, float)) if kind is float else isinstance(value, kind)


def _is_text(value: Any) -> bool:
    """Text that names something."""
    return isinstance(value, str) and value.strip() != ""


def _is_list(value: Any, kind: type) -> bool:
    """A list whose values are all of a kind."""
    return isinstance(value, list) and bool(value) and all(_is(item, kind) for item in value)


def _leaves(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values, interpolations as text."""
    for name, value in OmegaConf.to_container(config, resolve=False).items():
        if isinstance(value, dict):
            yield from _leaves(OmegaConf.create(value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
