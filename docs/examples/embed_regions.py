"""Embeds CpG-rich and other windows of human DNA and draws them by their principal components.

    python docs/examples/embed_regions.py OUTPUT

The bundled two million bases of chromosome 20 have no annotation, so the classes come from the
sequence itself: windows of 512 bases are CpG-rich where at least 55 % are C or G and CG stands at
least 0.65 times as often as chance would have it, as in many promoters; the others are spread
evenly over what is left. So what parts the classes is composition as far as the picture shows: for
promoters give regions of your own. OUTPUT gets components.csv (a row a window) and components.png.
The pretrained FRAC reads 2 x 40 windows on both strands in about a minute of one CPU core.
"""

import argparse
import csv
import gzip
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA

import fracdna
from fracdna import pictures
from fracdna_prep.example import example_files

WEIGHTS = Path(__file__).parents[1] / "results" / "pretrained" / "frac_7m.safetensors"
WIDTH = 512


def is_cpg_rich(bases: str) -> bool:
    """Whether C and G are frequent, and CG is not rarer than two thirds of what they promise."""
    c, g = bases.count("C"), bases.count("G")
    return c + g >= 0.55 * len(bases) and bases.count("CG") * len(bases) >= 0.65 * c * g


def choose_windows(count: int) -> list[tuple[str, int, str]]:
    """Class, start and bases of so many windows of each class, spread evenly over the file."""
    with gzip.open(example_files().fasta, "rt") as fasta:
        text = "".join(line.strip() for line in fasta if not line.startswith(">")).upper()
    classes: dict[str, list[int]] = {"CpG-rich": [], "other": []}
    for start in range(0, len(text) - WIDTH, WIDTH):
        classes["CpG-rich" if is_cpg_rich(text[start : start + WIDTH]) else "other"].append(start)
    return [
        (name, starts[place], text[starts[place] : starts[place] + WIDTH])
        for name, starts in classes.items()
        for place in np.linspace(0, len(starts) - 1, count).astype(int)
    ]


def main() -> None:
    """Windows by class, their vectors, two components of these, a table and a picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", default=WEIGHTS, help="weights or a checkpoint")
    parser.add_argument("--count", type=int, default=40, help="windows of each class")
    given = parser.parse_args()
    windows = choose_windows(given.count)
    sequences = [bases for _, _, bases in windows]
    vectors = fracdna.embed(given.model, sequences, strand="average", progress=True)
    analysis = PCA(2)
    points = analysis.fit_transform(vectors)
    shares = [f"{share:.0%} of the variance" for share in analysis.explained_variance_ratio_]
    given.output.mkdir(parents=True, exist_ok=True)
    with (given.output / "components.csv").open("w", newline="") as file:
        rows = [(*window[:2], *point) for window, point in zip(windows, points, strict=True)]
        csv.writer(file).writerows([("class", "start", "first", "second"), *rows])
    figure, axes = pictures.new_axes(
        f"first component, {shares[0]}", f"second component, {shares[1]}", "Windows of 512 bases"
    )
    for name in dict.fromkeys(name for name, _, _ in windows):
        mine = points[[name == other for other, _, _ in windows]]
        axes.scatter(*mine.T, s=18, alpha=0.8, label=name)
    axes.legend(frameon=False)
    pictures.save(figure, given.output / "components.png")
    print(f"{given.output}: {len(points)} windows, {' and '.join(shares)}")


if __name__ == "__main__":
    main()
