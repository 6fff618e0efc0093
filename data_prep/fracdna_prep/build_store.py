"""Building a genome store: read once, checked as it is read, renamed to its place at the end."""

import contextlib
import logging
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from fracdna_prep.errors import InputError, Unfinished
from fracdna_prep.files import exclusive_lock, writing_refusals
from fracdna_prep.partial_store import JOURNAL_FILE, PartialStore
from fracdna_prep.progress import progress_bar
from fracdna_prep.sources import describe_source, size_of_source, source_paths
from fracdna_prep.store_layout import RECORD_FILE, StoreRecord

_LOG = logging.getLogger(__name__)


class StoreDraft:
    """A store that exists already, or one that is whole but has not got its name yet.

    Attributes:
        directory: where the store is or will be.
        sources: the files it is made from.
        record: of all contigs and sources.
        contigs: name to length, in the order of the sources.
    """

    def __init__(
        self, directory: Path, sources: list[Path], partial: PartialStore | None = None
    ) -> None:
        self.directory, self.sources, self._partial = directory, sources, partial
        self.record = StoreRecord.read(directory) if partial is None else partial.record()
        self.contigs = {contig.name: contig.length for contig in self.record.contigs}

    @property
    def complete(self) -> bool:
        """Whether the store is there for everybody."""
        return self._partial is None

    @property
    def folder(self) -> Path:
        """Where its files lie now."""
        return self.directory if self._partial is None else self._partial.folder

    def publish(self) -> None:
        """Gives the store its name; without effect where it has it."""
        if self._partial is None:
            return
        with writing_refusals(self.directory):
            self.record.write(self._partial.folder)
            self._partial.folder.rename(self.directory)
            (self.directory / JOURNAL_FILE).unlink()
        self._partial = None


@contextlib.contextmanager
def store_draft(
    sources: Path | str | Iterable[Path | str], directory: Path | str, *, progress: bool = False
) -> Iterator[StoreDraft]:
    """Reads the sources into a folder that nobody sees; the block may look, refuse or publish.

    A second builder waits until the block ends, and uses what was published. A block left by a
    refusal leaves nothing behind; after any other end, be it Ctrl-C, SIGKILL or a full disk, the
    next builder of the same sources goes on with what is finished.

    Args:
        sources: FASTA, GenBank or EMBL files.
        directory: of the store.
        progress: show a progress bar.

    Raises:
        InputError: unusable sources, a folder that holds something else or cannot be written.
        Unfinished: no space left, or a disk that fails.
    """
    directory = Path(directory).absolute()
    paths = source_paths(sources)
    for path in paths:
        size_of_source(path)
    if _reusable(directory, paths):
        yield StoreDraft(directory, paths)
        return
    lock = directory.with_name(f".{directory.name}.lock")
    with folders_removed_if_refused(directory.parent), exclusive_lock(lock):
        if _reusable(directory, paths):
            yield StoreDraft(directory, paths)
            return
        _LOG.info("building the genome store %s", directory)
        with _partial_store(directory, paths) as partial:
            _read(partial, directory, progress)
            yield StoreDraft(directory, paths, partial)


@contextlib.contextmanager
def going_on_again() -> Iterator[None]:
    """Tells whom the system failed that the second try need not begin anew."""
    try:
        yield
    except Unfinished as error:
        raise Unfinished(f"{error}; it goes on with what is finished") from error.__cause__


def partial_folder(directory: Path) -> Path:
    """Where the store of a folder grows until it is whole."""
    return directory.with_name(f".{directory.name}.partial")


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


@contextlib.contextmanager
def folders_removed_if_refused(folder: Path) -> Iterator[None]:
    """Takes back the folders that had to be made where nothing came of it."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except InputError:
        for place in missing:
            with contextlib.suppress(OSError):
                place.rmdir()
        raise


@contextlib.contextmanager
def _partial_store(directory: Path, paths: list[Path]) -> Iterator[PartialStore]:
    """The unfinished store; under the lock, because whoever holds it is the only builder."""
    folder = partial_folder(directory)
    with writing_refusals(directory):
        # Those of earlier versions, with which nobody can go on.
        for leftover in directory.parent.glob(f"{folder.name}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        partial = PartialStore(folder, paths)
    refused = False
    try:
        yield partial
    except InputError as error:
        refused = not isinstance(error, Unfinished)
        raise
    finally:
        if refused or not partial.worth_keeping:
            shutil.rmtree(folder, ignore_errors=True)


def _read(partial: PartialStore, directory: Path, progress: bool) -> None:
    total = partial.bytes_of_sources
    with (
        writing_refusals(directory),
        progress_bar(total, "genome store", progress, unit="B") as bar,
    ):
        partial.read_sources(bar)
