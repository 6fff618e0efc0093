"""An evaluation in the terminal: perplexities side by side, and what they say."""

from collections.abc import Iterable, Sequence

from fracdna.evaluation.classes import ALL, BaseClasses
from fracdna.evaluation.figures import class_label, class_rows
from fracdna.evaluation.plan import CARRIED, FIXED, TILING, Plan
from fracdna.evaluation.tables import COUNT_MODEL, PositionRow, Row, Tables
from fracdna.evaluation.tally import FORWARD, Cell


def terminal_table(plan: Plan, classes: BaseClasses, tables: Tables, cell: Cell) -> str:
    """All curves that were asked for, in text.

    Args:
        plan: what was measured.
        classes: how bases are divided.
        tables: all rows.
        cell: of any model: its counts.
    """
    width = max(len(row.model) for row in tables.rows) + 6 if tables.rows else 0
    lines = []
    tiling = _headline(tables, TILING)
    if tiling:
        lines.append(
            f"the same bases at every length: {int(cell.bases.tokens[:, 0].sum()):,} counted, "
            f"{cell.n_skipped:,} N and {cell.pad_skipped:,} pads skipped"
        )
        lines += _perplexities("perplexity", tiling, tables.best, width)
        for unit in ("nll_nats", "bits_per_base"):
            lines.append("nats per base" if unit == "nll_nats" else "bits per base")
            lines += _lines(tables.networks, tiling, unit, width)
    lines += _fixed(plan, tables, width)
    lines += _by_class(plan, classes, tables)
    if CARRIED in plan.curves:
        lines += [_carried(name, plan, tables) for name in tables.resets]
        lines += tables.notes
    if tables.best and (tiling or _headline(tables, FIXED)):
        rows = tiling or _headline(tables, FIXED)
        lines += [_verdict(rows, name, tables.best) for name in tables.networks]
    return "\n".join(lines)


def _headline(tables: Tables, curve: str) -> list[Row]:
    """All bases of the forward strand."""
    return [r for r in tables.rows if (r.curve, r.strand, r.part) == (curve, FORWARD, ALL)]


def _perplexities(title: str, rows: list[Row], best: str | None, width: int) -> list[str]:
    """A title with the lengths, then every model."""
    lengths = sorted({row.length for row in rows})
    models = dict.fromkeys(row.model for row in rows)
    return [
        f"{title:<{width}}" + "".join(f"{length:>{_column(rows)},}" for length in lengths),
        *(
            line + ("  <- best count model" if model == best else "")
            for model, line in zip(models, _lines(models, rows, "perplexity", width), strict=True)
        ),
    ]


def _lines(models: Iterable[str], rows: list[Row], unit: str, width: int) -> list[str]:
    """One unit of some models, a line each."""
    column = _column(rows)
    return [
        f"{name:<{width}}"
        + "".join(f"{getattr(row, unit):{column}.4f}" for row in rows if row.model == name)
        for name in models
    ]


def _column(rows: list[Row]) -> int:
    """Characters of a column: the longest length stands apart from the one before it."""
    return max(9, len(f"{max(row.length for row in rows):,}") + 2)


def _fixed(plan: Plan, tables: Tables, width: int) -> list[str]:
    """The fixed curve of the networks and the best count model."""
    rows = _headline(tables, FIXED)
    if not rows:
        short = f"no length reaches target={plan.target:,}: the fixed curve is left out"
        return [short] if FIXED in plan.curves else []
    shown = [row for row in rows if row.model in (*tables.networks, tables.best)]
    title = f"perplexity of the last {plan.target:,} bases of each region"
    return [title, *_perplexities("context", shown, tables.best, width)]


def _by_class(plan: Plan, classes: BaseClasses, tables: Tables) -> list[str]:
    """Perplexity of every class of bases at the longest length."""
    models = [*tables.networks, *([tables.best] if tables.best else [])]
    rows = class_rows(plan, tables)
    names = {(row.part, row.group): class_label(row, classes) for row in rows}
    if not names:
        return []
    title = f"perplexity in windows of {plan.width:,}"
    width = max(map(len, [title, *names.values()])) + 2
    columns = [max(len(model), 7) + 2 for model in models]
    heads = "".join(f"{model:>{n}}" for model, n in zip(models, columns, strict=True))
    lines = [f"{title:<{width}}{heads}{'bases':>14}"]
    for key, name in names.items():
        mine = {row.model: row for row in rows if (row.part, row.group) == key}
        values = "".join(
            f"{mine[model].perplexity:{n}.4f}" for model, n in zip(models, columns, strict=True)
        )
        lines.append(f"{name:<{width}}{values}{mine[models[0]].bases:>14,}")
    return lines


def _carried(name: str, plan: Plan, tables: Tables) -> str:
    """Whether bases with the most context are better known than at the control's length."""
    reset = tables.resets[name]
    mine = [row for row in tables.positions if (row.model, row.strand) == (name, FORWARD)]
    last = mine[-1]
    before = next(row for row in mine if row.context_to >= reset - 1)
    gain = [row for row in tables.gains if row.model == name][-1]
    bounds = "" if gain.gain_low is None else f" ({gain.gain_low:+.4f} to {gain.gain_high:+.4f})"
    better = "better" if last.nll_nats < before.nll_nats else "not better"
    return (
        f"{name} in one pass over {plan.width:,}: {_place(last)}, {_place(before)}: {better}; gain "
        f"over a state emptied every {reset:,} bases: {gain.gain_nats:+.4f} nats{bounds}"
    )


def _place(row: PositionRow) -> str:
    """A point of the carried curve."""
    return (
        f"{row.nll_nats:.4f} nats with {row.context_from:,} to {row.context_to:,} bases of context"
    )


def _verdict(rows: Sequence[Row], name: str, best: str) -> str:
    """Whether a network knows more than counting gives, at every length."""
    table = {(row.model, row.length): row.perplexity for row in rows}
    lengths = sorted({row.length for row in rows})
    better = [length for length in lengths if table[name, length] < table[best, length]]
    if len(better) == len(lengths):
        return f"{name} is below {best} at every length: it has learned more than counts give"
    if better:
        return f"{name} is below {best} at {len(better)} of {len(lengths)} lengths only"
    shortest = lengths[0]
    beaten = [m for m, n in table if n == shortest and table[m, n] > table[name, n]]
    weaker = [m for m in beaten if m.startswith(COUNT_MODEL)]
    known = f"below {weaker[-1]} at {shortest:,} bases, but " if weaker else ""
    return (
        f"{name} is {known}above {best} at every length: a table of counts predicts these bases "
        "better; train it longer or on more bases"
    )
