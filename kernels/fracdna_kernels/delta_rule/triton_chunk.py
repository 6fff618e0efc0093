"""delta_rule in Triton: pieces of sequences in parallel, forward and backward.

What a chunk of BT positions does apart from the state is made of all chunks at once. Then every
head of every sequence is swept with the state in registers, by blocks of value columns. With too
few of these to fill a GPU, sequences are cut into pieces: a first sweep finds what each piece makes
of an empty state and of the identity, a short one carries the state from piece to piece, and then
all pieces run at once. The backward pass sweeps the adjoint of the state in the same way and takes
every chunk by itself, from the state before it, kept by the forward pass, and the adjoint after it.

B batch   T length   H heads   K key width   V value width   N sequences   G pieces
"""

from collections.abc import Iterator
from itertools import product

import torch
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.delta_rule import launches
from fracdna_kernels.delta_rule.launches import CHUNK as BT
from fracdna_kernels.delta_rule.launches import launch
from fracdna_kernels.delta_rule.triton_carry import carry, carry_kernel
from fracdna_kernels.delta_rule.triton_gradient import gradients
from fracdna_kernels.delta_rule.triton_kernels import (
    adjoint_kernel,
    local_kernel,
    output_kernel,
    prepare_kernel,
)
from fracdna_kernels.forms import accumulator
from fracdna_kernels.pieces import Rows, slots, tile_width
from fracdna_kernels.registration import operator
from fracdna_kernels.triton_support import ceil_div, dense, on_device_of, types


class _Problem:
    """Sizes, pieces and what is passed to every kernel alike."""

    def __init__(self, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, segment: int) -> None:
        B, T, self.H, self.V = v.shape
        self.K = k.shape[-1]
        self.rows = Rows(B, T, cu_seqlens, BT)
        self.pieces = self.rows.cut(segment)
        self.split = self.rows.cuts(self.pieces)
        self.exact = accumulator(v)
        self.kind = v.dtype
        self.padded = tile_width(self.K)

    def states(self, count: int) -> tuple[int, int, int, int]:
        """The shape of so many states."""
        return (count, self.H, self.K, self.V)

    def sweep(self, name: str) -> tuple[int, dict[str, object]]:
        """Blocks of value columns and arguments of a kernel that sweeps pieces by them."""
        chosen = launch(name, self.K, self.V, self.kind)
        blocks = ceil_div(self.V, chosen["BV"])
        tile = min(self.padded, chosen["BV"])
        return blocks, {
            **self.rows.geometry(self.pieces), **types(self.kind), **chosen,
            "H": self.H, "K": self.K, "V": self.V, "BLOCKS": blocks,
            "TILES": self.padded // tile, "BK": tile, "FULL": self.padded == self.K,
            "EVEN": self.V % chosen["BV"] == 0,
        }  # fmt: skip


