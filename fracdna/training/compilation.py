"""Whether torch.compile can work here."""

import os
import shutil

import torch

from fracdna_prep.errors import InputError

# by the kind of the device: the variable that names a compiler, and those that are looked for
# (TorchInductor builds C++ for a CPU; Triton builds the C that launches its kernels)
COMPILERS = {"cpu": ("CXX", ("g++",)), "cuda": ("CC", ("gcc", "clang"))}


def check_compiler(device: torch.device) -> None:
    """Refuse to compile for a device where no compiler is found.

    Raises:
        InputError: says which compilers were looked for.
    """
    variable, known = COMPILERS[device.type]
    named = os.environ.get(variable)
    if not any(shutil.which(name) for name in ([named] if named else known)):
        missing = f"{variable}={named} is none" if named else f"{' or '.join(known)} is not here"
        raise InputError(
            f"compile=true needs a compiler for the {device.type.upper()}, and {missing}: install "
            f"one, name it in {variable}, or leave compile=true out"
        )
