"""Charts as inline SVG, in a wide and a narrow layout: letters keep their size on a phone."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from xml.etree.ElementTree import Element

from fracdna.pictures import shortened
from fracdna.report.axes import Axis
from fracdna.report.charts import Chart, Curve
from fracdna.report.elements import element, embedded
from fracdna.report.tables import table_element
from fracdna.report.words import LETTER, Word, Words

DOTS_UP_TO = 80  # points of a curve that are marked one by one
DOT = 3.2  # radius of such a mark
GRAIN = 10  # distance of the places that stand for a line where words are placed
MOST_MARKS = 8  # words of marked places above each other


class Layout(NamedTuple):
    """Sizes of a drawing, in units that are pixels where the page has the room."""

    name: str
    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    x_ticks: int
    y_ticks: int


WIDE = Layout("wide", 1080, 420, 62, 14, 12, 46, 12, 7)
NARROW = Layout("narrow", 360, 300, 62, 8, 12, 46, 6, 6)
SHORT_NAME = 3  # letters of a name that stands upright below an axis
ASLANT = 4.2  # room that each letter of one that stands aslant needs


class Frame:
    """Where values of a chart stand in a layout.

    Args:
        chart: what is drawn.
        layout: sizes.
    """

    def __init__(self, chart: Chart, layout: Layout) -> None:
        longest = max((len(chart.x.marked(n)) for n in range(len(chart.x.names))), default=0)
        below = ASLANT * longest if _aslant(chart.x) else 0
        self.chart, self.layout = chart, layout
        self.height_all = layout.height + below
        self.width = layout.width - layout.left - layout.right
        self.height = layout.height - layout.top - layout.bottom
        self.x_span, self.y_span = chart.spans()

    def x(self, value: float) -> float:
        """Units from the left end of the plot."""
        return self.width * _share(self.chart.x, self.x_span, value)

    def y(self, value: float) -> float:
        """Units from its upper end."""
        return self.height * (1 - _share(self.chart.y, self.y_span, value))

    def points(self, x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
        """Places of points, to a tenth of a unit."""
        return [(round(self.x(a), 1), round(self.y(b), 1)) for a, b in zip(x, y, strict=True)]


def _share(axis: Axis, span: tuple[float, float], value: float) -> float:
    """How far a value stands along an axis, 0 to 1 within its span."""
    low, high = map(axis.place, span)
    return (axis.place(value) - low) / (high - low)


def figure_element(chart: Chart) -> Element:
    """A chart with its legend, both layouts, the read-out's values and its table."""
    legend = [
        element(
            "button",
            element("span", class_=f"swatch {'dashed' if curve.dashed else ''}"),
            name,
            type="button",
            class_=curve.colour,
            aria_pressed="true",
            data_curve=place,
        )
        for place, (name, curve) in enumerate(chart.names().items())
    ]
    return element(
        "figure",
        element("h3", chart.title),
        element("div", *legend, class_="legend", role="group", aria_label="curves shown"),
        element(
            "div",
            *(drawing(chart, layout) for layout in (WIDE, NARROW)),
            element("div", class_="readout", hidden="", aria_live="polite"),
            class_="drawings",
            tabindex="0",
            role="group",
            aria_label=f"{chart.title}: arrow keys read out values",
        ),
        embedded(_values(chart), class_="values"),
        element("figcaption", chart.caption()),
        element(
            "details",
            element("summary", f"Data of this picture, which is also {chart.key}.png"),
            table_element(chart.table()),
        ),
        id=f"chart-{chart.key}",
    )