def _prepare(
    problem: _Problem, q: Tensor, k: Tensor, beta: Tensor, g: Tensor, scale: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What does not depend on the state, see prepare_kernel."""
    count, H = problem.rows.slots, problem.H
    # some positions and slots of packed rows belong to no chunk
    blank = torch.empty if problem.rows.cu_seqlens is None else torch.zeros
    kind = {"dtype": problem.kind, "device": q.device}
    inverses = blank(*q.shape[:3], BT, **kind) if keep else torch.empty(0, **kind)
    pairs = blank(count, H, 2, BT, BT, **kind)
    factors = blank(count, H, 2, BT, dtype=problem.exact, device=q.device)
    places, geometry = problem.rows.of_chunks()
    chosen = launch("prepare", problem.K, problem.V, problem.kind)
    prepare_kernel[(places * H,)](
        q, k, beta, g, inverses, pairs, factors, scale=scale, KEEP=keep,
        EVEN=problem.K % chosen["BK"] == 0, H=H, K=problem.K, **geometry, **types(problem.kind),
        **chosen,
    )  # fmt: skip
    return inverses, pairs, factors


def _local(
    problem: _Problem, k: Tensor, v: Tensor, pairs: Tensor, factors: Tensor, keep: bool
) -> tuple[Tensor, Tensor]:
    """Transitions (G, H, K, K) of pieces, and what they make of an empty state (G, H, K, V)."""
    count, H = problem.pieces.count, problem.H
    # what no piece needs stays empty
    ends = factors.new_empty(problem.states(count))
    # some places of packed rows belong to no piece: nobody reads them, but they are handed out
    blank = factors.new_empty if problem.pieces.table is None else factors.new_zeros
    transitions = blank(count, H, problem.K, problem.K)
    blocks, arguments = problem.sweep("local")
    total = blocks + ceil_div(problem.K, arguments["BV"])
    local_kernel[(count * H * total,)](
        k, v, pairs, factors, ends, transitions, ALL_BLOCKS=total, KEEP=keep, **arguments
    )
    return transitions, ends


@operator("delta_rule_forward")
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    segment: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, final state and, where kept, what the backward pass needs.

    That is the states at the start of all chunks (slots, H, K, V), what prepare_kernel writes,
    and the transitions of pieces where sequences are cut.
    """
    q, k, v, beta, g = dense(q, k, v, beta, g)
    problem = _Problem(k, v, cu_seqlens, segment)
    initial = None if initial_state is None else initial_state.to(problem.exact).contiguous()
    # rows that belong to no sequence are written by nobody
    output = torch.empty_like(v) if cu_seqlens is None else torch.zeros_like(v)
    final = g.new_empty(problem.states(problem.rows.N), dtype=problem.exact)
    kept = problem.states(problem.rows.slots if keep else 0)
    # some slots of packed rows hold no chunk
    states = v.new_empty(kept) if cu_seqlens is None else v.new_zeros(kept)
    starts, transitions = None, g.new_empty(0, dtype=problem.exact)
    with on_device_of(v):
        inverses, pairs, factors = _prepare(problem, q, k, beta, g, scale, keep)
        if problem.split:
            transitions, ends = _local(problem, k, v, pairs, factors, keep)
            starts = carry(transitions, ends, initial, problem.pieces, reverse=False)
        blocks, arguments = problem.sweep("output")
        output_kernel[(problem.pieces.count * problem.H * blocks,)](
            q, k, v, pairs, factors, initial, starts, output, final, states, scale=scale,
            KEEP=keep, INITIAL=initial is not None, SPLIT=starts is not None, **arguments,
        )  # fmt: skip
    if not keep:
        pairs, factors, transitions = (x.new_empty(0) for x in (pairs, factors, transitions))
    return output, final, states, inverses, pairs, factors, transitions


@forward.register_fake
def _(q, k, v, beta, g, scale, initial_state, cu_seqlens, segment, keep):
    B, T, H, V = v.shape
    K = k.shape[-1]
    exact = accumulator(v)
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    final = g.new_empty(N, H, K, V, dtype=exact)
    output = torch.empty_like(v, memory_format=torch.contiguous_format)
    if not keep:
        spare = [v.new_empty(0), v.new_empty(0), *(g.new_empty(0, dtype=exact) for _ in range(2))]
        return output, final, v.new_empty(0, H, K, V), *spare
    count = slots(B, T, cu_seqlens, BT)
    pieces = _fake_pieces(B, T, N, cu_seqlens, segment)
    return (
        output,
        final,
        v.new_empty(count, H, K, V),
        v.new_empty(B, T, H, BT),
        v.new_empty(count, H, 2, BT, BT),
        g.new_empty(count, H, 2, BT, dtype=exact),
        g.new_empty((pieces, H, K, K) if pieces else 0, dtype=exact),
    )


def _fake_pieces(B: int, T: int, N: int, cu_seqlens: Tensor | None, segment: int) -> int:
    """Places for pieces; 0 where whole sequences are swept."""
    if segment == 0 or segment >= T:
        return 0
    return B * -(-T // segment) if cu_seqlens is None else -(-T // segment) + N


@operator("delta_rule_backward")
def backward(
    grad: Tensor | None,
    grad_final: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    cu_seqlens: Tensor | None,
    states: Tensor,
    inverses: Tensor,
    pairs: Tensor,
    factors: Tensor,
    transitions: Tensor,
    scale: float,
    segment: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, beta, g and the initial state."""
    q, k, v, beta, g = dense(q, k, v, beta, g)
    problem = _Problem(k, v, cu_seqlens, segment)
    grad = torch.zeros_like(v) if grad is None else grad.contiguous()
    closing = None if grad_final is None else grad_final.contiguous()
    grad_initial = g.new_empty(problem.states(problem.rows.N), dtype=problem.exact)
    adjoints = torch.empty_like(states) if cu_seqlens is None else torch.zeros_like(states)
    starts = None
    blocks, arguments = problem.sweep("adjoint")
    programs = problem.pieces.count * problem.H * blocks
    tensors = q, k, grad, pairs, factors
    with on_device_of(v):
        if problem.split:
            ends = factors.new_empty(problem.states(problem.pieces.count))
            adjoint_kernel[(programs,)](
                *tensors, None, None, ends, adjoints, scale=scale, LOCAL=True, INITIAL=False,
                SPLIT=False, **arguments,
            )  # fmt: skip
            starts = carry(transitions, ends, closing, problem.pieces, reverse=True)
        adjoint_kernel[(programs,)](
            *tensors, closing, starts, grad_initial, adjoints, scale=scale, LOCAL=False,
            INITIAL=closing is not None, SPLIT=starts is not None, **arguments,
        )  # fmt: skip
        grads = gradients(problem.rows, q, k, v, beta, g, scale, inverses, states, adjoints, grad)
    return (*grads, grad_initial)


@backward.register_fake
def _(
    grad, grad_final, q, k, v, beta, g, cu_seqlens, states, inverses, pairs, factors, transitions,
    scale, segment,
):  # fmt: skip
    dense = torch.contiguous_format
    grads = [torch.empty_like(x, memory_format=dense) for x in (q, k, v, beta, g)]
    N = v.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = (N, v.shape[2], k.shape[3], v.shape[3])
    return (*grads, g.new_empty(shape, dtype=accumulator(v)))


def _save(ctx, inputs, output) -> None:
    """Keep the inputs and what the forward pass kept."""
    *tensors, scale, initial_state, cu_seqlens, segment, keep = inputs
    if not keep:
        raise ValueError("the states of the chunks were not kept, so there is no gradient")
    ctx.save_for_backward(*tensors, cu_seqlens, *output[2:])
    ctx.initial = None if initial_state is None else initial_state.dtype
    ctx.scale, ctx.segment = scale, segment
    ctx.set_materialize_grads(False)


def _gradients(ctx, grad, grad_final, *_) -> tuple[Tensor | None, ...]:
    """Gradients of forward's ten arguments."""
    *grads, grad_initial = backward(grad, grad_final, *ctx.saved_tensors, ctx.scale, ctx.segment)
    grad_initial = None if ctx.initial is None else grad_initial.to(ctx.initial)
    return (*grads, None, grad_initial, None, None, None)


forward.register_autograd(_gradients, setup_context=_save)


def delta_rule_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All pieces at once; see delta_rule for shapes."""
    B, T, H, V = v.shape
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape, exact = (N, H, k.shape[-1], V), accumulator(v)
    if 0 in (T, B, *shape):
        if initial_state is None:
            return torch.zeros_like(v), v.new_zeros(shape, dtype=exact)
        return torch.zeros_like(v), initial_state.to(exact, copy=True)
    # products take their factors as they lie in memory
    q, k = q.to(v.dtype), k.to(v.dtype)
    inputs = (q, k, v, beta, g, initial_state)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    segment = launches.default_segment(N, T, H, V, packed=cu_seqlens is not None)
    output, final, *_ = forward(q, k, v, beta, g, scale, initial_state, cu_seqlens, segment, keep)
    return output, final


def compile_cases() -> Iterator[Case]:
    """Every kernel at common sizes, each with its launch, for compilation without a device."""
    dtypes = ((torch.bfloat16, "bf16"), (torch.float32, "fp32"))
    for width, (dtype, kind) in product((64, 128), dtypes):
        exact = {"ACC": tl.float32, "OPERAND": tl.bfloat16 if kind == "bf16" else tl.float32}
        for kernel, flags in _variants(packed=(False, True) if kind == "bf16" else (False,)):
            chosen = launch(kernel.fn.__name__.removesuffix("_kernel"), width, width, dtype)
            tile = width if kernel is carry_kernel else min(width, chosen.get("BV", width))
            sizes = {"BT": BT, "BK": tile, "TILES": width // tile, "EVEN": True, "FULL": True}
            case = compile_case(
                kernel,
                dict.fromkeys(_NARROW, kind) | _EXACT,
                sizes | exact | chosen | flags,
                f"K=V={width} {kind} {' '.join(key for key in flags if flags[key])}",
                divisible=("K", "V"),
                # float32 without matrix units keeps more than the registers hold
                may_spill=kind == "fp32",
            )
            if "scale" in case[1]:
                case[1]["scale"] = "fp32"
            yield case


_NARROW = ("q", "k", "v", "beta", "grad", "output", "inverses", "pairs", "states", "adjoints")
_EXACT = dict.fromkeys(
    ("g", "factors", "initial", "starts", "ends", "final", "local", "transitions"), "fp32"
) | dict.fromkeys(("table", "first_piece"), "i64")


def _variants(packed: tuple[bool, ...]) -> Iterator[tuple[object, dict[str, bool]]]:
    """The kernels with the flags of the passes that launch them."""
    for is_packed in packed:
        rows = {"PACKED": is_packed, "INITIAL": not is_packed}
        for keep in (False, True):
            yield prepare_kernel, rows | {"KEEP": keep}
            yield output_kernel, rows | {"KEEP": keep, "SPLIT": keep}
        yield local_kernel, rows | {"KEEP": is_packed}
        for local in (False, True):
            yield adjoint_kernel, rows | {"LOCAL": local, "SPLIT": not local}
        yield carry_kernel, rows | {"REVERSE": is_packed}
