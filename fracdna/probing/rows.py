"""Rows of labelled sets as files hold them, before anything is cut, encoded or split."""

from dataclasses import dataclass

from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval

TRAIN, DEV, TEST = "train", "dev", "test"
SPLITS = (TRAIN, DEV, TEST)
# how files, folders and columns call the three
SPLIT_WORDS = {
    "train": TRAIN,
    "training": TRAIN,
    "dev": DEV,
    "valid": DEV,
    "val": DEV,
    "validation": DEV,
    "test": TEST,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One example: letters, or an interval from which they are cut.

    Attributes:
        place: where it stands, file and line or record.
        label: name of its class.
        split: one of SPLITS; None: the set does not say.
        sequence: letters as they are in the file; None for an interval.
        interval: on a genome, 0-based and half-open; None for letters.
    """

    place: str
    label: str
    split: str | None
    sequence: str | None = None
    interval: Interval | None = None


def split_of(word: str, place: str) -> str:
    """The split that a word names.

    Raises:
        InputError: another word; names the place.
    """
    found = SPLIT_WORDS.get(word.strip().lower())
    if found is None:
        raise InputError(
            f"{place}: the split is {word!r}: write train, dev (or valid) or test, or name another "
            "column with split_column="
        )
    return found
