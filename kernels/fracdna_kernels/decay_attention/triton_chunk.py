"""decay_attention in Triton: pieces of sequences in parallel, forward and backward.

Every head of every sequence is cut into pieces when there are too few heads and sequences to fill
a GPU. A first sweep finds what each piece adds to the state, a short one carries it from piece to
piece, and then all pieces run at once. The backward pass sweeps the adjoint of the state in the
same way and then takes every chunk of BT positions by itself, from the state before it, kept by
the forward pass, and the adjoint after it. Where every key decays alone, a kernel that takes all
chunks at once makes the rows that the sweeps read.

B batch   T length   H heads   G heads of q and k   K key width   V value width   N sequences
"""

from collections.abc import Iterator
from itertools import product

import torch
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.decay_attention.launches import CHUNK as BT
from fracdna_kernels.decay_attention.launches import default_segment, launch
from fracdna_kernels.decay_attention.recurrent import decay_attention_recurrent
from fracdna_kernels.decay_attention.triton_gradient import gradients
from fracdna_kernels.decay_attention.triton_kernels import (
    carry_kernel,
    fade_kernel,
    output_kernel,
    sweep_kernel,
)
from fracdna_kernels.forms import accumulator, without_autocast
from fracdna_kernels.pieces import Rows, slots, tile_width
from fracdna_kernels.registration import operator
from fracdna_kernels.triton_support import dense, on_device_of, types


