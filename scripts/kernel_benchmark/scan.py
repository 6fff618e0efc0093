"""frac_scan against its own byte floor: training shapes, and single decoding steps."""

import importlib
import inspect
from collections.abc import Iterator

import torch
from kernel_benchmark import floors, inputs
from kernel_benchmark.inputs import MODES, Shape
from kernel_benchmark.operators import leaves
from kernel_benchmark.report import Row
from kernel_benchmark.run import Run, generator
from kernel_benchmark.timing import Call, gradients, input_sets, without_gradients
from torch import Tensor

from fracdna_kernels import frac_scan

PASSES = {"fwd": False, "fwd+bwd": True}
WIDTHS = ((4, 128), (16, 128), (16, 256))
LONG = 1 << 20
GRADIENTS = ["values", "write", "read", "u"]


def scan_rows(run: Run) -> Iterator[Row]:
    """All shapes; the row at 16 rows of 4,096 comes first, longer rows are held against it."""
    for H, V in WIDTHS[1:2] if run.quick else WIDTHS:
        for B, T in ((16, 4096), (1, 65536), (1, LONG)):
            short = B == 16
            for kind in inputs.KINDS if short else inputs.KINDS[:1]:
                for name, backward in PASSES.items():
                    yield _scan_row(run, Shape(B, T, H, V), kind, name, backward)


def _scan_row(run: Run, shape: Shape, kind: str, name: str, backward: bool) -> Row:
    """One shape, one kind of inputs, one pass."""
    per_head = floors.frac_scan_bytes(shape.V, MODES).of(backward)
    moved = per_head * shape.tokens * shape.H
    row: Row = {"shape": str(shape), "inputs": kind, "pass": name}
    row = run.timed(row, lambda: scan_calls(shape, kind, "triton", backward))
    row["B/token/head"] = per_head
    row["ceiling"] = plan_ceiling(shape, moved, backward)
    if "ms" not in row:
        return row
    row["floor"] = floors.share(moved, row["ms"], run.copy_rate)
    run.remembered.setdefault(("scan", shape, name), row["ms"])
    return row | _goal(run, shape, name, backward, row)


def _goal(run: Run, shape: Shape, name: str, backward: bool, row: Row) -> Row:
    """What the row shall reach: a share of the floor, or at most twice the time of short rows."""
    short = Shape(16, 4096, shape.H, shape.V)
    if shape == short:
        goal = floors.SCAN_GOALS[shape.H, shape.V][backward]
        return {"goal": f"{100 * goal:.0f}% of floor", "met": row["floor"] >= goal}
    before = run.remembered.get(("scan", short, name))
    if before is None:
        return {}
    allowed = floors.LONG_ROW_GOAL * before * shape.tokens / short.tokens
    return {"goal": f"{allowed:.3f} ms (2x per token)", "met": row["ms"] <= allowed}


def plan_ceiling(shape: Shape, moved: int, backward: bool) -> float | None:
    """Floor over what the plan of these sizes moves, for a kernel that runs at the copy rate.

    `plan_bytes(B, T, H, V, M, backward=...)` in fracdna_kernels.frac_scan, where it exists, gives
    all bytes of the pass: of inference, or of a training step's forward and backward together.
    """
    module = importlib.import_module("fracdna_kernels.frac_scan")
    plan = getattr(module, "plan_bytes", None)
    if plan is None:
        return None
    return moved / plan(*shape, MODES, backward=backward)


def scan_calls(shape: Shape, kind: str, form: str, backward: bool) -> list[Call]:
    """A call for each of several sets of inputs."""
    once = floors.frac_scan_bytes(shape.V, MODES).forward * shape.tokens * shape.H
    calls = []
    for seed in range(input_sets(once)):
        given = inputs.scan_inputs(shape, kind, generator(seed))
        calls.append(scan_call(given, form, backward, generator(seed + 1000)))
    return calls


def scan_call(given: dict[str, Tensor], form: str, backward: bool, random: torch.Generator) -> Call:
    """frac_scan on one set of inputs, alone or with its gradients from a random one."""
    if not backward:
        return without_gradients(lambda: frac_scan(**given, form=form))
    inside = leaves(given, GRADIENTS)
    gradient = torch.randn(given["values"].shape, generator=random, device="cuda")
    return gradients(
        lambda: frac_scan(**inside, form=form),
        [inside[name] for name in GRADIENTS],
        [gradient.to(given["values"].dtype)],
    )


def decode_rows(run: Run) -> Iterator[Row]:
    """One position for N sequences, from a state."""
    for H, V in ((16, 128),) if run.quick else ((16, 128), (4, 128)):
        for N in (1, 16, 256):
            moved = floors.decode_bytes(V, MODES) * N * H
            in_place = "inplace_state" in inspect.signature(frac_scan).parameters
            row: Row = {"N": N, "HxV": f"{H}x{V}", "state": "in place" if in_place else "new"}
            row = run.timed(row, lambda N=N, H=H, V=V: _decode_calls(N, H, V))
            row["state MB moved"] = moved / 1e6
            if "ms" in row:
                row["us"] = row.pop("ms") * 1e3
                row["floor us"] = moved / run.copy_rate * 1e6
                row["floor"] = row["floor us"] / row["us"]
            yield row


def _decode_calls(N: int, H: int, V: int) -> list[Call]:
    """Steps on several sets of states, which few sequences do not fill the cache with."""
    options = {}
    if "inplace_state" in inspect.signature(frac_scan).parameters:
        options["inplace_state"] = True
    calls = []
    for seed in range(input_sets(floors.decode_bytes(V, MODES) * N * H)):
        random = generator(seed)
        given = inputs.scan_inputs(Shape(N, 1, H, V), "initial gates", random)
        state = torch.randn(N, H, MODES, V, generator=random, device="cuda")
        calls.append(
            without_gradients(
                lambda given=given, state=state: frac_scan(**given, initial_state=state, **options)
            )
        )
    return calls
