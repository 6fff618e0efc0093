"""What a study consists of: networks, and runs with names and options."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fracdna_prep.errors import InputError

GRID, FINAL = "grid", "final"
FORMS = "NETWORK:grid, NETWORK:grid:RATE, NETWORK:final or NETWORK:final:SEED"
KEYS = {
    "common", "rates", "further_rates", "stages", "first_seed", "validation", "test", "width",
    "lengths_of_classes", "order", "ablation_rate", "networks",
}  # fmt: skip

Known = Mapping[str, Mapping[str, Any]]  # records by name of the run


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        network: its name in the study.
        stage: what it is for: grid, final.
        rate: learning rate.
        seed: of initial weights, order and strands.
        options: of `fracdna train`, as text.
        bases: that it is trained on.
        seconds: that it is expected to take.
    """

    network: str
    stage: str
    rate: float
    seed: int
    options: tuple[str, ...]
    bases: int
    seconds: float

    @property
    def name(self) -> str:
        """Its folder, and what it is found by in the records."""
        return f"{self.network}-{self.stage}-{self.rate:g}-{self.seed}"

    def command(self, prepared: str, output: str) -> list[str]:
        """Words after `fracdna`."""
        return ["train", *self.options, f"data.prepared={prepared}", f"output={output}"]


@dataclass(frozen=True)
class Task:
    """Runs to be trained, as the command line names them.

    Attributes:
        text: NETWORK:grid, NETWORK:grid:RATE, NETWORK:final or NETWORK:final:SEED.
        network: its name in the study.
        stage: grid or final.
        point: a rate of the grid alone, or the seed of the final run; None: all rates, first seed.
    """

    text: str
    network: str
    stage: str
    point: float | int | None


