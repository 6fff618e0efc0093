"""Everything that a probe needs, opened and checked."""

from dataclasses import dataclass
from pathlib import Path

import torch

from fracdna.probing.labelled import LabelledSet
from fracdna.probing.leakage import Leakage
from fracdna.probing.networks import Network
from fracdna.probing.options import ProbeOptions


@dataclass(frozen=True)
class Job:
    """One probe.

    Attributes:
        options: choices that the numbers depend on.
        networks: trained and untrained.
        data: the set as it is used.
        found: the set before repeated rows were removed and training rows drawn.
        leakage: of that set.
        removed: training and dev rows that were removed for it.
        device: where networks compute.
        output: the folder.
        jobs: regressions at the same time; None: one on each core.
        progress: show what is being done.
    """

    options: ProbeOptions
    networks: list[Network]
    data: LabelledSet
    found: LabelledSet
    leakage: Leakage
    removed: int
    device: torch.device
    output: Path
    jobs: int | None
    progress: bool
