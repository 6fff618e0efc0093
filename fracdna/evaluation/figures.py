"""Pictures of an evaluation."""

from collections.abc import Iterable
from pathlib import Path

from fracdna.evaluation.classes import ALL, CHROMOSOME, GC, BaseClasses
from fracdna.evaluation.plan import FIXED, TILING, Plan
from fracdna.evaluation.tables import COUNT_MODEL, Row, Tables
from fracdna.evaluation.tally import FORWARD
from fracdna.pictures import Line, bases, draw_lines, draw_points
from fracdna_prep.wording import counted

FEWEST_BASES = 1000  # that a point of the context curves stands on


def draw_all(
    output: Path,
    plan: Plan,
    classes: BaseClasses,
    tables: Tables,
    trained: dict[str, int | None],
    split: str,
) -> None:
    """Write the pictures that apply.

    Args:
        output: folder, existing.
        plan: what was measured.
        classes: how bases are divided.
        tables: all rows.
        trained: length of the windows that each network was trained on.
        split: of the genome, in words.
    """
    marks = {length: f"trained on {bases(length)}" for length in trained.values() if length}
    titles = {
        TILING: "Perplexity by window length, the same bases at every length",
        FIXED: f"The last {plan.target:,} bases of each region, read with more and more before",
    }
    for curve, name in ((TILING, "perplexity.png"), (FIXED, "fixed.png")):
        rows = _headline(tables.rows, curve)
        if rows:
            note = f"{rows[0].bases:,} bases of {split}; bands: 95 % by resampling regions"
            draw_lines(
                output / name,
                list(_over_lengths(rows, tables)),
                xlabel=f"window length (bases)\n{note}",
                title=titles[curve],
                marks=marks,
            )
    _draw_positions(output / "positions.png", plan, tables, marks)
    _draw_gains(output / "gains.png", plan, tables)
    _draw_classes(output / "classes.png", plan, classes, tables)


def _headline(rows: Iterable[Row], curve: str) -> list[Row]:
    """All bases of the forward strand."""
    return [r for r in rows if (r.curve, r.strand, r.part) == (curve, FORWARD, ALL)]


def _references(tables: Tables) -> list[str]:
    """Count models that are drawn: contexts of two bases, and the best."""
    return list(dict.fromkeys(["markov-2", tables.best])) if tables.best else []


def _over_lengths(rows: list[Row], tables: Tables) -> Iterable[Line]:
    """One line a model, with its band."""
    references = _references(tables)
    for model in dict.fromkeys([*tables.networks, *references]):
        mine = [row for row in rows if row.model == model]
        low, high = [r.perplexity_low for r in mine], [r.perplexity_high for r in mine]
        yield Line(
            _label(model, tables.best),
            [row.length for row in mine],
            [row.perplexity for row in mine],
            *((None, None) if None in low else (low, high)),
            reference=model in references,
        )


def _draw_positions(path: Path, plan: Plan, tables: Tables, marks: dict[int, str]) -> None:
    """Perplexity by bases of context, count models as levels."""
    lines = []
    for model in tables.networks:
        # the first buckets hold a handful of bases each: their noise would fill the picture
        mine = [
            row
            for row in tables.positions
            if (row.model, row.strand) == (model, FORWARD)
            and row.context_from > 0
            and row.bases >= FEWEST_BASES
        ]
        low, high = [r.perplexity_low for r in mine], [r.perplexity_high for r in mine]
        band = (None, None) if None in low else (low, high)
        x = [row.context_from for row in mine]
        lines.append(Line(model, x, [row.perplexity for row in mine], *band))
    lines = [line for line in lines if line.x]
    if not lines:
        return
    levels = {
        row.model: row.perplexity
        for row in _headline(tables.rows, TILING)
        if row.length == plan.width and row.model in _references(tables)
    }
    for model, level in levels.items():
        x = lines[0].x
        lines.append(Line(_label(model, tables.best), x, [level] * len(x), reference=True))
    draw_lines(
        path,
        lines,
        xlabel="bases of context: each point from there to twice as many\n"
        "bands: 95 % by resampling regions",
        title=f"Perplexity by bases of context, one pass over {bases(plan.width)}",
        marks=marks,
    )


def _draw_gains(path: Path, plan: Plan, tables: Tables) -> None:
    """What context beyond the control's windows is worth."""
    lines = []
    for model, reset in tables.resets.items():
        mine = [r for r in tables.gains if r.model == model and r.context_from >= reset // 2]
        low, high = [r.gain_low for r in mine], [r.gain_high for r in mine]
        lines.append(
            Line(
                f"{model}, emptied every {bases(reset)}",
                [row.context_from for row in mine],
                [row.gain_nats for row in mine],
                *((None, None) if None in low else (low, high)),
            )
        )
    if not lines:
        return
    x = sorted({place for line in lines for place in line.x})
    lines.append(Line("no gain", x, [0.0] * len(x), reference=True))
    draw_lines(
        path,
        lines,
        xlabel="bases of context: each point from there to twice as many\n"
        "bands: 95 % by resampling regions",
        ylabel="gain (nats per base)",
        title=f"What the carried state is worth, one pass over {bases(plan.width)}",
    )


def _draw_classes(path: Path, plan: Plan, classes: BaseClasses, tables: Tables) -> None:
    """Perplexity of each class of bases at the longest length."""
    rows = class_rows(plan, tables)
    models = [*tables.networks, *([tables.best] if tables.best else [])]
    names = {(row.part, row.group): class_label(row, classes) for row in rows}
    points = {
        _label(model, tables.best): {
            names[row.part, row.group]: (row.perplexity, row.perplexity_low, row.perplexity_high)
            for row in rows
            if row.model == model
        }
        for model in models
    }
    if names:
        draw_points(
            path,
            points,
            xlabel="perplexity; bars: 95 % by resampling regions",
            title=f"Perplexity by class of bases, windows of {bases(plan.width)}",
        )


def class_rows(plan: Plan, tables: Tables) -> list[Row]:
    """Rows of classes of bases at the longest length, of the tiling where there is one."""
    curve = TILING if TILING in plan.curves else FIXED
    return [
        row
        for row in tables.rows
        if (row.curve, row.strand, row.length) == (curve, FORWARD, plan.width)
        and row.part not in (ALL, CHROMOSOME)
    ]


def class_label(row: Row, classes: BaseClasses) -> str:
    """A class of bases in words."""
    if row.part != GC:
        return f"{row.part.replace('_', ' ')}: {row.group}"
    low, high = classes.about["gc_share_of_fifths"][row.group]
    return f"GC {100 * low:.1f} to {100 * high:.1f} %"


def _label(model: str, best: str | None) -> str:
    """A model's name in pictures."""
    if not model.startswith(COUNT_MODEL):
        return model
    order = int(model.removeprefix(COUNT_MODEL))
    return f"counts, {counted(order, 'base')} back" + (" (the best)" if model == best else "")
