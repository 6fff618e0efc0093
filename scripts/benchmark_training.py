"""Measures training steps of every mixer at several lengths, and the loader that feeds them.

    python scripts/benchmark_training.py --output training.json

A step is what `fracdna train` does with a batch: forward pass, loss, backward pass, clipping and
AdamW in bfloat16, on one GPU with the passes replayed from CUDA graphs where that can be. Before
anything is timed, processes side by side run every case once, so that Triton's compilations are in
its cache (TRITON_CACHE_DIR). Then cases are timed one after another in one process; a case that
fails, or takes too long, is a row with its reason, and a fresh process goes on behind it. The JSON
file is replaced after every row; tables (.md) and a picture (.png) come beside it at the end.
Without installation: PYTHONPATH=.:kernels:data_prep.
"""

import argparse
import contextlib
import gc
import json
import os
import queue
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kernel_benchmark.report import Row, cell, circumstances, render, write_json
from kernel_benchmark.worker import MARK, parse

SCRIPT = str(Path(__file__).resolve())
LENGTHS = (1024, 4096, 16384, 65536)
FIRST = "frac"  # which others are compared with
RETRIES, PAUSE_S = 5, 5.0  # of a warm-up that finds the memory taken by its neighbours
READY = "ready"  # the row of a worker that has imported everything
Case = tuple[str, int]  # mixer, length


def main() -> None:
    """Reads the command line, warms, measures, prints and writes."""
    arguments = command_line()
    if arguments.worker:
        work(arguments)
        return
    deadline = time.monotonic() + arguments.seconds
    result: dict[str, Any] = {"circumstances": circumstances(arguments.commit)}
    result["circumstances"] |= {"experiment": arguments.experiment, "bases": arguments.bases}
    print(render([{"what": k, "value": v} for k, v in result["circumstances"].items()]), flush=True)
    cases = [(mixer, length) for mixer in arguments.mixers for length in arguments.lengths]
    result["warm_seconds"] = warm(cases, arguments, deadline)
    result["loader"] = loader_row(arguments)
    print(render([result["loader"]]), flush=True)
    result["rows"] = rows = []
    for row in measured(cases, arguments, deadline):
        rows.append(beside_first(row, rows))
        shown = [f"{name}: {cell(name, value)}" for name, value in row.items()]
        print("  " + "  ".join(shown), flush=True)
        if arguments.output:  # after every row: what is measured is kept
            write_json(arguments.output, result)
    text = tables(result)
    print(f"\n{text}", flush=True)
    if arguments.output:
        arguments.output.with_suffix(".md").write_text(text + "\n")
        draw(arguments.output.with_suffix(".png"), result)


def command_line() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mixers", type=names, help="in a list with commas; all of configs/mixer")
    parser.add_argument("--lengths", type=numbers, default=LENGTHS, help="bases of a window")
    parser.add_argument("--bases", type=int, default=65_536, help="of a batch")
    parser.add_argument("--experiment", default="dna_7m", help="of configs/experiment")
    parser.add_argument("--prepared", type=Path, help="what the loader reads; the bundled example")
    parser.add_argument("--loader-length", type=int, default=65_536, help="its bases of a window")
    parser.add_argument("--workers", type=int, default=4, help="reading processes")
    parser.add_argument("--output", type=Path, help="JSON file; tables and a PNG come beside it")
    parser.add_argument("--commit", help="name of the code, where it is no git checkout")
    parser.add_argument("--warm-processes", type=int, default=15, help="0: none")
    parser.add_argument("--warm-seconds", type=float, default=300, help="limit of the warm-up")
    parser.add_argument("--row-seconds", type=float, default=1.5, help="for one row's repetitions")
    parser.add_argument("--case-seconds", type=float, default=120, help="limit of one row")
    parser.add_argument("--seconds", type=float, default=3000, help="limit of everything")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.output and not arguments.output.absolute().parent.is_dir():
        parser.error(f"no such folder: {arguments.output.parent}")
    if any(arguments.bases % length for length in arguments.lengths):
        parser.error(f"--bases {arguments.bases} is not a multiple of every length")
    known = mixer_names()
    arguments.mixers = arguments.mixers or known
    unknown = sorted(set(arguments.mixers) - set(known))
    if unknown:
        parser.error(f"no such mixer: {', '.join(unknown)}; there are {', '.join(known)}")
    return arguments


