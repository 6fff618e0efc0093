"""frac_scan for one position in Triton: all heads and sequences in one launch, for decoding."""

from collections.abc import Iterator
from itertools import product

import torch
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.forms import accumulator
from fracdna_kernels.frac_scan.triton_kernels import step_kernel
from fracdna_kernels.pieces import tile_width
from fracdna_kernels.registration import operator
from fracdna_kernels.triton_support import on_device_of, padded_size, types

WIDEST = 128  # value columns of a program


def _launch(
    values: Tensor, write: Tensor, read: Tensor, u: Tensor, log_tau: Tensor,
    state: Tensor | None, after: Tensor,
) -> Tensor:  # fmt: skip
    """Write the state after the position to `after`, which may be `state`; returns the output."""
    values, write, read, u, log_tau = (x.contiguous() for x in (values, write, read, u, log_tau))
    N, _, H, V = values.shape
    M = log_tau.shape[0]
    output = torch.empty_like(values)
    width = min(WIDEST, tile_width(V))
    blocks = -(-V // width)
    with on_device_of(values):
        step_kernel[(N * H * blocks,)](
            values, write, read, u, log_tau, state, output, after, H, V, blocks, M=M,
            BM=padded_size(M), BV=width, INITIAL=state is not None,
            ACC=types(values.dtype)["ACC"], num_warps=4,
        )  # fmt: skip
    return output


@operator("frac_scan_step")
def step(
    values: Tensor, write: Tensor, read: Tensor, u: Tensor, log_tau: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output of one position and the state after it."""
    N, _, H, V = values.shape
    after = u.new_empty(N, H, log_tau.shape[0], V, dtype=accumulator(values))
    state = None if state is None else state.contiguous()
    return _launch(values, write, read, u, log_tau, state, after), after


@step.register_fake
def _(values, write, read, u, log_tau, state):
    N, _, H, V = values.shape
    after = u.new_empty(N, H, log_tau.shape[0], V, dtype=accumulator(values))
    return torch.empty_like(values, memory_format=torch.contiguous_format), after


@operator("frac_scan_step_", mutates=("state",))
def step_(
    values: Tensor, write: Tensor, read: Tensor, u: Tensor, log_tau: Tensor, state: Tensor
) -> Tensor:
    """Output of one position; the state is updated where it lies."""
    return _launch(values, write, read, u, log_tau, state, state)


@step_.register_fake
def _(values, write, read, u, log_tau, state):
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def compile_cases() -> Iterator[Case]:
    """All widths of modes and value columns in both dtypes, with and without a state."""
    exact = dict.fromkeys(("u", "log_tau", "state", "after"), "fp32")
    sizes = product((8, 16, 32), (16, 32, 64, 128), ("bf16", "fp32"), (True, False))
    for modes, width, kind, initial in sizes:
        pointers = dict.fromkeys(("values", "write", "read", "output"), kind) | exact
        constants = {
            "M": modes, "BM": modes, "BV": width, "INITIAL": initial, "ACC": tl.float32,
        } | ({} if initial else {"state": None})  # fmt: skip
        label = f"M={modes} BV={width} {kind}{'' if initial else ' from nothing'}"
        yield compile_case(step_kernel, pointers, constants, label, divisible=("V",))