class Study:
    """A study as its YAML file says.

    Args:
        path: of the file.

    Raises:
        InputError: no such file, or one that contradicts itself.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.content: dict[str, Any] = yaml.safe_load(path.read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InputError(f"{path} cannot be read as a study: {error}") from error
        missing = sorted(KEYS - set(self.content or ()))
        if missing:
            raise InputError(f"{path} lacks {', '.join(missing)}")
        try:
            self._read()
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} cannot be read as a study: {type(error).__name__} {error}"
            ) from error
        self._check(path)

    def _read(self) -> None:
        """Take the values that are asked for by name, and try every run."""
        self.rates: list[float] = [float(rate) for rate in self.content["rates"]]
        further = [float(rate) for rate in self.content["further_rates"]]
        self.points: list[float] = sorted({*self.rates, *further})
        self.order: list[str] = list(self.content["order"])
        self.first_seed: int = self.content["first_seed"]
        self.length: int = self.content["common"]["data.length"]
        self.ablation_rate: float = float(self.content["ablation_rate"])
        for network in self.content["networks"]:
            for stage in (GRID, FINAL):
                self.run(network, stage, self.rates[0])

    def _check(self, path: Path) -> None:
        """Refuse what could not be trained or compared."""
        unknown = sorted(set(self.order) - set(self.content["networks"]))
        if unknown or not self.order:
            raise InputError(f"{path}: describe under networks what order names: {unknown}")
        if self.ablation_rate not in self.rates:
            raise InputError(
                f"{path}: ablation_rate {self.ablation_rate:g} is none of the rates {self.rates}"
            )
        for stage, steps in self.content["stages"].items():
            if steps["validate_every"] < 1 or steps["steps"] % steps["validate_every"]:
                raise InputError(
                    f"{path}: {stage} of {steps['steps']} steps does not end with a validation: "
                    f"validate_every has to divide it, {steps['validate_every']} does not"
                )

    @property
    def first(self) -> str:
        """The network that others are compared with."""
        return self.order[0]

    @property
    def variants(self) -> list[str]:
        """Networks that are no part of the order."""
        return [name for name in self.content["networks"] if name not in self.order]

    def bases(self, stage: str) -> int:
        """What a run of a stage is trained on."""
        return (
            self.content["stages"][stage]["steps"] * self.content["common"]["data.bases_per_step"]
        )

    def grid(self, network: str) -> list[Run]:
        """Its runs without which no learning rate is chosen."""
        return [self.run(network, GRID, rate) for rate in self.rates]

    def graded(self, network: str, records: Known) -> dict[float, Mapping[str, Any]]:
        """What is recorded at every rate of its grid, further rates too, lowest first."""
        runs = [self.run(network, GRID, rate) for rate in self.points]
        return {run.rate: records[run.name] for run in runs if run.name in records}

    def run(self, network: str, stage: str, rate: float, seed: int | None = None) -> Run:
        """One run; seed None is the first."""
        seed = self.first_seed if seed is None else seed
        of_network, steps = self.content["networks"][network], self.content["stages"][stage]
        chosen = self.content["common"] | of_network["options"] | steps
        chosen |= {"optimizer.lr": rate, "seed": seed}
        options = tuple(f"{key}={word(value)}" for key, value in chosen.items())
        bases = self.bases(stage)
        return Run(network, stage, rate, seed, options, bases, bases / of_network["speed"] / 1e6)

    def split(self, label: str) -> tuple[str, int]:
        """Network and seed of NETWORK or NETWORK@SEED, as evaluations name them.

        Raises:
            InputError: a network that is not described, or a seed that is no number.
        """
        network, at, seed = label.partition("@")
        if network not in self.content["networks"] or (at and not seed.isdecimal()):
            raise InputError(
                f"{label} is no network of the study: call it NETWORK or NETWORK@SEED, of "
                f"{', '.join(self.content['networks'])}"
            )
        return network, int(seed) if at else self.first_seed

    def label(self, network: str, seed: int) -> str:
        """What a trained network is called: NETWORK, of a further seed NETWORK@SEED."""
        return network if seed == self.first_seed else f"{network}@{seed}"

    def place(self, label: str) -> tuple[int, bool, int]:
        """Where a network stands among others: by the file, the first seed before others."""
        network, seed = self.split(label)
        ranked = [*self.order, *self.variants]
        return ranked.index(network), seed != self.first_seed, seed

    def tried(self, records: Known) -> list[float]:
        """All rates that a network of the order has a record of."""
        return sorted({rate for name in self.order for rate in self.graded(name, records)})

    def best_rate(self, network: str, records: Known) -> float | None:
        """The rate with the lowest validation when the grid has ended; None before.

        Raises:
            InputError: every run of the grid diverged.
        """
        if any(run.name not in records for run in self.grid(network)):
            return None
        ends = {rate: last_nll(record) for rate, record in self.graded(network, records).items()}
        known = {rate: nll for rate, nll in ends.items() if nll is not None}
        if not known:
            raise InputError(f"{network} diverged at all rates of the grid: add lower ones")
        return min(known, key=lambda rate: known[rate])

    def at_border(self, network: str, rate: float, records: Known) -> bool:
        """Whether a better rate may lie beyond those that were tried."""
        tried = self.graded(network, records)
        return rate in (min(tried), max(tried))

    def task(self, text: str) -> Task:
        """A task of the command line.

        Raises:
            InputError: another form, network or rate.
        """
        network, _, rest = text.partition(":")
        stage, _, point = rest.partition(":")
        if network not in self.content["networks"] or stage not in (GRID, FINAL):
            names = ", ".join(self.content["networks"])
            raise InputError(f"{text}: a task is {FORMS}; networks are {names}")
        try:
            value = None if not point else float(point) if stage == GRID else int(point)
        except ValueError as error:
            raise InputError(f"{text}: {point} is no number; a task is {FORMS}") from error
        if stage == GRID and value is not None and value not in self.points:
            rates = ", ".join(f"{rate:g}" for rate in self.points)
            raise InputError(f"{text}: the grid of the study has the rates {rates}")
        return Task(text, network, stage, value)

    def runs(self, task: Task, records: Known) -> list[Run]:
        """Runs of a task, those with a record too; empty while the rate of a final run is open."""
        if task.stage == GRID and task.point is not None:
            return [self.run(task.network, GRID, task.point)]
        if task.stage == GRID:
            return self.grid(task.network)
        rate = self.best_rate(task.network, records)
        return [] if rate is None else [self.run(task.network, FINAL, rate, task.point)]

    def check_order(self, tasks: Sequence[Task], records: Known) -> None:
        """Refuse final runs whose learning rate nothing will have chosen by then.

        Raises:
            InputError: a grid that is neither in the records nor among the tasks before.
        """
        done = set(records)
        for task in tasks:
            if task.stage == GRID:
                done |= {run.name for run in self.runs(task, records)}
            missing = [run.name for run in self.grid(task.network) if run.name not in done]
            if task.stage == FINAL and missing:
                raise InputError(
                    f"{task.text}: no record of {', '.join(missing)}, which choose its learning "
                    f"rate: name {task.network}:grid before it"
                )


def last_nll(record: Mapping[str, Any]) -> float | None:
    """Validation in nats per base at the last step; None of a run that diverged."""
    return None if record["diverged"] else float(record["validation"][-1]["nll_nats"])


def word(value: Any) -> str:
    """A value as the command line has it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