def names(text: str) -> list[str]:
    """Words in a list with commas."""
    return text.split(",")


def numbers(text: str) -> tuple[int, ...]:
    """Sizes in a list with commas, at least 1."""
    found = tuple(map(int, text.split(",")))
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text}: lengths must be at least 1")
    return found


def mixer_names() -> list[str]:
    """All of configs/mixer, the one that others are compared with first."""
    from fracdna.configuration import configs_folder

    found = sorted(path.stem for path in (configs_folder() / "mixer").glob("*.yaml"))
    return sorted(found, key=lambda name: name != FIRST)


def overrides(experiment: str, case: Case) -> list[str]:
    """What `fracdna train` is told. Batches of one size need no activation checkpointing."""
    mixer, length = case
    model = [f"experiment={experiment}", f"mixer={mixer}", "model.activation_checkpointing=false"]
    return [*model, f"data.length={length}"]


def warm(cases: Sequence[Case], arguments: argparse.Namespace, deadline: float) -> float:
    """Run every case once in processes side by side.

    Neighbours in time have different mixers: what one has compiled for a length serves the others.

    Returns:
        Seconds that it took.
    """
    began = time.monotonic()
    cases = sorted(cases, key=lambda case: case[1])
    count = min(arguments.warm_processes, len(cases))
    processes = [
        start(arguments, f"warm:{json.dumps(cases[index::count])}", subprocess.DEVNULL)
        for index in range(count)
    ]
    end = min(deadline, began + arguments.warm_seconds)
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(end - time.monotonic(), 0))
    for process in processes:
        process.kill()
        process.wait()
    return round(time.monotonic() - began, 1)


def start(arguments: argparse.Namespace, worker: str, output: int) -> subprocess.Popen[str]:
    """This script as a worker."""
    given = {
        "--experiment": arguments.experiment,
        "--bases": arguments.bases,
        "--row-seconds": arguments.row_seconds,
        "--lengths": arguments.bases,  # its cases have their own
        "--worker": worker,
    }
    words = [str(word) for pair in given.items() for word in pair]
    return subprocess.Popen(
        [sys.executable, SCRIPT, *words], stdout=output, stderr=subprocess.STDOUT, text=True
    )


def measured(
    cases: Sequence[Case], arguments: argparse.Namespace, deadline: float
) -> Iterator[Row]:
    """A row for every case, as it comes."""
    left = list(cases)
    while left and time.monotonic() < deadline:
        reason = None
        for found in rows_of_worker(left, arguments, deadline):
            if isinstance(found, str):
                reason = found
            else:
                del left[0]
                yield found
        if reason and left and time.monotonic() < deadline:
            mixer, length = left.pop(0)
            yield {"mixer": mixer, "length": length, "note": reason}
    for mixer, length in left:
        note = f"not reached in {arguments.seconds:.0f} s"
        yield {"mixer": mixer, "length": length, "note": note}


def rows_of_worker(
    cases: Sequence[Case], arguments: argparse.Namespace, deadline: float
) -> Iterator[Row | str]:
    """Rows of one process; last a reason, if it ended before it had done all cases."""
    process = start(arguments, f"time:{json.dumps(cases)}", subprocess.PIPE)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_pass_on, args=(process, lines), daemon=True).start()
    rest: list[str] = []
    reason = None
    try:
        while True:
            limit = min(arguments.case_seconds, max(deadline - time.monotonic(), 0))
            line = _next_row(lines, limit, rest)
            if line is None:
                break
            rows, _ = parse(line)
            yield from (row for row in rows if READY not in row)
        if process.wait():
            reason = f"failed: {rest[-1][:160] if rest else f'exit code {process.returncode}'}"
    except queue.Empty:
        reason = f"not finished in {limit:.0f} s"
    finally:
        process.kill()
        process.wait()
    if reason:
        yield reason


