"""Devices and compute types by the names that people type."""

import platform

import torch

from fracdna_prep.errors import InputError

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}


def choose_device(name: str) -> torch.device:
    """A device that exists; "auto" takes a GPU where there is one.

    Raises:
        InputError: an unknown device, or one that this machine lacks.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device={name} cannot be used here ({reason}); try cpu") from error
    return device


def choose_precision(name: str) -> torch.dtype:
    """The compute type of a name.

    Raises:
        InputError: an unknown name.
    """
    if name not in PRECISIONS:
        raise InputError(f"precision={name}: choose one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def describe_device(device: torch.device) -> str:
    """The device in words, for results."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} threads"
