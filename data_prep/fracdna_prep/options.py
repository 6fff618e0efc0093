from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fracdna_prep.errors import InputError
from fracdna_prep.windows import POLICIES

SPLIT_RULES = ("auto", "bed", "chromosome", "blocks", "none")
# Where files lie and what is shown changes no result; the files' own hashes stand for them.
_WITHOUT_EFFECT = ("fasta", "intervals", "output", "store", "progress", "length")


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
        validation_chromosomes: contigs of validation under split=chromosome.
        test_chromosomes: contigs of test under split=chromosome.
        block_size: bases of a block under split=blocks.
        guard: bases left out between two splits under split=blocks.
        validation_fraction: share of blocks under split=blocks.
        test_fraction: share of blocks under split=blocks.
        allow_split_overlap: accept bases that belong to windows of two splits; recorded.
        store: folder of the genome store; None is output/genome.
        progress: show a progress bar.
    """

    fasta: Path | str | Sequence[Path | str]
    output: Path | str
    intervals: Path | str | None = None
    split: str = "auto"
    length: int | Sequence[int] = 1024
    policy: str = "shift"
    max_n_fraction: float = 0.5
    rename: str = "none"
    seed: int = 2222
    validation_chromosomes: Sequence[str] = ()
    test_chromosomes: Sequence[str] = ()
    block_size: int = 1_048_576
    guard: int = 65_536
    validation_fraction: float = 0.1
    test_fraction: float = 0.1
    allow_split_overlap: bool = False
    store: Path | str | None = None
    progress: bool = True

    @property
    def lengths(self) -> tuple[int, ...]:
        """The window lengths, each once."""
        listed = [self.length] if isinstance(self.length, int) else self.length
        return tuple(dict.fromkeys(int(length) for length in listed))

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
        _check_choice("split", self.split, SPLIT_RULES)
        _check_choice("policy", self.policy, POLICIES)
        if not self.lengths or min(self.lengths) < 1:
            raise InputError(f"length={self.length}: give one or more lengths of at least 1 base")
        if not 0 <= self.max_n_fraction <= 1:
            raise InputError(f"max_n_fraction={self.max_n_fraction}: it lies between 0 and 1")
        if self.split == "bed" and self.intervals is None:
            raise InputError(
                "split=bed needs intervals= with a BED file; without one choose "
                "split=chromosome, split=blocks or split=none"
            )
        output = Path(self.output)
        if output.exists() and not output.is_dir():
            raise InputError(f"output={output} is a file: name a folder")

    def plain(self) -> dict[str, object]:
        """All options as values that JSON holds."""
        return {key: _plain(value) for key, value in asdict(self).items()}

    def effective(self) -> dict[str, object]:
        """Those that change a result, except the lengths, which have one table each."""
        return {k: v for k, v in self.plain().items() if k not in _WITHOUT_EFFECT}


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name}={value}: choose one of {', '.join(choices)}")


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
