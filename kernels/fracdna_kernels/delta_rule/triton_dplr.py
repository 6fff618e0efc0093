"""dplr_delta_rule in Triton: chunks at once, then pieces of sequences, forward and backward.

A first kernel finds what every chunk of BT positions does to any state. A second one goes along
the sequences with the state in registers. With too few heads and sequences to fill a GPU they are
cut into pieces: a first sweep finds what each piece does to any state, a short one carries the
state from piece to piece, and then all pieces run at once. The backward pass sweeps the adjoint of
the state in the same way and then takes every chunk by itself, from the state before it, kept by
the forward pass, and the adjoint after it.

B batch   T length   H heads   K key width   V value width   N sequences   G pieces
"""

from collections.abc import Iterator
from itertools import product

import torch
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.delta_rule.launches import CHUNK as BT
from fracdna_kernels.delta_rule.launches import default_segment
from fracdna_kernels.delta_rule.triton_carry import carry
from fracdna_kernels.delta_rule.triton_dplr_gradient import gradient_kernel, meeting_kernel
from fracdna_kernels.delta_rule.triton_dplr_kernels import prepare_kernel, sweep_kernel
from fracdna_kernels.forms import accumulator
from fracdna_kernels.pieces import Rows, slots, tile_width
from fracdna_kernels.registration import operator
from fracdna_kernels.triton_support import ceil_div, dense, on_device_of, types

# by kernel and key width (the next power of two), for bfloat16: key channels and value columns of a
# program, warps, pipeline stages; 0 keys: all of them
_TUNED = {
    "prepare": {128: (16, 0, 2, 1), 64: (16, 0, 2, 1), 32: (16, 0, 2, 1), 16: (16, 0, 2, 1)},
    "sweep": {128: (0, 32, 4, 2), 64: (0, 32, 4, 3), 32: (0, 32, 2, 3), 16: (0, 32, 2, 3)},
    "meeting": {128: (0, 16, 2, 1), 64: (0, 16, 2, 1), 32: (0, 32, 2, 1), 16: (0, 32, 2, 1)},
    "gradient": {128: (16, 32, 2, 1), 64: (16, 32, 2, 1), 32: (16, 32, 2, 1), 16: (16, 32, 2, 1)},
}
_EXACT_WIDTH = 16  # columns per program where products are exact, without matrix units


