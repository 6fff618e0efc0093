"""Pictures of a probe: metrics with their intervals, and ROC curves of two classes."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import roc_curve

from fracdna.pictures import LONGEST_NAME, PLAIN, legend_beside, new_axes, save, shortened
from fracdna.probing.metrics import METRICS
from fracdna.probing.networks import BASELINE, NETWORK, UNTRAINED
from fracdna.probing.results import Report
from fracdna.probing.rows import TEST
from fracdna_prep.wording import counted

_WORDS = {"mcc": "MCC", "auroc": "AUROC", "auprc": "AUPRC", "accuracy": "accuracy", "f1": "F1"}
_COLORS = {BASELINE: "0.65", UNTRAINED: "#d9b36c", NETWORK: "C0"}


def draw_all(output: Path, report: Report, name: str) -> None:
    """The pictures of a folder.

    Args:
        output: the folder.
        report: what is drawn.
        name: of the set.
    """
    title = f"{name}: {counted(len(report.data.where(TEST)), 'test row')}, {report.method} probe"
    _draw_metrics(output / "metrics.png", report, title)
    if len(report.data.classes) == 2:
        _draw_roc(output / "roc.png", report, title)


def _draw_metrics(path: Path, report: Report, title: str) -> None:
    """A bar for each model in a panel for each metric, with 95 % intervals."""
    entries = list(report.entries)
    figure = Figure(figsize=(11.0, 1.5 + 0.34 * len(entries)), layout="constrained")
    figure.suptitle(title, fontsize=12, **PLAIN)
    panels = figure.subplots(1, len(METRICS), sharey=True)
    places = range(len(entries))
    for axes, metric in zip(panels, METRICS, strict=True):
        rows = np.array([entry.measured.row(metric)[:3] for entry in entries])
        value, low, high = rows.T
        axes.barh(
            places, value, height=0.7, color=[_COLORS[entry.kind] for entry in entries],
            xerr=np.abs([value - low, high - value]), error_kw={"lw": 1.0, "ecolor": "0.2"},
        )  # fmt: skip
        axes.set_xlabel(_WORDS[metric])
        axes.set_xlim(min(0.0, float(np.nanmin(low, initial=0.0))), 1.0)
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    names = [shortened(entry.name, LONGEST_NAME) for entry in entries]
    panels[0].set_yticks(places, names, **PLAIN)
    panels[0].invert_yaxis()
    save(figure, path)


def _draw_roc(path: Path, report: Report, title: str) -> None:
    """ROC curves of two classes, of the mean probabilities of the seeds."""
    labels = report.data.labels[report.data.where(TEST)]
    figure, axes = new_axes("false positive rate", "true positive rate", title)
    drawn = {}
    for entry in report.entries:
        x, y, _ = roc_curve(labels, entry.probabilities.mean(axis=0)[:, 1])
        style = {"lw": 1.8} if entry.kind == NETWORK else {"lw": 1.1, "ls": "--"}
        (drawn[entry.name],) = axes.plot(x, y, **style)
    axes.plot([0, 1], [0, 1], color="0.7", lw=0.8)
    axes.set_aspect("equal")
    legend_beside(axes, drawn)
    save(figure, path)
