"""Draw what scripts/benchmark_kernels.py measured: python scripts/draw_kernels.py JSON PNG.

Left the share of the byte floor that frac_scan reached, right where a training step's device time
goes. Rows that were timed as Python launches them and vary by more than a tenth show the host, not
the kernels: they are left out.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from fracdna_prep.files import atomic_file

STEADY = 0.1  # greatest spread of a row that Python launched
PARTS = ("products", "scan", "norms", "elementwise", "convolution", "gates", "optimizer", "other")


def main() -> None:
    """Reads the rows and draws both pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("results", type=Path, help="JSON of benchmark_kernels.py, --output")
    parser.add_argument("picture", type=Path, help="PNG to write")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    draw_scan(left, [row for row in results["scan"] if is_of_the_device(row)])
    draw_step(right, results["model"])
    with atomic_file(arguments.picture) as path:
        figure.savefig(path, dpi=130, format="png")


def is_of_the_device(row: dict[str, Any]) -> bool:
    """Whether a row's time is that of the kernels."""
    return "floor" in row and (row["reps"].endswith("graph") or row["spread"] <= STEADY)


def draw_scan(axes: plt.Axes, rows: list[dict[str, Any]]) -> None:
    """A bar per row, with the ceiling of its plan."""
    labels = [f"{row['shape']}  {row['inputs']}  {row['pass']}" for row in rows]
    places = range(len(rows))
    colours = ["tab:blue" if row["pass"] == "fwd" else "tab:orange" for row in rows]
    axes.barh(places, [100 * row["floor"] for row in rows], color=colours)
    for place, row in zip(places, rows, strict=True):
        if row.get("ceiling"):
            axes.plot([100 * row["ceiling"]] * 2, [place - 0.4, place + 0.4], color="black")
    axes.set_yticks(places, labels, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlim=(0, 105), xlabel="% of the byte floor (black: ceiling of the plan)")
    axes.set_title("frac_scan, rows x length, heads x width")


def draw_step(axes: plt.Axes, rows: list[dict[str, Any]]) -> None:
    """Device time of a training step by part, a bar per window, and what a step takes in all."""
    parted = [row for row in rows if "products ms" in row]
    names, bottom = [f"{row['window']:,}" for row in parted], [0.0] * len(parted)
    for part in PARTS:
        heights = [row.get(f"{part} ms", 0.0) for row in parted]
        axes.bar(names, heights, bottom=bottom, label=part)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    whole = {f"{row['window']:,}": row["ms"] for row in rows if row.get("mode") == "graphs"}
    shown = [(name, whole[name]) for name in names if name in whole]
    if shown:
        axes.plot(*zip(*shown, strict=True), "kD", label="a step, from CUDA graphs")
    axes.set(xlabel="window", ylabel="ms for 65,536 bases")
    axes.set_title("training step of the 7M FRAC")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)


if __name__ == "__main__":
    main()
