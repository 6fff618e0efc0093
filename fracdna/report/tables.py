"""Tables whose columns can be sorted, and how numbers in them are written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.etree.ElementTree import Element

from fracdna.report.elements import element

MOST_ROWS = 2000  # of one table in the page; the files hold all
DIGITS = 6


class Number(NamedTuple):
    """A cell that sorts by its value."""

    value: float
    text: str


Cell = Number | str | None


class Column(NamedTuple):
    """What a column holds."""

    title: str
    hint: str | None = None  # shown when the pointer rests on the title


@dataclass(frozen=True)
class Table:
    """Rows below titles.

    Attributes:
        columns: their titles.
        rows: a cell for each column; None: not known, which sorts last.
        caption: what the rows are.
        marked: rows that are to be seen at once, by their place.
        source: file that holds all rows, named where there are too many for a page.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    marked: frozenset[int] = frozenset()
    source: str = ""


def number(value: float | None, digits: int = DIGITS) -> Number | None:
    """A number as a cell: whole ones with separators, others to so many significant digits."""
    if value is None:
        return None
    whole = isinstance(value, int) or (float(value).is_integer() and abs(value) < 2**53)
    return Number(value, f"{int(value):,}" if whole else f"{value:.{digits}g}")


def fixed(value: float | None, decimals: int = 4, sign: bool = False) -> Number | None:
    """A number with so many decimals, so that a column of them lines up."""
    if value is None:
        return None
    return Number(value, f"{value:{'+' if sign else ''},.{decimals}f}")


def interval(low: float | None, high: float | None, decimals: int = 4) -> Number | None:
    """An interval in brackets, which sorts by its lower end."""
    if low is None or high is None:
        return None
    return Number(low, f"[{low:.{decimals}f}, {high:.{decimals}f}]")


def table_element(table: Table) -> Element:
    """The table in a box of its own, which scrolls where it is too wide; empty columns left out."""
    cells = list(zip(*table.rows, strict=True)) or [("",)] * len(table.columns)
    kept = [place for place, column in enumerate(cells) if any(cell is not None for cell in column)]
    numeric = [all(isinstance(cell, Number | None) for cell in cells[place]) for place in kept]
    heads = [
        element(
            "th",
            element("button", column.title, type="button", title=column.hint),
            scope="col",
            aria_sort="none",
            class_="number" if right else None,
        )
        for column, right in zip([table.columns[i] for i in kept], numeric, strict=True)
    ]
    body = [
        element(
            "tr",
            *(_cell(row[i], right) for i, right in zip(kept, numeric, strict=True)),
            class_="marked" if place in table.marked else None,
        )
        for place, row in enumerate(table.rows[:MOST_ROWS])
    ]
    made = element(
        "table",
        element("caption", table.caption) if table.caption else None,
        element("thead", element("tr", *heads)),
        element("tbody", *body),
    )
    rest = len(table.rows) - MOST_ROWS
    more = f"{rest:,} more rows are in {table.source}" if rest > 0 else None
    return element(
        "div",
        element("div", made, class_="scroll", tabindex="0", role="region", aria_label="table"),
        element("p", more, class_="note") if more else None,
    )


def _cell(cell: Cell, right: bool) -> Element:
    """One value."""
    if isinstance(cell, Number):
        return element("td", cell.text, data_sort=repr(float(cell.value)), class_="number")
    return element("td", "" if cell is None else cell, class_="number" if right else None)
