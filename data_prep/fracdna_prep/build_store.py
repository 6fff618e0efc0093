"""Building a genome store: checked first, then written beside its place and renamed once."""

import contextlib
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from fracdna_prep.errors import InputError
from fracdna_prep.fasta import FastaReader, ScannedContig
from fracdna_prep.files import atomic_directory, exclusive_lock, scratch_prefix
from fracdna_prep.progress import progress_bar
from fracdna_prep.sources import (
    AnnotatedReader,
    ScannedSource,
    describe_source,
    open_source,
    scan_sources,
    source_paths,
)
from fracdna_prep.store_layout import (
    BASES_FILE,
    CODE_OF_LETTER,
    RECORD_FILE,
    ContigRecord,
    StoreRecord,
    content_checksum,
)

_LOG = logging.getLogger(__name__)
_UPPER = np.arange(ord("A"), ord("Z") + 1)


@dataclass(frozen=True)
class StorePlan:
    """A store that exists already, or sources that passed all checks and can be built.

    Attributes:
        directory: where the store is or will be.
        contigs: name to length, in the order of the sources.
        scanned: the sources; empty when the store is there already.
    """

    directory: Path
    contigs: dict[str, int]
    scanned: tuple[ScannedSource, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing is left to build."""
        return not self.scanned


def plan_store(sources: Path | str | Iterable[Path | str], directory: Path | str) -> StorePlan:
    """Everything about a build that can be refused, before anything is written.

    Raises:
        InputError: unusable sources, or a folder that holds something else.
    """
    directory = Path(directory).absolute()
    paths = source_paths(sources)
    if _reusable(directory, paths):
        contigs = StoreRecord.read(directory).contigs
        return StorePlan(directory, {contig.name: contig.length for contig in contigs}, ())
    scanned = tuple(scan_sources(paths))
    contigs = {contig.name: contig.length for source in scanned for contig in source.contigs}
    return StorePlan(directory, contigs, scanned)


def build_store(plan: StorePlan, *, progress: bool = False) -> None:
    """Builds the planned store; a second builder waits for the first and uses its result.

    Raises:
        InputError: the folder cannot be written, or a source changed after the plan was made.
    """
    if plan.complete:
        return
    directory = plan.directory
    with exclusive_lock(directory.with_name(f".{directory.name}.lock")):
        if _reusable(directory, [source.path for source in plan.scanned]):
            return
        # Whoever holds the lock is the only builder, so older scratch folders have no owner.
        for leftover in directory.parent.glob(f"{scratch_prefix(directory)}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        _LOG.info("building the genome store %s", directory)
        with atomic_directory(directory) as folder:
            _write_store(plan, folder, progress)


def _reusable(directory: Path, paths: list[Path]) -> bool:
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return False
    if not (directory / RECORD_FILE).exists():
        raise InputError(
            f"{directory} exists and holds no complete genome store: remove it or name another "
            "folder"
        )
    record = StoreRecord.read(directory)
    if [source.sha256 for source in record.sources] != [describe_source(p).sha256 for p in paths]:
        names = ", ".join(source.name for source in record.sources)
        raise InputError(
            f"{directory} holds a genome store of other sources ({names}): remove that folder to "
            "build it again, or name another one"
        )
    return True


def _write_store(plan: StorePlan, folder: Path, progress: bool) -> None:
    bar = progress_bar(sum(plan.contigs.values()), "genome store", progress)
    contigs: list[ContigRecord] = []
    with bar, (folder / BASES_FILE).open("wb") as bases:
        for source in plan.scanned:
            contigs += _store_source(source, folder, bases, bar)
    sources = tuple(source.record for source in plan.scanned)
    StoreRecord(content_checksum(contigs), tuple(contigs), sources).write(folder)


def _store_source(
    source: ScannedSource, folder: Path, bases: BinaryIO, bar: tqdm
) -> list[ContigRecord]:
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        contextlib.closing(open_source(source.path, Path(scratch))) as reader,
    ):
        if not reader.next_way():
            raise _changed(source.path)
        return [_store_contig(source.path, reader, contig, bases, bar) for contig in source.contigs]


def _changed(path: Path) -> InputError:
    return InputError(f"{path} changed while it was read: start again when it rests")


def _store_contig(
    path: Path,
    reader: FastaReader | AnnotatedReader,
    contig: ScannedContig,
    bases: BinaryIO,
    bar: tqdm,
) -> ContigRecord:
    """Appends one contig, reading it another way as long as it differs from the first pass."""
    offset = bases.tell()
    while True:
        digest, letters = hashlib.sha256(), np.zeros(256, dtype=np.int64)
        for piece in reader.pieces(contig):
            codes = piece.translate(CODE_OF_LETTER)
            digest.update(codes)
            letters += np.bincount(np.frombuffer(piece, dtype=np.uint8), minlength=256)
            bases.write(codes)
            bar.update(len(codes))
        if digest.hexdigest() == contig.sha256:
            return _contig_record(contig, offset, letters)
        bar.update(offset - bases.tell())
        bases.seek(offset)
        bases.truncate()
        if not reader.next_way():
            raise _changed(path)


def _contig_record(contig: ScannedContig, offset: int, letters: np.ndarray) -> ContigRecord:
    lower = letters[_UPPER + 32]
    either = letters[_UPPER] + lower
    counts = {chr(_UPPER[i]): int(either[i]) for i in np.flatnonzero(either)}
    return ContigRecord(contig.name, contig.length, offset, contig.sha256, counts, int(lower.sum()))
