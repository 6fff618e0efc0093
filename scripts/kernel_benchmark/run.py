"""What every section is given, and how it notes a measurement that could not be made."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from kernel_benchmark.report import Row
from kernel_benchmark.timing import Call, measure


@dataclass
class Run:
    """One run of the benchmark.

    Attributes:
        copy_rate: bytes read and written per second by a copy, measured in this run.
        budget_s: seconds spent on the repetitions of one row.
        quick: only the most telling shapes.
        limits: seconds for each part that runs in a process of its own.
        remembered: medians in ms that later rows are compared with.
    """

    copy_rate: float
    budget_s: float = 1.5
    quick: bool = False
    limits: dict[str, float] = field(default_factory=dict)
    remembered: dict[Any, float] = field(default_factory=dict)

    def timed(self, row: Row, prepare: Callable[[], list[Call]]) -> Row:
        """The row with its time, or with the reason why there is none.

        Args:
            row: what is measured.
            prepare: makes the calls, and with them the tensors that go when this returns.
        """
        try:
            return row | measure(prepare(), self.budget_s).row()
        # compilers and devices raise what they like; the other rows are still worth their time
        except Exception as error:
            return row | {"note": reason(error)}
        finally:
            torch.cuda.empty_cache()


def reason(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:120]}"


def generator(seed: int) -> torch.Generator:
    """Random numbers on the device."""
    return torch.Generator("cuda").manual_seed(seed)