def launch(kernel: str, K: int, V: int, dtype: torch.dtype) -> dict[str, int]:
    """Blocks of key channels and value columns, warps and pipeline stages of a kernel.

    Args:
        kernel: "prepare", "sweep", "meeting" or "gradient".
        K: key width.
        V: value width.
        dtype: of the values.

    Returns:
        BK, BV, num_warps and STAGES; of "prepare" BK and num_warps.
    """
    whole = tile_width(K)
    keys, columns, warps, stages = _TUNED[kernel][whole]
    if dtype != torch.bfloat16:
        columns, warps, stages = _EXACT_WIDTH, 8 if whole > 64 else 4, 1
    keys = min(keys or whole, whole)
    if kernel == "prepare":
        return {"BK": keys, "num_warps": warps}
    columns = min(columns, tile_width(V))
    return {"BK": keys, "BV": columns, "num_warps": warps, "STAGES": stages}


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
        self.sizes = {"H": self.H, "K": self.K, **types(v.dtype)}

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        """Of one state of every sequence."""
        return (self.rows.N, self.H, self.K, self.V)

    def of_chunks(self) -> tuple[int, dict[str, object]]:
        """Programs and arguments of a kernel that takes every chunk by itself."""
        count, geometry = self.rows.of_chunks()
        return count * self.H, geometry | self.sizes

    def prepare(
        self, inputs: tuple[Tensor, ...], scale: float, *, backward: bool
    ) -> dict[str, Tensor | None]:
        """What each chunk does to any state, by the names of prepare_kernel's outputs."""
        v, H, K = inputs[2], self.H, self.K
        wide, square = (self.rows.slots, H, BT, K), (self.rows.slots, H, BT, BT)
        shapes = {"finders": wide, "replacers": wide, "writers": wide, "readers": wide}
        shapes["seen"] = square
        shapes |= {"found": square, "traced": square, "tracers": wide} if backward else {}
        made: dict[str, Tensor | None] = {name: v.new_empty(x) for name, x in shapes.items()}
        made["kept"] = v.new_empty(self.rows.slots, H, K, dtype=self.exact)
        programs, arguments = self.of_chunks()
        q, k, _, a, b, g = inputs
        nothing = {} if backward else dict.fromkeys(("found", "traced", "tracers"))
        prepare_kernel[(programs,)](
            q, k, a, b, g, **made, **nothing, **arguments, scale=scale, BACKWARD=backward,
            **launch("prepare", K, self.V, self.kind),
        )  # fmt: skip
        return made

    def sweep(
        self, made: dict[str, Tensor | None], values: Tensor, first: Tensor | None, *, reverse: bool
    ) -> tuple[int, dict[str, object]]:
        """Programs and arguments of a sweep over whole pieces, in parallel where they are cut.

        Args:
            made: by prepare.
            values: v, or backwards the gradient of the output, (B, T, H, V).
            first: (N, H, K, V), what sequences start from (backwards: end with).
            reverse: the adjoint's sweep.
        """
        chosen = launch("sweep", self.K, self.V, self.kind)
        blocks = ceil_div(self.V, chosen["BV"])
        forward = ("finders", "replacers", "writers")
        turned = ("replacers", "finders", "readers")
        names = zip(forward, turned if reverse else forward, strict=True)
        arguments = {
            **{name: made[source] for name, source in names}, "kept": made["kept"],
            "values": values, **self.rows.geometry(self.pieces), **self.sizes, "V": self.V,
            **chosen, "BLOCKS": blocks, "REVERSE": reverse, "EVEN": self.V % chosen["BV"] == 0,
        }  # fmt: skip
        starts = self._starts(arguments, values, first, chosen["BV"], blocks, reverse)
        arguments |= {
            "initial": first, "starts": starts, "maps": None, "PROGRAMS": blocks, "LOCAL": False,
            "INITIAL": first is not None, "SPLIT": starts is not None,
        }  # fmt: skip
        return self.pieces.count * self.H * blocks, arguments

    def _starts(
        self,
        arguments: dict[str, object],
        values: Tensor,
        first: Tensor | None,
        width: int,
        blocks: int,
        reverse: bool,
    ) -> Tensor | None:
        """The state (or adjoint) that pieces start from, (G, H, K, V); None: whole sequences."""
        if not self.split:
            return None
        G, H, K = self.pieces.count, self.H, self.K
        local = values.new_empty(G, H, K, self.V, dtype=self.exact)
        maps = values.new_empty(G, H, K, K, dtype=self.exact)
        programs = blocks + ceil_div(K, width)
        absent = dict.fromkeys(("readers", "seen", "initial", "starts", "output", "states"))
        sweep_kernel[(G * H * programs,)](
            **arguments, **absent, ends=local, maps=maps, PROGRAMS=programs, LOCAL=True,
            OUTPUT=False, KEEP=False, INITIAL=False, SPLIT=False,
        )  # fmt: skip
        return carry(maps, local, first, self.pieces, reverse=reverse)

    def gradients(
        self,
        made: dict[str, Tensor | None],
        inputs: tuple[Tensor, ...],
        scale: float,
        states: Tensor,
        adjoints: Tensor,
        grad: Tensor,
        grads: tuple[Tensor, ...],
    ) -> None:
        """Write the gradients of the six inputs, chunk by chunk.

        Args:
            made: by prepare.
            inputs: q, k, v, a, b and g.
            scale: factor on the output.
            states: (slots, H, V, K) before chunks.
            adjoints: (slots, H, V, K) after them.
            grad: of the output, (B, T, H, V).
            grads: what is written.
        """
        q, k, v, a, b, g = inputs
        dq, dk, dv, da, db, dg = grads
        heads = (self.rows.slots, self.H)
        corrections, returns = (v.new_empty(*heads, BT, self.V) for _ in range(2))
        pairs = v.new_empty(*heads, 4, BT, BT)
        programs, arguments = self.of_chunks()
        arguments["V"] = self.V
        chosen = launch("meeting", self.K, self.V, self.kind)
        names = ("finders", "writers", "seen", "found", "traced", "tracers")
        meeting_kernel[(programs,)](
            v, grad, *(made[name] for name in names), states, adjoints, dv, corrections, returns,
            pairs, **arguments, **chosen, EVEN=self.V % chosen["BV"] == 0,
        )  # fmt: skip
        chosen = launch("gradient", self.K, self.V, self.kind)
        blocks = ceil_div(self.K, chosen["BK"])
        gradient_kernel[(programs * blocks,)](
            q, k, v, a, b, g, grad, corrections, returns, pairs, states, adjoints, dq, dk, da, db,
            dg, **arguments, **chosen, scale=scale, BLOCKS=blocks, EVEN=self.V % chosen["BV"] == 0,
        )  # fmt: skip


