"""The genome that a command names: a store, a prepared folder or a FASTA."""

from pathlib import Path

from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.prepare import SUMMARY_FILE, store_path
from fracdna_prep.store_layout import RECORD_FILE


def open_genome(genome: str | None, folder: str | None, progress: bool) -> GenomeStore:
    """A store, the store inside a prepared folder, or one built from a FASTA.

    Args:
        genome: the value of genome=.
        folder: the value of store=, where the store of a FASTA is built once and kept.
        progress: show the building.

    Raises:
        InputError: nothing named, a FASTA without a folder for its store, or no genome.
    """
    if genome is None:
        raise InputError(
            "genome= is missing: name a genome store, a folder written by `fracdna prepare`, or a "
            "FASTA together with store="
        )
    path = Path(genome)
    if path.is_file():
        if folder is None:
            raise InputError(
                f"genome={genome} is a file: add store=FOLDER, where its genome store is built "
                "once and kept, or name a folder written by `fracdna prepare`"
            )
        return GenomeStore.build(path, folder, progress=progress)
    if (path / SUMMARY_FILE).is_file():
        return GenomeStore(store_path(path))
    inside = path / "genome"
    return GenomeStore(inside if (inside / RECORD_FILE).is_file() else path)
