"""Medians of device time, with Python's launch overhead hidden where it would count."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

Call = Callable[[], Any]

# shorter calls are replayed from a CUDA graph; as Python runs them, the host may take a millisecond
# and more to launch what the device does in a tenth of that
GRAPH_BELOW_MS = 20.0
REPLAY_MS = 1.0  # work in one replay, so that its own launch is lost in it
ROUNDS = 50  # most times that a graph goes through its input sets
FEWEST, MOST = 5, 500  # repetitions; time permitting at least 50
L2_BYTES = 200e6  # input sets are rotated until they are larger than this


@dataclass(frozen=True)
class Timing:
    """Median and spread of repetitions.

    Attributes:
        ms: median of one call in milliseconds.
        spread: distance between the deciles, over the median.
        repetitions: calls that were timed.
        graph: whether they were replayed from a CUDA graph.
    """

    ms: float
    spread: float
    repetitions: int
    graph: bool

    def row(self) -> dict[str, Any]:
        """Columns of a table."""
        mode = "graph" if self.graph else "eager"
        return {
            "ms": self.ms,
            "spread": self.spread,
            "reps": f"{self.repetitions} {mode}",
        }


def summarize(samples: Sequence[float], calls: int, graph: bool) -> Timing:
    """Statistics of samples in milliseconds, each of `calls` calls."""
    single = sorted(sample / calls for sample in samples)
    median = statistics.median(single)
    low, high = (single[round(q * (len(single) - 1))] for q in (0.1, 0.9))
    return Timing(median, (high - low) / median, len(single) * calls, graph)


def repetitions(milliseconds: float, budget_s: float) -> int:
    """How often a call of that duration fits into the budget, within FEWEST and MOST."""
    return min(MOST, max(FEWEST, int(budget_s * 1e3 / max(milliseconds, 1e-6))))


def input_sets(bytes_of_one: float, most: int = 32) -> int:
    """How many sets of inputs are rotated so that none is found in the cache again."""
    return min(most, max(2, math.ceil(L2_BYTES / max(bytes_of_one, 1))))


def measure(calls: Sequence[Call], budget_s: float, *, graphs: bool = True) -> Timing:
    """Time of one call, each of `calls` on inputs of its own in turn.

    Args:
        calls: none keeps its result; one that gives gradients builds and drops its own graph.
        budget_s: seconds for the repetitions.
        graphs: replay short calls from a CUDA graph; without, the time of launches counts.
    """
    for call in calls:  # compiles, and fills allocator and caches
        call()
    estimate = _elapsed(lambda: [call() for call in calls]) / len(calls)
    if graphs and estimate < GRAPH_BELOW_MS:
        try:
            return _replayed(calls, estimate, budget_s)
        except RuntimeError:  # what waits for the device cannot be captured
            torch.cuda.synchronize()
    return _eager(calls, estimate, budget_s)


def _elapsed(call: Call) -> float:
    """Milliseconds of device time around one call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def _eager(calls: Sequence[Call], estimate: float, budget_s: float) -> Timing:
    """Every call between two events, all submitted before the first is waited for."""
    count = repetitions(estimate, budget_s)
    events = []
    for index in range(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        calls[index % len(calls)]()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return summarize([begin.elapsed_time(end) for begin, end in events], 1, graph=False)


def _replayed(calls: Sequence[Call], estimate: float, budget_s: float) -> Timing:
    """Replays of a graph that holds all calls in turn, a few rounds of them if they are short."""
    rounds = min(ROUNDS, max(1, math.ceil(REPLAY_MS / (estimate * len(calls)))))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries set themselves up for the stream of the capture
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph, results = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph, stream=side):
        for _ in range(rounds):
            # results of one round live together: no output is written where another just was
            results = [call() for call in calls]
    in_one = rounds * len(calls)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    count = max(20, repetitions(_elapsed(graph.replay), budget_s))
    samples = [_elapsed(graph.replay) for _ in range(min(count, MOST))]
    del results
    graph.reset()
    return summarize(samples, in_one, graph=True)


def gradients(
    call: Callable[[], torch.Tensor | Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> Call:
    """A call that computes the outputs, then the gradients of the inputs from theirs.

    Args:
        call: gives the outputs, one or several; further ones are left out of the gradient.
        inputs: leaves that require gradients.
        outputs: a gradient for each output that counts.
    """

    def both() -> tuple[torch.Tensor, ...]:
        result = call()
        result = (result,) if isinstance(result, torch.Tensor) else result
        return torch.autograd.grad(result[: len(outputs)], inputs, outputs)

    return both


def without_gradients(call: Call) -> Call:
    """The call as in inference."""

    def forward() -> Any:
        with torch.no_grad():
            return call()

    return forward


def ceilings(budget_s: float) -> dict[str, float]:
    """What this device reaches at its best: bytes per second of a copy, FLOP/s of a product."""
    source = torch.randn(2**30, device="cuda")
    # not from a graph, where a copy is left to an engine that reaches two thirds of the rate
    copy = measure([partial(torch.empty_like(source).copy_, source)], budget_s, graphs=False)
    moved = 2 * source.nbytes
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = measure([partial(torch.mm, a, b)], budget_s, graphs=False)
    del source, a, b
    torch.cuda.empty_cache()
    return {
        "copy_bytes_per_s": moved / copy.ms * 1e3,
        "matmul_flop_per_s": 2 * size**3 / product.ms * 1e3,
    }
