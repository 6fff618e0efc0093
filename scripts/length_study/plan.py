"""What a study consists of: runs with names, options and an order."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

GRID, FINAL = "grid", "final"


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


class Study:
    """A study as its YAML file says.

    Args:
        path: of the file.

    Raises:
        ValueError: a network in the order that is not described.
    """

    def __init__(self, path: Path) -> None:
        self.content: dict[str, Any] = yaml.safe_load(path.read_text())
        self.rates: list[float] = [float(rate) for rate in self.content["rates"]]
        self.order: list[str] = list(self.content["order"])
        unknown = sorted(set(self.order) - set(self.content["networks"]))
        if unknown:
            raise ValueError(f"{path}: order names networks that are not described: {unknown}")

    def grid(self, network: str) -> list[Run]:
        """Its runs that choose a learning rate."""
        return [self.run(network, GRID, rate) for rate in self.rates]

    def run(self, network: str, stage: str, rate: float, seed: int | None = None) -> Run:
        """One run; seed None is the first."""
        seed = self.content["first_seed"] if seed is None else seed
        of_network, steps = self.content["networks"][network], self.content["stages"][stage]
        common = self.content["common"]
        bases = steps["steps"] * common["data.bases_per_step"]
        chosen = common | of_network["options"] | steps | {"optimizer.lr": rate, "seed": seed}
        options = tuple(f"{key}={value}" for key, value in chosen.items())
        return Run(network, stage, rate, seed, options, bases, bases / of_network["speed"] / 1e6)

    def best_rate(self, network: str, records: Mapping[str, Mapping[str, Any]]) -> float | None:
        """The rate with the lowest validation when the grid has ended; None before."""
        ends = {run.rate: records.get(run.name) for run in self.grid(network)}
        known = {rate: _at_the_end(record) for rate, record in ends.items() if record}
        return min(known, key=lambda rate: known[rate]) if len(known) == len(ends) else None

    def next_runs(self, task: str, records: Mapping[str, Mapping[str, Any]]) -> list[Run]:
        """Runs of a task that have no record.

        Args:
            task: NETWORK:grid, NETWORK:final, or NETWORK:final:SEED for a further seed.
            records: what is done, by name of the run.

        Raises:
            ValueError: an unknown task, or a final run whose grid is not complete.
        """
        network, stage, *seed = task.split(":")
        if network not in self.content["networks"] or stage not in self.content["stages"]:
            raise ValueError(f"{task}: a task is NETWORK:STAGE, of {self.order} and grid or final")
        if stage == GRID:
            runs = self.grid(network)
        else:
            rate = self.best_rate(network, records)
            if rate is None:
                raise ValueError(f"{task}: the grid of {network} is not complete")
            runs = [self.run(network, stage, rate, *map(int, seed))]
        return [run for run in runs if run.name not in records]


def _at_the_end(record: Mapping[str, Any]) -> float:
    """Validation in nats at the last step; a run that diverged is worst."""
    return float("inf") if record["diverged"] else float(record["validation"][-1]["nll_nats"])
