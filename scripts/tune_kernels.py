"""Times launches of frac_scan's kernels on the GPU at hand and prints the best as a table.

    python scripts/tune_kernels.py --output timings.json
    python scripts/tune_kernels.py --kernels output --modes 16 --widths 64,128

Nothing is changed. The table is _TUNED of kernels/fracdna_kernels/frac_scan/launches.py; after it
was pasted there, scripts/check_kernels.py and fracdna_kernels.selfcheck() must still pass. A launch
that does not compile, or gives other numbers than the shipped one, is left out with the reason.
Without installation: PYTHONPATH=kernels.
"""

import argparse
import importlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

KERNELS = ("output", "sweep", "gradient")
HEADS, LENGTH, ROWS = 16, 4096, 16
PIECE = 1024  # sequences are cut, so that sweeps that only find the ends of pieces run too
WARPS = (1, 2, 4, 8)
STAGES = (1, 2, 3, 4)
NARROWEST = 16
BETTER = 1.02  # times as fast a launch must be to replace the one that is shipped
AGREES = 1e-2  # relative root mean square between launches


class Launch(NamedTuple):
    """Value columns of a program, warps and pipeline stages."""

    columns: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Timing:
    """What a launch took.

    Attributes:
        kernel: its name without "_kernel".
        modes: M.
        width: V.
        launch: what was tried.
        shipped: whether it is the one in use.
        ms: median of all launches of this kernel in a forward and backward pass; None: left out.
        reason: why it was left out, else "".
    """

    kernel: str
    modes: int
    width: int
    launch: Launch
    shipped: bool
    ms: float | None
    reason: str = ""

    def __str__(self) -> str:
        taken = f"{self.ms:9.4f} ms" if self.ms is not None else f"left out: {self.reason}"
        where = f"{self.kernel:<9} M={self.modes:<3} V={self.width:<4}"
        return f"{where} {tuple(self.launch)!s:<14} {taken}{'  shipped' if self.shipped else ''}"


Table = dict[str, dict[int, Launch]]


class Recorder:
    """Stands in for a kernel: launches it and keeps what launches it again."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.launches: list[Callable[[], Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """As of a kernel."""

        def launch(*arguments: Any, **options: Any) -> Any:
            again = partial(self.kernel[grid], *arguments, **options)
            self.launches.append(again)
            return again()

        return launch

    def __call__(self) -> None:
        """All launches once more."""
        for launch in self.launches:
            launch()


def main() -> None:
    """Reads the command line, measures, prints and writes."""
    arguments = command_line()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("launches can be timed on a CUDA device only")
    timings = []
    for modes, width in itertools.product(arguments.modes, arguments.widths):
        for timing in measured(modes, width, arguments.kernels, arguments.seconds):
            print(timing, flush=True)
            timings.append(timing)
            if arguments.output:  # what is measured is kept, whatever comes
                rows = [asdict(x) for x in timings]
                arguments.output.write_text(json.dumps(rows, indent=1))
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for modes in arguments.modes:
        print(f"\n# {modes} modes\n{render(best(timings, modes))}")
    print("\n".join(comparisons(timings)))


def command_line() -> argparse.Namespace:
    """The arguments."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kernels", type=lambda text: text.split(","), default=list(KERNELS))
    parser.add_argument("--modes", type=numbers, default=[16, 32], help="M; 16,32")
    parser.add_argument(
        "--widths", type=numbers, default=[16, 32, 64, 128, 256], help="V; 16,32,64,128,256"
    )
    parser.add_argument("--seconds", type=float, default=0.05, help="for one launch's repetitions")
    parser.add_argument("--output", type=Path, help="JSON file with all timings")
    arguments = parser.parse_args()
    if not set(arguments.kernels) <= set(KERNELS):
        parser.error(f"kernels are {','.join(KERNELS)}")
    return arguments


