"""Outputs of long runs: where they may be written, and values that outlive an interruption."""

import contextlib
import glob
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fracdna_prep.errors import InputError
from fracdna_prep.files import (
    check_writable,
    exclusive_lock,
    remove,
    remove_leftovers,
    writing_refusals,
)

_FILLED_AT_ONCE = 1 << 22
_VALUES, _FINISHED = "values", "finished"


def output_path(
    name: str, value: Any, endings: Mapping[str, str], replaces: Callable[[Path], bool]
) -> Path:
    """The absolute path of what is to be written, if it can be.

    Args:
        name: of the option.
        value: of the option.
        endings: what each ending of a name stands for.
        replaces: whether what is there already may be replaced.

    Raises:
        InputError: another kind of value or file, or a place that forbids it.
    """
    named = Path(value).name if isinstance(value, str) else ""
    # an ending by itself is the name of a hidden file
    if named in endings or not named.endswith(tuple(endings)):
        kinds = " or ".join(f"x{ending} ({what})" for ending, what in endings.items())
        raise InputError(f"{name}={value}: name it {kinds}")
    path = Path(value).absolute()
    # the folder: what is written is renamed into place, also over an older one
    check_writable(path.parent)
    with writing_refusals(path):
        exists = path.exists()
    if exists and not replaces(path):
        kind = "folder" if path.is_dir() else "file"
        raise InputError(f"{name}={value} is a {kind} of something else: name another {name}")
    return path


@contextlib.contextmanager
def unfinished_folder(output: Path) -> Iterator[Path]:
    """The folder for what is unfinished of an output, while no other process works on it.

    What a killed writer of this output left under temporary names is removed.

    Raises:
        InputError: another process does, or the place cannot be written.
    """
    hidden = output.with_name(f".{output.name}.unfinished")
    with exclusive_lock(hidden.with_suffix(".lock"), wait=False):
        remove_leftovers(output.parent, glob.escape(output.name))
        yield hidden


class Resumable:
    """Values of a run, computed block by block, in any order, by any process.

    They are in one file, because those of millions of rows need not fit in memory; a list beside it
    has the finished blocks, each with a digest of its values.

    Args:
        folder: of both files; what is there of another run is removed.
        identity: plain values, all that the values depend on.
        shape: of all values, (rows, ...).
        dtype: of floating point; NaN is what nobody has computed.
        blocks: their number.
        places: the rows of a block, in one or several slices or arrays of indices.

    Attributes:
        folder: as given.
        values: mapped for reading and writing.
        finished: numbers of blocks whose values are there.

    Raises:
        InputError: the folder cannot be written.
        Unfinished: no space for the values.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        shape: tuple[int, ...],
        dtype: type[np.floating],
        blocks: int,
        places: Callable[[int], Iterable[slice | np.ndarray]],
    ) -> None:
        self.folder, self._blocks, self._places = folder, blocks, places
        self._size = math.prod(shape) * np.dtype(dtype).itemsize
        key = hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).hexdigest()
        with writing_refusals(folder):
            told = self._told(key)
            if told is None:
                self._begin(key, dtype)
            self.values = open_values(self.values_path, shape, dtype)
            self.finished = {n for n, digest in told or [] if digest == self._digest(n)}
            lines = [f"{n} {digest}\n" for n, digest in told or [] if n in self.finished]
            (folder / _FINISHED).write_text("".join([key + "\n", *lines]))

    @property
    def values_path(self) -> Path:
        """The file of values."""
        return self.folder / _VALUES

    @property
    def left(self) -> list[int]:
        """Blocks without values, in their order."""
        return [block for block in range(self._blocks) if block not in self.finished]

    def finish(self, block: int) -> None:
        """The values of a block are there, whoever wrote them."""
        line = f"{block} {self._digest(block)}\n"
        with writing_refusals(self.folder), (self.folder / _FINISHED).open("a") as file:
            file.write(line)
        self.finished.add(block)

    def describe(self) -> str:
        """What is finished, in words."""
        done = len(self.finished)
        return f"{done} of {self._blocks} batches are finished and kept in {self.folder}"

    @contextlib.contextmanager
    def kept_when_interrupted(self) -> Iterator[None]:
        """Ctrl-C inside says what is kept; a folder without anything finished is removed."""
        try:
            yield
        except KeyboardInterrupt:
            if self.finished:
                print(f"{self.describe()}: give the same command again to go on", file=sys.stderr)
            else:
                self.remove()
            raise

    def remove(self) -> None:
        """The results are written elsewhere, or will never be."""
        remove(self.folder)

    def _told(self, key: str) -> list[tuple[int, str]] | None:
        """Blocks that are said to be finished, with their digests; None: not of this run."""
        listed = self.folder / _FINISHED
        if not listed.is_file() or not self.values_path.is_file():
            return None
        first, *lines = listed.read_text(errors="replace").split("\n")
        if first != key or self.values_path.stat().st_size != self._size:
            return None
        # the last line may have been cut off; its digest then fits nothing
        pairs = [line.partition(" ")[::2] for line in lines]
        return [
            (int(number), digest)
            for number, digest in pairs
            if number.isdecimal() and int(number) < self._blocks
        ]

    def _begin(self, key: str, dtype: type[np.floating]) -> None:
        """An empty run; its key is written when the file of values is there."""
        remove(self.folder)
        self.folder.mkdir(parents=True)
        with self.values_path.open("wb") as file:
            _fill(file, self._size, dtype)
        (self.folder / _FINISHED).write_text(key + "\n")

    def _digest(self, block: int) -> str:
        """Of the values of a block as they are in the file."""
        digest = hashlib.sha256()
        for place in self._places(block):
            found = self.values[place]
            step = max(1, _FILLED_AT_ONCE // found[:1].nbytes)
            for start in range(0, len(found), step):
                digest.update(found[start : start + step].tobytes())
        return digest.hexdigest()


def open_values(path: Path, shape: tuple[int, ...], dtype: type[np.floating]) -> np.ndarray:
    """The values of a run, mapped for reading and writing; a file of none cannot be mapped."""
    if not math.prod(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype=dtype, mode="r+", shape=shape)


def _fill(file: BinaryIO, size: int, dtype: type[np.floating]) -> None:
    """Write `size` bytes of NaN: a full disk then says so, where a mapped hole would crash."""
    nan = np.full(_FILLED_AT_ONCE // np.dtype(dtype).itemsize, np.nan, dtype=dtype).tobytes()
    for start in range(0, size, len(nan)):
        file.write(nan[: size - start])
