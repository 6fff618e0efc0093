from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fracdna_prep.errors import InputError
from fracdna_prep.files import check_place
from fracdna_prep.names import check_rename
from fracdna_prep.option_checks import (
    check_choice,
    check_flag,
    check_name,
    check_path,
    check_share,
    check_whole_number,
    items_of,
    shown,
)
from fracdna_prep.windows import POLICIES

SPLIT_RULES = ("auto", "bed", "chromosome", "blocks", "none")
_CHROMOSOME_LISTS = ("validation_chromosomes", "test_chromosomes")
# Where files lie and what is shown changes no result; the files' own hashes stand for them.
_WITHOUT_EFFECT = ("fasta", "intervals", "output", "store", "verify", "progress", "length")


@dataclass(frozen=True)
class PrepareOptions:
    """What `fracdna prepare` is asked to do.

    Attributes:
        fasta: one or several FASTA, GenBank or EMBL files.
        output: folder for the results.
        intervals: BED file; None takes every contig whole.
        split: "bed" (fourth column), "chromosome", "blocks" or "none"; "auto" is "bed" where the
            fourth column holds splits, else "none".
        length: window length or lengths, in bases.
        policy: "shift", "pad" or "drop" at contig ends and for the last partial window.
        max_n_fraction: windows with a greater share of N are dropped.
        rename: "none", "chr_prefix" or a two-column file, see names.resolve_names.
        seed: of the drawing of blocks.
        validation_chromosomes: contigs of validation under split=chromosome: names, or one name;
            numbers are names too.
        test_chromosomes: contigs of test under split=chromosome, likewise.
        block_size: bases of a block under split=blocks; None chooses, see blocks.plan_blocks.
        guard: bases left out between two splits under split=blocks; None is the longest length.
        validation_fraction: share of blocks under split=blocks.
        test_fraction: share of blocks under split=blocks.
        allow_split_overlap: accept bases that belong to windows of two splits; recorded.
        store: folder of the genome store; None is output/genome.
        verify: read every FASTA again through pyfaidx and compare all bases with the store.
        progress: show a progress bar.
    """

    fasta: Path | str | Sequence[Path | str]
    output: Path | str
    intervals: Path | str | None = None
    split: str = "auto"
    length: int | Sequence[int] = 1024
    policy: str = "shift"
    max_n_fraction: float = 0.5
    rename: Path | str = "none"
    seed: int = 2222
    validation_chromosomes: Sequence[str | int] | str | int | None = ()
    test_chromosomes: Sequence[str | int] | str | int | None = ()
    block_size: int | None = None
    guard: int | None = None
    validation_fraction: float = 0.1
    test_fraction: float = 0.1
    allow_split_overlap: bool = False
    store: Path | str | None = None
    verify: bool = False
    progress: bool = True

    @property
    def lengths(self) -> tuple[int, ...]:
        """The window lengths, each once."""
        return tuple(dict.fromkeys(int(length) for length in items_of(self.length)))

    @property
    def store_directory(self) -> Path:
        """Absolute folder of the genome store."""
        named = Path(self.output) / "genome" if self.store is None else Path(self.store)
        return named.absolute()

    def check(self) -> None:
        """Refuses values that no input could make good.

        Raises:
            InputError: names the option, its value and what it may be.
        """
        check_choice("split", self.split, SPLIT_RULES)
        check_choice("policy", self.policy, POLICIES)
        self._check_paths()
        self._check_numbers()
        for name in _CHROMOSOME_LISTS:
            for contig in items_of(getattr(self, name)):
                check_name(name, contig)
        for name in ("allow_split_overlap", "verify", "progress"):
            check_flag(name, getattr(self, name))
        if self.split == "bed" and self.intervals is None:
            raise InputError(
                "split=bed needs intervals= with a BED file; without one choose "
                "split=chromosome, split=blocks or split=none"
            )
        check_rename(str(self.rename))

    def names(self, option: str) -> tuple[str, ...]:
        """The contigs that one of the chromosome lists names, as text."""
        return tuple(str(name) for name in items_of(getattr(self, option)))

    def _check_paths(self) -> None:
        sources = items_of(self.fasta)
        if not sources:
            raise InputError(f"fasta={shown(self.fasta)}: name one or more files")
        for source in sources:
            check_path("fasta", source)
        check_path("output", self.output)
        check_path("rename", self.rename, "none, chr_prefix or the path of a two-column file")
        for name in ("intervals", "store"):
            if getattr(self, name) is not None:
                check_path(name, getattr(self, name))
        for place in (Path(self.output), self.store_directory):
            if check_place(place) == place.absolute() and not place.is_dir():
                raise InputError(f"{place} is a file: name a folder for output and store")

    def _check_numbers(self) -> None:
        lengths = items_of(self.length)
        if not lengths:
            raise InputError(
                f"length={shown(self.length)}: give one or more lengths of at least 1 base"
            )
        for length in lengths:
            check_whole_number("length", length, 1)
        check_whole_number("seed", self.seed, 0)
        for name, least in (("block_size", 1), ("guard", 0)):
            if getattr(self, name) is not None:
                check_whole_number(name, getattr(self, name), least)
        for name in ("max_n_fraction", "validation_fraction", "test_fraction"):
            check_share(name, getattr(self, name))

    def plain(self) -> dict[str, object]:
        """All options as values that JSON holds."""
        normal = {"length": self.lengths, **{name: self.names(name) for name in _CHROMOSOME_LISTS}}
        return {key: _plain(value) for key, value in (asdict(self) | normal).items()}

    def effective(self) -> dict[str, object]:
        """Those that change a result, except the lengths, which have one table each."""
        return {k: v for k, v in self.plain().items() if k not in _WITHOUT_EFFECT}


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