def drawing(chart: Chart, layout: Layout) -> Element:
    """The SVG of a chart."""
    frame = Frame(chart, layout)
    words = Words(frame.width, frame.height, list(_drawn(frame)))
    across = list(_words(frame, words))  # first: of curves the legend has the names too
    plot = element(
        "svg",
        *_lines_across(frame),
        *(_curve(frame, curve, words) for curve in chart.curves),
        *across,
        element("line", class_="cursor", y1=0, y2=frame.height, visibility="hidden"),
        x=layout.left,
        y=layout.top,
        width=frame.width,
        height=frame.height,
        class_="plot",
    )
    return element(
        "svg",
        *_axes(frame),
        plot,
        viewBox=f"0 0 {layout.width} {frame.height_all}",
        class_=f"chart {layout.name}",
        role="img",
        aria_label=chart.title,
        data_left=layout.left,
        data_width=frame.width,
        data_low=frame.x_span[0],
        data_high=frame.x_span[1],
        data_scale="log" if chart.x.scale.startswith("log") else "linear",
    )


def _axes(frame: Frame) -> Iterator[Element]:
    """Grid, numbers and labels."""
    chart, layout = frame.chart, frame.layout
    left, bottom = layout.left, layout.top + frame.height
    for tick in chart.y.ticks(frame.y_span, layout.y_ticks):
        y = round(layout.top + frame.y(tick), 1)
        yield element("line", x1=left, x2=left + frame.width, y1=y, y2=y, class_="grid")
        yield element("text", chart.y.marked(tick), x=left - 7, y=y + 4, class_="tick end")
    for tick in chart.x_ticks(_most_ticks(chart, layout)):
        x = round(left + frame.x(tick), 1)
        yield element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="grid")
        yield _below(chart.x, tick, x, bottom)
    middle = left + frame.width / 2
    under = frame.height_all - 8
    yield element("text", chart.x.label, x=middle, y=under, class_="label")
    turned = f"translate(12 {layout.top + frame.height / 2}) rotate(-90)"
    yield element("text", chart.y.label, transform=turned, class_="label")


def _most_ticks(chart: Chart, layout: Layout) -> int:
    """How many marks fit below."""
    return 2 * layout.x_ticks + 8 if chart.x.scale == "names" else layout.x_ticks


def _below(axis: Axis, tick: float, x: float, bottom: float) -> Element:
    """A number or name below the axis."""
    text = axis.marked(tick)
    if not _aslant(axis):
        return element("text", text, x=x, y=bottom + 18, class_="tick middle")
    turned = f"translate({x + 4} {bottom + 14}) rotate(-40)"
    return element("text", text, transform=turned, class_="tick end")


def _aslant(axis: Axis) -> bool:
    """Whether names below are too long to stand upright."""
    return any(len(name) > SHORT_NAME for name in axis.names)


def _lines_across(frame: Frame) -> Iterator[Element]:
    """Marked places and levels."""
    for place in frame.chart.seen_marks():
        x = round(frame.x(place), 1)
        yield element("line", x1=x, x2=x, y1=0, y2=frame.height, class_="mark")
    for level in frame.chart.seen_levels():
        y = round(frame.y(level), 1)
        yield element("line", x1=0, x2=frame.width, y1=y, y2=y, class_="mark")


def _drawn(frame: Frame) -> Iterator[tuple[float, float]]:
    """Places along lines and around dots."""
    for place in frame.chart.seen_marks():
        yield from ((frame.x(place), y) for y in range(0, int(frame.height), GRAIN))
    for level in frame.chart.seen_levels():
        yield from ((x, frame.y(level)) for x in range(0, int(frame.width), GRAIN))
    for curve in frame.chart.curves:
        points = frame.points(_places(frame, curve), curve.y)
        if _dotted(frame, curve):
            yield from ((x, y + away) for x, y in points for away in (-DOT, 0, DOT))
        if frame.chart.x.scale != "names":
            yield from _along(points)


