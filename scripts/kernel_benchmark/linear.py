"""decay_attention and the delta rules beside the public kernels for the same recurrences.

Inputs are what layers give: keys of unit length for the delta rules, mild decays. Ours are held
against float64 before anything is timed. The public kernels take the same tensors; where they
refuse a pass, the row says so. In a quick run forward passes alone, and not the form of RWKV-7,
whose peer takes the longest to tune.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from kernel_benchmark import floors
from kernel_benchmark.agreement import Disagreement, relative_error
from kernel_benchmark.candidates import compile_candidates, share
from kernel_benchmark.floors import HALF, SINGLE
from kernel_benchmark.operators import leaves
from kernel_benchmark.report import Row
from kernel_benchmark.run import Run, generator
from kernel_benchmark.timing import Call, gradients, input_sets, without_gradients
from kernel_benchmark.worker import collect
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from fracdna_kernels import decay_attention, delta_rule, dplr_delta_rule

HEADS = 16
WIDTHS = (64, 128)  # of keys and values alike
ROWS = ((16, 4096), (1, 65536))
PASSES = {"fwd": False, "fwd+bwd": True}
REFUSED = "refused on Hopper with Triton 3.4 to 3.7.0 (flash-linear-attention#640)"
GOAL = 1.0  # the public kernels shall take at least as long, forward
ALLOWED = 2e-2  # error of an output or gradient in bfloat16; that of most is below half of it

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Contest:
    """One operator and the public kernels for it.

    Attributes:
        ours: takes the inputs by name.
        make: (B, T, width, generator) to inputs.
        bytes_of: width to bytes per token and head that cannot be avoided.
        peer: module and function in flash-linear-attention.
        names: what the peer calls an input, where it differs.
        forward_only: why the peer has no backward pass here.
    """

    ours: Callable[..., tuple[Tensor, Tensor]]
    make: Callable[[int, int, int, torch.Generator], Inputs]
    bytes_of: Callable[[int], floors.Bytes]
    peer: tuple[str, str]
    names: dict[str, str] = field(default_factory=dict)
    forward_only: str | None = None

    @property
    def passes(self) -> dict[str, bool]:
        """What the peer is asked for."""
        return {"fwd": False} if self.forward_only else PASSES

    def theirs(self) -> Callable[..., Tensor]:
        """The public function, given our inputs and a scale of 1.

        Raises:
            ImportError: it is not installed.
        """
        module, name = self.peer
        function = getattr(importlib.import_module(module), name)

        def call(**inputs: Tensor) -> Tensor:
            renamed = {self.names.get(key, key): x for key, x in inputs.items()}
            return function(**renamed, scale=1.0)[0]

        return call


def _normal(B: int, T: int, *axes: int, random: torch.Generator) -> Tensor:
    """Standard normal numbers in bfloat16."""
    shape = (B, T, HEADS, *axes)
    return torch.randn(shape, generator=random, device=random.device, dtype=torch.bfloat16)


def _decay_inputs(B: int, T: int, width: int, random: torch.Generator) -> Inputs:
    """One decay for each head."""
    q, k, v = (_normal(B, T, width, random=random) for _ in range(3))
    return {"q": q, "k": k, "v": v, "g": logsigmoid(_normal(B, T, random=random).float())}


def _keyed_inputs(B: int, T: int, width: int, random: torch.Generator) -> Inputs:
    """One decay for each key, as gated linear attention makes them."""
    q, k, v, g = (_normal(B, T, width, random=random) for _ in range(4))
    return {"q": q, "k": k, "v": v, "g": logsigmoid(g.float()) / 16}


def _delta_inputs(B: int, T: int, width: int, random: torch.Generator) -> Inputs:
    """Queries and keys of unit length."""
    inputs = _decay_inputs(B, T, width, random)
    inputs |= {key: normalize(inputs[key].float(), dim=-1).bfloat16() for key in ("q", "k")}
    return inputs | {"beta": _normal(B, T, random=random).sigmoid()}


def _dplr_inputs(B: int, T: int, width: int, random: torch.Generator) -> Inputs:
    """As RWKV-7 makes them: decays between exp(-0.61) and 1."""
    q, k, v, a, rate, g = (_normal(B, T, width, random=random) for _ in range(6))
    kappa = normalize(a.float(), dim=-1)
    inputs = {"q": q, "k": k / width**0.5, "v": v, "a": -kappa.bfloat16()}
    inputs |= {"b": (kappa * rate.float().sigmoid()).bfloat16()}
    return inputs | {"g": -0.606531 * g.float().sigmoid()}


def _bytes(rows: int, single: Callable[[int], int]) -> Callable[[int], floors.Bytes]:
    """Of `rows` inputs in bfloat16 as wide as the output, and `single` bytes of smaller ones."""

    def of(width: int) -> floors.Bytes:
        given = rows * HALF * width + single(width)
        return floors.Bytes(given + HALF * width, 2 * given + HALF * width)

    return of


CONTESTS = {
    "decay_attention, per head": Contest(
        decay_attention,
        _decay_inputs,
        _bytes(3, lambda width: SINGLE),
        ("fla.ops.simple_gla", "chunk_simple_gla"),
        forward_only=REFUSED,
    ),
    "delta_rule": Contest(
        delta_rule,
        _delta_inputs,
        _bytes(3, lambda width: SINGLE + HALF),
        ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
        forward_only=REFUSED,
    ),
    "decay_attention, per key": Contest(
        decay_attention,
        _keyed_inputs,
        _bytes(3, lambda width: SINGLE * width),
        ("fla.ops.gla", "chunk_gla"),
    ),
    "dplr_delta_rule": Contest(
        dplr_delta_rule,
        _dplr_inputs,
        _bytes(5, lambda width: SINGLE * width),
        ("fla.ops.rwkv7", "chunk_rwkv7"),
        {"q": "r", "g": "w"},
    ),
}


def chosen(quick: bool) -> tuple[list[str], dict[str, bool]]:
    """Names of the contests and the passes of a run."""
    if quick:
        return [name for name in CONTESTS if name != "dplr_delta_rule"], {"fwd": False}
    return list(CONTESTS), PASSES


def linear_rows(run: Run, script: str) -> Iterator[Row]:
    """Ours in this process, the public kernels in one of their own.

    Raises:
        Disagreement: an output or gradient of ours is not that of float64.
    """
    names, passes = chosen(run.quick)
    mine = []
    for name in names:
        for width in WIDTHS:
            error = _error(CONTESTS[name], width, generator(7), backward="fwd+bwd" in passes)
            if not error <= ALLOWED:  # NaN is no agreement
                raise Disagreement(f"{name} {width} wide: error {error:.0e}, {ALLOWED} allowed")
            for B, T in ROWS:
                for part in passes:
                    row = _our_row(run, name, width, B, T, part)
                    mine.append(row | {"error": f"{error:.0e}"})
    arguments = ["--worker", "linear", *(["--quick"] if run.quick else [])]
    theirs, why = collect(script, arguments, run.limits["peers"])
    found = {_identity(row): row for row in theirs}
    for row in mine:
        contest = CONTESTS[row["operator"]]
        missing = {"note": why if row["pass"] in contest.passes else contest.forward_only}
        yield beside(row, found.get(_identity(row), missing))


def _our_row(run: Run, name: str, width: int, B: int, T: int, part: str) -> Row:
    """One operator, shape and pass."""
    contest, backward = CONTESTS[name], PASSES[part]
    row = _row(name, width, B, T, part)
    row = run.timed(row, lambda: _calls(contest, B, T, width, backward))
    if "ms" in row:
        moved = contest.bytes_of(width).of(backward) * B * T * HEADS
        row["floor"] = floors.share(moved, row["ms"], run.copy_rate)
    return row


def _identity(row: Row) -> tuple[str, ...]:
    """What tells a measurement from others."""
    return row["operator"], row["shape"], row["pass"]


def beside(row: Row, peer: Row) -> Row:
    """Our row with the peer's time, or with the reason why there is none.

    Args:
        row: ours.
        peer: theirs for the same operator, shape and pass.
    """
    if "ms" not in peer or "ms" not in row:
        return row | {"peer": peer.get("note")}
    ratio = peer["ms"] / row["ms"]
    row = row | {"peer": peer["peer"], "peer ms": peer["ms"], "times as fast": ratio}
    row |= {"difference": peer["difference"]}
    return row | ({"goal": f"{GOAL:.0f}x", "met": ratio >= GOAL} if row["pass"] == "fwd" else {})


def peer_worker(run: Run) -> Iterator[Row]:
    """The worker: the public kernels, after their candidates were compiled in parallel."""
    try:
        importlib.import_module("fla")
    except ImportError as error:
        raise SystemExit(f"not available: {error}") from error
    names, passes = chosen(run.quick)
    for name in names:
        contest = CONTESTS[name]
        asked = {part: passes[part] for part in contest.passes if part in passes}
        parts = ",".join(asked)
        compile_candidates([f"candidates:linear:{name}={width}={parts}" for width in WIDTHS])
        for width in WIDTHS:
            error = _difference(contest, width)
            for B, T in ROWS:
                for part, backward in asked.items():
                    row = _row(name, width, B, T, part)
                    row |= {"peer": f"{contest.peer[1]} (fla)", "difference": f"{error:.0e}"}
                    given = (contest, B, T, width, backward, contest.theirs())
                    yield run.timed(row, lambda given=given: _calls(*given))


def compile_share(what: str, index: int, count: int) -> None:
    """A helper of the worker: run a peer once with every count-th candidate of each kernel.

    Args:
        what: "name=width=passes", passes with commas.
        index: see candidates.share.
        count: see candidates.share.
    """
    name, width, parts = what.split("=")
    contest = CONTESTS[name]

    def run() -> None:
        for part in parts.split(","):
            _calls(contest, 1, 512, int(width), PASSES[part], contest.theirs())[0]()

    share(index, count, run)


def _row(name: str, width: int, B: int, T: int, part: str) -> Row:
    """What is measured."""
    return {"operator": name, "shape": f"{B}x{T} {HEADS}x{width}x{width}", "pass": part}


def _calls(
    contest: Contest,
    B: int,
    T: int,
    width: int,
    backward: bool,
    function: Callable[..., Tensor] | None = None,
) -> list[Call]:
    """A call for each of several sets of inputs, of our function or of the given one."""
    function = function or (lambda **inputs: contest.ours(**inputs)[0])
    once = contest.bytes_of(width).forward * B * T * HEADS
    calls = []
    for seed in range(input_sets(once)):
        given = contest.make(B, T, width, generator(seed))
        if not backward:
            calls.append(without_gradients(lambda given=given: function(**given)))
            continue
        given = leaves(given, list(given))
        gradient = _normal(B, T, width, random=generator(seed + 1000))
        inputs = list(given.values())
        calls.append(gradients(lambda given=given: function(**given), inputs, [gradient]))
    return calls


def _error(contest: Contest, width: int, random: torch.Generator, *, backward: bool) -> float:
    """Greatest relative error of our output, and of all gradients, against float64.

    Over one row, which is cut into pieces, and over sixteen short ones, which are not.
    """
    return max(_error_of(contest, B, T, width, random, backward) for B, T in ((1, 1100), (16, 100)))


def _error_of(
    contest: Contest, B: int, T: int, width: int, random: torch.Generator, backward: bool
) -> float:
    """Of rows of one size."""
    given = contest.make(B, T, width, random)
    exact = {name: x.double() for name, x in given.items()}
    gradient = _normal(B, T, width, random=random)
    results = []
    for inputs, form in ((given, "auto"), (exact, "chunk")):
        inputs = leaves(inputs, list(inputs) if backward else [])
        with torch.set_grad_enabled(backward):
            output = contest.ours(**inputs, form=form)[0]
        found = (
            torch.autograd.grad(output, list(inputs.values()), gradient.to(output.dtype))
            if backward
            else ()
        )
        results.append((output.detach(), *found))
    return max(relative_error(one, other) for one, other in zip(*results, strict=True))


def _difference(contest: Contest, width: int) -> float:
    """Relative difference of the peer's output from ours: both must compute the same."""
    given = contest.make(1, 4096, width, generator(7))
    with torch.no_grad():
        return relative_error(contest.theirs()(**given), contest.ours(**given)[0])
