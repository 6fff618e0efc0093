"""Options of the right kind and in range, or a refusal that names option, value and range."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from fracdna_prep.errors import InputError


def items_of(value: object) -> tuple[Any, ...]:
    """The items of a list, a single value as the only item, and none of None."""
    if value is None:
        return ()
    single = isinstance(value, str) or not isinstance(value, Sequence)
    return (value,) if single else tuple(value)


def shown(value: object) -> str:
    """Text in quotes, so that 'abc', '' and '5' are seen to be text, and None as YAML has it."""
    if value is None:
        return "null"
    return repr(value) if isinstance(value, str) else str(value)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuses what is not one of the choices."""
    if value not in choices:
        given = value if isinstance(value, str) else shown(value)
        raise InputError(f"{name}={given}: choose one of {', '.join(choices)}")


def check_whole_number(name: str, value: object, least: int) -> None:
    """Refuses anything but a whole number of at least `least`; true and false are none."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InputError(f"{name}={shown(value)}: give a whole number of at least {least}")


def check_share(name: str, value: object) -> None:
    """Refuses anything but a number from 0 to 1."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or math.isnan(value) or not 0 <= value <= 1:
        raise InputError(f"{name}={shown(value)}: give a number between 0 and 1")


def check_flag(name: str, value: object) -> None:
    """Refuses anything but true and false."""
    if not isinstance(value, bool):
        raise InputError(f"{name}={shown(value)}: choose true or false")


def check_name(name: str, value: object) -> None:
    """Refuses anything but a contig's name, which may be a whole number."""
    number = isinstance(value, Integral) and not isinstance(value, bool)
    if not number and not (isinstance(value, str) and value.strip()):
        raise InputError(f"{name}: {shown(value)} is no contig name: give names, or one name")


def check_path(name: str, value: object, wanted: str = "one path") -> None:
    """Refuses anything but one path."""
    if not isinstance(value, str | Path) or not str(value).strip() or "\0" in str(value):
        raise InputError(f"{name}={shown(value)}: give {wanted}")
