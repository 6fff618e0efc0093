"""The length study: networks of one size on human DNA, trained alike, compared by length.

    python scripts/run_length_study.py train frac:grid frac:final --prepared prepared --output study
    python scripts/run_length_study.py add perplexity --records study/runs.json
    python scripts/run_length_study.py page

A task is NETWORK:grid (a run for each learning rate of the study), NETWORK:grid:RATE (one of them),
NETWORK:final (one run at the rate that was best on validation) or NETWORK:final:SEED (of another
seed). Tasks are done in the order given, in one process, so that kernels are compiled once. What is
finished is in OUTPUT/runs.json and is not done again; an interrupted run goes on where it stopped;
--seconds stops before a run that would not end in time. `add` joins what `fracdna evaluate` wrote
of the final weights, called NETWORK or, of another seed, NETWORK@SEED; `page` fills tables and
draws.
Without installation: PYTHONPATH=.:kernels:data_prep.
"""

import argparse
import contextlib
import gc
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from kernel_benchmark.report import circumstances
from length_study.evaluations import Evaluations
from length_study.page import fill
from length_study.pictures import draw_all
from length_study.plan import FORMS, Run, Study
from length_study.records import Records, record_of, seconds_before
from length_study.tables import all_tables

from fracdna.configuration import compose_configuration
from fracdna.data.datamodule import require_tables
from fracdna.evaluation.likelihood import perplexity
from fracdna.outcomes import FINE, INTERRUPTED, REFUSED, ROW_PROBLEMS, NotFinite
from fracdna.training.run import train
from fracdna_prep.errors import InputError
from fracdna_prep.files import exclusive_lock

STUDY = Path(__file__).parent / "length_study" / "study.yaml"
RESULTS = Path("docs/results/dna_length_study")
MARGIN_S = 12.0  # of a run: building, validations, checkpoints