def candidates(width: int) -> Iterator[Launch]:
    """Launches worth a try: blocks of a quarter of the width up to all of it."""
    for columns in (width, width // 2, width // 4):
        if columns >= NARROWEST:
            yield from (Launch(columns, *rest) for rest in itertools.product(WARPS, STAGES))


def best(timings: Iterable[Timing], modes: int) -> Table:
    """The fastest launch by kernel and width; the shipped one unless another is clearly faster."""
    groups: dict[tuple[str, int], list[Timing]] = {}
    for timing in timings:
        if timing.modes == modes and timing.ms is not None:
            groups.setdefault((timing.kernel, timing.width), []).append(timing)
    table: Table = {}
    for (kernel, width), group in groups.items():
        fastest = min(group, key=lambda x: x.ms)
        kept = [x for x in group if x.shipped and x.ms <= BETTER * fastest.ms]
        table.setdefault(kernel, {})[width] = (kept or [fastest])[0].launch
    return table


def render(table: Table) -> str:
    """Ready to be pasted."""
    lines = ["_TUNED = {"]
    for kernel, by_width in table.items():
        entries = [f"{width}: {tuple(by_width[width])}" for width in sorted(by_width, reverse=True)]
        lines += [f'    "{kernel}": {{', f"        {', '.join(entries)},", "    },"]
    return "\n".join([*lines, "}  # fmt: skip"])


def comparisons(timings: Iterable[Timing]) -> Iterator[str]:
    """What the shipped launches lose to the best, a line for each kernel and size."""
    groups: dict[tuple[str, int, int], list[Timing]] = {}
    for timing in timings:
        if timing.ms is not None:
            groups.setdefault((timing.kernel, timing.modes, timing.width), []).append(timing)
    for (kernel, modes, width), group in groups.items():
        fastest = min(group, key=lambda x: x.ms)
        for shipped in (x for x in group if x.shipped):
            yield (
                f"{kernel:<9} M={modes:<3} V={width:<4} shipped {tuple(shipped.launch)} takes "
                f"{shipped.ms / fastest.ms:.2f} times the time of {tuple(fastest.launch)}"
            )


def measured(modes: int, width: int, kernels: Iterable[str], seconds: float) -> Iterator[Timing]:
    """Time every candidate, and the shipped launch, of each kernel at one size."""
    import torch

    launches = importlib.import_module("fracdna_kernels.frac_scan.launches")
    arguments = scan_arguments(modes, width)
    expected = both_passes(arguments)
    for kernel in kernels:
        given = launches.launch(kernel, modes, width, torch.bfloat16)
        shipped = Launch(given["BV"], given["num_warps"], given["STAGES"])
        for launch in dict.fromkeys([shipped, *candidates(width)]):
            ms, reason = None, ""
            try:
                ms = time_launch(kernel, launch, arguments, expected, seconds)
            # compilers raise what they like; the other launches are still worth a line
            except Exception as error:
                reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            yield Timing(kernel, modes, width, launch, launch == shipped, ms, reason)


def scan_arguments(modes: int, width: int) -> dict[str, Any]:
    """Inputs of frac_scan in bfloat16 as an untrained layer gives them, larger than the caches."""
    import torch
    from kernel_benchmark.inputs import KINDS, clock, time_scales

    rows = ROWS * max(1, 64 // width)
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*size: int) -> Any:
        return torch.randn(
            rows, LENGTH, HEADS, *size, generator=generator, device="cuda", dtype=torch.bfloat16
        )

    u = clock(KINDS[0], rows, LENGTH, HEADS, generator)
    variables = {
        "values": normal(width),
        "write": normal(modes).softmax(-1),
        "read": normal(modes).softmax(-1),
        "u": u,
    }
    fixed = {"log_tau": time_scales(u.device, modes), "segment_length": PIECE, "form": "triton"}
    return {name: x.requires_grad_() for name, x in variables.items()} | fixed


def both_passes(arguments: dict[str, Any]) -> list[Any]:
    """The output and all gradients."""
    import torch

    from fracdna_kernels import frac_scan

    output, _ = frac_scan(**arguments)
    variables = [x for x in arguments.values() if getattr(x, "requires_grad", False)]
    return [output.detach(), *torch.autograd.grad(output, variables, output.detach())]


def time_launch(
    kernel: str,
    launch: Launch,
    arguments: dict[str, Any],
    expected: list[Any],
    seconds: float,
) -> float:
    """Milliseconds of all launches of one kernel in a forward and a backward pass.

    Raises:
        ValueError: the numbers are not those of the shipped launch.
        Exception: whatever a compiler raises.
    """
    from kernel_benchmark.agreement import relative_error
    from kernel_benchmark.timing import measure

    planner = importlib.import_module("fracdna_kernels.frac_scan.triton_chunk")
    shipped = planner.launch
    tried = {"BV": launch.columns, "num_warps": launch.warps, "STAGES": launch.stages}

    def choose(name: str, *sizes: Any) -> dict[str, int]:
        return dict(tried) if name == kernel else shipped(name, *sizes)

    recorder = Recorder(getattr(planner, f"{kernel}_kernel"))
    with (
        mock.patch.object(planner, "launch", choose),
        mock.patch.object(planner, f"{kernel}_kernel", recorder),
    ):
        results = both_passes(arguments)
    error = max(map(relative_error, results, expected))
    if error > AGREES:
        raise ValueError(f"differs from the shipped launch by {error:.0e}")
    return measure([recorder], seconds).ms


if __name__ == "__main__":
    main()
