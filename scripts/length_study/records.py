"""What is known of finished runs: one JSON file that grows run by run."""

import csv
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from length_study.plan import Run

Record = dict[str, Any]


class Records(dict[str, Record]):
    """Records by name of the run, kept in a file that is replaced after every new one.

    Args:
        path: of the JSON file, which may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(json.loads(path.read_text()) if path.exists() else {})

    def add(self, name: str, record: Record) -> None:
        """Keep a record, on disk too."""
        self[name] = record
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(self, indent=1) + "\n")
        temporary.replace(self.path)


def record_of(run: Run, folder: Path, circumstances: Mapping[str, Any]) -> Record:
    """What a finished run leaves in the records.

    Args:
        run: what was asked for.
        folder: output of `fracdna train`.
        circumstances: machine, versions, commit, seconds and memory.
    """
    with (folder / "metrics.csv").open(newline="") as file:
        points = list(csv.DictReader(file))
    validation = [
        {
            "step": int(p["step"]),
            "bases": int(p["bases"]),
            "nll_nats": float(p["validation_nll"]),
            "counted": int(p["validation_bases"]),
        }
        for p in points
        if p["validation_nll"]
    ]
    speeds = sorted(float(p["bases_per_second"]) for p in points if p["bases_per_second"])
    return {
        "network": run.network,
        "stage": run.stage,
        "rate": run.rate,
        "seed": run.seed,
        "command": " ".join(["fracdna", *run.command("prepared", f"runs/{run.name}")]),
        "bases": run.bases,
        "steps": int(points[-1]["step"]),
        "validation": validation,
        "training": [[int(p["bases"]), float(p["train_nll"])] for p in points if p["train_nll"]],
        "median_bases_per_second": speeds[len(speeds) // 2],
        **circumstances,
    }
