"""An evaluation in the terminal: perplexities side by side, and what they say."""

from collections.abc import Iterable, Sequence

from fracdna.evaluation.classes import ALL, SIDES, BaseClasses
from fracdna.evaluation.figures import class_label, class_rows
from fracdna.evaluation.plan import CARRIED, FIXED, TILING, Plan
from fracdna.evaluation.tables import COUNT_MODEL, UNIFORM, GainRow, Row, Tables
from fracdna.evaluation.tally import FORWARD, Cell
from fracdna_prep.wording import counted, listed


def terminal_table(plan: Plan, classes: BaseClasses, tables: Tables, cell: Cell) -> str:
    """All curves that were asked for, in text.

    Args:
        plan: what was measured.
        classes: how bases are divided.
        tables: all rows.
        cell: of any model, whole regions on the forward strand: its counts.
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
        for unit, title in (("nll_nats", "nats per base"), ("bits_per_base", "bits per base")):
            rows = _lines(tables.networks, tiling, unit, width)
            lines += [title, *rows] if rows else []
    lines += _fixed(plan, tables, width)
    lines += _by_class(plan, classes, tables)
    lines += _class_files(plan, classes, cell)
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


def _class_files(plan: Plan, classes: BaseClasses, cell: Cell) -> list[str]:
    """What came of each BED file: one that covers no scored base has no row in any table."""
    fixed = TILING not in plan.curves and plan.lengths_of(FIXED)
    tokens = (cell.target if fixed else cell.bases).tokens.sum(0).tolist()
    lines = []
    for name, file in classes.about["files"].items():
        inside = tokens[classes.groups.index((name, SIDES[0]))]
        parts = [f"class {name}: {inside:,} of {tokens[0]:,} scored bases inside"]
        if elsewhere := file["contigs_not_in_genome"]:
            contigs = counted(len(elsewhere), "contig")
            parts.append(f"{contigs} not in the genome ({listed(elsewhere)})")
        if cut := file["rows_past_contig_ends"]:
            parts.append(f"{counted(cut, 'row')} cut at contig ends")
        lines.append("; ".join(parts))
    return lines


def _carried(name: str, plan: Plan, tables: Tables) -> str:
    """Whether bases with the most context are better known than under the control."""
    last = [row for row in tables.positions if (row.model, row.strand) == (name, FORWARD)][-1]
    gain = [row for row in tables.gains if row.model == name][-1]
    bounds = "" if gain.gain_low is None else f" ({gain.gain_low:+.5f} to {gain.gain_high:+.5f})"
    return (
        f"{name} in one pass over {plan.width:,}: {last.nll_nats:.4f} nats with "
        f"{last.context_from:,} to {last.context_to:,} bases of context; gain there over a state "
        f"emptied every {tables.resets[name]:,} bases: {gain.gain_nats:+.5f} nats{bounds}: "
        f"{_worth(gain)}"
    )


def _worth(gain: GainRow) -> str:
    """What the interval of a gain says: places are the same under both, so it may be judged."""
    if gain.gain_low is None:
        return "no interval, it takes two regions"
    if gain.gain_low > 0:
        return "carrying helps"
    return "carrying hurts" if gain.gain_high < 0 else "no difference seen"


def _verdict(rows: Sequence[Row], name: str, best: str) -> str:
    """Whether a network knows more than counting gives, at every length."""
    table = {(row.model, row.length): row.perplexity for row in rows}
    lengths = sorted({row.length for row in rows})

    def below(model: str) -> list[int]:
        return [length for length in lengths if table[name, length] < table[model, length]]

    blind = [length for length in lengths if table[name, length] > table[UNIFORM, length]]
    if blind == lengths:
        return (
            f"{name} is worse than a blind guess (4.0) at every length: train it longer or on more "
            "bases"
        )
    share = f"at {len(blind)} of {len(lengths)} lengths"
    worse = f"; worse than a blind guess (4.0) {share}" if blind else ""
    better = below(best)
    if better == lengths:
        knows = "" if blind else ": it has learned more than counts give"
        return f"{name} is below {best} at every length{knows}{worse}"
    if better:
        return f"{name} is below {best} at {len(better)} of {len(lengths)} lengths only{worse}"
    # orders above the best one know their training bases by heart: beating them says little
    orders = range(int(best.removeprefix(COUNT_MODEL)))
    beaten = [f"{COUNT_MODEL}{n}" for n in orders if below(f"{COUNT_MODEL}{n}") == lengths]
    known = f"below {beaten[-1]} at every length, but " if beaten else ""
    return (
        f"{name} is {known}above {best} at every length: a table of counts predicts these bases "
        f"better; train it longer or on more bases{worse}"
    )
