"""The training curve as it grows: CSV always, a picture at every validation."""

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from matplotlib.ticker import EngFormatter

from fracdna.pictures import new_axes, save
from fracdna_prep.files import atomic_file

WHOLE = ("step", "bases", "train_bases", "validation_bases")


@dataclass(frozen=True)
class CurvePoint:
    """One row of metrics.csv; None where a value was not measured at that step.

    bases are seen since the start, seconds are of this run and those that it resumes, train_bases
    those counted since the row before, validation_bases those of one validation (N and PAD are
    not), nll is in nats per base, loader_wait the share of the time since the row before in which
    the device waited for data.
    """

    step: int
    bases: int
    epoch: float
    seconds: float
    bases_per_second: float | None = None
    learning_rate: float | None = None
    train_bases: int | None = None
    train_nll: float | None = None
    train_perplexity: float | None = None
    validation_nll: float | None = None
    validation_perplexity: float | None = None
    loader_wait: float | None = None
    validation_bases: int | None = None


class TrainingCurve:
    """Rows of a run, kept in a CSV file that a resumed run continues.

    Args:
        path: of the CSV file.
        step: where a resumed run stands: rows after it, from before an interruption, are dropped.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        self.path = path
        self.points = [p for p in read_curve(path) if p.step <= step] if path.exists() else []
        self._write()

    def add(self, point: CurvePoint) -> None:
        """Append a row to the file."""
        self.points.append(point)
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(_texts(point))

    def _write(self) -> None:
        """Write all rows."""
        with atomic_file(self.path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(field.name for field in fields(CurvePoint))
            writer.writerows(_texts(point) for point in self.points)

    def draw(self, path: Path, title: str) -> None:
        """Perplexity against bases seen, training and validation, as PNG."""
        figure, axes = new_axes("bases seen", "perplexity", title)
        for name, label, style in (
            ("train_perplexity", "training", {"lw": 1.2, "alpha": 0.8}),
            ("validation_perplexity", "validation", {"marker": "o", "ms": 3.5}),
        ):
            points = [(p.bases, getattr(p, name)) for p in self.points]
            points = [(x, y) for x, y in points if y is not None]
            if points:
                axes.plot(*zip(*points, strict=True), label=label, **style)
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.axhline(4.0, color="0.6", lw=0.8, ls=":")
        axes.annotate("uniform", (0.995, 4.0), xycoords=("axes fraction", "data"), ha="right",
                      va="bottom", fontsize=8, color="0.4")  # fmt: skip
        later = [p.train_perplexity for p in self.points[len(self.points) // 10 :]]
        shown = [value for value in later if value is not None]
        if shown:
            # the first steps fall from the vocabulary's size: they would press the rest flat
            axes.set_ylim(top=max(4.05, *shown) + 0.02)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
        save(figure, path)


def read_curve(path: Path) -> list[CurvePoint]:
    """Rows of a metrics.csv; a last line cut off by a crash is left out.

    Columns that an older version did not write are None.
    """
    whole, _, _ = path.read_text().rpartition("\n")
    return [
        CurvePoint(**{name: _number(name, text) for name, text in row.items()})
        for row in csv.DictReader(whole.splitlines())
    ]


def _number(name: str, text: str) -> float | int | None:
    """A cell as the type of its column."""
    if text == "":
        return None
    return int(text) if name in WHOLE else float(text)


def _texts(point: CurvePoint) -> list[str]:
    """Cells of a row; numbers keep all their digits."""
    return ["" if value is None else repr(value) for value in asdict(point).values()]
