"""Finished blocks of a run on disk: what an interrupted one has computed is not computed again."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fracdna_prep.files import writing_refusals

_DIGEST_BYTES = 32


class Journal:
    """Blocks of float64 values, one behind the other, each after a digest of itself.

    Args:
        path: of the file; one of another run, told by its key, is written anew.
        key: 32 bytes that stand for everything the values depend on.
        shapes: of the blocks of the run, in their order.

    Raises:
        InputError: the folder cannot be written or is full.
    """

    def __init__(self, path: Path, key: bytes, shapes: Sequence[tuple[int, int]]) -> None:
        self._path, self._shapes = path, shapes
        content = path.read_bytes() if path.is_file() else b""
        self.blocks = _whole_blocks(content, key, shapes)
        whole = len(key) + sum(_DIGEST_BYTES + block.nbytes for block in self.blocks)
        with writing_refusals(path):
            if content[: len(key)] == key:
                # a block that was cut off, or damaged, goes with all that follows it
                with path.open("r+b") as file:
                    file.truncate(whole)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(key)

    def append(self, block: np.ndarray) -> None:
        """Keep the next block."""
        content = np.ascontiguousarray(block, dtype=np.float64).tobytes()
        with writing_refusals(self._path), self._path.open("ab") as file:
            file.write(hashlib.sha256(content).digest() + content)
        self.blocks.append(block)

    def remove(self) -> None:
        """The run has ended: its results are written elsewhere."""
        self._path.unlink(missing_ok=True)


def _whole_blocks(
    content: bytes, key: bytes, shapes: Sequence[tuple[int, int]]
) -> list[np.ndarray]:
    """The blocks at the beginning of a file that are as they were written."""
    blocks: list[np.ndarray] = []
    if content[: len(key)] != key:
        return blocks
    start = len(key)
    for rows, width in shapes:
        digest = content[start : start + _DIGEST_BYTES]
        start += _DIGEST_BYTES
        values = content[start : start + 8 * rows * width]
        start += 8 * rows * width
        if len(values) < 8 * rows * width or hashlib.sha256(values).digest() != digest:
            break
        blocks.append(np.frombuffer(values, dtype=np.float64).reshape(rows, width).copy())
    return blocks
