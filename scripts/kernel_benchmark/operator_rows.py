"""Gates, norms and convolution against their byte floors, beside their PyTorch form."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from kernel_benchmark import floors
from kernel_benchmark.floors import Bytes
from kernel_benchmark.inputs import MODES
from kernel_benchmark.operators import OPERATORS, Operator, leaves, random_like
from kernel_benchmark.report import Row
from kernel_benchmark.run import Run, generator
from kernel_benchmark.scan import PASSES
from kernel_benchmark.timing import Call, gradients, input_sets, without_gradients
from torch import Tensor

TOKENS = (64, 1024)
# heads and value width inside a layer, and the width of the stream as heads and value width
SIZES = {"7M": ((4, 128), (2, 128)), "wide": ((16, 256), (8, 256))}


class Case(NamedTuple):
    """What is timed.

    Attributes:
        operator: its call.
        unit: bytes per element, or per head for the gates.
        stream: whether it works on the width of the stream instead of that inside a layer.
        note: what is special about it.
    """

    operator: Operator
    unit: Bytes
    stream: bool = False
    note: str = ""


def _mixed_inputs(*sizes: Any) -> dict[str, Tensor]:
    """add_rms_norm as mixed precision calls it: the branch in bfloat16, the stream in float32."""
    given = OPERATORS["add_rms_norm"].make(*sizes)
    return given | {"residual": given["residual"].float()}


MIXED = replace(
    OPERATORS["add_rms_norm"], make=_mixed_inputs, options=(("out_dtype", torch.bfloat16),)
)
CASES = (
    Case(OPERATORS["frac_gates"], floors.frac_gates_bytes(MODES)),
    Case(OPERATORS["gated_rms_norm"], floors.gated_rms_norm_bytes(skip=True), note="with skip"),
    Case(OPERATORS["add_rms_norm"], floors.add_rms_norm_bytes(), stream=True),
    Case(MIXED, floors.add_rms_norm_bytes(stream_size=4), stream=True, note="float32 stream"),
    Case(OPERATORS["short_convolution"], floors.short_convolution_bytes(), note="with SiLU"),
)


def operator_rows(run: Run) -> Iterator[Row]:
    """Every operator at two widths, forward and forward + backward."""
    for size, (inside, stream) in SIZES.items():
        for case in CASES:
            heads = stream if case.stream else inside
            for label, backward in PASSES.items():
                row: Row = {"operator": case.operator.name, "": case.note, "size": size}
                yield _row(run, row | {"pass": label}, case, heads, backward)


def _row(run: Run, row: Row, case: Case, heads: tuple[int, int], backward: bool) -> Row:
    """One operator at one width in one pass."""
    operator, sizes = case.operator, (*TOKENS, *heads)
    gates = operator.name == "frac_gates"
    units = heads[0] if gates else heads[0] * heads[1]
    row["width"] = f"{units} heads" if gates else str(units)
    if not operator.exists():
        return row | {"note": "not available"}
    tokens = TOKENS[0] * TOKENS[1]
    moved = case.unit.of(backward) * units * tokens
    sets = input_sets(case.unit.forward * units * tokens)
    row = run.timed(row, lambda: operator_calls(operator, sizes, "triton", backward, sets))
    if "ms" not in row:
        return row
    row |= {"B/unit": case.unit.of(backward), "MB": moved / 1e6}
    row["floor"] = floors.share(moved, row["ms"], run.copy_rate)
    row["goal_floor"] = floors.OPERATOR_GOAL
    row["met"] = row["floor"] >= floors.OPERATOR_GOAL
    if not run.quick:
        form = operator.exact_form()
        plain = run.timed({}, lambda: operator_calls(operator, sizes, form, backward, 2))
        row["PyTorch ms"] = plain.get("ms")
        row["times as fast"] = plain["ms"] / row["ms"] if "ms" in plain else None
    return row


def operator_calls(
    operator: Operator, sizes: tuple[int, int, int, int], form: str, backward: bool, sets: int
) -> list[Call]:
    """A call for each of several sets of inputs."""
    made = []
    for seed in range(sets):
        random = generator(seed)
        given = operator.make(*sizes, random, torch.bfloat16)
        if not backward:
            made.append(without_gradients(lambda given=given: operator(given, form)))
            continue
        names = operator.differentiable(given)
        given = leaves(given, names)
        with torch.no_grad():
            outputs = operator(given, form)
        if "final state" in operator.outputs:  # which training does not use
            outputs = outputs[:1]
        made.append(
            gradients(
                lambda given=given: operator(given, form),
                [given[name] for name in names],
                random_like(outputs, random),
            )
        )
    return made