class _Problem:
    """Sizes, pieces and what is passed to every kernel alike."""

    def __init__(
        self, q: Tensor, v: Tensor, g: Tensor, scale: float, cu_seqlens: Tensor | None, segment: int
    ) -> None:
        B, T, self.H, self.V = v.shape
        self.G, self.K = q.shape[2:]
        self.rows = Rows(B, T, cu_seqlens, BT)
        self.pieces = self.rows.cut(segment)
        self.split = self.rows.cuts(self.pieces)
        self.sizes = {"H": self.H, "K": self.K, "scale": scale}
        self.per_key = g.ndim == 4
        self.exact = accumulator(v)
        self.types = types(v.dtype)
        self.kind = v.dtype

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        """Of one state of every sequence."""
        return (self.rows.N, self.H, self.K, self.V)

    def sweep(self, name: str, initial: Tensor | None, starts: Tensor | None) -> tuple[int, dict]:
        """Programs and arguments of a kernel that sweeps pieces by blocks of value columns."""
        chosen = launch(name, self.K, self.V, self.kind)
        blocks = -(-self.V // chosen["BV"])
        arguments = {
            **self.rows.geometry(self.pieces), **self.sizes, **self.types, **chosen,
            # rows that fade_kernel made are those of every head
            "G": self.H if self.per_key else self.G, "V": self.V, "BLOCKS": blocks,
            "BK": tile_width(self.K) // chosen["PARTS"], "PER_KEY": self.per_key,
            "initial": initial, "starts": starts,
            "INITIAL": initial is not None, "SPLIT": starts is not None,
            "EVEN": self.V % chosen["BV"] == 0,
        }  # fmt: skip
        return self.pieces.count * self.H * blocks, arguments


def _faded(
    problem: _Problem, q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, forward: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the sweeps read as q, k, g and pairs, see fade_kernel; as it is where a head fades."""
    if not problem.per_key:
        return q, k, g, v
    rows, H = problem.rows, problem.H
    reads = v.new_empty(g.shape)
    writes = torch.empty_like(reads) if forward else reads
    pairs = v.new_empty(rows.B, rows.T, H, BT) if forward else reads
    totals = g.new_empty(rows.slots, H, problem.K, dtype=problem.exact)
    count, geometry = rows.of_chunks()
    fade_kernel[(count * H,)](
        q, k, g, reads, writes, pairs, totals, G=problem.G, FORWARD=forward, **geometry,
        **problem.sizes, **problem.types, **launch("fade", problem.K, problem.V, problem.kind),
    )  # fmt: skip
    return reads, writes, totals, pairs


def _starts(
    problem: _Problem, keys: Tensor, values: Tensor, g: Tensor, initial: Tensor | None, *,
    reverse: bool,
) -> Tensor | None:  # fmt: skip
    """The state (or adjoint) that pieces start from, (pieces, H, K, V); None: all are whole."""
    if not problem.split:
        return None
    pieces, (H, K, V) = problem.pieces, problem.state_shape[1:]
    local = g.new_empty(pieces.count, H, K, V, dtype=problem.exact)
    starts = torch.empty_like(local)
    passed = (pieces.count, H, K) if problem.per_key else (pieces.count, H)
    advances = g.new_empty(passed, dtype=problem.exact)
    programs, arguments = problem.sweep("sweep", None, None)
    sweep_kernel[(programs,)](
        keys, values, g, ends=local, states=local, advances=advances, REVERSE=reverse, LOCAL=True,
        **arguments,
    )  # fmt: skip
    carry_kernel[(problem.rows.N * H * K,)](
        local, advances, initial, starts, pieces.first, pieces.per_row, H, V, K=K,
        PER_KEY=problem.per_key, REVERSE=reverse, PACKED=pieces.first is not None,
        INITIAL=initial is not None, ACC=problem.types["ACC"],
        **launch("carry", K, V, problem.kind),
    )  # fmt: skip
    return starts


@operator("decay_attention_forward")
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    segment: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state and, where kept, the states at the start of all chunks."""
    q, k, v, g = dense(q, k, v, g)
    problem = _Problem(q, v, g, scale, cu_seqlens, segment)
    initial = None if initial_state is None else initial_state.contiguous()
    # rows that belong to no sequence are written by nobody
    output = torch.empty_like(v) if cu_seqlens is None else torch.zeros_like(v)
    final = g.new_empty(problem.state_shape, dtype=problem.exact)
    kept = (problem.rows.slots if keep else 0, *problem.state_shape[1:])
    # some slots of packed rows hold no chunk
    states = v.new_empty(kept) if cu_seqlens is None else v.new_zeros(kept)
    with on_device_of(v):
        q, k, g, pairs = _faded(problem, q, k, v, g, forward=True)
        starts = _starts(problem, k, v, g, initial, reverse=False)
        programs, arguments = problem.sweep("keep" if keep else "output", initial, starts)
        output_kernel[(programs,)](
            q, k, v, g, pairs, output=output, final=final, states=states, KEEP=keep, **arguments
        )
    return output, final, states


@forward.register_fake
def _(q, k, v, g, scale, initial_state, cu_seqlens, segment, keep):
    B, T, H, V = v.shape
    K = k.shape[3]
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    kept = slots(B, T, cu_seqlens, BT) if keep else 0
    final = g.new_empty(N, H, K, V, dtype=accumulator(v))
    output = torch.empty_like(v, memory_format=torch.contiguous_format)
    return output, final, v.new_empty(kept, H, K, V)


@operator("decay_attention_backward")
def backward(
    grad: Tensor | None,
    grad_final: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    states: Tensor,
    segment: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, g and the initial state."""
    q, k, v, g = dense(q, k, v, g)
    problem = _Problem(q, v, g, scale, cu_seqlens, segment)
    grad = torch.zeros_like(v) if grad is None else grad.contiguous()
    closing = None if grad_final is None else grad_final.contiguous()
    grad_initial = g.new_empty(problem.state_shape, dtype=problem.exact)
    adjoints = torch.empty_like(states)
    with on_device_of(v):
        reads, _, totals, _ = _faded(problem, q, k, v, g, forward=False)
        starts = _starts(problem, reads, grad, totals, closing, reverse=True)
        programs, arguments = problem.sweep("sweep", closing, starts)
        sweep_kernel[(programs,)](
            reads, grad, totals, ends=grad_initial, states=adjoints, advances=totals, REVERSE=True,
            LOCAL=False, **arguments,
        )  # fmt: skip
        found = gradients(problem.rows, q, k, v, g, scale, states, adjoints, grad)
    return (*found, grad_initial)


@backward.register_fake
def _(grad, grad_final, q, k, v, g, scale, initial_state, cu_seqlens, states, segment):
    dense = torch.contiguous_format
    grads = [torch.empty_like(x, memory_format=dense) for x in (q, k, v, g)]
    N = v.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = (N, v.shape[2], k.shape[3], v.shape[3])
    return (*grads, g.new_empty(shape, dtype=accumulator(v)))


def _save(ctx, inputs, output) -> None:
    """Keep the inputs and the states of the chunks."""
    q, k, v, g, scale, initial_state, cu_seqlens, segment, keep = inputs
    if not keep:
        raise ValueError("the states of the chunks were not kept, so there is no gradient")
    ctx.save_for_backward(q, k, v, g, initial_state, cu_seqlens, output[2])
    ctx.scale, ctx.segment = scale, segment
    ctx.set_materialize_grads(False)


def _gradients(ctx, grad, grad_final, _) -> tuple[Tensor | None, ...]:
    """Gradients of forward's nine arguments."""
    q, k, v, g, initial_state, cu_seqlens, states = ctx.saved_tensors
    *grads, grad_initial = backward(
        grad, grad_final, q, k, v, g, ctx.scale, initial_state, cu_seqlens, states, ctx.segment
    )
    grad_initial = None if initial_state is None else grad_initial.to(initial_state.dtype)
    return (*grads, None, grad_initial, None, None, None)


forward.register_autograd(_gradients, setup_context=_save)


def decay_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """All pieces at once; see decay_attention for shapes."""
    B, T, H, V = v.shape
    K = k.shape[3]
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    exact = accumulator(v)
    if 0 in (B, T, N, H, K, V):
        if initial_state is None:
            return torch.zeros_like(v), g.new_zeros(N, H, K, V, dtype=exact)
        return torch.zeros_like(v), initial_state.to(exact, copy=True)
    inputs = (q, k, v, g, initial_state)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    if T == 1 and cu_seqlens is None and not keep:
        # a slow decay moves the state by less than a factor near 1 can say
        with without_autocast("recurrent", v):
            return decay_attention_recurrent(q, k, v, g, scale, initial_state, None)
    segment = default_segment(N, T, H, K, V, packed=cu_seqlens is not None)
    output, final, _ = forward(q, k, v, g, scale, initial_state, cu_seqlens, segment, keep)
    return output, final


def compile_cases() -> Iterator[Case]:
    """Every kernel at common sizes, each with its launch, for compilation without a device."""
    wide = product((16, 64, 128), (torch.bfloat16,), (False, True))
    for width, dtype, per_key in (*wide, (256, torch.bfloat16, False), (64, torch.float32, True)):
        kind = "bf16" if dtype == torch.bfloat16 else "fp32"
        exact = {"ACC": tl.float32, "OPERAND": tl.bfloat16 if kind == "bf16" else tl.float32}
        for kernel, flags in _variants(per_key):
            name = "keep" if flags.get("KEEP") else kernel.fn.__name__.removesuffix("_kernel")
            chosen = launch(name, width, width, dtype)
            registers = {name: chosen.pop(name) for name in ("maxnreg",) if name in chosen}
            sizes = {"K": width, "BT": BT, "EVEN": True, "BK": width // chosen.get("PARTS", 1)}
            label = f"K=V={width} {kind} {' '.join(key for key in flags if flags[key])}"
            case = compile_case(
                kernel, dict.fromkeys(_NARROW, kind) | _EXACT, sizes | exact | chosen | flags,
                label, divisible=("V",), may_spill=kind == "fp32", **registers,
            )  # fmt: skip
            if "scale" in kernel.arg_names:
                case[1]["scale"] = "fp32"
            yield case


_NARROW = ("q", "k", "v", "pairs", "reads", "writes", "output", "states")
_EXACT = dict.fromkeys(
    ("g", "totals", "initial", "starts", "ends", "final", "local", "advances"), "fp32"
) | dict.fromkeys(("table", "first_piece"), "i64")


def _variants(per_key: bool) -> Iterator[tuple[object, dict[str, bool]]]:
    """The kernels with the flags of the passes that launch them, plain rows and packed ones."""
    for packed in (False, True):
        rows = {"PER_KEY": per_key, "PACKED": packed, "INITIAL": not packed}
        for keep in (False, True):
            yield output_kernel, rows | {"KEEP": keep, "SPLIT": packed}
        yield sweep_kernel, rows | {"REVERSE": packed, "LOCAL": True, "SPLIT": False}
        yield sweep_kernel, rows | {"REVERSE": True, "LOCAL": False, "SPLIT": packed}
        if per_key:
            yield fade_kernel, rows | {"FORWARD": not packed}
    yield carry_kernel, rows | {"REVERSE": False}
