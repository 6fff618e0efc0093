"""Counts and lists as people write them, for messages and summaries."""

from collections.abc import Iterable, Sequence


def counted(number: int, thing: str) -> str:
    """A number with its noun: "1 row", "1,234 rows"."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def listed(names: Iterable[str], shown: int = 8) -> str:
    """The first names in one line, and how many more there are; "none" without any."""
    names = list(names)
    line = ", ".join(names[:shown]) or "none"
    return line if len(names) <= shown else f"{line} and {len(names) - shown:,} more"


def with_rest(lines: Sequence[str], total: int) -> list[str]:
    """Lines that show the first of `total` things, with one line for those not shown."""
    rest = total - len(lines)
    return [*lines, f"... and {rest:,} more"] if rest > 0 else list(lines)