def _along(points: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Places on the straight lines through points, not far from each other."""
    for (left, first), (right, last) in pairwise(points):
        steps = int((abs(right - left) + abs(last - first)) / GRAIN) + 1
        for step in range(steps + 1):
            share = step / steps
            yield left + share * (right - left), first + share * (last - first)


def _dotted(frame: Frame, curve: Curve) -> bool:
    """Whether points of a curve are marked."""
    few = curve.dots and len(curve.x) <= DOTS_UP_TO
    return frame.chart.x.scale == "names" or len(curve.x) == 1 or few


def _places(frame: Frame, curve: Curve) -> list[float]:
    """Where points of a curve stand on x."""
    return [place + frame.chart.shift(curve) for place in curve.x]


def _words(frame: Frame, words: Words) -> Iterator[Element]:
    """What marked places and levels are."""
    width, height = frame.width, frame.height
    for level, text in frame.chart.seen_levels().items():
        y = round(frame.y(level), 1)
        text = shortened(text, int(width / LETTER))
        places = ((width / 2, "middle"), (4, "start"), (width - 4, "end"))
        yield from _placed(words, [Word(text, x, b, a) for b in _beside(y) for x, a in places])
    for place, text in frame.chart.seen_marks().items():
        x = round(frame.x(place), 1)
        rows = [height - 6 - 14 * row for row in range(MOST_MARKS)]
        sides = ((x + 4, "start"), (x - 4, "end"))
        yield from _placed(words, [Word(text, at, y, a) for y in rows for at, a in sides])


def _placed(words: Words, choices: list[Word]) -> Iterator[Element]:
    """Words where they have room, or none."""
    word = words.place(choices)
    if word is not None:
        yield word.element()


def _beside(y: float) -> tuple[float, float]:
    """Where words stand at a level: above it or below."""
    return y - 4, y + 14


def _name(curve: Curve, points: list[tuple[float, float]]) -> list[Word]:
    """Where the name of a curve may stand: at its last point or its first, beside a single one."""
    (left, first), (right, last) = points[0], points[-1]
    if len(points) == 1:
        return [Word(curve.name, left + 8, first + 4), Word(curve.name, left - 8, first + 4, "end")]
    ends = [Word(curve.name, right, y, "end") for y in _beside(last)]
    return ends + [Word(curve.name, left, y) for y in _beside(first)]


def _curve(frame: Frame, curve: Curve, words: Words) -> Element:
    """A line with its band and dots; where x has names, dots with whiskers."""
    named = frame.chart.x.scale == "names"
    bars = named or len(curve.x) == 1
    x = _places(frame, curve)
    points = frame.points(x, curve.y)
    parts = []
    if curve.low is not None and not curve.dashed:
        lows, highs = frame.points(x, curve.low), frame.points(x, curve.high)
        ends = zip(lows, highs, strict=True)
        whiskers = " ".join(f"M{x} {low}V{high}" for (x, low), (_, high) in ends)
        around = f"{_path(highs + lows[::-1])}Z"
        parts.append(
            element("path", d=whiskers if bars else around, class_="line" if bars else "band")
        )
    if not named and len(points) > 1:
        kind = "line dashed" if curve.dashed else "line"
        parts.append(element("path", d=_path(points), class_=kind))
    if _dotted(frame, curve):
        kind = "dot ring" if curve.dashed else "dot"
        parts += [element("circle", cx=x, cy=y, r=DOT, class_=kind) for x, y in points]
    if curve.labelled and not named:
        parts += _placed(words, _name(curve, points))
    place = list(frame.chart.names()).index(curve.name)
    return element("g", *parts, class_=f"curve {curve.colour}", data_curve=place)


def _path(points: list[tuple[float, float]]) -> str:
    """Straight lines through points."""
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _values(chart: Chart) -> list[dict]:
    """What the read-out says of each point."""
    names = list(chart.names())
    found = []
    for curve in chart.curves:
        texts = [chart.y.written(y) for y in curve.y]
        if curve.low is not None:
            ends = zip(texts, curve.low, curve.high, strict=True)
            texts = [f"{t} ({chart.y.written(a)} to {chart.y.written(b)})" for t, a, b in ends]
        found.append(
            {
                "curve": names.index(curve.name),
                "name": curve.name,
                "colour": curve.colour,
                "x": [float(f"{x:.7g}") for x in curve.x],
                "at": [chart.x.written(x) for x in curve.x],
                "text": texts,
            }
        )
    return found
