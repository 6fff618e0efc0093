"""What a chart shows, apart from how it is drawn: the page and the PNG are made from the same."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fracdna.report.axes import Axis
from fracdna.report.tables import Column, Table, number

COLOURS = 10  # of things that are told apart
SHADES = 12  # of things in an order


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes:
        name: in the legend; curves of one name are hidden and shown together.
        x: rising.
        y: finite.
        low: lower end of the interval at each point; None: there is none.
        high: upper end.
        counts: bases that each point stands on, where they are known.
        colour: "c0" .. "c9" of things told apart, "s0" .. "s11" of things in an order, "grey".
        dashed: a reference or a control.
        dots: points are marked.
        labelled: its name stands beside it too.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    counts: Sequence[int] | None = None
    colour: str = "grey"
    dashed: bool = False
    dots: bool = True
    labelled: bool = False


@dataclass(frozen=True)
class Chart:
    """One picture.

    Attributes:
        key: of its place in the page, and name of its PNG.
        title: what it shows.
        note: what to know to read it.
        x: the axis below.
        y: the axis on the left.
        curves: at least one, each with a point.
        marks: places on x that get a line and a word; those out of sight are left out.
        levels: heights that get a line and a word; those out of sight are left out.
        top: the highest y to be shown; None: that of the curves.
        ends: what the ends of the curves' intervals are.
    """

    key: str
    title: str
    note: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    marks: Mapping[float, str] = field(default_factory=dict)
    levels: Mapping[float, str] = field(default_factory=dict)
    top: float | None = None
    ends: tuple[str, str] = ("95 % from", "95 % to")

    def spans(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Lowest and highest x and y to be shown."""
        x = [value for curve in self.curves for value in curve.x]
        y = list(self._heights())
        if self.top is not None:
            y = [min(value, self.top) for value in y]
        return self.x.span(x), self.y.span(y)

    def _heights(self) -> Iterator[float]:
        """All values of curves and the ends of their intervals."""
        for curve in self.curves:
            yield from curve.y
            if curve.low is not None and not curve.dashed:
                yield from curve.low
                yield from curve.high

    def seen_levels(self) -> dict[float, str]:
        """Levels within the span."""
        low, high = self.spans()[1]
        return {level: word for level, word in self.levels.items() if low <= level <= high}

    def seen_marks(self) -> dict[float, str]:
        """Marked places within the span."""
        low, high = self.spans()[0]
        return {place: word for place, word in self.marks.items() if low <= place <= high}

    def caption(self) -> str:
        """The note, and which marks would stand outside."""
        seen = self.seen_marks()
        unseen = [word for place, word in self.marks.items() if place not in seen]
        return f"{self.note} Outside this range: {', '.join(unseen)}." if unseen else self.note

    def x_ticks(self, most: int) -> list[float]:
        """Places marked below, at most so many: of points at a single place that place."""
        places = {x for curve in self.curves for x in curve.x}
        if len(places) == 1 and self.x.scale != "names":
            return [*places]
        return self.x.ticks(self.spans()[0], most)

    def names(self) -> dict[str, Curve]:
        """Names in the legend, each with the first curve of that name."""
        found: dict[str, Curve] = {}
        for curve in self.curves:
            found.setdefault(curve.name, curve)
        return found

    def shift(self, curve: Curve) -> float:
        """How far a curve stands beside places that have names, so that none hides another."""
        if self.x.scale != "names":
            return 0.0
        names = list(self.names())
        return (names.index(curve.name) - (len(names) - 1) / 2) * min(0.7 / len(names), 0.12)

    def table(self) -> Table:
        """The values behind the picture."""
        bands = any(curve.low is not None for curve in self.curves)
        counted = any(curve.counts is not None for curve in self.curves)
        columns = [Column("curve"), Column(self.x.label), Column(self.y.label)]
        columns += [*map(Column, self.ends)] if bands else []
        columns += [Column("bases")] if counted else []
        rows = []
        for curve in self.curves:
            none = [None] * len(curve.x)
            for x, y, low, high, count in zip(
                curve.x, curve.y, curve.low or none, curve.high or none, curve.counts or none,
                strict=True,
            ):  # fmt: skip
                row = [curve.name, self._place(x), number(y)]
                row += [number(low), number(high)] if bands else []
                rows.append(row + ([number(count)] if counted else []))
        return Table(columns, rows)

    def _place(self, x: float) -> object:
        """A value of x in the table."""
        return self.x.written(x) if self.x.scale == "names" else number(x)


def colour_of(place: int) -> str:
    """The colour of the n-th thing."""
    return f"c{place % COLOURS}"


def shade_of(place: int, count: int) -> str:
    """The colour of the n-th of so many things in an order."""
    return f"s{round(place * (SHADES - 1) / max(count - 1, 1))}"