def _pass_on(process: subprocess.Popen[str], lines: "queue.Queue[str | None]") -> None:
    """Lines of a process as they come, and None at its end."""
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _next_row(lines: "queue.Queue[str | None]", limit: float, rest: list[str]) -> str | None:
    """The next line that is a row; others are kept in `rest`.

    Raises:
        queue.Empty: none within so many seconds.
    """
    end = time.monotonic() + limit
    while True:
        line = lines.get(timeout=max(end - time.monotonic(), 0.01))
        if line is None or line.startswith(MARK):
            return line
        if line.strip():
            rest.append(line.strip())


def work(arguments: argparse.Namespace) -> None:
    """A process of its own: warms its cases, or times them."""
    from kernel_benchmark.worker import emit

    what, _, given = arguments.worker.partition(":")
    cases = [(mixer, length) for mixer, length in json.loads(given)]
    if what == "warm":
        for case in cases:
            warm_case(case, arguments)
        return
    emit([{READY: True}])
    for case in cases:
        emit([timed_case(case, arguments)])
        if not device_works():
            raise SystemExit("the device is lost to this process")


def warm_case(case: Case, arguments: argparse.Namespace) -> None:
    """One step, whatever comes of it; where memory is short, again a little later."""
    import torch

    for _ in range(RETRIES):
        try:
            prepared_step(case, arguments, "eager")[1]()
            return
        except torch.OutOfMemoryError:
            time.sleep(PAUSE_S)
        except Exception as error:  # its row will say so
            print(error)
            return
        finally:
            release()


def timed_case(case: Case, arguments: argparse.Namespace) -> Row:
    """Time, speed and memory of a step, or why there are none."""
    from kernel_benchmark.run import reason

    mixer, length = case
    row: Row = {"mixer": mixer, "length": length}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            row |= _timed(case, arguments)
        told = [str(w.message) for w in caught if "CUDA graphs" in str(w.message)]
        return row | ({"note": told[0][:160]} if told else {})
    except Exception as error:  # of a compiler or a device: the other cases are still measured
        return row | {"note": reason(error)}
    finally:
        release()


def _timed(case: Case, arguments: argparse.Namespace) -> Row:
    """See timed_case."""
    import torch
    from kernel_benchmark.timing import measure

    torch.manual_seed(0)
    model, step = prepared_step(case, arguments, "auto")
    for _ in range(3):  # the first allocates the optimizer's state, and records graphs
        loss = step()
    if not torch.isfinite(loss):
        raise ArithmeticError(f"the loss is {float(loss)}")
    if torch.cuda.is_available():
        timing = measure([step], arguments.row_seconds, graphs=False)
        peak = torch.cuda.max_memory_reserved()
    else:
        timing = host_timing(step, arguments.row_seconds)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "ms": timing.ms,
        "spread": timing.spread,
        "steps": timing.repetitions,
        "bases_per_s": arguments.bases / timing.ms * 1e3,
        "peak_gib": peak / 2**30,
    }


def prepared_step(case: Case, arguments: argparse.Namespace, mode: str) -> tuple[Any, Any]:
    """Model and step of a case on the device that is there; graphs on GPUs alone."""
    import torch
    from kernel_benchmark.model import training_step

    cuda = torch.cuda.is_available()
    return training_step(
        case[1],
        mode if cuda else "eager",
        "cuda" if cuda else "cpu",
        overrides=overrides(arguments.experiment, case),
        bases=arguments.bases,
    )


def host_timing(step: Any, budget_s: float) -> Any:
    """As timing.measure, by the clock of the host."""
    from kernel_benchmark.timing import repetitions, summarize

    def once() -> float:
        began = time.perf_counter()
        step()
        return (time.perf_counter() - began) * 1e3

    return summarize([once() for _ in range(repetitions(once(), budget_s))], 1, graph=False)


def release() -> None:
    """Memory of a case that is over: a model holds itself in circles, and its graphs theirs."""
    import torch

    gc.collect()
    if device_works() and torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def device_works() -> bool:
    """Whether this process can still use the device: some errors end that."""
    import torch

    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def loader_row(arguments: argparse.Namespace) -> Row:
    """Bases per second of the training loader by itself."""
    from kernel_benchmark.run import reason

    row: Row = {"length": arguments.loader_length, "workers": arguments.workers}
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = arguments.prepared or prepare_example(Path(scratch), arguments.loader_length)
            return row | read(folder, arguments)
    except Exception as error:  # the steps are still measured
        return row | {"note": reason(error)}


