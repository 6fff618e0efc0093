"""Finished parts of an evaluation: an interrupted one goes on, a repeated one is quick."""

import hashlib
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fracdna.evaluation.tally import Cell, Reading, Sums
from fracdna_prep.files import atomic_file

FORMAT = 2


class CellFolder:
    """One file per model and reading; its name is a hash of all that the numbers depend on.

    Args:
        folder: where the files are.
        force: compute everything again.
    """

    def __init__(self, folder: Path, force: bool = False) -> None:
        self.folder, self.force = folder, force

    def get(self, key: str, reading: Reading, score: Callable[[], Cell], bar: tqdm) -> Cell:
        """The sums of one model in one reading, computed if they are not there."""
        return self.get_all(key, reading, lambda: [score()], bar)[0]

    def get_all(
        self, key: str, reading: Reading, score: Callable[[], list[Cell]], bar: tqdm
    ) -> list[Cell]:
        """The sums of models that are computed together."""
        path = self.folder / f"{_identity(key, reading)}.npz"
        found = None if self.force else _read(path)
        if found is not None:
            bar.update(reading.total)
            return found
        computed = score()
        with atomic_file(path) as temporary:
            np.savez(temporary, **_flatten(computed))
        return computed


def _identity(key: str, reading: Reading) -> str:
    """A hash of the model, the bases, how they are read and how they are divided."""
    text = (
        f"{FORMAT} {key} {reading.length} {reading.span} {reading.target} {reading.strand} "
        f"{reading.classes.digest} {reading.regions.manifest_hash} {reading.store.checksum}"
    )
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _flatten(cells: list[Cell]) -> dict[str, np.ndarray]:
    """Arrays by number of the cell, field, and field of its sums."""
    flat = {}
    for number, cell in enumerate(cells):
        for name, value in vars(cell).items():
            parts = vars(value) if isinstance(value, Sums) else {"": value}
            flat |= {f"{number}/{name}/{part}": np.asarray(v) for part, v in parts.items()}
    return flat


def _read(path: Path) -> list[Cell] | None:
    """The cells of a file, None where there is no readable one: it is computed again then."""
    cells: dict[int, dict[str, Any]] = {}
    try:
        with np.load(path) as content:
            for name, value in content.items():
                number, field, part = name.split("/")
                cell = cells.setdefault(int(number), {})
                if part:
                    cell.setdefault(field, {})[part] = value
                else:
                    cell[field] = value.item()
        return [_cell(cells[number]) for number in sorted(cells)] or None
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError):
        return None


def _cell(fields: dict[str, Any]) -> Cell:
    """A cell from its fields, the sums as dictionaries."""
    return Cell(**{k: Sums(**v) if isinstance(v, dict) else v for k, v in fields.items()})
