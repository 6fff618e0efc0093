"""Charts as inline SVG, in a wide and a narrow layout: letters keep their size on a phone."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from fracdna.report.axes import Axis
from fracdna.report.charts import Chart, Curve
from fracdna.report.elements import element, embedded
from fracdna.report.tables import table_element

DOTS_UP_TO = 80  # points of a curve that are marked one by one


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
        element("figcaption", chart.note),
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
    plot = element(
        "svg",
        *_lines_across(frame),
        *(_curve(frame, curve) for curve in chart.curves),
        *_words(frame),
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
    for tick in chart.x.ticks(frame.x_span, _most_ticks(chart, layout)):
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
    for place in frame.chart.marks:
        x = round(frame.x(place), 1)
        yield element("line", x1=x, x2=x, y1=0, y2=frame.height, class_="mark")
    for level in frame.chart.seen_levels():
        y = round(frame.y(level), 1)
        yield element("line", x1=0, x2=frame.width, y1=y, y2=y, class_="mark")


def _words(frame: Frame) -> Iterator[Element]:
    """What marked places and levels are."""
    for place, word in frame.chart.marks.items():
        x = round(frame.x(place), 1)
        right = x > 0.7 * frame.width
        side = {"x": x - 4 if right else x + 4, "class_": "tick end" if right else "tick"}
        yield element("text", word, y=frame.height - 6, **side)
    for level, word in frame.chart.seen_levels().items():
        y = _beside(round(frame.y(level), 1))
        yield element("text", word, x=frame.width / 2, y=y, class_="tick middle")


def _beside(y: float) -> float:
    """Where a word stands at a level: above it, or below where there is no room."""
    return y - 4 if y > 18 else y + 14


def _curve(frame: Frame, curve: Curve) -> Element:
    """A line with its band and dots; where x has names, dots with whiskers."""
    named = frame.chart.x.scale == "names"
    x = [place + frame.chart.shift(curve) for place in curve.x]
    points = frame.points(x, curve.y)
    parts = []
    if curve.low is not None and not curve.dashed:
        lows, highs = frame.points(x, curve.low), frame.points(x, curve.high)
        ends = zip(lows, highs, strict=True)
        whiskers = " ".join(f"M{x} {low}V{high}" for (x, low), (_, high) in ends)
        around = f"{_path(highs + lows[::-1])}Z"
        parts.append(
            element("path", d=whiskers if named else around, class_="line" if named else "band")
        )
    if not named and len(points) > 1:
        kind = "line dashed" if curve.dashed else "line"
        parts.append(element("path", d=_path(points), class_=kind))
    if named or len(points) == 1 or (curve.dots and len(points) <= DOTS_UP_TO):
        kind = "dot ring" if curve.dashed else "dot"
        parts += [element("circle", cx=x, cy=y, r=3.2, class_=kind) for x, y in points]
    if curve.labelled and not named:
        right, level = points[-1]
        parts.append(element("text", curve.name, x=right, y=_beside(level), class_="tick end"))
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
