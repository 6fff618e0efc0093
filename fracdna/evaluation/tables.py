"""Sums of regions to the rows of all tables of an evaluation."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

from fracdna.evaluation.classes import CHROMOSOME, BaseClasses
from fracdna.evaluation.likelihood import bits_per_base, perplexity
from fracdna.evaluation.plan import CARRIED, FIXED, TILING, Plan
from fracdna.evaluation.statistics import mean_nll
from fracdna.evaluation.tally import AVERAGE, FORWARD, Cell, Sums

COUNT_MODEL = "markov-"
UNIFORM = "uniform"

Cells = dict[tuple[str, int], Cell]  # by strand and length
Scores = dict[str, Cells]  # by model


class Row(NamedTuple):
    """One line of table.csv: a model on a curve, one group of bases."""

    model: str
    curve: str
    strand: str
    part: str
    group: str
    length: int
    bases: int
    nll_nats: float
    bits_per_base: float
    perplexity: float
    perplexity_low: float | None
    perplexity_high: float | None
    perplexity_acgt: float


class PositionRow(NamedTuple):
    """One line of positions.csv: bases with so much context in one pass over the region."""

    model: str
    strand: str
    context_from: int
    context_to: int
    bases: int
    nll_nats: float
    perplexity: float
    perplexity_low: float | None
    perplexity_high: float | None


class GainRow(NamedTuple):
    """One line of gains.csv: what the carried state is worth over one emptied on the way."""

    model: str
    reset_length: int
    context_from: int
    context_to: int
    bases: int
    nll_reset: float
    nll_carried: float
    gain_nats: float
    gain_low: float | None
    gain_high: float | None


class DifferenceRow(NamedTuple):
    """One line of differences.csv: nats per base of a model minus another's on the same bases."""

    model: str
    minus: str
    curve: str
    strand: str
    part: str
    group: str
    length: int
    bases: int
    nll_nats: float
    low: float | None
    high: float | None


class SampleColumns(NamedTuple):
    """All regions of one model, curve, strand, length and group, for samples.parquet."""

    model: str
    curve: str
    strand: str
    length: int
    part: str
    group: str
    sums: Sums


@dataclass(frozen=True)
class Tables:
    """Everything that is written and shown.

    Attributes:
        networks: names of the models that are networks, in the order given.
        best: the count model with the lowest nats; None without count models.
        resets: after how many bases the control empties the state of each network.
        notes: why a network has no control.
    """

    networks: tuple[str, ...]
    best: str | None
    resets: dict[str, int]
    notes: tuple[str, ...]
    rows: list[Row]
    positions: list[PositionRow]
    gains: list[GainRow]
    differences: list[DifferenceRow]


def make_tables(
    plan: Plan,
    classes: BaseClasses,
    scores: Scores,
    networks: Sequence[str],
    resets: Mapping[str, int | None],
    notes: Sequence[str],
) -> Tables:
    """All tables.

    Args:
        plan: what was measured.
        classes: how bases are divided.
        scores: of all models.
        networks: names in scores that are networks.
        resets: after how many bases each network's control empties its state; None: no control.
        notes: why there is none.
    """
    best = best_count_model(plan, scores)
    rows = [row for model in scores for row in _rows(model, plan, classes, scores[model])]
    first = next(iter(scores))  # all are of the same bases
    rows += _uniform_rows([row for row in rows if row.model == first])
    known = {name: reset for name, reset in resets.items() if reset and CARRIED in plan.curves}
    return Tables(
        networks=tuple(networks),
        best=best,
        resets=known,
        notes=tuple(notes) if CARRIED in plan.curves else (),
        rows=rows,
        positions=[row for name in networks for row in _positions(name, plan, scores[name])],
        gains=[row for name in known for row in _gains(name, known[name], plan, scores[name])],
        differences=list(_differences(plan, classes, scores, networks, best)),
    )


def best_count_model(plan: Plan, scores: Scores) -> str | None:
    """The count model with the lowest nats over all lengths, chosen on the scored bases themselves.

    That favours the count model: a network that beats it has beaten every order.
    """
    totals = {
        name: sum(
            float((cell.target if plan.curves == (FIXED,) else cell.bases).nats[:, 0].sum())
            for (strand, _), cell in cells.items()
            if strand == FORWARD
        )
        for name, cells in scores.items()
        if name.startswith(COUNT_MODEL)
    }
    return min(totals, key=totals.get) if totals else None


def samples(plan: Plan, classes: BaseClasses, scores: Scores) -> Iterator[SampleColumns]:
    """Sums of every region: any later statistic can be made from them."""
    for model, cells in scores.items():
        for curve, strand, length in _points(plan):
            if strand == AVERAGE:
                continue
            sums = _sums(cells, curve, strand, length)
            for column, (part, group) in enumerate(classes.groups):
                yield SampleColumns(model, curve, strand, length, part, group, _take(sums, column))


def _points(plan: Plan) -> Iterator[tuple[str, str, int]]:
    """Curve, strand and length of every point of the curves over lengths."""
    for curve in (TILING, FIXED):
        for strand in plan.shown_strands:
            for length in plan.lengths_of(curve):
                yield curve, strand, length


