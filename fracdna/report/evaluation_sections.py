"""What evaluations found, as charts and tables."""

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from fracdna.pictures import bases, position_unit
from fracdna.report.axes import Axis, length_axis
from fracdna.report.charts import Chart, Curve, colour_of
from fracdna.report.elements import printable
from fracdna.report.folders import Row
from fracdna.report.same_bases import SameBases
from fracdna.report.sections import Block, Section
from fracdna.report.tables import Cell, Column, Table, fixed, interval, number

FEWEST_BASES = 1000  # that a point of a curve over positions stands on
BAND = "Bands are 95 % intervals by resampling regions."
CURVES = {
    "tiling": (
        "Perplexity by window length",
        "Every region is cut into windows of each length and all its bases are scored, so each "
        "point stands on the same bases.",
    ),
    "fixed": (
        "Perplexity of the last bases of each region, by what stands before them",
        "The same last bases of each region, read in windows that begin ever earlier: context "
        "alone changes.",
    ),
}
CLASSES = {"soft_mask": "soft mask", "gc": "GC", "chromosome": "contig"}


class EvaluationSections:
    """Sections of evaluations of the same bases.

    Args:
        same: what they found.
        places: number of each network's colour.
        suffix: told apart from other evaluations in keys; empty for the only ones.
    """

    def __init__(self, same: SameBases, places: dict[str, int], suffix: str) -> None:
        self.same, self.places, self.suffix = same, places, suffix
        self.where = f" ({', '.join(same.names)})" if suffix else ""

    def sections(self) -> list[Section]:
        """Those that have something to show."""
        parts: list[tuple[str, str, Callable[[], list[Block]]]] = [
            ("length", "Perplexity by length", self._lengths),
            ("positions", "Perplexity by bases of context", self._positions),
            ("gains", "What carried context is worth", self._gains),
            ("classes", "By class of bases", self._classes),
            ("chromosomes", "By contig", self._contigs),
            ("differences", "Paired differences", self._differences),
            ("streams", "Along chromosomes", self._streams),
        ]
        made = [(key, title, blocks()) for key, title, blocks in parts]
        return [
            Section(key + self.suffix, title + self.where, blocks)
            for key, title, blocks in made
            if blocks
        ]

    def _colour(self, model: str) -> dict[str, Any]:
        """How a model's curves look."""
        if model in self.places:
            return {"colour": colour_of(self.places[model])}
        return {"dashed": True, "dots": False, "labelled": True}

    def _curve(self, name: str, model: str, rows: Sequence[Row], x: str, y: str) -> Curve:
        """A curve of rows: values of a column over another, with the ends of their intervals."""
        low, high = ([row.get(f"{_stem(y)}_{end}") for row in rows] for end in ("low", "high"))
        banded = None not in low + high
        return Curve(
            name, [row[x] for row in rows], [row[y] for row in rows],
            low if banded else None, high if banded else None,
            [row["bases"] for row in rows] if all("bases" in row for row in rows) else None,
            **self._colour(model),
        )  # fmt: skip

    def _marks(self) -> dict[float, str]:
        """Lengths that networks were trained on."""
        lengths = {facts.get("trained_on_length") for facts in self.same.networks.values()}
        return {length: f"trained on {bases(length)}" for length in sorted(lengths - {None})}

    def _lengths(self) -> list[Block]:
        """Tiling and fixed curves, and their numbers side by side."""
        return [block for curve in CURVES for block in self._by_length(curve)]

    def _by_length(self, curve: str) -> list[Block]:
        """One of the two."""
        title, note = CURVES[curve]
        curves = []
        wanted = {"curve": curve, "strand": self.same.strand, "part": "all"}
        for model in self.same.models(references=True):
            rows = self.same.rows("table", model=model, **wanted)
            if rows:
                rows.sort(key=lambda row: row["length"])
                curves.append(
                    self._curve(self.same.label(model), model, rows, "length", "perplexity")
                )
        if not any(not drawn.dashed for drawn in curves):
            return []
        chart = Chart(
            f"{'perplexity' if curve == 'tiling' else curve}{self.suffix}", title,
            f"{note} {BAND}", length_axis("window length (bases)"), Axis("perplexity"), curves,
            self._marks(), {4.0: "uniform guess"},
        )  # fmt: skip
        return [chart, self._length_table(curve)]

    def _length_table(self, curve: str) -> Table:
        """All models and strands of a curve, a column for each length."""
        rows = self.same.rows("table", curve=curve, part="all")
        lengths = sorted({row["length"] for row in rows})
        keys = list(dict.fromkeys((row["model"], row["strand"]) for row in rows))
        found = {(row["model"], row["strand"], row["length"]): row for row in rows}

        def cell(model: str, strand: str, length: int) -> Cell:
            row = found.get((model, strand, length))
            return None if row is None else fixed(row["perplexity"])

        counted = max((r["bases"] for r in rows if r["strand"] == self.same.strand), default=0)
        return Table(
            [Column("model"), Column("strand"), *(Column(f"{length:,}") for length in lengths)],
            [
                [self.same.label(model), strand, *(cell(model, strand, n) for n in lengths)]
                for model, strand in keys
            ],
            f"perplexity by window length, {counted:,} bases on each strand",
            frozenset(i for i, (model, _) in enumerate(keys) if model in self.same.networks),
        )

    def _positions(self) -> list[Block]:
        """Perplexity in the longest windows by how much stands before a base."""
        curves = []
        for model in self.same.models():
            rows = self._shown(self.same.rows("positions", model=model, strand=self.same.strand))
            if rows:
                curves.append(self._curve(model, model, rows, "context_from", "perplexity"))
        note = (
            "One pass over each region from an empty memory; a point stands for bases with that "
            f"much context, up to twice as much. Fewer than {FEWEST_BASES:,} bases are not shown."
        )
        return self._if_any(
            curves, "positions", "Perplexity by bases of context", note,
            length_axis("bases of context"), Axis("perplexity"), marks=self._marks(),
        )  # fmt: skip

    def _shown(self, rows: Sequence[Row]) -> list[Row]:
        """Rows of context that have a place on a doubling axis and stand on enough bases."""
        return [row for row in rows if row["context_from"] > 0 and row["bases"] >= FEWEST_BASES]

    def _gains(self) -> list[Block]:
        """Carried memory against one that is emptied."""
        curves = []
        for model in self.same.models():
            rows = self._shown(self.same.rows("gains", model=model))
            if rows:
                curves.append(self._curve(model, model, rows, "context_from", "gain_nats"))
        note = (
            "Nats per base with a memory that is emptied every training length, minus those with "
            f"one carried through the region: above 0, older bases help. {BAND}"
        )
        chart = self._if_any(
            curves, "gains", "Gain of a carried memory over one that is emptied", note,
            length_axis("bases of context"), Axis("gain (nats per base)"),
            marks=self._marks(), levels={0.0: "no gain"},
        )  # fmt: skip
        missing = [
            reason for result in self.same.results for reason in result.get("without_gains", ())
        ]
        return [*chart, *(printable(str(reason)) for reason in missing)]

    def _if_any(self, curves: Sequence[Curve], key: str, title: str, note: str, x: Axis, y: Axis,
                **lines: dict[float, str]) -> list[Block]:  # fmt: skip
        """A chart, where there is something to draw."""
        if not curves:
            return []
        return [Chart(f"{key}{self.suffix}", title, note, x, y, curves, **lines)]

    def _classes(self) -> list[Block]:
        """Repeats, GC fifths and classes of BED files."""
        parts = {row["part"] for row in self.same.tables["table"]} - {"all", "chromosome"}
        return self._grouped(parts, "classes", "Perplexity by class of bases")

    def _contigs(self) -> list[Block]:
        """Each contig by itself."""
        return self._grouped({"chromosome"}, "chromosomes", "Perplexity by contig")

    def _grouped(self, parts: set[str], key: str, title: str) -> list[Block]:
        """Groups of bases at the longest windows: dots with whiskers, and their numbers."""
        if not self.same.lengths:
            return []
        longest = self.same.lengths[-1]
        wanted = {"curve": "tiling", "strand": self.same.strand, "length": longest}
        rows = [row for row in self.same.rows("table", **wanted) if row["part"] in parts]
        if not rows:
            return []
        groups = list(dict.fromkeys((row["part"], row["group"]) for row in rows))
        names = tuple(self._class_name(part, group) for part, group in groups)
        curves = []
        for model in self.same.models(references=True):
            mine = [
                row | {"place": groups.index((row["part"], row["group"]))}
                for row in rows
                if row["model"] == model
            ]
            # what lies in one region alone has no interval
            for ends in (True, False):
                part = [row for row in mine if (row.get("perplexity_low") is not None) == ends]
                if part:
                    name = self.same.label(model)
                    curves.append(self._curve(name, model, part, "place", "perplexity"))
        chart = Chart(
            f"{key}{self.suffix}", f"{title}, windows of {longest:,}",
            "Whiskers are 95 % intervals by resampling regions.",
            Axis("class" if key == "classes" else "contig", "names", names=names),
            Axis("perplexity"), curves, levels={4.0: "uniform guess"},
        )  # fmt: skip
        return [chart, self._group_table(rows, groups)]

    def _class_name(self, part: str, group: str) -> str:
        """A group of bases below an axis."""
        words = {"chromosome": group, "gc": f"GC {self._group_name(part, group)}"}
        return words.get(part, f"{CLASSES.get(part, part)}, {group}")

    def _group_name(self, part: str, group: str) -> str:
        """A group in the table: a fifth by its range, where that is told."""
        if part == "gc" and group in self.same.gc_ranges:
            low, high = self.same.gc_ranges[group]
            return f"{100 * low:.1f} to {100 * high:.1f} %"
        return f"fifth {group}" if part == "gc" else group

    def _group_table(self, rows: Sequence[Row], groups: Sequence[tuple[str, str]]) -> Table:
        """A row for each group, a column for each model."""
        models = self.same.models(references=True)
        found = {(row["model"], row["part"], row["group"]): row for row in rows}
        counts = {(row["part"], row["group"]): row["bases"] for row in rows}
        return Table(
            [Column("class"), Column("group"), Column("bases"),
             *(Column(self.same.label(model)) for model in models)],
            [
                [CLASSES.get(part, part), self._group_name(part, group),
                 number(counts[part, group]),
                 *(_perplexity(found.get((model, part, group))) for model in models)]
                for part, group in groups
            ],
            f"perplexity in windows of {self.same.lengths[-1]:,}",
        )  # fmt: skip

    def _differences(self) -> list[Block]:
        """Each compared pair, on the same bases."""
        rows = self.same.tables["differences"]
        if not rows:
            return []
        decided = [_decided(row) for row in rows]
        table = Table(
            [
                *map(Column, ("model", "minus", "curve", "strand", "class", "group", "length")),
                Column("nats per base", "below 0: the first model is better"),
                Column("95 % interval"), Column("decided", "the interval leaves 0 out"),
            ],
            [
                [
                    row["model"], self.same.label(row["minus"]), row["curve"], row["strand"],
                    CLASSES.get(row["part"], row["part"]), row["group"],
                    number(row["length"]), fixed(row["nll_nats"], 5, sign=True),
                    interval(row["low"], row["high"], 5), better,
                ]
                for row, better in zip(rows, decided, strict=True)
            ],
            "nats per base of a model minus another's on the same bases; intervals by resampling "
            "regions, the same for both",
            source="differences.csv",
        )  # fmt: skip
        return [*self._difference_charts(), table]

    def _difference_charts(self) -> list[Block]:
        """Every network against the best at the longest windows, and against the best counts."""
        ranking = self.same.ranking(self.same.lengths[-1]) if self.same.lengths else []
        best = [row["model"] for row in ranking[:1]]
        counts = [self.same.best_count] if self.same.best_count else []
        # apart: beside what sets networks off from counts, what is between them is a line
        return [
            *(block for model in best for block in self._difference_chart(model, "differences")),
            *(block for model in counts
              for block in self._difference_chart(model, "differences-counts")),
        ]  # fmt: skip

    def _difference_chart(self, minus: str, key: str) -> list[Block]:
        """The other networks against one model."""
        curves = []
        for model in self.same.networks:
            rows = [self.same.difference(model, minus, n) for n in self.same.lengths]
            # whichever way a difference was kept, the curve is that of this model
            mine = [row | {"nll_nats_low": row["low"], "nll_nats_high": row["high"]}
                    for row in rows if row is not None]  # fmt: skip
            if model != minus and mine:
                curves.append(self._curve(model, model, mine, "length", "nll_nats"))
        name = self.same.label(minus)
        return self._if_any(
            curves, key, f"Paired difference to {name}",
            f"Nats per base minus those of {name} on the same bases: above 0, {name} is better. "
            "Bands are paired 95 % intervals.",
            length_axis("window length (bases)"), Axis("nats per base"), levels={0.0: name},
        )  # fmt: skip

    def _streams(self) -> list[Block]:
        """Contigs read in one pass, a chart each, and their totals."""
        rows = self.same.tables["streams"]
        note = (
            "The contig read once from its start, the memory carried through; dashed: emptied "
            "every training length. A point is a block of bases."
        )
        blocks: list[Block] = []
        for contig in dict.fromkeys(row["contig"] for row in rows):
            mine = [row for row in rows if row["contig"] == contig]
            size, unit = position_unit(max(row["end"] for row in mine))
            blocks += self._if_any(
                self._stream_curves(mine, size), f"streams-{len(blocks) + 1}",
                f"Perplexity along {contig}", note, Axis(f"position ({unit})"), Axis("perplexity"),
            )  # fmt: skip
        return [*blocks, _stream_table(rows)] if blocks else []

    def _stream_curves(self, rows: Sequence[Row], unit: int) -> list[Curve]:
        """Curves of each model and its control; one ends where a block holds nothing but N."""
        curves = []
        for model in dict.fromkeys(row["model"] for row in rows):
            mine = [row | {"place": (row["start"] + row["end"]) / 2 / unit} for row in rows
                    if row["model"] == model]  # fmt: skip
            for column, name in (("perplexity", model), ("perplexity_reset", f"{model}, emptied")):
                for known, part in groupby(mine, lambda row: row.get(column) is not None):  # noqa: B023
                    if known:
                        curve = self._curve(name, model, list(part), "place", column)
                        curves.append(curve if column == "perplexity" else _control(curve))
        return curves


