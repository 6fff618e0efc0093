import mmap
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from fracdna_prep.build_store import going_on_again, store_draft
from fracdna_prep.composition import count_n_and_masked
from fracdna_prep.compression import reading_refusals
from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval
from fracdna_prep.store_layout import (
    BASES_FILE,
    RECORD_FILE,
    SOFT_MASKED,
    ContigRecord,
    StoreRecord,
    content_checksum,
    id_tables,
    sha256_of_next,
)
from fracdna_prep.vocabulary import DNA
from fracdna_prep.wording import listed

_FORWARD_IDS, _REVERSE_IDS = id_tables(DNA)


class GenomeStore:
    """A genome on disk, one byte a base, read by mapping.

    An object holds the path and the metadata only: every process opens its own map when it first
    fetches, so a store may be pickled, and used under fork and spawn.

    Raises:
        InputError: the folder holds no complete store of this format.
    """

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory).absolute()
        self._record = StoreRecord.read(self._directory)
        _check_size(self._directory / BASES_FILE, self._record.length)
        self._by_name = {contig.name: contig for contig in self._record.contigs}
        self._lengths = {contig.name: contig.length for contig in self._record.contigs}
        self._map: np.ndarray | None = None
        self._map_process = -1

    @classmethod
    @going_on_again()
    def build(
        cls,
        sources: Path | str | Iterable[Path | str],
        directory: Path | str,
        *,
        progress: bool = False,
    ) -> Self:
        """Builds the store of one or several FASTA, GenBank or EMBL files, or reuses it.

        Every source is read once. A second builder of the same folder waits for the first. Nothing
        is written beside the sources, and `directory` appears only when it is complete; a build
        that was killed is gone on with by the next one.

        Raises:
            InputError: unusable sources, a folder that cannot be written, or one that holds the
                store of other sources.
            Unfinished: no space left, or a disk that fails; what is finished is kept.
        """
        with store_draft(sources, directory, progress=progress) as draft:
            draft.publish()
        return cls(directory)

    @property
    def directory(self) -> Path:
        """The store's folder."""
        return self._directory

    @property
    def checksum(self) -> str:
        """Hash of the content: contig names, bases and soft mask, not packing or file names."""
        return self._record.checksum

    @property
    def record(self) -> StoreRecord:
        """Everything recorded about contigs and sources."""
        return self._record

    @property
    def metadata(self) -> dict[str, Any]:
        """The same as plain values, as in store.json."""
        return asdict(self._record)

    @property
    def contigs(self) -> dict[str, int]:
        """Length of each contig in bases, by name, in the order of the sources."""
        return dict(self._lengths)

    def fetch(self, interval: Interval) -> np.ndarray:
        """Ids of an interval, on its strand.

        Returns:
            (interval.width,) uint8, writable.

        Raises:
            InputError: an unknown contig, or an interval that is not inside its contig.
        """
        return self._ids(interval, reverse=interval.strand == "-")

    def fetch_window(
        self, interval: Interval, pad_left: int, pad_right: int, *, reverse: bool = False
    ) -> np.ndarray:
        """Ids of a window that may leave its contig.

        Args:
            interval: the part of the window that lies on the contig.
            pad_left: positions missing before it, in coordinates of the forward strand.
            pad_right: positions missing behind it.
            reverse: read the other strand than the interval's.

        Returns:
            (pad_left + interval.width + pad_right,) uint8. The bases are oriented first; PAD then
            stands where bases are missing, so a window on the reverse strand begins with
            pad_right positions of it.

        Raises:
            InputError: as fetch.
        """
        backwards = (interval.strand == "-") != reverse
        ids = self._ids(interval, reverse=backwards)
        first, last = (pad_right, pad_left) if backwards else (pad_left, pad_right)
        if not first and not last:
            return ids
        window = np.full(first + len(ids) + last, DNA.pad, dtype=np.uint8)
        window[first : first + len(ids)] = ids
        return window

    def soft_mask(self, interval: Interval) -> np.ndarray:
        """Where an interval is in lower case in the source, on its strand: (width,) bool."""
        masked = self._bytes(interval) >= SOFT_MASKED
        return masked[::-1].copy() if interval.strand == "-" else masked

    def count_n_and_masked(
        self, contig: str, starts: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Counts N and soft-masked bases of many intervals of one contig, in bounded memory.

        Args:
            contig: its name.
            starts: (K,) inside the contig, in any order.
            ends: (K,) not before the starts.

        Returns:
            two (K,) int64 arrays.
        """
        path = self._directory / BASES_FILE
        n_count, masked = count_n_and_masked(path, self._contig(contig), starts, ends)
        return n_count, masked

    def verify(self) -> str:
        """Reads the whole store again and returns its checksum.

        Raises:
            InputError: the bases of a contig are not those that were built.
        """
        with (self._directory / BASES_FILE).open("rb") as file:
            for contig in self._record.contigs:
                file.seek(contig.offset)
                if sha256_of_next(file, contig.length) != contig.sha256:
                    raise InputError(
                        f"{self._directory / BASES_FILE} is damaged in contig {contig.name!r}: "
                        "remove the store and build it again"
                    )
        if content_checksum(self._record.contigs) != self.checksum:
            raise InputError(
                f"{self._directory / RECORD_FILE} was changed: remove the store and build it again"
            )
        return self.checksum

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None, "_map_process": -1}

    def _bases(self) -> np.ndarray:
        # A map inherited by fork would work too, but then closing and opening would be shared.
        if self._map is None or self._map_process != os.getpid():
            self._map = _open_map(self._directory / BASES_FILE, self._record.length)
            self._map_process = os.getpid()
        return self._map

    def _contig(self, name: str) -> ContigRecord:
        try:
            return self._by_name[name]
        except KeyError:
            raise InputError(
                f"contig {name!r} is not in the genome store {self._directory}, which has "
                f"{listed(self._by_name)}"
            ) from None

    def _bytes(self, interval: Interval) -> np.ndarray:
        contig = self._contig(interval.chromosome)
        if not 0 <= interval.start <= interval.end <= contig.length:
            raise InputError(
                f"interval {interval} (bases {interval.start} to {interval.end}, counted from 0) "
                f"is not inside contig {contig.name!r} of {contig.length} bases: place it with a "
                "policy first"
            )
        return self._bases()[contig.offset + interval.start : contig.offset + interval.end]

    def _ids(self, interval: Interval, *, reverse: bool) -> np.ndarray:
        stored = self._bytes(interval)
        # bytes.translate does look-up and complement in one pass, without the detour through
        # 8-byte indices that numpy's fancy indexing takes.
        if reverse:
            ids = bytearray(stored[::-1].tobytes()).translate(_REVERSE_IDS)
        else:
            ids = bytearray(stored).translate(_FORWARD_IDS)
        return np.frombuffer(ids, dtype=np.uint8)


def _open_map(path: Path, length: int) -> np.ndarray:
    """The bases file as a read-only array; a plain array, because np.memmap slices slowly."""
    if not length:
        return np.empty(0, dtype=np.uint8)
    # Again, because the process that opened the store may have done so long ago.
    _check_size(path, length)
    with reading_refusals(path), path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, dtype=np.uint8)


def _check_size(path: Path, length: int) -> None:
    """Notices at once a bases file that was cut or never copied; verify finds the rest."""
    with reading_refusals(path):
        size = path.stat().st_size if path.exists() else None
    if size is None:
        raise InputError(f"{path} is missing: remove the store and build it again")
    if size != length:
        raise InputError(
            f"{path} has {size} bytes instead of {length}: remove the store and build it again"
        )
