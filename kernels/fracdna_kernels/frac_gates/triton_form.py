"""frac_gates in one kernel each way, registered as operators of PyTorch.

Only the inputs are saved for the backward pass, which computes everything again.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.forms import accumulator
from fracdna_kernels.frac_gates.triton_kernels import gates_backward, gates_forward
from fracdna_kernels.registration import operator
from fracdna_kernels.triton_rows import optional_rows, partial_sums, rows_of, summed
from fracdna_kernels.triton_support import ceil_div, on_device_of, padded_size, types

ELEMENTS = 2048  # of a tile: with 128 threads, 128 rows of 16 modes give each thread one clock
WARPS = 4


def frac_gates_triton(
    delta: Tensor,
    alpha: Tensor | None,
    lam: Tensor,
    read_logits: Tensor,
    write_logits: Tensor,
    log_tau: Tensor,
    dt_bias: Tensor,
    read_gain: Tensor,
    write_gain: Tensor,
    gain: str,
    read_prior: bool,
    write_prior: bool,
    delta_range: tuple[float, float],
    alpha_range: tuple[float, float],
    lam_range: tuple[float, float],
) -> tuple[Tensor, Tensor, Tensor]:
    """See frac_gates for shapes and meaning."""
    bounds = [float(bound) for pair in (delta_range, alpha_range, lam_range) for bound in pair]
    return _gates(
        delta, alpha, lam, read_logits, write_logits, log_tau, dt_bias, read_gain, write_gain,
        gain, read_prior, write_prior, bounds,
    )  # fmt: skip


def _constants(
    delta: Tensor,
    read_logits: Tensor,
    gain: str,
    read_prior: bool,
    write_prior: bool,
    bounds: list[float],
) -> dict[str, Any]:
    """What both kernels are compiled for."""
    heads, modes = read_logits.shape[-2:]
    return _sized(heads, modes, delta.dtype, gain, read_prior, write_prior, *bounds)


@cache
def _sized(
    heads: int,
    modes: int,
    dtype: torch.dtype,
    gain: str,
    read_prior: bool,
    write_prior: bool,
    *bounds: float,
) -> dict[str, Any]:
    """As _constants, of sizes and options."""
    padded_heads, padded_modes = (padded_size(size) for size in (heads, modes))
    names = ("DELTA_LOW", "DELTA_HIGH", "ALPHA_LOW", "ALPHA_HIGH", "LAM_LOW", "LAM_HIGH")
    return {
        "H": heads,
        "M": modes,
        "POSITIONS": max(1, ELEMENTS // (padded_heads * padded_modes)),
        "HEADS": padded_heads,
        "MODES": padded_modes,
        "ZOH": gain == "zoh",
        "READ_PRIOR": read_prior,
        "WRITE_PRIOR": write_prior,
        "ACC": types(dtype)["ACC"],
        "num_warps": WARPS,
        **dict(zip(names, bounds, strict=True)),
    }


def _placed(
    delta: Tensor,
    alpha: Tensor | None,
    lam: Tensor,
    read_logits: Tensor,
    write_logits: Tensor,
    log_tau: Tensor,
    dt_bias: Tensor,
    read_gain: Tensor,
    write_gain: Tensor,
) -> tuple[list[Any], list[int]]:
    """The inputs as rows of positions, and the strides between those."""
    streams = [optional_rows(x) for x in (delta, alpha, lam)]
    streams += [_logit_rows(x) for x in (read_logits, write_logits)]
    rows, strides = zip(*streams, strict=True)
    return [*rows, log_tau.contiguous(), dt_bias.contiguous(), read_gain, write_gain], [*strides]


def _logit_rows(logits: Tensor) -> tuple[Tensor, int]:
    """As rows_of: those of all heads and modes of a position."""
    if logits.is_contiguous():
        return logits, logits.shape[-2] * logits.shape[-1]
    return rows_of(logits.flatten(2))


@operator("frac_gates")
def _gates(
    delta: Tensor,
    alpha: Tensor | None,
    lam: Tensor,
    read_logits: Tensor,
    write_logits: Tensor,
    log_tau: Tensor,
    dt_bias: Tensor,
    read_gain: Tensor,
    write_gain: Tensor,
    gain: str,
    read_prior: bool,
    write_prior: bool,
    bounds: list[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """u, read and write."""
    inputs = (
        delta, alpha, lam, read_logits, write_logits, log_tau, dt_bias, read_gain, write_gain
    )  # fmt: skip
    options = gain, read_prior, write_prior, bounds
    outputs = _outputs(*inputs, *options)
    constants = _constants(delta, read_logits, *options)
    count = delta.shape[0] * delta.shape[1]
    programs = ceil_div(count, constants["POSITIONS"])
    if programs:
        placed, strides = _placed(*inputs)
        with on_device_of(delta):
            gates_forward[(programs,)](*placed, *outputs, count, *strides, **constants)
    return outputs


@_gates.register_fake
def _outputs(
    delta: Tensor,
    alpha: Tensor | None,
    lam: Tensor,
    read_logits: Tensor,
    write_logits: Tensor,
    log_tau: Tensor,
    dt_bias: Tensor,
    read_gain: Tensor,
    write_gain: Tensor,
    gain: str,
    read_prior: bool,
    write_prior: bool,
    bounds: list[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs before they are computed."""
    dense = torch.contiguous_format
    u = torch.empty_like(delta, dtype=accumulator(delta), memory_format=dense)
    read = torch.empty_like(read_logits, memory_format=dense)
    return u, read, torch.empty_like(read)


