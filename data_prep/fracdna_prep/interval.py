import re
from dataclasses import dataclass, replace
from typing import Self

from fracdna_prep.errors import InputError

# The name is greedy, so that names with colons (HLA*01:01) are read from the right.
_REGION = re.compile(r"(.+):([\d,]+)-([\d,]+)(?::([+-])|\(([+-])\))?")
# more of them are no integer of 64 bits
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of one contig: 0-based, half-open, on the forward strand's coordinates.

    `start` may be negative and `end` may lie past the contig: what happens then is decided when
    a window is placed or bases are fetched.
    """

    chromosome: str
    start: int
    end: int
    strand: str = "+"

    def __post_init__(self) -> None:
        if self.strand not in ("+", "-"):
            raise InputError(f"strand must be '+' or '-', got {self.strand!r}")

    @property
    def width(self) -> int:
        """Number of bases."""
        return self.end - self.start

    def shift(self, bases: int) -> Self:
        """The same width, moved to the right (to the left when negative)."""
        return replace(self, start=self.start + bases, end=self.end + bases)

    def resize(self, width: int) -> Self:
        """Another width around the same centre; an odd base is added or taken on the right.

        Raises:
            InputError: a negative width.
        """
        if width < 0:
            raise InputError(f"width must not be negative, got {width}")
        extra = width - self.width
        left = extra // 2 if extra >= 0 else -(-extra // 2)
        return replace(self, start=self.start - left, end=self.start - left + width)

    @classmethod
    def parse(cls, text: str, strand: str = "+") -> Self:
        """Reads a region string such as "chr1:1,000-2,000": 1-based, both ends included.

        Args:
            text: the region, with an optional ":-" or "(-)" behind it.
            strand: the strand of a region that names none.

        Raises:
            InputError: not a region, position 0, an end before the start, or a number that no
                contig has.
        """
        match = _REGION.fullmatch(text.strip())
        if match is None:
            raise InputError(f"{text!r} is not a region such as chr1:1-2,000")
        name, first, last, *strands = match.groups()
        digits = [number.replace(",", "") for number in (first, last)]
        if max(map(len, digits)) > _MOST_DIGITS:
            raise InputError(f"{text[:40]!r}...: no contig has such a region")
        start, end = (int(number or 0) for number in digits)
        if not 1 <= start <= end:
            raise InputError(f"{text!r}: a region counts from 1 and ends at or after its start")
        return cls(name, start - 1, end, next((found for found in strands if found), strand))

    def __str__(self) -> str:
        """The region string, 1-based and closed; ":-" marks the reverse strand."""
        suffix = ":-" if self.strand == "-" else ""
        return f"{self.chromosome}:{self.start + 1}-{self.end}{suffix}"
