"""A genome store held against its sources once more, base by base, through a second reader."""

import hashlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tqdm import tqdm

from fracdna_prep.build_store import StoreDraft
from fracdna_prep.compression import reading_refusals
from fracdna_prep.errors import InputError
from fracdna_prep.files import writing_refusals
from fracdna_prep.progress import progress_bar
from fracdna_prep.records import is_annotated
from fracdna_prep.sources import describe_source
from fracdna_prep.store_layout import (
    BASES_FILE,
    CODED_LETTERS,
    SOFT_MASKED,
    ContigRecord,
    SourceRecord,
    content_checksum,
    sha256_of_next,
)

if TYPE_CHECKING:
    from fracdna_prep.second_reader import SecondReader


@dataclass(frozen=True)
class Verification:
    """What was found equal, and what pyfaidx could not say anything about.

    Attributes:
        contigs: how many pyfaidx read as the store holds them; the others agree with the checksums
            of the store.
        bases: of these.
        seconds: what it took.
        not_covered: GenBank and EMBL files, which pyfaidx does not read.
        unreadable: why pyfaidx cannot read a FASTA, a line a file.
    """

    contigs: int
    bases: int
    seconds: float
    not_covered: list[str]
    unreadable: list[str]


def verify_store(draft: StoreDraft, scratch: Path, *, progress: bool = False) -> Verification:
    """Reads every FASTA source again through pyfaidx and compares all bases and soft masks.

    The checksums of the store and of its sources are compared too. Memory is bounded by the
    longest line of a FASTA.

    Args:
        draft: the store, published or not.
        scratch: a folder for index files, and for the text of sources that have to be unpacked.
        progress: show a progress bar.

    Raises:
        InputError: the store is not what its sources hold; names the first base that differs.
    """
    begun = time.perf_counter()
    bases = draft.folder / BASES_FILE
    total = draft.record.length
    with (
        writing_refusals(scratch),
        reading_refusals(bases),
        bases.open("rb") as file,
        progress_bar(total, "verification", progress) as bar,
    ):
        comparison = _Comparison(draft, file, bar)
        for path, source in zip(draft.sources, draft.record.sources, strict=True):
            comparison.check_source(path, source, scratch)
        comparison.check_rest()
    return Verification(
        contigs=len(comparison.equal),
        bases=sum(comparison.equal.values()),
        seconds=time.perf_counter() - begun,
        not_covered=comparison.not_covered,
        unreadable=comparison.unreadable,
    )


class _Comparison:
    """The store's contigs, compared one source after another.

    Attributes:
        equal: name to length of what both readers read alike.
        not_covered: as in Verification.
        unreadable: likewise.
    """

    def __init__(self, draft: StoreDraft, bases: BinaryIO, bar: tqdm) -> None:
        self._draft, self._bases, self._bar = draft, bases, bar
        self._contigs = {contig.name: contig for contig in draft.record.contigs}
        self._done = 0
        self.equal: dict[str, int] = {}
        self.not_covered: list[str] = []
        self.unreadable: list[str] = []

    def check_source(self, path: Path, source: SourceRecord, scratch: Path) -> None:
        """Compares one file, and its records where pyfaidx reads them."""
        # Loaded here: who asks for no verification does not wait for pyfaidx.
        from fracdna_prep.second_reader import SecondReader, SecondReaderError

        if describe_source(path).sha256 != source.sha256:
            raise InputError(f"{path} was changed after the store was read from it: {self._remedy}")
        if is_annotated(path):
            self.not_covered.append(path.name)
            return
        folder = scratch / "source"
        folder.mkdir()
        self._bar.set_postfix_str(f"indexing {path.name}")
        try:
            with reading_refusals(path), SecondReader(path, folder) as reader:
                for name in reader.names:
                    self._bar.set_postfix_str(name, refresh=False)
                    self._compare(path, name, reader)
        except SecondReaderError as error:
            self.unreadable.append(str(error))
        finally:
            shutil.rmtree(folder)

    def check_rest(self) -> None:
        """Compares what pyfaidx did not read with the checksums of the store alone."""
        rest = [contig for name, contig in self._contigs.items() if name not in self.equal]
        if rest and not self.not_covered and not self.unreadable:
            raise InputError(
                f"pyfaidx finds no record called {rest[0].name!r} in the sources, the genome store "
                f"{self._draft.directory} has one: {self._remedy}"
            )
        for contig in rest:
            if not self._is_whole(contig):
                raise self._damaged(f"in contig {contig.name!r}")
            self._move_on(contig.length)
        if content_checksum(self._contigs.values()) != self._draft.record.checksum:
            raise self._damaged("in its checksum")

    @property
    def _remedy(self) -> str:
        if self._draft.complete:
            return f"remove {self._draft.directory} and run the same command again"
        return "nothing was kept, run the same command again"

    def _compare(self, path: Path, name: str, reader: "SecondReader") -> None:
        contig = self._contigs.get(name)
        if contig is None:
            raise InputError(
                f"pyfaidx finds a record called {name!r} in {path}, the genome store "
                f"{self._draft.directory} has none: {self._remedy}"
            )
        digest, read = hashlib.sha256(), 0
        self._bases.seek(contig.offset)
        for codes in reader.pieces(name):
            stored = self._bases.read(min(len(codes), contig.length - read))
            if codes != stored:
                raise self._difference(path, contig, read, codes, stored)
            digest.update(codes)
            read += len(codes)
            self._bar.update(self._done + read - self._bar.n)
        if read != contig.length:
            raise self._difference(path, contig, read, b"", self._bases.read(1))
        if digest.hexdigest() != contig.sha256:
            raise self._damaged(f"in the checksum of contig {name!r}")
        self.equal[name] = contig.length
        self._move_on(contig.length)

    def _difference(
        self, path: Path, contig: ContigRecord, start: int, codes: bytes, stored: bytes
    ) -> InputError:
        """The message for two pieces, from `start` on, that differ."""
        pairs = enumerate(zip(codes, stored, strict=False))
        common = min(len(codes), len(stored))
        first = next((i for i, (code, other) in pairs if code != other), common)
        place = f"at {contig.name}:{start + first + 1:,}"
        letters = (
            f"the store holds {_letter(stored, first)}, pyfaidx reads {_letter(codes, first)} in "
            f"{path}"
        )
        if not self._is_whole(contig):
            return self._damaged(f"{place}: {letters}")
        return InputError(
            f"two readers disagree {place} (bases counted from 1): {letters}; look at this place "
            "of the file, and run the command without verify=true if the store is right"
        )

    def _damaged(self, where: str) -> InputError:
        return InputError(
            f"the genome store {self._draft.directory} is damaged {where}: {self._remedy}"
        )

    def _is_whole(self, contig: ContigRecord) -> bool:
        self._bases.seek(contig.offset)
        return sha256_of_next(self._bases, contig.length) == contig.sha256

    def _move_on(self, bases: int) -> None:
        self._done += bases
        self._bar.update(self._done - self._bar.n)


def _letter(codes: bytes, position: int) -> str:
    """A stored byte as people read it."""
    if position >= len(codes):
        return "nothing"
    code, masked = codes[position] & ~SOFT_MASKED, codes[position] & SOFT_MASKED
    if code >= len(CODED_LETTERS):
        return f"the byte {codes[position]:#04x}"
    return repr(CODED_LETTERS[code].lower() if masked else CODED_LETTERS[code])
