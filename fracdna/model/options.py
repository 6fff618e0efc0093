"""Whether options of a model are of the kinds that the signatures of its parts say.

Everything that is built from a configuration, or from that in a checkpoint, passes here, so parts
themselves refuse only what their signature cannot tell: ranges, and sizes that must fit others.
"""

import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from fracdna.kinds import CHOSEN_BY, KINDS, shown
from fracdna_prep.errors import InputError

GIVEN = ("d_model", "layer_index", "num_layers")  # by the model itself, to each of its layers


def check_options(config: Mapping[str, Any], part: Callable[..., Any], name: str) -> None:
    """Refuse options that a part does not take, or with values of another kind.

    A whole number is a size, so it is at least 1; numbers are finite.

    Args:
        config: plain options of the part; what stands under a "_target_" is a part of its own.
        part: the class or function that takes them.
        name: dotted name of the part in the configuration.

    Raises:
        InputError: names the option and what it may be.
    """
    taken = inspect.signature(part).parameters
    hints = get_type_hints(part.__init__ if inspect.isclass(part) else part)
    for key, value in config.items():
        option = f"{name}.{key}"
        if key.startswith("_"):
            continue
        if key not in taken:
            known = ", ".join(x for x in taken if x not in GIVEN or x in config)
            raise InputError(
                f"{option} cannot be built: {part.__name__} has no such option; it has {known}"
            )
        _check(option, value, hints.get(key, Any))


def _check(option: str, value: Any, hint: Any) -> None:
    """One option, and those of the parts in its value."""
    kinds = _kinds(hint)
    if not any(_fits(value, kind) for kind in kinds):
        words = " or ".join(dict.fromkeys(map(_words, kinds)))
        whole = f": choose it with {CHOSEN_BY[option]}" if option in CHOSEN_BY else ""
        raise InputError(f"{option}={shown(value)} needs {words}{whole}")
    if isinstance(value, Mapping):
        if "_target_" in value:
            module, _, name = value["_target_"].rpartition(".")
            check_options(value, getattr(importlib.import_module(module), name), option)
            return
        for key, part in value.items():
            _check(f"{option}.{key}", part, get_args(kinds[0])[1])


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The kinds of a union; another hint is one by itself."""
    return get_args(hint) if NoneType in get_args(hint) else (hint,)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of one kind of a signature."""
    origin, items = get_origin(kind) or kind, get_args(kind)
    if origin in (bool, str, NoneType):
        return isinstance(value, origin)
    if origin in (int, float):
        number = isinstance(value, (int, origin)) and not isinstance(value, bool)
        return number and (value >= 1 if origin is int else math.isfinite(value))
    if origin is tuple:
        return _is_list(value) and len(value) == len(items) and all(map(_fits, value, items))
    if origin is Sequence:
        return _is_list(value) and all(_fits(item, items[0]) for item in value)
    if origin in (Callable, Mapping):
        return isinstance(value, Mapping) and ("_target_" in value) == (origin is Callable)
    return True


def _is_list(value: Any) -> bool:
    """Several values in order."""
    return isinstance(value, (list, tuple))


def _words(kind: Any) -> str:
    """A kind in words for a person."""
    origin, items = get_origin(kind) or kind, get_args(kind)
    words = KINDS | {
        int: f"{KINDS[int]} of at least 1",
        float: "a finite number",
        NoneType: "null",
        tuple: f"a list of {len(items)} numbers",
        Sequence: "a list",
    }
    return words.get(origin, "a part of a model, with its _target_")
