"""Contig names of a genome against those of a BED or VCF, compared before anything is read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fracdna_prep.compression import open_unpacked
from fracdna_prep.errors import InputError
from fracdna_prep.wording import counted, listed

_MITOCHONDRION = ("M", "MT")


@dataclass(frozen=True)
class NameReport:
    """How the names of some intervals match those of a genome.

    Attributes:
        renamed: names of the intervals that are read under another name, and those.
        matched: the genome's names that intervals use, in order of appearance.
        missing: names of the intervals that the genome lacks.
        unused: names of the genome that no interval uses.
        proposal: what rename=chr_prefix would make of the missing names; None where it was asked
            for, explains not all of them or is not one to one.
    """

    renamed: dict[str, str]
    matched: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    proposal: dict[str, str] | None

    def describe(self) -> str:
        """The report as text, with the first names of each kind."""
        lines = [
            f"names matched: {listed(self.matched)}",
            f"in the intervals only: {listed(self.missing)}",
            f"in the genome only: {listed(self.unused)}",
        ]
        if self.renamed:
            lines.insert(0, f"renamed {_arrows(self.renamed)}")
        if self.proposal:
            lines.append(f"rename=chr_prefix would read {_arrows(self.proposal)}")
        return "\n".join(lines)


def match_names(names: Iterable[str], genome: Iterable[str], rename: str = "none") -> NameReport:
    """Compares the names of intervals, after renaming them, with those of a genome.

    Raises:
        InputError: as resolve_names.
    """
    used, known = dict.fromkeys(names), dict.fromkeys(genome)
    mapping = resolve_names(used, known, rename)
    matched = dict.fromkeys(mapping.values())
    missing = tuple(name for name in used if name not in mapping)
    proposal = _by_prefix(missing, set(known)) if missing and rename != "chr_prefix" else None
    if proposal is not None and not _is_one_to_one(tuple(matched), proposal):
        proposal = None
    return NameReport(
        renamed={name: target for name, target in mapping.items() if name != target},
        matched=tuple(matched),
        missing=missing,
        unused=tuple(name for name in known if name not in matched),
        proposal=proposal,
    )


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


def check_rename(rename: str) -> None:
    """Refuses a file of pairs that cannot be read, also where no name needs it.

    Raises:
        InputError: as read_name_pairs; also says what else `rename` may be.
    """
    if rename in ("none", "chr_prefix"):
        return
    try:
        read_name_pairs(rename)
    except InputError as error:
        raise InputError(
            f"rename={rename}: {error}; it is none, chr_prefix or a file of two columns"
        ) from error


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
                    f"{path}:{number}: {counted(len(words), 'word')}, expected two names: the "
                    "interval's and the genome's"
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


def _arrows(pairs: Mapping[str, str]) -> str:
    return listed(f"{name} -> {target}" for name, target in pairs.items())


def require_names(
    names: Sequence[str], places: Sequence[str], contigs: Iterable[str], rename: str
) -> Mapping[str, str]:
    """The genome's name of each contig asked for, before anything is read.

    Args:
        names: contigs of rows.
        places: where each row stands, for the message.
        contigs: of the genome.
        rename: as in resolve_names.

    Raises:
        InputError: a contig that the genome lacks and `rename` does not explain; the message shows
            the row and both sets of names.
    """
    contigs = list(contigs)
    mapping = resolve_names(names, contigs, rename)
    for name, place in zip(names, places, strict=True):
        if name not in mapping:
            remedy = "correct the names, or give rename=chr_prefix or rename=<two-column file>"
            if rename != "none":
                remedy = f"rename={rename} does not explain it: correct the names or that option"
            raise InputError(
                f"{place}: contig {name!r} is not in the genome; {remedy}\n"
                f"{match_names(names, contigs, rename).describe()}"
            )
    return mapping
