"""Measures the operators of fracdna_kernels on a GPU, against byte floors and public kernels.

    python scripts/benchmark_kernels.py --output results.json

The fused forms are compared with float64 first; a disagreement ends the run. Every share of a floor
refers to the copy rate of this very run. Sections: scan, peers, linear, operators, decode, model.
Only the last needs more than torch and triton (see kernel_benchmark/model.py); peers need fla-core.
Without installation: PYTHONPATH=.:kernels:data_prep.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kernel_benchmark.report import cell, circumstances, render, write_json

SECTIONS = ("scan", "peers", "linear", "operators", "decode", "model")
SCRIPT = str(Path(__file__).resolve())
NOTES = {
    "scan": "floor: share of the time that each input read once and each output written once "
    "would take; ceiling: the share that the plan of these sizes can reach.",
    "peers": "times as fast: the peer's time per token over that of frac_scan.",
    "linear": "16 heads, keys and values of equal width; floor: as of scan; times as fast: the "
    "peer's time over ours.",
    "operators": "at 65,536 tokens; PyTorch: the exact form in the same dtypes.",
    "decode": "one position for N sequences, under a CUDA graph; floor: state read and written.",
    "model": "ms: one training step of 65,536 bases, as Python launches it, or with the passes "
    "replayed from CUDA graphs, as training does on one GPU; kernels ms and its parts from a "
    "profile; outside: neither matrix products nor scan nor optimizer nor embedding and loss.",
}


def main() -> None:
    """Reads the command line, checks, measures, prints and writes."""
    arguments = command_line()
    import torch
    from kernel_benchmark.agreement import Disagreement

    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    if arguments.worker:
        work(arguments)
        return
    result: dict[str, Any] = {"circumstances": circumstances(arguments.commit)}
    show("Circumstances", "", [{"what": k, "value": v} for k, v in result["circumstances"].items()])
    result["agreement"] = check(arguments)
    run = prepare(arguments)
    result["ceilings"] = run.remembered["ceilings"]
    show("Ceilings of this run", "", [result["ceilings"]])
    for name in arguments.sections:
        began = time.perf_counter()
        try:
            rows = list(printed(section(name)(run)))
        except Disagreement as error:
            raise SystemExit(str(error)) from error
        result[name] = rows
        result.setdefault("seconds", {})[name] = round(time.perf_counter() - began, 1)
        show(name, NOTES[name], rows)
        if arguments.output:  # after every section: what is measured is kept
            write_json(arguments.output, result)


def command_line() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--sections", type=sections, default=SECTIONS, help=f"of {','.join(SECTIONS)}; all"
    )
    parser.add_argument("--output", type=Path, help="JSON file")
    parser.add_argument("--quick", action="store_true", help="the most telling shapes, less time")
    parser.add_argument("--commit", help="name of the code, where it is no git checkout")
    parser.add_argument("--row-seconds", type=float, default=1.5, help="for one row's repetitions")
    parser.add_argument("--peer-seconds", type=float, default=150, help="limit of the public peer")
    parser.add_argument(
        "--compile-seconds", type=float, default=240, help="limit of torch.compile; 0: without"
    )
    parser.add_argument(
        "--go-on", action="store_true", help="measure although a fused form disagrees"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--copy-rate", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.output and not arguments.output.absolute().parent.is_dir():
        parser.error(f"no such folder: {arguments.output.parent}")
    return arguments


def sections(text: str) -> tuple[str, ...]:
    """Names in a list with commas, in the order of SECTIONS."""
    asked = set(text.split(","))
    if not asked <= set(SECTIONS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(asked - set(SECTIONS)))} is unknown")
    return tuple(name for name in SECTIONS if name in asked)


def check(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Hold the fused forms that will be timed against float64.

    Raises:
        SystemExit: one disagrees or does not run.
    """
    import torch
    from kernel_benchmark.agreement import Disagreement, check_all
    from kernel_benchmark.operators import OPERATORS

    asked = set(arguments.sections)
    names = [name for name in OPERATORS if name == "frac_scan" or asked & {"operators", "model"}]
    if asked == {"linear"}:  # which looks at its own operators
        return []
    try:
        rows = check_all(tuple(names), torch.device("cuda"))
    except (Disagreement, ValueError) as error:
        if not arguments.go_on:
            raise SystemExit(
                f"{error}\nnothing was timed (--go-on measures all the same)"
            ) from error
        print(f"WARNING: {error}", flush=True)
        return [{"note": str(error)}]
    show("Agreement with float64", "greatest relative root mean square error", rows)
    return rows


def prepare(arguments: argparse.Namespace) -> Any:
    """What the sections are given, with the ceilings of this run."""
    from kernel_benchmark.run import Run
    from kernel_benchmark.timing import ceilings

    budget = min(arguments.row_seconds, 0.3) if arguments.quick else arguments.row_seconds
    if arguments.copy_rate:
        return Run(arguments.copy_rate, budget, arguments.quick)
    reached = ceilings(budget)
    limits = {"peers": arguments.peer_seconds, "compile": arguments.compile_seconds}
    run = Run(reached["copy_bytes_per_s"], budget, arguments.quick, limits)
    run.remembered["ceilings"] = {
        "copy TB/s": reached["copy_bytes_per_s"] / 1e12,
        "8192^3 bf16 product TFLOP/s": reached["matmul_flop_per_s"] / 1e12,
    }
    return run


def section(name: str) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """The generator of a section's rows."""
    from kernel_benchmark import linear, model, operator_rows, peers, scan

    return {
        "scan": scan.scan_rows,
        "peers": lambda run: peers.peer_rows(run, SCRIPT),
        "linear": lambda run: linear.linear_rows(run, SCRIPT),
        "operators": operator_rows.operator_rows,
        "decode": scan.decode_rows,
        "model": lambda run: model.model_rows(run, SCRIPT),
    }[name]


def work(arguments: argparse.Namespace) -> None:
    """A part that runs in a process of its own."""
    from kernel_benchmark import linear, model, peers
    from kernel_benchmark.worker import emit

    contestants = {"gla": peers, "linear": linear}
    if arguments.worker.startswith("candidates:"):
        _, who, what, index, count = arguments.worker.split(":")
        contestants[who].compile_share(what, int(index), int(count))
    elif arguments.worker in contestants:
        arguments.copy_rate = arguments.copy_rate or 1.0  # these workers report no shares
        emit(contestants[arguments.worker].peer_worker(prepare(arguments)))
    else:
        emit(model.step_rows(prepare(arguments), compiled=True))


def printed(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows, each shown in short when it is there: a run that is cut off leaves something."""
    for row in rows:
        shown = {key: cell(key, value) for key, value in row.items() if value is not None}
        print("  " + "  ".join(f"{key}: {value}" for key, value in shown.items()), flush=True)
        yield row


def show(title: str, note: str, rows: list[dict[str, Any]]) -> None:
    """A titled table."""
    parts = [f"\n## {title}", *([note] if note else []), render(rows)]
    print("\n\n".join(parts), flush=True)


if __name__ == "__main__":
    main()