def prepare_example(scratch: Path, length: int) -> Path:
    """The bundled human DNA as windows of one length."""
    from fracdna_prep.example import example_files
    from fracdna_prep.options import PrepareOptions
    from fracdna_prep.prepare import prepare

    files = example_files()
    options = PrepareOptions(
        fasta=files.fasta, intervals=files.splits_bed, split="bed", length=[length],
        output=scratch / "prepared", progress=False,
    )  # fmt: skip
    prepare(options)
    return scratch / "prepared"


def read(folder: Path, arguments: argparse.Namespace) -> Row:
    """Read batches as training does, after those that workers had time to prepare."""
    from fracdna.data.datamodule import WindowData

    length, workers = arguments.loader_length, arguments.workers
    data = WindowData(
        folder,
        length=length,
        bases_per_step=max(arguments.bases // length, 1) * length,
        steps=1 << 30,
        workers=workers,
    )
    data.trainer = SimpleNamespace(world_size=1, global_rank=0, global_step=0)
    batches = iter(data.train_dataloader())
    for _ in range(4 * max(workers, 1)):
        next(batches)
    began, bases = time.perf_counter(), 0
    while time.perf_counter() - began < arguments.row_seconds:
        bases += next(batches)["ids"].numel()
    return {"bases_per_s": bases / (time.perf_counter() - began), "cores": os.cpu_count()}


def beside_first(row: Row, rows: Sequence[Row]) -> Row:
    """The row with how many times as fast the first mixer is at its length."""
    if "bases_per_s" not in row:
        return row
    for other in (*rows, row):
        if other["mixer"] == FIRST and other["length"] == row["length"] and "bases_per_s" in other:
            row[f"{FIRST} is times as fast"] = other["bases_per_s"] / row["bases_per_s"]
    return row


def tables(result: dict[str, Any]) -> str:
    """Bases per second, ratio and memory, a column per length; and what was not measured."""
    parts = []
    for title, name, scale in (
        ("Million bases/s of a training step", "bases_per_s", 1e-6),
        (f"Times as fast: {FIRST} over each", f"{FIRST} is times as fast", 1),
        ("Peak memory, GiB", "peak_gib", 1),
    ):
        lines: dict[str, Row] = {}
        for row in result["rows"]:
            line = lines.setdefault(row["mixer"], {"mixer": row["mixer"]})
            line[f"{row['length']:,}"] = row[name] * scale if name in row else None
        parts += [f"## {title}", render(list(lines.values()))]
    noted = [row for row in result["rows"] if "note" in row]
    if noted:
        columns = ("mixer", "length", "note")
        parts += ["## Notes", render([{c: row[c] for c in columns} for row in noted])]
    return "\n\n".join(parts)


def draw(path: Path, result: dict[str, Any]) -> None:
    """Bases per second against the length, a curve per mixer and a line for the loader."""
    from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullLocator

    from fracdna import pictures

    figure, axes = pictures.new_axes("bases of a window", "bases/s", "a training step by mixer")
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in result["rows"]:
        if "bases_per_s" in row:
            curves.setdefault(row["mixer"], []).append((row["length"], row["bases_per_s"]))
    for number, (mixer, points) in enumerate(curves.items()):
        style = {"lw": 2.4, "color": "black"} if mixer == FIRST else {"lw": 1.2}
        marker = "osv^D*"[number // 10 % 6]  # colours repeat after ten
        axes.plot(*zip(*points, strict=True), marker=marker, ms=4, label=mixer, **style)
    if "bases_per_s" in result["loader"]:
        label = f"loader, {result['loader']['workers']} workers"
        axes.axhline(result["loader"]["bases_per_s"], color="0.5", ls="--", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lengths = sorted({row["length"] for row in result["rows"]})
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: pictures.bases(value)))
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    pictures.save(figure, path)


if __name__ == "__main__":
    main()