def _sums(cells: Cells, curve: str, strand: str, length: int) -> Sums:
    """Of one point; the average of the strands is that of all their tokens."""
    parts = [
        cell.target if curve == FIXED else cell.bases
        for (of, n), cell in cells.items()
        if n == length and strand in (of, AVERAGE)
    ]
    return reduce(add, parts)


def _take(sums: Sums, column: int, regions: np.ndarray | slice = slice(None)) -> Sums:
    """(regions,) sums of one group, for some regions."""
    return Sums(*(values[regions, column] for values in vars(sums).values()))


def _groups(classes: BaseClasses, sums: Sums) -> Iterator[tuple[str, str, Sums]]:
    """Part, group and (regions,) sums: all, contigs where there are several, classes of bases."""
    contigs = np.array([place.chromosome for place in classes.regions.intervals])
    divided = [(part, group, _take(sums, n)) for n, (part, group) in enumerate(classes.groups)]
    names = dict.fromkeys(contigs.tolist())
    if len(names) > 1:
        divided[1:1] = [(CHROMOSOME, name, _take(sums, 0, contigs == name)) for name in names]
    return ((part, group, mine) for part, group, mine in divided if mine.tokens.sum())


def _rows(model: str, plan: Plan, classes: BaseClasses, cells: Cells) -> Iterator[Row]:
    """The lines of one model."""
    for curve, strand, length in _points(plan):
        sums = _sums(cells, curve, strand, length)
        for part, group, mine in _groups(classes, sums):
            counted = int(mine.tokens.sum())
            nll, *bounds = mean_nll(mine.nats, mine.tokens)
            yield Row(
                model, curve, strand, part, group, length, counted, nll, bits_per_base(nll),
                perplexity(nll), *map(_perplexity, bounds),
                perplexity(float(mine.nats_acgt.sum()) / counted),
            )  # fmt: skip


def _uniform_rows(like: list[Row]) -> list[Row]:
    """The guess that knows nothing: 2 bits a base."""
    nll = math.log(4)
    bits, four = bits_per_base(nll), perplexity(nll)
    return [
        row._replace(
            model=UNIFORM, nll_nats=nll, bits_per_base=bits, perplexity=four,
            perplexity_low=four, perplexity_high=four, perplexity_acgt=four,
        )
        for row in like
    ]  # fmt: skip


def _positions(model: str, plan: Plan, cells: Cells) -> Iterator[PositionRow]:
    """The carried curve of one network."""
    if CARRIED not in plan.curves:
        return
    for strand in plan.shown_strands:
        contexts = reduce(
            add, (cells[of, plan.width].contexts for of in plan.strands if strand in (of, AVERAGE))
        )
        for bucket in np.flatnonzero(contexts.tokens.sum(0)):
            mine = _take(contexts, bucket)
            nll, *bounds = mean_nll(mine.nats, mine.tokens)
            yield PositionRow(
                model, strand, *_context(bucket, plan.width), int(mine.tokens.sum()), nll,
                perplexity(nll), *map(_perplexity, bounds),
            )  # fmt: skip


def _gains(model: str, reset: int, plan: Plan, cells: Cells) -> Iterator[GainRow]:
    """Nats of the control minus those of the carried state, over all strands that were read."""
    carried, control = (
        reduce(add, (cells[strand, length].contexts for strand in plan.strands))
        for length in (plan.width, reset)
    )
    for bucket in np.flatnonzero(carried.tokens.sum(0)):
        with_state, without = _take(carried, bucket), _take(control, bucket)
        gain, *bounds = mean_nll(without.nats - with_state.nats, with_state.tokens)
        counted = int(with_state.tokens.sum())
        nll = [float(sums.nats.sum()) / counted for sums in (without, with_state)]
        yield GainRow(model, reset, *_context(bucket, plan.width), counted, *nll, gain, *bounds)


def _context(bucket: int, width: int) -> tuple[int, int]:
    """Least and most bases before a base of a bucket."""
    return 2 ** int(bucket) // 2, min(2 ** int(bucket), width) - 1


def _differences(
    plan: Plan, classes: BaseClasses, scores: Scores, networks: Sequence[str], best: str | None
) -> Iterator[DifferenceRow]:
    """Every network minus those after it and minus the best count model, paired by region."""
    others = [*networks, *([best] if best else [])]
    for place, model in enumerate(networks):
        for other in others[place + 1 :]:
            for curve, strand, length in _points(plan):
                one, two = (
                    _groups(classes, _sums(scores[name], curve, strand, length))
                    for name in (model, other)
                )
                for (part, group, mine), (_, _, its) in zip(one, two, strict=True):
                    yield DifferenceRow(
                        model, other, curve, strand, part, group, length, int(mine.tokens.sum()),
                        *mean_nll(mine.nats - its.nats, mine.tokens),
                    )  # fmt: skip


def _perplexity(nll: float | None) -> float | None:
    """Of a bound that may be missing."""
    return None if nll is None else perplexity(nll)