@operator("frac_gates_backward")
def _backward(
    d_u: Tensor,
    d_read: Tensor,
    d_write: Tensor,
    delta: Tensor,
    alpha: Tensor | None,
    lam: Tensor,
    read_logits: Tensor,
    write_logits: Tensor,
    log_tau: Tensor,
    dt_bias: Tensor,
    read_gain: Tensor,
    write_gain: Tensor,
    gain: str,
    read_prior: bool,
    write_prior: bool,
    bounds: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of delta, alpha (empty without), lam and both logits, and H + 2 sums."""
    inputs = (
        delta, alpha, lam, read_logits, write_logits, log_tau, dt_bias, read_gain, write_gain
    )  # fmt: skip
    options = gain, read_prior, write_prior, bounds
    incoming = [x.contiguous() for x in (d_u, d_read, d_write)]
    gradients = _streams(delta, alpha, lam, read_logits, write_logits)
    constants = _constants(delta, read_logits, *options)
    count = delta.shape[0] * delta.shape[1]
    programs = ceil_div(count, constants["POSITIONS"])
    sums = partial_sums(1, programs, delta.shape[-1] + 2, like=delta)
    if programs:
        placed, strides = _placed(*inputs)
        with on_device_of(delta):
            gates_backward[(programs,)](
                *placed, *incoming, *gradients, sums, count, *strides, **constants
            )
    return (*gradients, summed(sums)[0])


@_backward.register_fake
def _gradients(
    d_u: Tensor,
    d_read: Tensor,
    d_write: Tensor,
    delta: Tensor,
    alpha: Tensor | None,
    lam: Tensor,
    read_logits: Tensor,
    write_logits: Tensor,
    log_tau: Tensor,
    dt_bias: Tensor,
    read_gain: Tensor,
    write_gain: Tensor,
    gain: str,
    read_prior: bool,
    write_prior: bool,
    bounds: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients before they are computed."""
    gradients = _streams(delta, alpha, lam, read_logits, write_logits)
    return (*gradients, delta.new_empty(delta.shape[-1] + 2, dtype=accumulator(delta)))


def _streams(delta: Tensor, alpha: Tensor | None, *others: Tensor) -> list[Tensor]:
    """Gradients of what belongs to positions before they are computed; empty without alpha."""
    alpha = delta[:0] if alpha is None else alpha
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (delta, alpha, *others)
    ]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """What the backward pass needs."""
    ctx.save_for_backward(*inputs[:9])
    ctx.options = inputs[9:]


def _gates_gradients(ctx: Any, *incoming: Tensor) -> Any:
    """For every argument of _gates."""
    inputs = ctx.saved_tensors
    _, alpha, _, _, _, _, dt_bias, read_gain, write_gain = inputs
    d_delta, d_alpha, *others, sums = _backward(*incoming, *inputs, *ctx.options)
    *d_bias, d_read_gain, d_write_gain = sums.split([len(dt_bias), 1, 1])
    parameters = (
        d_bias[0].to(dt_bias.dtype),
        d_read_gain.reshape(()).to(read_gain.dtype),
        d_write_gain.reshape(()).to(write_gain.dtype),
    )
    d_alpha = None if alpha is None else d_alpha
    return d_delta, d_alpha, *others, None, *parameters, None, None, None, None


_gates.register_autograd(_gates_gradients, setup_context=_save)


def compile_cases() -> Iterator[Case]:
    """Tiles of few and many heads and modes, logits in both dtypes, with all that can be chosen."""
    clock = ("delta", "alpha", "lam", "log_tau", "dt_bias", "read_gain", "write_gain", "u")
    clock += ("d_u", "d_delta", "d_alpha", "d_lam", "d_parameters")
    routes = ("read_logits", "write_logits", "read", "write")
    routes += tuple(f"d_{name}" for name in routes)
    bounds = [1e-4, 1.0, 0.1, 0.9, 0.25, 4.0]
    for (heads, modes), kind, plain in product(
        ((1, 16), (3, 8), (4, 16), (16, 16), (16, 32)), ("bf16", "fp32"), (True, False)
    ):
        pointers = dict.fromkeys(clock, "fp32") | dict.fromkeys(routes, kind)
        logits = torch.empty(1, 1, heads, modes, device="meta")
        options = ("dc", True, True) if plain else ("zoh", False, False)
        constants = _constants(logits, logits, *options, bounds)
        constants |= dict.fromkeys(() if plain else ("alpha",))
        label = f"H={heads} M={modes} {kind} {'dc' if plain else 'zoh, alpha 1, no prior'}"
        for kernel in (gates_forward, gates_backward):
            yield compile_case(kernel, pointers, constants, label)
