"""The length study: networks of one size on human DNA, trained alike, compared by length.

    python scripts/run_length_study.py train frac:grid frac:final --prepared prepared --output study

A task is NETWORK:grid (a run for each learning rate of the study) or NETWORK:final (one run at the
rate that was best on validation; NETWORK:final:SEED for another seed). Tasks are done in the order
given, in one process, so that kernels are compiled once. What is finished is in OUTPUT/runs.json
and is not done again; --seconds stops before a run that would not end in time.
Without installation: PYTHONPATH=.:kernels:data_prep.
"""

import argparse
import contextlib
import gc
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel_benchmark.report import circumstances
from length_study.plan import Run, Study
from length_study.records import Records, record_of

STUDY = Path(__file__).parent / "length_study" / "study.yaml"
MARGIN_S = 12.0  # of a run: building, validations, checkpoints


def main() -> None:
    """Reads the command line and does what it says."""
    arguments = command_line()
    study = Study(STUDY)
    arguments.output.mkdir(parents=True, exist_ok=True)
    records = Records(arguments.output / "runs.json")
    about = {k: v for k, v in circumstances(arguments.commit).items() if k != "command"}
    deadline = time.monotonic() + arguments.seconds
    for task in arguments.tasks:
        for run in study.next_runs(task, records):
            if time.monotonic() + run.seconds + MARGIN_S > deadline:
                print(
                    f"{run.name}: left out, {run.seconds + MARGIN_S:.0f} s do not fit", flush=True
                )
                continue
            folder = arguments.output / "runs" / run.name
            measured = train(run, folder, str(arguments.prepared.absolute()))
            records.add(run.name, record_of(run, folder, about | measured))
            print(line(run, records[run.name]), flush=True)


def command_line() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("action", choices=["train"])
    parser.add_argument("tasks", nargs="+", help="NETWORK:grid, NETWORK:final, NETWORK:final:SEED")
    parser.add_argument("--prepared", type=Path, required=True, help="of `fracdna prepare`")
    parser.add_argument("--output", type=Path, required=True, help="folder of runs and records")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="limit of everything")
    parser.add_argument("--commit", help="name of the code, where it is no git checkout")
    return parser.parse_args()


def train(run: Run, folder: Path, prepared: str) -> dict[str, Any]:
    """Train, with what is printed kept in the run's folder; seconds, memory, whether it diverged.

    Raises:
        SystemExit: training ended with another code than 0.
    """
    import torch

    from fracdna import cli
    from fracdna.outcomes import FINE, ROW_PROBLEMS

    started, log = time.monotonic(), folder.with_name(f"{folder.name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    options = [
        "logger=none",
        "progress=false",
        "resume=true",
        *run.command(prepared, str(folder))[1:],
    ]
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        code = cli.run(["train", *options])
    if code not in (FINE, ROW_PROBLEMS):
        raise SystemExit(f"{run.name}: training ended with {code}, see {log}")
    memory = torch.cuda.max_memory_allocated() / 2**30 if cuda else None
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
    seconds = time.monotonic() - started
    return {"seconds": seconds, "gibibytes": memory, "diverged": code == ROW_PROBLEMS}


def line(run: Run, record: Mapping[str, Any]) -> str:
    """What a run came to, in a line."""
    from fracdna.evaluation.likelihood import perplexity

    course = ", ".join(f"{perplexity(p['nll_nats']):.4f}" for p in record["validation"])
    return (
        f"{run.name}: {record['seconds']:.0f} s, {record['median_bases_per_second'] / 1e6:.2f} "
        f"Mbases/s, {record['gibibytes'] or 0:.1f} GiB; validation perplexity {course}"
    )


if __name__ == "__main__":
    main()
