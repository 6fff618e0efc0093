"""frac_scan in Triton: pieces of sequences in parallel, forward and backward.

Every head of every sequence is cut into pieces when there are too few heads and sequences to fill
a GPU. A first sweep finds what each piece adds to the state, a short one carries it from piece to
piece, and then all pieces run at once. The backward pass sweeps the adjoint of the state in the
same way and then takes every chunk of BT positions by itself, from the state before it, kept by
the forward pass, and the adjoint after it.

B batch   T length   H heads   V value width   M modes   N sequences   G pieces
"""

from collections.abc import Iterator
from itertools import product

import torch
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.forms import accumulator
from fracdna_kernels.frac_scan.launches import CHUNK as BT
from fracdna_kernels.frac_scan.launches import FEW, default_segment, launch
from fracdna_kernels.frac_scan.triton_kernels import (
    carry_kernel,
    gradient_kernel,
    output_kernel,
    sweep_kernel,
)
from fracdna_kernels.frac_scan.triton_step import step, step_
from fracdna_kernels.pieces import Rows, slots, tile_width
from fracdna_kernels.registration import operator
from fracdna_kernels.triton_support import dense, on_device_of, types


class _Problem:
    """Sizes, pieces and what is passed to every kernel alike."""

    def __init__(
        self, values: Tensor, log_tau: Tensor, cu_seqlens: Tensor | None, segment: int
    ) -> None:
        B, T, self.H, self.V = values.shape
        self.M = log_tau.shape[0]
        self.rows = Rows(B, T, cu_seqlens, BT)
        self.pieces = self.rows.cut(segment)
        self.split = self.rows.cuts(self.pieces)
        self.exact = accumulator(values)
        self.types = types(values.dtype)
        self.kind = values.dtype
        self.padded = {"M": self.M, "BM": tile_width(self.M)}

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        """Of one state of every sequence."""
        return (self.rows.N, self.H, self.M, self.V)

    def sweep(self, name: str, initial: Tensor | None) -> tuple[int, dict]:
        """Programs and arguments of a kernel that sweeps pieces by blocks of value columns."""
        chosen = launch(name, self.M, self.V, self.kind)
        blocks = -(-self.V // chosen["BV"])
        arguments = {
            **self.rows.geometry(self.pieces), "H": self.H, "V": self.V, **self.padded,
            **self.types, **chosen, "initial": initial, "BLOCKS": blocks,
            "INITIAL": initial is not None, "EVEN": self.V % chosen["BV"] == 0,
        }  # fmt: skip
        return self.pieces.count * self.H * blocks, arguments


def _starts(
    problem: _Problem,
    keys: Tensor,
    values: Tensor,
    u: Tensor,
    log_tau: Tensor,
    initial: Tensor | None,
    *,
    reverse: bool,
) -> dict[str, object]:
    """What the sweep of all pieces learns of those before each: arguments of its kernel.

    `starts` (G, H, M, V) are the states, or adjoints, that pieces start from. Of few pieces they
    are what each adds to an empty state, and `advances` (G, H) the clock's advance over each.
    """
    few = problem.split and problem.pieces.first is None and problem.pieces.per_row <= FEW
    found = {"starts": None, "advances": u, "SPLIT": problem.split, "FEW": few}
    if not problem.split:
        return found
    pieces, (H, M, V) = problem.pieces, problem.state_shape[1:]
    local = u.new_empty(pieces.count, H, M, V, dtype=problem.exact)
    advances = u.new_empty(pieces.count, H, dtype=problem.exact)
    programs, arguments = problem.sweep("sweep", None)
    sweep_kernel[(programs,)](
        keys, values, u, log_tau, starts=None, ends=local, states=local, advances=advances,
        REVERSE=reverse, LOCAL=True, SPLIT=False, FEW=False, **arguments,
    )  # fmt: skip
    if few:
        return found | {"starts": local, "advances": advances}
    starts = torch.empty_like(local)
    carry_kernel[(problem.rows.N * H * M,)](
        local, advances, log_tau, initial, starts, pieces.first, pieces.per_row, H, V, M=M,
        REVERSE=reverse, PACKED=pieces.first is not None, INITIAL=initial is not None,
        ACC=problem.types["ACC"], **launch("carry", M, V, problem.kind),
    )  # fmt: skip
    return found | {"starts": starts}


@operator("frac_scan_forward")
def forward(
    values: Tensor,
    write: Tensor,
    read: Tensor,
    u: Tensor,
    log_tau: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    segment: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state and, where kept, the states at the start of all chunks."""
    values, write, read, u, log_tau = dense(values, write, read, u, log_tau)
    problem = _Problem(values, log_tau, cu_seqlens, segment)
    initial = None if initial_state is None else initial_state.contiguous()
    # rows that belong to no sequence are written by nobody
    output = torch.empty_like(values) if cu_seqlens is None else torch.zeros_like(values)
    final = u.new_empty(problem.state_shape, dtype=problem.exact)
    kept = (problem.rows.slots if keep else 0, *problem.state_shape[1:])
    # some slots of packed rows hold no chunk
    states = values.new_empty(kept) if cu_seqlens is None else values.new_zeros(kept)
    with on_device_of(values):
        starts = _starts(problem, write, values, u, log_tau, initial, reverse=False)
        programs, arguments = problem.sweep("output", initial)
        output_kernel[(programs,)](
            values, write, read, u, log_tau, output=output, final=final, states=states, KEEP=keep,
            **starts, **arguments,
        )  # fmt: skip
    return output, final, states


@forward.register_fake
def _(values, write, read, u, log_tau, initial_state, cu_seqlens, segment, keep):
    B, T, H, V = values.shape
    M = log_tau.shape[0]
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    kept = slots(B, T, cu_seqlens, BT) if keep else 0
    final = u.new_empty(N, H, M, V, dtype=accumulator(values))
    output = torch.empty_like(values, memory_format=torch.contiguous_format)
    return output, final, values.new_empty(kept, H, M, V)


@operator("frac_scan_backward")
def backward(
    grad: Tensor | None,
    grad_final: Tensor | None,
    values: Tensor,
    write: Tensor,
    read: Tensor,
    u: Tensor,
    log_tau: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    states: Tensor,
    segment: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of values, write, read, u and the initial state."""
    values, write, read, u, log_tau = dense(values, write, read, u, log_tau)
    problem = _Problem(values, log_tau, cu_seqlens, segment)
    grad = torch.zeros_like(values) if grad is None else grad.contiguous()
    closing = None if grad_final is None else grad_final.contiguous()
    blank = torch.empty_like if cu_seqlens is None else torch.zeros_like
    grads = [blank(x) for x in (values, write, read, u)]
    grad_initial = u.new_empty(problem.state_shape, dtype=problem.exact)
    adjoints = torch.empty_like(states)
    with on_device_of(values):
        starts = _starts(problem, read, grad, u, log_tau, closing, reverse=True)
        programs, arguments = problem.sweep("sweep", closing)
        sweep_kernel[(programs,)](
            read, grad, u, log_tau, ends=grad_initial, states=adjoints, REVERSE=True, LOCAL=False,
            **starts, **arguments,
        )  # fmt: skip
        chosen = launch("gradient", problem.M, problem.V, problem.kind)
        count, geometry = problem.rows.of_chunks()
        gradient_kernel[(count * problem.H,)](
            values, write, read, u, log_tau, states, adjoints, grad, *grads,
            **geometry, H=problem.H, V=problem.V, **problem.padded, **problem.types, **chosen,
            EVEN=problem.V % chosen["BV"] == 0,
        )  # fmt: skip
    return grads[0], grads[1], grads[2], grads[3], grad_initial


@backward.register_fake
def _(
    grad, grad_final, values, write, read, u, log_tau, initial_state, cu_seqlens, states, segment
):  # fmt: skip
    dense = torch.contiguous_format
    grads = [torch.empty_like(x, memory_format=dense) for x in (values, write, read, u)]
    N = values.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = (N, values.shape[2], log_tau.shape[0], values.shape[3])
    return (*grads, u.new_empty(shape, dtype=accumulator(values)))


def _save(ctx, inputs, output) -> None:
    """Keep the inputs and the states of the chunks."""
    *tensors, segment, keep = inputs
    if not keep:
        raise ValueError("the states of the chunks were not kept, so there is no gradient")
    ctx.save_for_backward(*tensors, output[2])
    ctx.segment = segment
    ctx.set_materialize_grads(False)


def _gradients(ctx, grad, grad_final, _) -> tuple[Tensor | None, ...]:
    """Gradients of forward's nine arguments."""
    *tensors, states = ctx.saved_tensors
    initial_state = tensors[5]
    *grads, grad_initial = backward(grad, grad_final, *tensors, states, ctx.segment)
    grad_initial = None if initial_state is None else grad_initial.to(initial_state.dtype)
    return (*grads, None, grad_initial, None, None, None)


forward.register_autograd(_gradients, setup_context=_save)


def frac_scan_triton(
    values: Tensor,
    write: Tensor,
    read: Tensor,
    u: Tensor,
    log_tau: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    segment_length: int | None = None,
    inplace_state: bool = False,
) -> tuple[Tensor, Tensor]:
    """All pieces at once, or one position; see frac_scan for shapes."""
    B, T, H, V = values.shape
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape, exact = (N, H, log_tau.shape[0], V), accumulator(values)
    if 0 in (T, B, *shape):
        if initial_state is None:
            return torch.zeros_like(values), u.new_zeros(shape, dtype=exact)
        return torch.zeros_like(values), initial_state.to(exact, copy=True)
    inputs = (values, write, read, u, initial_state)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    if T == 1 and cu_seqlens is None and segment_length is None and not keep:
        arguments = (values, write, read, u, log_tau, initial_state)
        if inplace_state and initial_state.is_contiguous():
            return step_(*arguments), initial_state
        return step(*arguments)
    if segment_length is None:
        segment_length = default_segment(N, T, H, V, packed=cu_seqlens is not None)
    output, final, _ = forward(
        values, write, read, u, log_tau, initial_state, cu_seqlens, segment_length, keep
    )
    return output, final


def compile_cases() -> Iterator[Case]:
    """Every kernel at common sizes, each with its launch, for compilation without a device."""
    dtypes = ((torch.bfloat16, "bf16"), (torch.float32, "fp32"))
    for M, V, (dtype, kind) in product((16, 32), (16, 32, 64, 128, 256), dtypes):
        exact = {"ACC": tl.float32, "OPERAND": tl.bfloat16 if kind == "bf16" else tl.float32}
        for kernel, flags in _variants():
            chosen = launch(kernel.fn.__name__.removesuffix("_kernel"), M, V, dtype)
            sizes = {"M": M, "BM": M, "BT": BT, "EVEN": True}
            yield compile_case(
                kernel,
                dict.fromkeys(_NARROW, kind) | _EXACT,
                sizes | exact | chosen | flags,
                f"M={M} V={V} {kind} {' '.join(key for key in flags if flags[key])}",
                divisible=("V",),
                # backward, and float32 without matrix units, keep more than the registers hold
                may_spill=kernel is gradient_kernel or kind == "fp32",
            )


_NARROW = (
    "values", "write", "read", "keys", "grad", "output", "grad_values", "grad_write", "grad_read",
    "states", "adjoints",
)  # fmt: skip
_EXACT = dict.fromkeys(
    ("u", "grad_u", "log_tau", "initial", "starts", "ends", "final", "local", "advances"), "fp32"
) | dict.fromkeys(("table", "first_piece"), "i64")


def _variants() -> Iterator[tuple[object, dict[str, bool]]]:
    """The kernels with the flags of the passes that launch them, plain and packed rows."""
    for packed in (False, True):
        rows = {"PACKED": packed, "INITIAL": not packed}
        few = {"FEW": not packed}
        for keep in (False, True):
            yield output_kernel, rows | few | {"KEEP": keep, "SPLIT": keep}
        for reverse, local in product((False, True), repeat=2):
            if reverse or local:  # the forward pass itself keeps the states of chunks
                flags = {"REVERSE": reverse, "LOCAL": local, "SPLIT": not local}
                yield sweep_kernel, rows | flags | {"FEW": not (packed or local)}
        for reverse in (False, True):
            yield carry_kernel, rows | {"REVERSE": reverse}
        yield gradient_kernel, rows
