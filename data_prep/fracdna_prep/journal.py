"""The journal of a genome store while it is made: what is finished, a sealed line at a time."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fracdna_prep.store_layout import FORMAT, VERSION, ContigRecord, SourceRecord

_SEAL = b', "seal": "'


@dataclass(frozen=True)
class Checkpoint:
    """A line of the journal: all records in front of a place in a source are stored.

    Attributes:
        source: position among the sources.
        position: where the next record begins, in unpacked bytes.
        line: the number of its line.
        read: bytes of the source's file that were read by then.
        sha256: of these bytes.
        contigs: what was stored since the checkpoint before.
        finished: the source, once all of it is stored.
    """

    source: int
    position: int
    line: int
    read: int
    sha256: str
    contigs: tuple[ContigRecord, ...]
    finished: SourceRecord | None

    def as_json(self) -> bytes:
        """As one line of text without its end."""
        contigs = [vars(contig) for contig in self.contigs]
        finished = self.finished and vars(self.finished)
        return json.dumps({**vars(self), "contigs": contigs, "finished": finished}).encode()

    @classmethod
    def of_json(cls, text: bytes) -> Self:
        """From what as_json wrote."""
        content = json.loads(text)
        contigs = tuple(ContigRecord(**contig) for contig in content.pop("contigs"))
        finished = content.pop("finished")
        source = None if finished is None else SourceRecord(**finished)
        return cls(**content, contigs=contigs, finished=source)


class Journal:
    """Checkpoints in a file, one JSON a line.

    Every line is sealed by a hash of the format's version, of the lines before it and of itself.
    So what was changed, cut off, lost or moved is told before anybody looks at its content.

    Args:
        path: of a file that is not there yet.

    Attributes:
        checkpoints: in the order of the file.
    """

    def __init__(self, path: Path) -> None:
        self.checkpoints: list[Checkpoint] = []
        self._path, self._size = path, 0
        self._digest = hashlib.sha256(f"{FORMAT} {VERSION}\n".encode())

    @classmethod
    def read(cls, path: Path) -> Self:
        """The journal in a file, up to the first line that is not as it was written.

        Raises:
            OSError: the file cannot be read.
        """
        journal = cls(path)
        with path.open("rb") as file:
            for line in file:
                body = line.rpartition(_SEAL)[0]
                if line != journal._sealed(body):
                    break
                journal._take(Checkpoint.of_json(body + b"}"), body, line)
        return journal

    def append(self, point: Checkpoint) -> None:
        """Writes a line behind the others; once this returns, it outlives the process."""
        body = point.as_json().removesuffix(b"}")
        line = self._sealed(body)
        with self._path.open("ab") as file:
            file.write(line)
        self._take(point, body, line)

    def cut(self) -> None:
        """Takes off what stands behind the last whole line of the file."""
        os.truncate(self._path, self._size)

    def _sealed(self, body: bytes) -> bytes:
        """The next line."""
        digest = self._digest.copy()
        digest.update(body)
        return body + _SEAL + digest.hexdigest().encode() + b'"}\n'

    def _take(self, point: Checkpoint, body: bytes, line: bytes) -> None:
        self.checkpoints.append(point)
        self._size += len(line)
        self._digest.update(body)
