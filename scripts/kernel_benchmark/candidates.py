"""Fills Triton's cache with the candidates of a public kernel's tuner, which are many.

The tuner compiles one after the other, on one core. Here processes run the kernel once each, with
every n-th candidate; what they have compiled is then found in the cache.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence

PROCESSES = 14  # at most, where there is one order; with several, some of each at once


def compile_candidates(orders: Sequence[str]) -> None:
    """Run workers until all candidates are compiled.

    Args:
        orders: what --worker takes, without which share of the candidates; see `share`.
    """
    cores = max(1, (os.cpu_count() or 2) - 2)
    count = max(4, min(PROCESSES, cores) // len(orders))
    started = [
        subprocess.Popen(
            [sys.executable, sys.argv[0], "--worker", f"{order}:{index}:{count}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for index in range(count)
        for order in orders
    ]
    for process in started:
        process.wait()


def share(index: int, count: int, run: Callable[[], object]) -> None:
    """A worker's part: run a kernel with every count-th of its candidates.

    Args:
        index: of the first candidate that is taken.
        count: distance between them.
        run: calls the kernel once.
    """
    from triton.runtime.autotuner import Autotuner

    all_candidates = Autotuner.prune_configs

    def some(tuner: Autotuner, arguments: dict) -> list:
        candidates = all_candidates(tuner, arguments)
        return candidates[index::count] or candidates[:1]

    Autotuner.prune_configs = some
    run()
