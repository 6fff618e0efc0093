"""How runs were trained, as charts and tables."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from fracdna.configuration import options_of
from fracdna.report.axes import Axis, short
from fracdna.report.charts import Chart, Curve, colour_of
from fracdna.report.elements import element, printable
from fracdna.report.folders import TrainingRun
from fracdna.report.sections import Block, Section
from fracdna.report.tables import Column, Table, fixed, number
from fracdna.training.curve import CurvePoint

MOST_POINTS = 400  # of a curve; of longer ones several rows are put together
FIRST_STEPS = 0.1  # share of a run whose fall from a blind start would press the rest flat
BY_BASES = Axis("bases seen", text=short)
Value = Callable[[CurvePoint], float | None]
BASES: Value = attrgetter("bases")
TRAINING: Value = attrgetter("train_perplexity")
VALIDATION: Value = attrgetter("validation_perplexity")


class TrainingSections:
    """Sections of training runs.

    Args:
        runs: in the order in which they are to be shown.
        places: number of each run's colour.
    """

    def __init__(self, runs: Sequence[TrainingRun], places: dict[str, int]) -> None:
        self.runs, self.places = runs, places

    def sections(self) -> list[Section]:
        """Training and throughput; none without runs."""
        if not self.runs:
            return []
        return [
            Section("training", "Training", self._training()),
            Section("throughput", "Throughput", self._throughput()),
        ]

    def settings(self) -> list[Section]:
        """What was set; none without runs."""
        if not self.runs:
            return []
        blocks = [self._options(), *self._configurations()]
        return [Section("settings", "Settings", blocks)]

    def _training(self) -> list[Block]:
        """Perplexity over bases and over time, and the learning rate."""
        unit, seconds = self._clock()
        note = (
            "Solid, with dots: validation; dashed: training. Of runs with more than "
            f"{MOST_POINTS:,} rows several in a row are one point."
        )
        levels = {4.0: "uniform guess"}
        charts = [
            Chart("training", "Perplexity by bases seen", note, BY_BASES, Axis("perplexity"),
                  self._losses(BASES), levels=levels, top=self._top()),
            Chart("training-time", f"Perplexity by {unit} of training", note, Axis(unit),
                  Axis("perplexity"), self._losses(lambda point: point.seconds / seconds),
                  levels=levels, top=self._top()),
            Chart("learning-rate", "Learning rate", "At the rows of metrics.csv.", BY_BASES,
                  Axis("learning rate"), self._curves(BASES, attrgetter("learning_rate"))),
        ]  # fmt: skip
        return [c for c in charts if c.curves] or ["No step has been recorded yet."]

    def _clock(self) -> tuple[str, int]:
        """The unit of time that suits the longest run, and its seconds."""
        longest = max((run.points[-1].seconds for run in self.runs if run.points), default=0)
        return ("hours", 3600) if longest >= 3600 else ("minutes", 60)

    def _losses(self, x: Value) -> list[Curve]:
        """Training and validation of every run over x."""
        return [
            curve
            for run in self.runs
            for curve in (
                *_curve(f"{run.name}, training", gathered(run.points), x, TRAINING,
                        self._colour(run), dashed=True, dots=False),
                *_curve(f"{run.name}, validation", run.points, x, VALIDATION,
                        self._colour(run)),
            )
        ]  # fmt: skip

    def _curves(self, x: Value, y: Value) -> list[Curve]:
        """One curve for every run."""
        return [
            curve
            for run in self.runs
            for curve in _curve(run.name, gathered(run.points), x, y, self._colour(run), dots=False)
        ]

    def _colour(self, run: TrainingRun) -> str:
        """The colour that a run has in the whole page."""
        return colour_of(self.places[run.name])

    def _top(self) -> float | None:
        """The highest perplexity that is shown."""
        later = [
            value
            for run in self.runs
            for point in run.points[int(FIRST_STEPS * len(run.points)) :]
            for value in (TRAINING(point), VALIDATION(point))
            if value is not None
        ]
        return max([4.05, *later]) if later else None

    def _throughput(self) -> list[Block]:
        """Bases per second over the run, and in total."""
        curves = self._curves(BASES, attrgetter("bases_per_second"))
        table = Table(
            [
                Column("run"), Column("bases per second", "median of the rows of metrics.csv"),
                Column("lowest"), Column("highest"), Column("hours", "validation included"),
                Column("bases seen"), Column("device waited", "for data, mean share of the time"),
            ],
            [[run.name, *_speed(run)] for run in self.runs],
            "bases per second while training, without validation",
        )  # fmt: skip
        if not curves:
            return [table]
        note = "Between two rows of metrics.csv, over all devices, without validation."
        axis = Axis("bases per second", text=short)
        return [Chart("throughput", "Bases per second", note, BY_BASES, axis, curves), table]

    def _options(self) -> Table:
        """Options in which the runs differ, or all of the only one."""
        leaves = [dict(options_of(run.config)) for run in self.runs]
        names = dict.fromkeys(name for options in leaves for name in options)
        several = len(self.runs) > 1
        rows = []
        for name in names:
            values = [str(options.get(name, "")) for options in leaves]
            if not several or len(set(values)) > 1:
                rows.append([name, *map(printable, values)])
        differ = "options in which the runs differ" if several else "options of the run"
        return Table([Column("option"), *(Column(run.name) for run in self.runs)], rows, differ)

    def _configurations(self) -> Iterator[Block]:
        """Everything that was set."""
        for run in self.runs:
            lines = [f"{name} = {value}" for name, value in options_of(run.config)]
            yield element(
                "details",
                element("summary", f"All options of {run.name}"),
                element("pre", "\n".join(map(printable, lines)), tabindex="0"),
            )


def gathered(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Rows with a training loss, at most MOST_POINTS: several in a row become one.

    The loss of such a group is that of all its counted bases, its rate that of all its bases, the
    rest that of its last row.
    """
    rows = [point for point in points if point.bases_per_second is not None]
    size = -(-len(rows) // MOST_POINTS) or 1
    return [_one(rows[start : start + size]) for start in range(0, len(rows), size)]


def _one(rows: Sequence[CurvePoint]) -> CurvePoint:
    """Several rows as one."""
    last = rows[-1]
    counted = [row for row in rows if row.train_nll is not None and row.train_bases]
    weight = sum(row.train_bases for row in counted)
    nll = sum(row.train_nll * row.train_bases for row in counted) / weight if weight else None
    # rows are equally many bases apart, so times add up, not rates
    rate = statistics.harmonic_mean([row.bases_per_second for row in rows])
    return CurvePoint(
        last.step, last.bases, last.epoch, last.seconds, rate, last.learning_rate,
        weight or None, nll, None if nll is None else math.exp(nll),
    )  # fmt: skip


def _curve(
    name: str, points: Sequence[CurvePoint], x: Value, y: Value, colour: str, **look: bool
) -> list[Curve]:
    """The curve of the rows that have a value, none without any."""
    pairs = ((x(point), y(point)) for point in points)
    known = [(a, b) for a, b in pairs if b is not None and math.isfinite(b)]
    if not known:
        return []
    places, values = zip(*known, strict=True)
    return [Curve(name, places, values, colour=colour, **look)]


def _speed(run: TrainingRun) -> list[Any]:
    """Cells of the table of throughput."""
    rates = [p.bases_per_second for p in run.points if p.bases_per_second is not None]
    if not rates:
        return [None] * 6
    waits = [p.loader_wait for p in run.points if getattr(p, "loader_wait", None) is not None]
    last = run.points[-1]
    return [
        number(round(statistics.median(rates))), number(round(min(rates))),
        number(round(max(rates))), fixed(last.seconds / 3600, 3), number(last.bases),
        fixed(statistics.mean(waits), 3) if waits else None,
    ]  # fmt: skip