def _stream_table(rows: Sequence[Row]) -> Table:
    """Perplexity of whole contigs, with and without a carried memory."""
    keys = list(dict.fromkeys((row["contig"], row["model"]) for row in rows))
    cells = []
    for contig, model in keys:
        mine = [row for row in rows if (row["contig"], row["model"]) == (contig, model)]
        totals = [_total(mine, column) for column in ("nll_nats", "nll_reset")]
        gain = None if None in totals else totals[1] - totals[0]
        cells.append(
            [
                contig, model, number(sum(row["bases"] for row in mine)),
                *(fixed(None if nll is None else math.exp(nll)) for nll in totals),
                fixed(gain, 5, sign=True),
            ]
        )  # fmt: skip
    titles = ("contig", "model", "bases", "perplexity", "emptied", "gain (nats per base)")
    return Table([Column(title) for title in titles], cells, "contigs as a whole")


def _total(rows: Sequence[Row], column: str) -> float | None:
    """Nats per base over all blocks that hold bases; None where one of them is not known."""
    counted = [row for row in rows if row["bases"]]
    if not counted or any(row.get(column) is None for row in counted):
        return None
    return sum(row[column] * row["bases"] for row in counted) / sum(r["bases"] for r in counted)


def _stem(column: str) -> str:
    """What the ends of a column's intervals are called after."""
    return "gain" if column == "gain_nats" else column


def _control(curve: Curve) -> Curve:
    """The same curve as a control."""
    return Curve(
        curve.name, curve.x, curve.y, counts=curve.counts, colour=curve.colour, dashed=True,
        dots=False,
    )  # fmt: skip


def _perplexity(row: Row | None) -> Cell:
    """Perplexity of a row that may be missing."""
    return None if row is None else fixed(row["perplexity"])


def _decided(row: Row) -> str:
    """Whether an interval leaves out 0, and for whom."""
    if row["low"] is None or row["high"] is None:
        return "one region alone"
    if row["low"] <= 0 <= row["high"]:
        return "no"
    return "better" if row["high"] < 0 else "worse"
