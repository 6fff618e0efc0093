"""Where the words of a drawing stand, so that none covers another."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from fracdna.report.elements import element

LETTER = 7.0  # width of one in units, on average
ABOVE, BELOW = 11, 3  # how far letters reach from the line that they stand on
CLASSES = {"start": "tick", "middle": "tick middle", "end": "tick end"}


class Box(NamedTuple):
    """A part of a drawing."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        """Whether the two have a place in common."""
        beside = self.right <= other.left or other.right <= self.left
        return not (beside or self.bottom <= other.top or other.bottom <= self.top)


class Word(NamedTuple):
    """Words at a place: x is that of their start, middle or end."""

    text: str
    x: float
    y: float
    anchor: str = "start"

    def box(self) -> Box:
        """The room that they take."""
        width = LETTER * len(self.text)
        left = self.x - {"start": 0, "middle": width / 2, "end": width}[self.anchor]
        return Box(left, self.y - ABOVE, left + width, self.y + BELOW)

    def element(self) -> Element:
        """The words as SVG."""
        return element("text", self.text, x=self.x, y=self.y, class_=CLASSES[self.anchor])


class Words:
    """Words of a drawing, placed one after the other.

    Args:
        width: of the drawing.
        height: of the drawing.
        drawn: places that words had better not cover.
    """

    def __init__(self, width: float, height: float, drawn: Sequence[tuple[float, float]]) -> None:
        self.width, self.height, self.drawn = width, height, drawn
        self.taken: list[Box] = []

    def place(self, choices: Iterable[Word]) -> Word | None:
        """The first that covers no word and least of what is drawn; None where none has room."""
        free = [word for word in choices if self._free(word.box())]
        if not free:
            return None
        best = min(free, key=lambda word: self._covered(word.box()))
        self.taken.append(best.box())
        return best

    def _free(self, box: Box) -> bool:
        """Whether it lies within the drawing and on no word."""
        within = box.left >= 0 and box.top >= 0
        within &= box.right <= self.width and box.bottom <= self.height
        return within and not any(box.meets(other) for other in self.taken)

    def _covered(self, box: Box) -> int:
        """How many drawn places lie below it."""
        left, top, right, bottom = box
        return sum(left <= x <= right and top <= y <= bottom for x, y in self.drawn)
