"""frac_scan beside causal attention and beside the public kernels for the same recurrence.

Attention computes something else, at the same heads and widths. chunk_gla of flash-linear-attention
computes the same: q = read, k = write, v = values, g = -u / tau for every key, scale 1. It is given
g ready made, and the gradient of u, a sum over keys, is not charged to it.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from kernel_benchmark import floors, inputs
from kernel_benchmark.agreement import relative_error
from kernel_benchmark.candidates import compile_candidates, share
from kernel_benchmark.inputs import MODES, Shape
from kernel_benchmark.operators import leaves
from kernel_benchmark.report import Row
from kernel_benchmark.run import Run, generator
from kernel_benchmark.scan import PASSES, scan_calls
from kernel_benchmark.timing import Call, gradients, input_sets, without_gradients
from kernel_benchmark.worker import collect
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fracdna_kernels import frac_scan

KIND = inputs.KINDS[0]
GLA = "chunk_gla (fla)"


def peer_shapes(quick: bool) -> list[Shape]:
    """Shapes of the comparison, the most telling first."""
    wide = [Shape(16, 4096, 16, 128), Shape(1, 65536, 16, 128)]
    return wide if quick else [*wide, Shape(16, 4096, 4, 128), Shape(1, 65536, 4, 128)]


def peer_rows(run: Run, script: str) -> Iterator[Row]:
    """Attention and our chunk form in this process, the public kernels in one of their own."""
    for shape in peer_shapes(run.quick):
        for name, backward in PASSES.items():
            yield _beside(run, _attention(run, shape, name, backward), shape, backward)
            yield _beside(run, _chunk(run, shape, name, backward), shape, backward)
    limit = run.limits["peers"]
    arguments = ["--worker", "gla", *(["--quick"] if run.quick else [])]
    rows, reason = collect(script, arguments, limit)
    for row in rows:
        shape = Shape(*row.pop("sizes", (0, 0, 0, 0)))
        yield _beside(run, row, shape, PASSES.get(row.get("pass"), False))
    if reason:
        yield {"peer": GLA, "note": reason}


def _beside(run: Run, row: Row, shape: Shape, backward: bool) -> Row:
    """The row with our own time for the same shape, per token, and the ratio."""
    if "ms" not in row:
        return row
    key = ("scan", shape, row["pass"])
    if key not in run.remembered:
        ours = run.timed({}, lambda: scan_calls(shape, KIND, "triton", backward))
        if "ms" in ours:
            run.remembered[key] = ours["ms"]
    if key not in run.remembered:
        return row
    mine = run.remembered[key]
    tokens = row.get("tokens", shape.tokens)
    row |= {"frac_scan ms": mine, "times as fast": row["ms"] / tokens / (mine / shape.tokens)}
    if row["peer"] == GLA:
        row |= {"goal": f"{floors.PEER_GOAL:.0f}x", "met": row["times as fast"] >= floors.PEER_GOAL}
    return row


def _attention(run: Run, shape: Shape, name: str, backward: bool) -> Row:
    """PyTorch's fused causal attention."""
    row: Row = {"peer": "causal attention (flash)", "shape": str(shape), "pass": name}
    return run.timed(row, lambda: _attention_calls(shape, backward))


def _attention_calls(shape: Shape, backward: bool) -> list[Call]:
    """Two sets of queries, keys and values."""
    B, T, H, V = shape
    calls = []
    for seed in range(2):
        random = generator(seed)
        q, k, v, gradient = (
            torch.randn(B, H, T, V, generator=random, device="cuda", dtype=torch.bfloat16)
            for _ in range(4)
        )

        def call(q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return scaled_dot_product_attention(q, k, v, is_causal=True)

        if backward:
            for x in (q, k, v):
                x.requires_grad_()
        calls.append(
            gradients(call, [q, k, v], [gradient]) if backward else without_gradients(call)
        )
    return calls


def _chunk(run: Run, shape: Shape, name: str, backward: bool) -> Row:
    """Our PyTorch form, on as many tokens as its memory allows."""
    few = replace(run, budget_s=min(run.budget_s, 0.5))
    row: Row = {"peer": "frac_scan form=chunk", "pass": name}
    for part in (1, 4, 16):
        rows = max(1, shape.B // part)
        smaller = shape._replace(B=rows, T=shape.tokens // part // rows)
        given: Row = row | {"shape": str(smaller), "tokens": smaller.tokens}
        done = few.timed(given, lambda s=smaller: scan_calls(s, KIND, "chunk", backward)[:2])
        if "ms" in done or "OutOfMemory" not in done["note"]:
            return done
    return done


def peer_worker(run: Run) -> Iterator[Row]:
    """The worker: chunk_gla on the same inputs, after its candidates were compiled in parallel."""
    try:
        from fla.ops.gla import chunk_gla  # noqa: F401
    except ImportError as error:
        yield {"peer": GLA, "note": f"not available: {error}"}
        return
    warmed = set()
    for shape in peer_shapes(run.quick):
        if shape.H not in warmed:
            warmed.add(shape.H)
            sizes = ",".join(map(str, shape._replace(B=1, T=512)))
            compile_candidates([f"candidates:gla:{sizes}"])
        error = gla_error(shape._replace(B=1, T=4096))
        for name, backward in PASSES.items():
            row = {"peer": GLA, "shape": str(shape), "sizes": shape, "pass": name}
            row |= {"difference": f"{error:.0e}"}
            once = floors.frac_scan_bytes(shape.V, MODES).forward * shape.tokens * shape.H
            sets = input_sets(once)
            yield run.timed(row, lambda s=shape, b=backward, n=sets: _gla_calls(s, b, n))


def _gla_calls(shape: Shape, backward: bool, sets: int) -> list[Call]:
    """A call for each of several sets of inputs."""
    from fla.ops.gla import chunk_gla

    calls = []
    for seed in range(sets):
        given = gla_inputs(inputs.scan_inputs(shape, KIND, generator(seed)))
        if not backward:
            calls.append(without_gradients(lambda given=given: chunk_gla(**given, scale=1.0)))
            continue
        given = leaves(given, list(given))
        gradient = torch.randn(given["v"].shape, generator=generator(seed + 1000), device="cuda")
        calls.append(
            gradients(
                lambda given=given: chunk_gla(**given, scale=1.0),
                list(given.values()),
                [gradient.to(torch.bfloat16)],
            )
        )
    return calls


def gla_inputs(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """frac_scan's arguments as those of gated linear attention; g in float32, as u is."""
    g = -given["u"][..., None] * torch.exp(-given["log_tau"])
    return {"q": given["read"], "k": given["write"], "v": given["values"], "g": g}


def gla_error(shape: Shape) -> float:
    """Relative difference of the peer's output from ours: both must compute the same."""
    from fla.ops.gla import chunk_gla

    given = inputs.scan_inputs(shape, KIND, generator(7))
    with torch.no_grad():
        theirs = chunk_gla(**gla_inputs(given), scale=1.0)[0]
        return relative_error(theirs, frac_scan(**given)[0])


def compile_share(sizes: str, index: int, count: int) -> None:
    """A helper of the worker: run the peer once with every count-th candidate of each kernel.

    Args:
        sizes: "B,T,H,V".
        index: see candidates.share.
        count: see candidates.share.
    """
    shape = Shape(*map(int, sizes.split(",")))
    share(index, count, lambda: [call() for call in _gla_calls(shape, backward=True, sets=1)])
