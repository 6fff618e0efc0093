"""Where fused forms run, and what their kernels share; imported before Triton is.

A form that is fused lives in a module named triton_*.py, which imports Triton and is itself
imported when it is first used: everything else works on a machine without Triton.
"""

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float32)
CAPABILITIES = (8, 9)  # major versions for which the kernels are written; run on 9.0


def interpreted() -> bool:
    """Whether Triton kernels run in Python on the CPU, which tests do (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@torch.compiler.assume_constant_result
def _missing_triton() -> str | None:
    """Why Triton cannot be imported, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton, Linux only)"
    return None


def fused_refusal(x: Tensor) -> str | None:
    """Why the fused kernels cannot take a tensor's device and dtype; None: they can.

    float64 runs in the interpreter alone, where it serves to check gradients.
    """
    if not x.is_cuda and x.device.type == "cpu" and interpreted():
        known = x.dtype in (*DTYPES, torch.float64)
        return _missing_triton() or (None if known else f"no kernel for {x.dtype}")
    return _compiled_refusal(x.device, x.dtype)


@torch.compiler.assume_constant_result
def _compiled_refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why compiled kernels cannot take tensors of a device and dtype, or None."""
    return _found_refusal(device, dtype)


@functools.cache
def _found_refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """What _compiled_refusal says; asking the device takes longer than a launch."""
    missing = _missing_triton()
    if missing:
        return missing
    if device.type != "cuda":
        return f"needs a CUDA device, got {device.type}"
    major, minor = torch.cuda.get_device_capability(device)
    if torch.version.hip is not None or major not in CAPABILITIES:
        return f"written for compute capability 8.0 to 9.x, this device has {major}.{minor}"
    return None if dtype in DTYPES else f"takes bfloat16 or float32, got {dtype}"


_LOADED: dict[str, list[Callable[..., Any]]] = {}


def describe_kernels(device: torch.device, dtype: torch.dtype = torch.float32) -> str:
    """What operators run as where the choice is left to them, in words for a person.

    Args:
        device: where the model is.
        dtype: of the tensors, or of autocast.

    Returns:
        "Triton", or "PyTorch" with the reason why the fused kernels are not taken.
    """
    refusal = fused_refusal(torch.empty(0, device=device, dtype=dtype))
    if device.type == "cuda" and refusal is None:
        return "Triton"
    return f"PyTorch ({refusal or 'the processor has no fused kernels'})"


@torch.compiler.assume_constant_result
def _load(module: str, name: str) -> None:
    """Import a function into its slot; the compiler runs this instead of tracing it."""
    _LOADED[f"{module}.{name}"][:] = [getattr(importlib.import_module(module), name)]


def lazily(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that is imported at the first call."""
    slot = _LOADED.setdefault(f"{module}.{name}", [])

    def call(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling() or not slot:
            _load(module, name)
        return slot[0](*args, **options)

    call.__name__ = name
    return call
