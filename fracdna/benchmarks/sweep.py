"""All runs of a synthetic benchmark, one after the other or several at once."""

import concurrent.futures
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm

from fracdna.benchmarks.probe_run import FINE, Place, Run, execute, finished
from fracdna.processes import process_pool
from fracdna_prep.errors import Unfinished
from fracdna_prep.progress import progress_bar

Results = dict[Run, dict[str, Any]]


@dataclass(frozen=True)
class Sweep:
    """How runs are computed.

    Attributes:
        place: see Place.
        jobs: runs at once, each in a process of its own.
        progress: show positions read, their rate and the time left.
    """

    place: Place
    jobs: int
    progress: bool

    def run(self, runs: Sequence[Run]) -> Results:
        """Results of all runs; those that are finished are read.

        Raises:
            Unfinished: a process was killed; finished runs are kept.
        """
        known = {run: finished(run, self.place.folder) for run in runs}
        left = [run for run, result in known.items() if result is None]
        computed = self._compute(left) if left else {}
        return {run: result or computed[run] for run, result in known.items()}

    def _compute(self, runs: Sequence[Run]) -> Results:
        """Results of runs that are not finished."""
        positions = sum(run.positions for run in runs)
        with progress_bar(positions, f"{len(runs)} runs", self.progress, unit="position") as bar:
            if self.jobs == 1:
                return {run: self._alone(run, bar) for run in runs}
            results = {}
            with process_pool(min(self.jobs, len(runs)), _begin, self.place) as pool:
                waiting = {pool.submit(_execute_here, run): run for run in runs}
                try:
                    for future in concurrent.futures.as_completed(waiting):
                        results[waiting[future]] = future.result()
                        bar.update(waiting[future].positions)
                except concurrent.futures.BrokenExecutor:
                    raise Unfinished(
                        "a process ended before its run was finished, perhaps for lack of memory; "
                        f"finished runs are kept in {self.place.folder}: give the same command "
                        "again, with fewer jobs= where memory is short"
                    ) from None
            return results

    def _alone(self, run: Run, bar: tqdm) -> dict[str, Any]:
        """A run in this process."""
        read: list[int] = []

        def advance(positions: int) -> None:
            read.append(positions)
            bar.update(positions)

        result = execute(run, self.place, advance)
        bar.update(run.positions - sum(read))  # what was there already, or is out of reach
        return result


def best_rates(results: Results) -> dict[tuple[Any, ...], float]:
    """The learning rate with the lowest validation loss, by network and variant.

    Runs that did not come to an end with finite numbers cannot be the best.
    """
    best: dict[tuple[Any, ...], tuple[float, float]] = {}
    for run, result in results.items():
        if result["status"] == FINE:
            found = result["validation_nll"], run.recipe.rate
            best[group_of(run)] = min(best.get(group_of(run), found), found)
    return {group: rate for group, (_, rate) in best.items()}


def further_seeds(results: Results, seeds: Sequence[int]) -> list[Run]:
    """Runs like the best of each network and variant, with other seeds."""
    best = best_rates(results)
    chosen = [run for run in results if best.get(group_of(run)) == run.recipe.rate]
    return [replace(r, recipe=replace(r.recipe, seed=seed)) for r in chosen for seed in seeds]


def group_of(run: Run) -> tuple[Any, ...]:
    """Network and variant: what is compared by rates and seeds."""
    return run.network, *run.test.variant.values()


_places: list[Place] = []


def _begin(place: Place) -> None:
    """Remember where runs of this process go."""
    _places.append(place)


def _execute_here(run: Run) -> dict[str, Any]:
    """A run in this process."""
    return execute(run, _places[0], lambda _: None)
