"""Finished parts of an evaluation: an interrupted one goes on, a repeated one is quick."""

import hashlib
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fracdna.evaluation.length_curve import RegionScores
from fracdna.evaluation.regions import Regions
from fracdna_prep.files import atomic_file

FORMAT = 1


class CellFolder:
    """One file per model and length; its name is a hash of all that the numbers depend on.

    Args:
        folder: where the files are.
        regions: what is scored.
        genome: checksum of the genome they lie on.
        force: compute everything again.
    """

    def __init__(self, folder: Path, regions: Regions, genome: str, force: bool = False) -> None:
        self.folder, self.regions, self.genome, self.force = folder, regions, genome, force
        self.bases = len(regions.intervals) * regions.width

    def get(
        self, key: str, length: int, score: Callable[[], RegionScores], bar: tqdm
    ) -> RegionScores:
        """The scores of one model at one length, computed if they are not there."""
        return self.get_all(key, length, lambda: [score()], bar)[0]

    def get_all(
        self, key: str, length: int, score: Callable[[], list[RegionScores]], bar: tqdm
    ) -> list[RegionScores]:
        """The scores of models that are computed together."""
        text = f"{FORMAT} {key} {length} {self.regions.manifest_hash} {self.genome}"
        path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.npz"
        found = None if self.force else _read(path)
        if found is not None:
            bar.update(self.bases)
            return found
        computed = score()
        with atomic_file(path) as temporary:
            np.savez(temporary, **_flatten(computed))
        return computed


def _flatten(cells: list[RegionScores]) -> dict[str, np.ndarray]:
    """Arrays by name, the number of the cell before it."""
    return {
        f"{n}/{k}": np.asarray(v) for n, cell in enumerate(cells) for k, v in asdict(cell).items()
    }


def _read(path: Path) -> list[RegionScores] | None:
    """The cells of a file, None where there is no readable one: it is computed again then."""
    cells: dict[int, dict] = {}
    try:
        with np.load(path) as content:
            for name, value in content.items():
                number, field = name.split("/")
                entry = value.item() if value.ndim == 0 else value
                cells.setdefault(int(number), {})[field] = entry
        return [RegionScores(**cells[number]) for number in sorted(cells)] or None
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError):
        return None