@operator("dplr_delta_rule_forward")
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    segment: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state and, where kept, the states at the start of all chunks, (.., V, K)."""
    inputs = dense(q, k, v, a, b, g)
    v = inputs[2]
    problem = _Problem(k, v, cu_seqlens, segment)
    initial = None
    if initial_state is not None:
        initial = initial_state.to(problem.exact).contiguous()
    # rows that belong to no sequence are written by nobody
    output = torch.empty_like(v) if cu_seqlens is None else torch.zeros_like(v)
    final = v.new_empty(problem.state_shape, dtype=problem.exact)
    kept = (problem.rows.slots if keep else 0, problem.H, problem.V, problem.K)
    # some slots of packed rows hold no chunk
    states = v.new_empty(kept) if cu_seqlens is None else v.new_zeros(kept)
    with on_device_of(v):
        made = problem.prepare(inputs, scale, backward=False)
        programs, arguments = problem.sweep(made, v, initial, reverse=False)
        sweep_kernel[(programs,)](
            **arguments, readers=made["readers"], seen=made["seen"], output=output, ends=final,
            states=states, OUTPUT=True, KEEP=keep,
        )  # fmt: skip
    return output, final, states


@forward.register_fake
def _(q, k, v, a, b, g, scale, initial_state, cu_seqlens, segment, keep):
    B, T, H, V = v.shape
    K = k.shape[-1]
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    kept = slots(B, T, cu_seqlens, BT) if keep else 0
    output = torch.empty_like(v, memory_format=torch.contiguous_format)
    final = v.new_empty(N, H, K, V, dtype=accumulator(v))
    return output, final, v.new_empty(kept, H, V, K)


@operator("dplr_delta_rule_backward")
def backward(
    grad: Tensor | None,
    grad_final: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    scale: float,
    cu_seqlens: Tensor | None,
    states: Tensor,
    segment: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, a, b, g and the initial state."""
    inputs = dense(q, k, v, a, b, g)
    v = inputs[2]
    problem = _Problem(k, v, cu_seqlens, segment)
    grad = torch.zeros_like(v) if grad is None else grad.contiguous()
    closing = None if grad_final is None else grad_final.contiguous()
    blank = torch.empty_like if cu_seqlens is None else torch.zeros_like
    grads = tuple(blank(x) for x in inputs)
    grad_initial = v.new_empty(problem.state_shape, dtype=problem.exact)
    adjoints = torch.empty_like(states)
    with on_device_of(v):
        # made again, which takes less than keeping it
        made = problem.prepare(inputs, scale, backward=True)
        programs, arguments = problem.sweep(made, grad, closing, reverse=True)
        sweep_kernel[(programs,)](
            **arguments, readers=None, seen=None, output=None, ends=grad_initial, states=adjoints,
            OUTPUT=False, KEEP=True,
        )  # fmt: skip
        problem.gradients(made, inputs, scale, states, adjoints, grad, grads)
    return (*grads, grad_initial)


@backward.register_fake
def _(grad, grad_final, q, k, v, a, b, g, scale, cu_seqlens, states, segment):
    dense = torch.contiguous_format
    grads = [torch.empty_like(x, memory_format=dense) for x in (q, k, v, a, b, g)]
    N = v.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = (N, v.shape[2], k.shape[3], v.shape[3])
    return (*grads, v.new_empty(shape, dtype=accumulator(v)))