def main(arguments_given: Sequence[str] | None = None) -> int:
    """Reads the command line and does what it says.

    Returns:
        0; 1 where a run could not be saved, 2 where an input is refused, 130 after an interruption.
    """
    arguments = command_line(arguments_given)
    try:
        return arguments.does(Study(arguments.study), arguments)
    except InputError as error:
        print(f"run_length_study: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        return INTERRUPTED


def command_line(arguments_given: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; `does` is the function of the action."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(required=True)
    action = actions.add_parser("train", help="train what is missing")
    action.set_defaults(does=train_tasks)
    action.add_argument("tasks", nargs="+", help=FORMS)
    action.add_argument("--prepared", type=Path, required=True, help="of `fracdna prepare`")
    action.add_argument("--output", type=Path, required=True, help="folder of runs and records")
    action.add_argument("--seconds", type=float, default=float("inf"), help="limit of everything")
    action.add_argument("--commit", help="name of the code, where it is no git checkout")
    action = actions.add_parser("add", help="take over output folders of `fracdna evaluate`")
    action.set_defaults(does=add_evaluations)
    action.add_argument("evaluations", nargs="*", type=Path)
    action.add_argument("--carried", action="store_true", help="their carried curves alone")
    action.add_argument(
        "--replace", action="store_true", help="what is known by the same name gives way to it"
    )
    action.add_argument("--records", type=Path, help="runs.json of `train`, to be joined as well")
    action = actions.add_parser("page", help="fill the tables of the page, draw the pictures")
    action.set_defaults(does=write_page)
    for action in actions.choices.values():
        action.add_argument("--study", type=Path, default=STUDY, help="YAML of the study")
    for name in ("add", "page"):
        actions.choices[name].add_argument(
            "--results", type=Path, default=RESULTS, help="folder; the page is RESULTS.md"
        )
    return parser.parse_args(arguments_given)


def train_tasks(study: Study, arguments: argparse.Namespace) -> int:
    """Train what has no record, in the order of the tasks."""
    tasks = [study.task(text) for text in arguments.tasks]
    require_tables(arguments.prepared, [study.length])
    deadline = time.monotonic() + arguments.seconds
    with exclusive_lock(arguments.output / ".lock", wait=False):
        records = Records(arguments.output / "runs.json")
        records.check(study)
        study.check_order(tasks, records)
        for task in tasks:
            runs = study.runs(task, records)
            if not runs:
                print(f"{task.text}: left out, its grid is not complete", flush=True)
            for run in runs:
                needs = run.seconds + MARGIN_S
                if run.name not in records and time.monotonic() + needs > deadline:
                    print(f"{run.name}: left out, {needs:.0f} s do not fit", flush=True)
                    continue
                code = FINE if run.name in records else train_run(run, records, arguments)
                if code != FINE:
                    return code
                print(told(run, records[run.name]), flush=True)
    return FINE


def train_run(run: Run, records: Records, arguments: argparse.Namespace) -> int:
    """Train one run, or go on with it, and keep its record; the exit code."""
    folder = arguments.output / "runs" / run.name
    about = {k: v for k, v in circumstances(arguments.commit).items() if k != "command"}
    code, measured = train_measured(run, folder, arguments.prepared)
    if code == FINE:
        records.add({run.name: record_of(run, folder, about | measured)})
    return code


def train_measured(run: Run, folder: Path, prepared: Path) -> tuple[int, dict[str, Any]]:
    """Train, or go on, with what is printed kept beside the run's folder.

    Returns:
        Exit code, 0 of a run that diverged too; seconds, memory and whether it diverged.

    Raises:
        InputError: options or data are refused.
    """
    log = folder.with_name(f"{folder.name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    words = ["logger=none", "progress=false", "resume=true"]
    words += run.command(str(prepared.absolute()), str(folder))[1:]
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    started, before, diverged = time.monotonic(), seconds_before(folder), False
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        try:
            code = train(compose_configuration("train", words))
        except NotFinite as error:
            print(error)
            code, diverged = FINE, True
    endings = {
        INTERRUPTED: "interrupted, the same command goes on",
        ROW_PROBLEMS: f"could not be saved, see {log}",
    }
    if code in endings:
        print(f"{run.name}: {endings[code]}", file=sys.stderr, flush=True)
    memory = torch.cuda.max_memory_allocated() / 2**30 if cuda else None
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
    seconds = before + time.monotonic() - started
    return code, {"seconds": seconds, "gibibytes": memory, "diverged": diverged}


def told(run: Run, record: Mapping[str, Any]) -> str:
    """What a run came to, in a line."""
    course = ", ".join(f"{perplexity(p['nll_nats']):.4f}" for p in record["validation"])
    facts = [
        f"{value / size:.{digits}f} {unit}"
        for key, size, digits, unit in (
            ("seconds", 1, 0, "s"),
            ("median_bases_per_second", 1e6, 2, "Mbases/s"),
            ("gibibytes", 1, 1, "GiB"),
        )
        if (value := record.get(key)) is not None
    ]
    end = "; diverged" if record["diverged"] else ""
    return f"{run.name}: {', '.join(facts)}; validation perplexity {course or 'none'}{end}"


def add_evaluations(study: Study, arguments: argparse.Namespace) -> int:
    """Join evaluations and records to the results."""
    if not arguments.evaluations and not arguments.records:
        raise InputError("nothing to add: name folders of `fracdna evaluate`, or --records")
    # what another process adds meanwhile would be lost
    with exclusive_lock(arguments.results / ".lock", wait=False):
        records = Records(arguments.results / "runs.json")
        more = further_records(study, arguments, records) if arguments.records else {}
        known = Evaluations(arguments.results, study)
        for evaluation in arguments.evaluations:
            known.add(evaluation, carried=arguments.carried, replace=arguments.replace)
        if more:
            records.add(more)
        if arguments.evaluations:
            known.write()
    return FINE


def further_records(study: Study, arguments: argparse.Namespace, known: Records) -> Records:
    """Records of `train` that may be joined to known ones.

    Raises:
        InputError: no such file, records of another study, or another record of a known run.
    """
    if not arguments.records.is_file():
        raise InputError(f"{arguments.records}: no such file; `train` writes OUTPUT/runs.json")
    records = Records(arguments.records)
    records.check(study)
    others = [name for name in records if known.get(name, records[name]) != records[name]]
    if others and not arguments.replace:
        raise InputError(
            f"{arguments.records} has other records of {', '.join(others)} than {known.path}: "
            "--replace takes them"
        )
    return records


def write_page(study: Study, arguments: argparse.Namespace) -> int:
    """Tables and pictures from what is known."""
    records = Records(arguments.results / "runs.json")
    records.check(study)
    known = Evaluations(arguments.results, study)
    page = arguments.results.with_suffix(".md")
    without = fill(page, all_tables(study, records, known))
    print(f"{page}; without a place there: {', '.join(without) or 'none'}")
    for path in draw_all(arguments.results, study, records, known):
        print(path)
    return FINE


if __name__ == "__main__":
    raise SystemExit(main())
