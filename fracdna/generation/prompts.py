"""What is continued: letters as they are typed, or the records of a file."""

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fracdna.embedding.regions import RegionIds, whole_records
from fracdna.embedding.states import Ids
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.vocabulary import DNA

TYPED = "prompt"  # name of a prompt that has none


@dataclass(frozen=True)
class Prompt:
    """A sequence to be continued.

    Attributes:
        name: of its record.
        ids: without BOS, read in parts when they are due.
    """

    name: str
    ids: Ids


def read_prompts(prompt: str, stack: contextlib.ExitStack, progress: bool) -> list[Prompt]:
    """The prompts that an option names.

    Args:
        prompt: DNA letters, or the path of a file of sequences.
        stack: keeps what a file is unpacked to until the prompts are read.
        progress: show how a file is read.

    Raises:
        InputError: a file that cannot be read, or letters that are no nucleotides.
    """
    if not _is_file(prompt):
        try:
            return [Prompt(TYPED, DNA.encode(prompt))]
        except InputError as error:
            raise InputError(
                f"prompt={_shortened(prompt)}: there is no such file, and read as DNA, {error}"
            ) from None
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "genome"
    store = GenomeStore.build(prompt, folder, progress=progress)
    records = whole_records(store).intervals
    return [Prompt(record.chromosome, RegionIds(store, record)) for record in records]


def _is_file(prompt: str) -> bool:
    """Whether a text is a path; letters may be more than a path can have."""
    try:
        return Path(prompt).is_file()
    except OSError:
        return False


def _shortened(text: str) -> str:
    """A text of one line for messages."""
    return text if len(text) <= 60 else f"{text[:57]}..."