def _save(ctx, inputs, output) -> None:
    """Keep the inputs and the states of the chunks."""
    *tensors, scale, initial_state, cu_seqlens, segment, keep = inputs
    if not keep:
        raise ValueError("the states of the chunks were not kept, so there is no gradient")
    ctx.save_for_backward(*tensors, cu_seqlens, output[2])
    ctx.scale, ctx.segment = scale, segment
    ctx.initial_kind = None if initial_state is None else initial_state.dtype
    ctx.set_materialize_grads(False)


def _gradients(ctx, grad, grad_final, _) -> tuple[Tensor | None, ...]:
    """Gradients of forward's eleven arguments."""
    *tensors, cu_seqlens, states = ctx.saved_tensors
    arguments = (*tensors, ctx.scale, cu_seqlens, states, ctx.segment)
    *grads, grad_initial = backward(grad, grad_final, *arguments)
    grad_initial = None if ctx.initial_kind is None else grad_initial.to(ctx.initial_kind)
    return (*grads, None, grad_initial, None, None, None)


forward.register_autograd(_gradients, setup_context=_save)


def dplr_delta_rule_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    scale: float,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All pieces at once; see dplr_delta_rule for shapes."""
    B, T, H, V = v.shape
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape, exact = (N, H, k.shape[-1], V), accumulator(v)
    if 0 in (T, B, *shape):
        if initial_state is None:
            return torch.zeros_like(v), v.new_zeros(shape, dtype=exact)
        return torch.zeros_like(v), initial_state.to(exact, copy=True)
    inputs = (q, k, v, a, b, g, initial_state)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    segment = default_segment(N, T, H, V, packed=cu_seqlens is not None)
    output, final, _ = forward(
        q, k, v, a, b, g, float(scale), initial_state, cu_seqlens, segment, keep
    )
    return output, final


def compile_cases() -> Iterator[Case]:
    """Every kernel at common sizes, each with its launch, for compilation without a device."""
    dtypes = {"bf16": torch.bfloat16, "fp32": torch.float32}
    for size, kind in product((64, 128), dtypes):
        exact = {"ACC": tl.float32, "OPERAND": tl.bfloat16 if kind == "bf16" else tl.float32}
        for kernel, flags in _variants(packed_too=size == 64 and kind == "bf16"):
            chosen = launch(kernel.fn.__name__.removesuffix("_kernel"), size, size, dtypes[kind])
            backward = flags.get("BACKWARD", flags.get("REVERSE", True))
            case = compile_case(
                kernel,
                dict.fromkeys(_NARROW, kind) | _EXACT,
                {"BT": BT, "EVEN": True} | exact | chosen | flags,
                f"K={size} V={size} {kind} {' '.join(key for key in flags if flags[key])}",
                divisible=("K", "V"),
                # backward, and float32 without matrix units, keep more than the registers hold
                may_spill=backward or kind == "fp32",
            )
            if "scale" in case[1]:
                case[1]["scale"] = "fp32"
            yield case


_NARROW = (
    "q", "k", "v", "a", "b", "grad", "grad_q", "grad_k", "grad_v", "grad_a", "grad_b", "values",
    "output", "states", "adjoints", "finders", "replacers", "writers", "readers", "seen", "found",
    "traced", "tracers", "corrections", "returns", "pairs",
)  # fmt: skip
_EXACT = dict.fromkeys(("g", "grad_g", "kept", "initial", "starts", "ends", "maps"), "fp32") | {
    "table": "i64"
}


def _variants(*, packed_too: bool) -> Iterator[tuple[object, dict[str, bool]]]:
    """The kernels with the flags of the passes that launch them."""
    for packed in (False, True) if packed_too else (False,):
        rows = {"PACKED": packed, "INITIAL": not packed}
        for backward in (False, True):
            yield prepare_kernel, rows | {"BACKWARD": backward}
            flags = rows | {"REVERSE": backward, "OUTPUT": not backward, "LOCAL": False}
            yield sweep_kernel, flags | {"KEEP": True, "SPLIT": True}
        local = {"OUTPUT": False, "KEEP": False, "SPLIT": False, "LOCAL": True, "INITIAL": False}
        yield sweep_kernel, rows | {"REVERSE": False} | local
        yield meeting_kernel, rows
        yield gradient_kernel, rows
