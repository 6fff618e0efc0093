"""The length study: networks of one size on human DNA, trained alike, compared by length.

    python scripts/run_length_study.py train frac:grid frac:final --prepared prepared --output study
    python scripts/run_length_study.py add perplexity --records study/runs.json
    python scripts/run_length_study.py page

A task is NETWORK:grid (a run for each learning rate of the study) or NETWORK:final (one run at the
rate that was best on validation; NETWORK:final:SEED for another seed). Tasks are done in the order
given, in one process, so that kernels are compiled once. What is finished is in OUTPUT/runs.json
and is not done again; --seconds stops before a run that would not end in time. `add` joins what
`fracdna evaluate` wrote of the final weights, `page` draws and writes tables.
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
from length_study.evaluations import Evaluations
from length_study.page import fill
from length_study.pictures import draw_all
from length_study.plan import Run, Study
from length_study.records import Records, record_of
from length_study.tables import all_tables

STUDY = Path(__file__).parent / "length_study" / "study.yaml"
RESULTS = Path("docs/results/dna_length_study")
MARGIN_S = 12.0  # of a run: building, validations, checkpoints


def main() -> None:
    """Reads the command line and does what it says."""
    arguments = command_line()
    arguments.does(Study(STUDY), arguments)


def command_line() -> argparse.Namespace:
    """The arguments; `does` is the function of the action."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(required=True)
    action = actions.add_parser("train", help="train what is missing")
    action.set_defaults(does=train_tasks)
    action.add_argument("tasks", nargs="+", help="NETWORK:grid, NETWORK:final, NETWORK:final:SEED")
    action.add_argument("--prepared", type=Path, required=True, help="of `fracdna prepare`")
    action.add_argument("--output", type=Path, required=True, help="folder of runs and records")
    action.add_argument("--seconds", type=float, default=float("inf"), help="limit of everything")
    action.add_argument("--commit", help="name of the code, where it is no git checkout")
    action = actions.add_parser("add", help="take over output folders of `fracdna evaluate`")
    action.set_defaults(does=add_evaluations)
    action.add_argument("evaluations", nargs="*", type=Path)
    action.add_argument("--carried", action="store_true", help="their carried curves alone")
    action.add_argument("--records", type=Path, help="runs.json of `train`, to be joined as well")
    action.add_argument("--results", type=Path, default=RESULTS)
    action = actions.add_parser("page", help="draw the pictures, fill the tables of the page")
    action.set_defaults(does=write_page)
    action.add_argument(
        "--results", type=Path, default=RESULTS, help="folder; the page is RESULTS.md"
    )
    return parser.parse_args()


def train_tasks(study: Study, arguments: argparse.Namespace) -> None:
    """Train what has no record, in the order of the tasks."""
    arguments.output.mkdir(parents=True, exist_ok=True)
    records = Records(arguments.output / "runs.json")
    about = {k: v for k, v in circumstances(arguments.commit).items() if k != "command"}
    deadline = time.monotonic() + arguments.seconds
    for task in arguments.tasks:
        for run in study.next_runs(task, records):
            needs = run.seconds + MARGIN_S
            if time.monotonic() + needs > deadline:
                print(f"{run.name}: left out, {needs:.0f} s do not fit", flush=True)
                continue
            folder = arguments.output / "runs" / run.name
            measured = train(run, folder, str(arguments.prepared.absolute()))
            records.add(run.name, record_of(run, folder, about | measured))
            print(line(run, records[run.name]), flush=True)


def add_evaluations(study: Study, arguments: argparse.Namespace) -> None:
    """Join evaluations and records to the results."""
    if arguments.records:
        arguments.results.mkdir(parents=True, exist_ok=True)
        records = Records(arguments.results / "runs.json")
        for name, record in Records(arguments.records).items():
            records.add(name, record)
    known = Evaluations(arguments.results)
    for evaluation in arguments.evaluations:
        known.add(evaluation, study.content["lengths_of_classes"], carried=arguments.carried)
    if arguments.evaluations:
        known.write()


def write_page(study: Study, arguments: argparse.Namespace) -> None:
    """Pictures and tables from what is known."""
    records, known = Records(arguments.results / "runs.json"), Evaluations(arguments.results)
    for path in draw_all(arguments.results, study, records, known):
        print(path)
    page = arguments.results.with_suffix(".md")
    without = fill(page, all_tables(study, records, known))
    print(f"{page}; without a place there: {', '.join(without) or 'none'}")


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
