"""Tables put into a page of prose, between marks that name them."""

import re
from collections.abc import Mapping
from pathlib import Path

from fracdna_prep.files import atomic_file

MARK = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(path: Path, tables: Mapping[str, str]) -> list[str]:
    """Replace what stands between `<!-- table NAME -->` and `<!-- end -->` by the table.

    Args:
        path: of the page.
        tables: by name.

    Returns:
        Names of tables that the page has no place for.

    Raises:
        ValueError: the page asks for a table that does not exist.
    """
    text = path.read_text()
    asked = [match.group(2) for match in MARK.finditer(text)]
    unknown = sorted(set(asked) - set(tables))
    if unknown:
        raise ValueError(f"{path} asks for tables that there are not: {unknown}")
    with atomic_file(path) as temporary:
        temporary.write_text(MARK.sub(lambda m: m[1] + tables[m[2]] + "\n" + m[3], text))
    return sorted(set(tables) - set(asked))
