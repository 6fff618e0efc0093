"""Finished fits on disk: an interrupted probe goes on, a repeated one is quick."""

import hashlib
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fracdna_prep.files import atomic_file

FORMAT = 1  # of what is kept; a higher one does everything again


def key_of(about: Mapping[str, Any]) -> str:
    """A short hash of plain values."""
    text = json.dumps({"format": FORMAT, **about}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class Kept:
    """One file of arrays for each fit; its name is a hash of all that its numbers depend on.

    Args:
        folder: where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, about: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
        """The arrays of a fit; None where there is no readable file: it is done again then."""
        try:
            with np.load(self._path(about), allow_pickle=False) as content:
                return dict(content)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError):
            return None

    def write(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the arrays of a fit.

        Raises:
            InputError: the folder cannot be written or is full.
        """
        with atomic_file(self._path(about)) as temporary:
            np.savez(temporary, **arrays)

    def _path(self, about: Mapping[str, Any]) -> Path:
        return self.folder / f"{key_of(about)}.npz"
