"""Tables put into a page of prose, between marks that name them."""

import re
from collections.abc import Mapping
from pathlib import Path

from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file

BEGINS = "<!-- table "
MARK = re.compile(rf"({BEGINS}(\w+) -->\n)((?:(?!{BEGINS}).)*?)(<!-- end -->)", re.DOTALL)


def fill(path: Path, tables: Mapping[str, str]) -> list[str]:
    """Replace what stands between `<!-- table NAME -->` and `<!-- end -->` by the table.

    Args:
        path: of the page.
        tables: by name.

    Returns:
        Names of tables that the page has no place for.

    Raises:
        InputError: no such page, one that asks for a table that does not exist, or a place that
            does not end.
    """
    text, asked = _read(path, tables)
    with atomic_file(path) as temporary:
        temporary.write_text(MARK.sub(lambda m: m[1] + tables[m[2]] + "\n" + m[4], text))
    return sorted(set(tables) - asked)


def _read(path: Path, tables: Mapping[str, str]) -> tuple[str, set[str]]:
    """Text of a page, and names of the tables that it asks for.

    Raises:
        InputError: as in fill.
    """
    if not path.is_file():
        raise InputError(
            f"{path}: no such page; write one with `{BEGINS}NAME -->` and `<!-- end -->` where "
            f"tables are wanted: {', '.join(tables)}"
        )
    text = path.read_text()
    asked = [match[2] for match in MARK.finditer(text)]
    if len(asked) != text.count(BEGINS):
        raise InputError(f"{path}: a place for a table lacks its `<!-- end -->`, or its name")
    unknown = sorted(set(asked) - set(tables))
    if unknown:
        raise InputError(
            f"{path} asks for the tables {', '.join(unknown)}, which there are not: choose among "
            f"{', '.join(tables)}"
        )
    return text, set(asked)
