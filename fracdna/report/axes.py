"""Axes of charts: scales, where they are marked, and how numbers on them are written."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fracdna.pictures import bases, shortened

PADDING = 0.04  # of the span of an axis, at either end
LONGEST_NAME = 18  # letters of a name below an axis
LETTERS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def decimal(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"


def short(value: float) -> str:
    """A large number with its letter: 1.6M, 80k."""
    for size, letter in LETTERS:
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        label: what it shows, with the unit.
        scale: "linear", "log2", "log10", or "names" for places 0, 1, ... that have names.
        text: how its numbers are written.
        names: of the places.
    """

    label: str
    scale: str = "linear"
    text: Callable[[float], str] = decimal
    names: tuple[str, ...] = ()

    def place(self, value: float) -> float:
        """Where a value stands, in a unit in which the axis is even."""
        return math.log2(value) if self.scale.startswith("log") else value

    def span(self, values: Sequence[float]) -> tuple[float, float]:
        """Lowest and highest value that the axis shows: all that are there, and some air."""
        low, high = self.place(min(values)), self.place(max(values))
        air = PADDING * (high - low) or 0.5
        if self.scale == "names":
            low, high, air = 0, len(self.names) - 1, 0.5
        if self.scale.startswith("log"):
            return 2 ** (low - air), 2 ** (high + air)
        return low - air, high + air

    def written(self, value: float) -> str:
        """A value in words."""
        return self.names[round(value)] if self.scale == "names" else self.text(value)

    def marked(self, value: float) -> str:
        """A value beside the axis, where there is less room."""
        return shortened(self.written(value), LONGEST_NAME)

    def ticks(self, span: tuple[float, float], most: int) -> list[float]:
        """Round values within a span, at most so many (names: all of them, or every n-th)."""
        if self.scale == "names":
            return [float(i) for i in range(0, len(self.names), -(-len(self.names) // most))]
        if self.scale.startswith("log"):
            base = 2 if self.scale == "log2" else 10
            powers = _powers(span, base)
            if len(powers) > 1:
                return powers[:: -(-len(powers) // most)]
        return _round_numbers(span, most)


def length_axis(label: str) -> Axis:
    """Bases, doubling: 1K, 2K, ... 1M."""
    return Axis(label, "log2", bases)


def _powers(span: tuple[float, float], base: int) -> list[float]:
    """Whole powers of a base within a span."""
    low, high = (math.log(value, base) for value in span)
    return [float(base) ** n for n in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]


def _round_numbers(span: tuple[float, float], most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    low, high = span
    least = (high - low) / most
    decade = 10.0 ** math.floor(math.log10(least))
    step = next(decade * n for n in (1, 2, 5, 10) if decade * n >= least * (1 - 1e-9))
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
