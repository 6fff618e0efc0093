"""Contig names of a genome against those of a BED or VCF, compared before anything is read."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fracdna_prep.compression import open_unpacked
from fracdna_prep.errors import InputError

_SHOWN = 8
_MITOCHONDRION = ("M", "MT")


@dataclass(frozen=True)
class NameReport:
    """How the names of some intervals match those of a genome.

    Attributes:
        matched: names that the genome has, in order of appearance.
        missing: names that the genome lacks.
        unused: names of the genome that no interval uses.
        proposal: what rename=chr_prefix would make of the missing names; None where that explains
            not all of them or is not one to one.
    """

    matched: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    proposal: dict[str, str] | None

    def describe(self) -> str:
        """The report as text, with the first names of each kind."""
        lines = [
            f"names matched: {_list(self.matched)}",
            f"in the intervals only: {_list(self.missing)}",
            f"in the genome only: {_list(self.unused)}",
        ]
        if self.proposal:
            pairs = [f"{name} -> {target}" for name, target in self.proposal.items()]
            lines.append(f"rename=chr_prefix would read {_list(pairs)}")
        return "\n".join(lines)


def match_names(names: Iterable[str], genome: Iterable[str]) -> NameReport:
    """Compares the names of intervals with those of a genome."""
    used, known = dict.fromkeys(names), dict.fromkeys(genome)
    matched = tuple(name for name in used if name in known)
    missing = tuple(name for name in used if name not in known)
    unused = tuple(name for name in known if name not in used)
    proposal = _by_prefix(missing, set(known)) if missing else None
    if proposal is not None and not _is_one_to_one(matched, proposal):
        proposal = None
    return NameReport(matched, missing, unused, proposal)


def resolve_names(
    names: Iterable[str], genome: Iterable[str], rename: str = "none"
) -> dict[str, str]:
    """The genome's name for each name of the intervals.

    Args:
        names: of the intervals.
        genome: of the genome.
        rename: "none"; "chr_prefix" adds or removes "chr" where a name is missing, and joins M
            with MT; anything else is a file of two columns: the interval's name, the genome's.

    Returns:
        a mapping that lacks the names which the genome has not.

    Raises:
        InputError: two names would become one, or the file cannot be read.
    """
    used, known = list(dict.fromkeys(names)), set(genome)
    if rename == "none":
        return {name: name for name in used if name in known}
    if rename == "chr_prefix":
        mapping = {name: _prefixed(name, known) for name in used}
    else:
        listed = read_name_pairs(rename)
        mapping = {name: listed.get(name, name) for name in used}
    found = {name: target for name, target in mapping.items() if target in known}
    _refuse_joined(found, rename)
    return found


def read_name_pairs(path: Path | str) -> dict[str, str]:
    """Reads a two-column file: the name in the BED or VCF, then the name in the genome.

    Raises:
        InputError: unreadable, a line without two names, or a name given twice.
    """
    pairs: dict[str, str] = {}
    with open_unpacked(path) as file:
        for number, line in enumerate(file, 1):
            words = line.decode("utf-8", "replace").split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2:
                raise InputError(
                    f"{path}:{number}: {len(words)} word(s), expected two names: the interval's "
                    "and the genome's"
                )
            if words[0] in pairs:
                raise InputError(f"{path}:{number}: {words[0]!r} is given a second name")
            pairs[words[0]] = words[1]
    return pairs


def _by_prefix(missing: tuple[str, ...], known: set[str]) -> dict[str, str] | None:
    proposal = {name: _prefixed(name, known) for name in missing}
    return proposal if all(target in known for target in proposal.values()) else None


def _prefixed(name: str, known: set[str]) -> str:
    """The genome's form of a name that differs by "chr", or M by MT; itself when there is none."""
    bare = name.removeprefix("chr")
    bases = _MITOCHONDRION if bare in _MITOCHONDRION else (bare,)
    candidates = [name, *bases, *(f"chr{base}" for base in bases)]
    return next((candidate for candidate in candidates if candidate in known), name)


def _is_one_to_one(matched: tuple[str, ...], proposal: dict[str, str]) -> bool:
    targets = [*matched, *proposal.values()]
    return len(set(targets)) == len(targets)


def _refuse_joined(mapping: dict[str, str], rename: str) -> None:
    owner: dict[str, str] = {}
    for name, target in mapping.items():
        if target in owner:
            raise InputError(
                f"rename={rename} reads {owner[target]!r} and {name!r} both as {target!r}: names "
                "must map one to one"
            )
        owner[target] = name


def _list(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(names[:_SHOWN]) or "none"
    return shown if len(names) <= _SHOWN else f"{shown}, ... ({len(names)} names)"
