"""Devices and compute types by the names that people type."""

import platform

import torch

from fracdna_prep.errors import InputError

# positions of one forward pass: more fills a GPU; on a CPU it goes to the system, which clears new
# memory for every pass
AUTO_BATCH_BASES = {"cuda": 65_536, "cpu": 8_192}
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}


def choose_device(name: str, precision: str = "float32") -> torch.device:
    """A device that exists and computes in a precision; "auto" takes a GPU where there is one.

    Raises:
        InputError: an unknown device, one that this machine lacks, or one without that precision.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device={name}: choose auto, cpu, cuda or cuda:<number>") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device={name}: choose auto, cpu, cuda or cuda:<number>")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device={name}: PyTorch sees {torch.cuda.device_count()} CUDA devices here; use "
            "device=cpu, or see `fracdna doctor`"
        )
    low = device.type == "cuda" and choose_precision(precision) == torch.bfloat16
    if low and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise InputError(f"precision=bf16: device={name} has no bf16; use precision=float32")
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
