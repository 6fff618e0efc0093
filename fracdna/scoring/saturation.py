"""In-silico saturation mutagenesis: every substitution in a region, and its heat map."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from fracdna.pictures import PLAIN, save
from fracdna.scoring.variants import Record
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.names import require_names
from fracdna_prep.vocabulary import DNA

LETTERS = "ACGT"
# most positions of a line of the map, and most lines; a region with more has longer lines
_LINE, _LINES = 100, 40
_INCHES_PER_LINE = 1.15
_NOT_SCORED = "0.85"
# the colours end at this share of the scores, so that one extreme one does not hide all others
_SHOWN_SHARE = 0.99


def place_region(text: str, contigs: Mapping[str, int], rename: str) -> Interval:
    """A region string as the genome names it.

    Raises:
        InputError: no region, on the reverse strand, or not inside a contig of the genome.
    """
    asked = Interval.parse(text)
    if asked.strand == "-":
        raise InputError(f"region={text}: both strands are scored anyway, leave out the strand")
    names = require_names([asked.chromosome], [f"region={text}"], contigs, rename)
    region = Interval(names[asked.chromosome], asked.start, asked.end)
    length = contigs[region.chromosome]
    if region.end > length:
        raise InputError(
            f"region={text}: {region.chromosome} has {length:,} bases: end the region there"
        )
    return region


def every_substitution(store: GenomeStore, region: Interval) -> list[Record]:
    """One record for each base of a region, with the other bases as its ALT alleles.

    An N gets all four, which are reported and not scored.
    """
    letters = DNA.decode(store.fetch(region))
    return [
        Record(
            region.chromosome, region.start + place, ".", letter,
            tuple(other for other in LETTERS if other != letter),
        )
        for place, letter in enumerate(letters)
    ]  # fmt: skip


def draw_map(
    path: Path, records: Sequence[Record], alts: Sequence[str], scores: np.ndarray, title: str
) -> None:
    """A heat map of 4 rows by positions, in lines of up to 100 positions; grey is not scored.

    Args:
        path: of the PNG.
        records: of every_substitution.
        alts: (rows,) the substituted letter of each row, in the order of the records.
        scores: (rows,) NaN where there is none.
        title: of the picture.
    """
    table = np.full((len(LETTERS), len(records)), np.nan)
    places = np.repeat(np.arange(len(records)), [len(record.alts) for record in records])
    table[[LETTERS.index(alt) for alt in alts], places] = scores
    count = min(_LINES, -(-len(records) // _LINE))
    length = -(-len(records) // count)
    lines = range(0, len(records), length)
    figure = Figure(figsize=(14, 1.2 + _INCHES_PER_LINE * len(lines)), layout="constrained")
    figure.suptitle(title, fontsize=12, **PLAIN)
    panels = figure.subplots(len(lines), squeeze=False)[:, 0]
    # a position that is nowhere near 0 in any row still needs a scale
    found = np.abs(table[np.isfinite(table)])
    most = float(np.quantile(found, _SHOWN_SHARE)) if found.size else 0.0
    norm = TwoSlopeNorm(0.0, -(most or 1.0), most or 1.0)
    for panel, start in zip(panels, lines, strict=True):
        part = slice(start, start + length)
        drawn = _draw_line(panel, table[:, part], records[part], length, norm)
    bar = figure.colorbar(drawn, ax=list(panels), extend="both", aspect=10 * len(lines), pad=0.01)
    bar.set_label("score (nats)")
    save(figure, path)


def _draw_line(
    axes: Axes, table: np.ndarray, records: Sequence[Record], length: int, norm: TwoSlopeNorm
) -> AxesImage:
    """One line of the map: squares of letters by positions, the reference base marked."""
    first = records[0].position + 1  # people count from 1
    extent = (first - 0.5, first + len(records) - 0.5, len(LETTERS) - 0.5, -0.5)
    colours = colormaps["RdBu"].with_extremes(bad=_NOT_SCORED)
    drawn = axes.imshow(
        table, aspect="auto", cmap=colours, norm=norm, extent=extent, interpolation="nearest"
    )
    known = [
        (record.position + 1, LETTERS.index(record.ref), record.ref)
        for record in records
        if record.ref in LETTERS
    ]
    for x, y, letter in known if length <= _LINE else ():
        axes.text(x, y, letter, ha="center", va="center", fontsize=7, weight="bold")
    if length > _LINE and known:
        x, y, _ = zip(*known, strict=True)
        axes.scatter(x, y, s=2, color="black", marker="s", linewidths=0)
    axes.set_yticks(range(len(LETTERS)), list(LETTERS))
    axes.set_xlim(first - 0.5, first + length - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(labelsize=8)
    return drawn
