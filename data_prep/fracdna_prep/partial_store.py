"""A genome store while it is made, of which a second builder goes on after the first."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from fracdna_prep.compression import compression_of
from fracdna_prep.errors import InputError, Unfinished
from fracdna_prep.files import remove
from fracdna_prep.journal import Checkpoint, Journal
from fracdna_prep.sources import HashedFile, read_source, size_of_source
from fracdna_prep.store_layout import (
    BASES_FILE,
    ContigRecord,
    Piece,
    RecordStart,
    SourceRecord,
    StoreRecord,
    content_checksum,
    sha256_of_next,
)

JOURNAL_FILE = "journal.jsonl"
# Contigs by the million are not worth a line of the journal each.
_CHECKPOINT_BASES = 1 << 20
_UPPER = np.arange(ord("A"), ord("Z") + 1)


class _OpenContig:
    """The record that is being read."""

    def __init__(self, name: str, offset: int) -> None:
        self.name, self.offset, self.length = name, offset, 0
        self._digest = hashlib.sha256()
        self._letters = np.zeros(256, dtype=np.int64)

    def add(self, piece: Piece) -> None:
        self.length += len(piece.codes)
        self._digest.update(piece.codes)
        self._letters += piece.letters

    def record(self) -> ContigRecord:
        lower = self._letters[_UPPER + 32]
        either = self._letters[_UPPER] + lower
        counts = {chr(_UPPER[i]): int(either[i]) for i in np.flatnonzero(either)}
        sha256, masked = self._digest.hexdigest(), int(lower.sum())
        return ContigRecord(self.name, self.length, self.offset, sha256, counts, masked)


class PartialStore:
    """A folder in which a store grows, contig by contig.

    What an earlier builder finished is taken over where it was made from the same bytes: the
    part of each source that was read, and the stored bases, are hashed again and compared.
    Anything else at the place of the folder, or in it, is removed.

    Args:
        folder: where the store grows; whoever makes this object is its only builder.
        paths: the sources.

    Attributes:
        folder: likewise.
        bytes_of_sources: on disk, all together.
    """

    def __init__(self, folder: Path, paths: list[Path]) -> None:
        self.folder, self._paths = folder, paths
        sizes = [size_of_source(path) for path in paths]
        self.bytes_of_sources = sum(sizes)
        self._bytes_before = [sum(sizes[:index]) for index in range(len(paths) + 1)]
        self._go_on_from(self._earlier() or self._nothing())

    @property
    def worth_keeping(self) -> bool:
        """Whether a later builder could go on from here."""
        return bool(self._journal.checkpoints)

    def read_sources(self, bar: tqdm) -> None:
        """Reads, checks and stores what is missing.

        Args:
            bar: counts the bytes of the sources.

        Raises:
            InputError: whatever makes a source unusable, or a contig name that is used twice.
            Unfinished: a source that the system fails to read.
        """
        resumed = self.worth_keeping
        try:
            self._read_missing(bar)
        except Unfinished:
            raise
        except InputError:
            if not resumed:
                raise
            # The earlier builder may be at fault; the source is when it fails from its beginning.
            self._go_on_from(self._nothing())
            self._read_missing(bar)

    def _go_on_from(self, journal: Journal) -> None:
        points = journal.checkpoints
        self._journal = journal
        self._contigs = [contig for point in points for contig in point.contigs]
        self._journaled = len(self._contigs)
        self._owners = {
            contig.name: self._paths[point.source] for point in points for contig in point.contigs
        }

    def _read_missing(self, bar: tqdm) -> None:
        with (self.folder / BASES_FILE).open("ab") as bases:
            done = sum(point.finished is not None for point in self._journal.checkpoints)
            # What an earlier builder read counts for the time left, but not for the rate.
            before = self._bytes_before[done] + (self._middle.read if self._middle else 0)
            bar.initial = bar.n = bar.last_print_n = before
            for index in range(done, len(self._paths)):
                with contextlib.closing(HashedFile(self._paths[index])) as raw:
                    for point in self._read_source(index, raw, bases, bar):
                        # The bases go first: the journal tells of nothing that is not there.
                        bases.flush()
                        self._journal.append(point)
                        self._journaled = len(self._contigs)

    def record(self) -> StoreRecord:
        """What is stored, once all sources are read."""
        sources = tuple(
            replace(point.finished, name=self._paths[point.source].name)
            for point in self._journal.checkpoints
            if point.finished is not None
        )
        return StoreRecord(content_checksum(self._contigs), tuple(self._contigs), sources)

    def _nothing(self) -> Journal:
        """Begins anew, in an empty folder."""
        remove(self.folder)
        self.folder.mkdir()
        return Journal(self.folder / JOURNAL_FILE)

    def _earlier(self) -> Journal | None:
        """What an earlier builder finished; None where it cannot be used, for whatever reason."""
        own = journal_file, bases_file = self.folder / JOURNAL_FILE, self.folder / BASES_FILE
        with contextlib.suppress(OSError):
            if self.folder.is_symlink() or not all(_is_plain_file(place) for place in own):
                return None
            journal = Journal.read(journal_file)
            contigs = [contig for point in journal.checkpoints for contig in point.contigs]
            if not self._are_of_sources(journal.checkpoints) or not _holds(bases_file, contigs):
                return None
            # What lies behind the last checkpoint was cut off in the middle.
            journal.cut()
            os.truncate(bases_file, sum(contig.length for contig in contigs))
            for foreign in set(self.folder.iterdir()) - set(own):
                remove(foreign)
            return journal
        return None

    def _are_of_sources(self, points: list[Checkpoint]) -> bool:
        """Whether what was read of each source is what stands there now."""
        for index, point in {point.source: point for point in points}.items():
            if index >= len(self._paths):
                return False
            with contextlib.closing(HashedFile(self._paths[index])) as raw:
                if raw.hash_until(point.read) != point.sha256:
                    return False
            if point.finished and size_of_source(self._paths[index]) != point.read:
                return False
        return bool(points)

    @property
    def _middle(self) -> Checkpoint | None:
        """The last checkpoint, where it lies in the middle of a source."""
        last = self._journal.checkpoints[-1] if self.worth_keeping else None
        return None if last is None or last.finished else last

    def _read_source(
        self, index: int, raw: HashedFile, bases: BinaryIO, bar: tqdm
    ) -> Iterator[Checkpoint]:
        """Stores one source, or what is missing of it; yields where a later builder could go on."""
        path, position, line = self._paths[index], 0, 1
        if self._middle:
            position, line = self._middle.position, self._middle.line
            raw.hash_until(self._middle.read)
        contig, journaled = None, bases.tell()
        for event in read_source(path, raw, position, line):
            if isinstance(event, RecordStart):
                self._end(contig, path)
                if event.position is not None and bases.tell() - journaled >= _CHECKPOINT_BASES:
                    yield self._checkpoint(index, raw, event.position, event.line)
                    journaled = bases.tell()
                self._check_name(event, path)
                contig = _OpenContig(event.name, bases.tell())
                bar.set_postfix_str(event.name, refresh=False)
            else:
                bases.write(event.codes)
                contig.add(event)
            bar.update(self._bytes_before[index] + raw.hashed - bar.n)
        self._end(contig, path)
        finished = SourceRecord(path.name, raw.hashed, raw.sha256, str(compression_of(path)))
        yield self._checkpoint(index, raw, 0, 1, finished)

    def _checkpoint(
        self,
        index: int,
        raw: HashedFile,
        position: int,
        line: int,
        finished: SourceRecord | None = None,
    ) -> Checkpoint:
        fresh = tuple(self._contigs[self._journaled :])
        return Checkpoint(index, position, line, raw.hashed, raw.sha256, fresh, finished)

    def _end(self, contig: _OpenContig | None, path: Path) -> None:
        if contig is not None:
            self._contigs.append(contig.record())
            self._owners[contig.name] = path

    def _check_name(self, start: RecordStart, path: Path) -> None:
        owner = self._owners.get(start.name)
        if owner == path:
            raise InputError(
                f"{path}, line {start.line}: a second record is called {start.name!r}: give each "
                "record its own name"
            )
        if owner is not None:
            raise InputError(
                f"{path} and {owner} both hold a record called {start.name!r}: give each record "
                "its own name"
            )


def _is_plain_file(path: Path) -> bool:
    """Not a link either: what it leads to is somebody else's."""
    return path.is_file() and not path.is_symlink()


def _holds(path: Path, contigs: list[ContigRecord]) -> bool:
    """Whether a bases file begins with these contigs."""
    with path.open("rb") as file:
        return all(sha256_of_next(file, contig.length) == contig.sha256 for contig in contigs)
