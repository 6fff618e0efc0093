"""Values of a run in a folder beside its output: what is finished outlives an interruption."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fracdna.embedding.rows import Rows
from fracdna_prep.files import remove, writing_refusals

_FILLED_AT_ONCE = 1 << 22
_VALUES, _FINISHED = "values", "finished"


class Scratch:
    """All values in one file, and a list of finished batches, each with a digest of its values.

    A file, because the vectors of millions of regions need not fit in memory.

    Args:
        folder: of both files; what is there of another run, told by its key, is removed.
        key: of one line, stands for everything the values depend on.
        rows: where each row has its values.
        batches: the reads of each batch.
        width: d_model.

    Attributes:
        finished: numbers of batches whose values are there.

    Raises:
        InputError: the folder cannot be written.
        Unfinished: no space for the values.
    """

    def __init__(
        self, folder: Path, key: str, rows: Rows, batches: Sequence[np.ndarray], width: int
    ) -> None:
        self.folder, self._rows, self._batches = folder, rows, batches
        self._shape = rows.shape(width)
        with writing_refusals(folder):
            told = self._told(key)
            if told is None:
                self._begin(key)
            self.values = open_values(self.values_path, self._shape)
            self.finished = {n for n, digest in told or [] if digest == self._digest(n)}
            lines = [f"{n} {digest}\n" for n, digest in told or [] if n in self.finished]
            (folder / _FINISHED).write_text("".join([key + "\n", *lines]))

    @property
    def values_path(self) -> Path:
        """The file of values."""
        return self.folder / _VALUES

    @property
    def shape(self) -> tuple[int, int, int]:
        """(vectors, layers, d_model)."""
        return self._shape

    def finish(self, batch: int) -> None:
        """The values of a batch are there, whoever wrote them."""
        line = f"{batch} {self._digest(batch)}\n"
        with writing_refusals(self.folder), (self.folder / _FINISHED).open("a") as file:
            file.write(line)
        self.finished.add(batch)

    def remove(self) -> None:
        """The results are written elsewhere, or will never be."""
        remove(self.folder)

    def _told(self, key: str) -> list[tuple[int, str]] | None:
        """Batches that are said to be finished, with their digests; None: not of this run."""
        listed = self.folder / _FINISHED
        size = 4 * self._shape[0] * self._shape[1] * self._shape[2]
        if not listed.is_file() or not self.values_path.is_file():
            return None
        first, *lines = listed.read_text(errors="replace").split("\n")
        if first != key or self.values_path.stat().st_size != size:
            return None
        # the last line may have been cut off; its digest then fits nothing
        pairs = [line.partition(" ")[::2] for line in lines]
        return [
            (int(number), digest)
            for number, digest in pairs
            if number.isdecimal() and int(number) < len(self._batches)
        ]

    def _begin(self, key: str) -> None:
        """An empty run; its key is written when the file of values is there."""
        remove(self.folder)
        self.folder.mkdir(parents=True)
        with self.values_path.open("wb") as file:
            _fill(file, 4 * self._shape[0] * self._shape[1] * self._shape[2])
        (self.folder / _FINISHED).write_text(key + "\n")

    def _digest(self, batch: int) -> str:
        """Of the values of a batch as they are in the file."""
        digest = hashlib.sha256()
        for read in self._batches[batch]:
            target = self._rows.target(self.values, read)
            step = max(1, _FILLED_AT_ONCE // target[:1].nbytes)
            for start in range(0, len(target), step):
                digest.update(target[start : start + step].tobytes())
        return digest.hexdigest()


def open_values(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """The values of a run, mapped for reading and writing."""
    return np.memmap(path, dtype=np.float32, mode="r+", shape=shape)


def _fill(file: BinaryIO, size: int) -> None:
    """Write `size` bytes of NaN: a full disk then says so, where a mapped hole would crash."""
    nan = np.full(min(size, _FILLED_AT_ONCE) // 4, np.nan, dtype=np.float32).tobytes()
    for start in range(0, size, len(nan)):
        file.write(nan[: size - start])
