"""`fracdna report`: one page of training runs and evaluations, and its pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from fracdna.outcomes import FINE, ROW_PROBLEMS
from fracdna.report.elements import printable
from fracdna.report.evaluation_sections import EvaluationSections
from fracdna.report.folders import Evaluation, Opened, TrainingRun, open_folders
from fracdna.report.page import page
from fracdna.report.picture import draw_chart
from fracdna.report.same_bases import SameBases, by_bases
from fracdna.report.sections import Section
from fracdna.report.summary import Size, summary
from fracdna.report.training_sections import TrainingSections
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file, check_writable
from fracdna_prep.wording import counted

if TYPE_CHECKING:
    from fracdna.report.networks import Network


def report(config: DictConfig) -> int:
    """Run `fracdna report`.

    Args:
        config: the composed configuration of configs/report.yaml.

    Returns:
        0, or 1 where a run's best weights cannot be read: the page says why.

    Raises:
        InputError: folders of neither kind, or files in them that cannot be read.
    """
    if not config.runs:
        raise InputError(
            "no folders are named: `fracdna report runs/frac results output=report` reads runs of "
            "`fracdna train` and `fracdna evaluate`"
        )
    if config.output is None:
        raise InputError("output= is not set: name a folder for the page and its pictures")
    names = [config.names] if isinstance(config.names, str) else config.names
    opened = open_folders(list(map(str, config.runs)), names and list(map(str, names)))
    output = Path(config.output).absolute()
    if output.resolve() in [folder.folder.resolve() for folder in opened]:
        raise InputError(
            f"output={config.output} is one of the folders that the report is about, whose "
            "pictures would be replaced: name another folder"
        )
    check_writable(output)
    runs = [folder for folder in opened if isinstance(folder, TrainingRun)]
    networks = _open_networks(runs) if config.spectra else {}
    sections = _sections(opened, networks)
    notes = _notes(opened, networks)
    with atomic_file(output / "index.html") as temporary:
        temporary.write_bytes(page(printable(config.title), sections, notes))
    charts = [chart for section in sections for chart in section.charts()]
    for chart in charts:
        draw_chart(output / f"{chart.key}.png", chart)
    for note in notes:
        print(note)
    print(f"{counted(len(charts), 'picture')} beside the page: open {output / 'index.html'}")
    return ROW_PROBLEMS if any(network.problem for network in networks.values()) else FINE


def _open_networks(runs: Sequence[TrainingRun]) -> "dict[str, Network]":
    """Networks by the names of their runs."""
    # PyTorch loads for seconds, and without spectra nothing needs it
    from fracdna.report.networks import open_network

    return {run.name: open_network(run) for run in runs}


def _sections(opened: Sequence[Opened], networks: "dict[str, Network]") -> list[Section]:
    """All sections of the page in their order."""
    runs = [folder for folder in opened if isinstance(folder, TrainingRun)]
    groups = by_bases([folder for folder in opened if isinstance(folder, Evaluation)], runs)
    evaluated = [name for same in groups for name in same.networks]
    places = {
        name: place for place, name in enumerate(dict.fromkeys([r.name for r in runs] + evaluated))
    }
    training = TrainingSections(runs, places)
    sections = [summary(opened, groups, _sizes(groups, networks))]
    for number, same in enumerate(groups, start=1):
        suffix = f"-{number}" if len(groups) > 1 else ""
        sections += EvaluationSections(same, places, suffix).sections()
    sections += training.sections()
    if networks:
        from fracdna.report.networks import NetworkSections

        sections += NetworkSections(networks, places).sections()
    return sections + training.settings()


def _sizes(groups: Sequence[SameBases], networks: "dict[str, Network]") -> dict[str, Size]:
    """Sizes of networks, of those that were opened and those that evaluations tell."""
    told = {
        name: Size(facts.get("parameters"), facts.get("state_scalars"))
        for same in groups
        for name, facts in same.networks.items()
    }
    opened = {n: Size(x.parameters, x.state_scalars) for n, x in networks.items() if x.parameters}
    return told | opened


def _notes(opened: Sequence[Opened], networks: "dict[str, Network]") -> list[str]:
    """What is unfinished or cannot be read."""
    unfinished = [f"{x.name}: {x.status}" for x in opened if not x.status.startswith("complete")]
    problems = [f"{name}: {x.problem}" for name, x in networks.items() if x.problem]
    return unfinished + list(map(printable, problems))
