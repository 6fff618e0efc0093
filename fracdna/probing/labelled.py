"""A labelled set ready for use: ids, classes and splits, with what became of every row."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fracdna.probing.rows import DEV, SPLITS, TEST, TRAIN, Row
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.names import match_names, require_names, resolve_names
from fracdna_prep.vocabulary import DNA
from fracdna_prep.wording import counted, listed

# what may become of a row that is left out
STATUSES = {
    "no_label": "the class is empty",
    "no_sequence": "no letters, or an interval without bases",
    "not_dna": "holds what is no nucleotide letter",
    "inverted": "the interval ends before it starts",
    "outside": "the interval is not inside its contig",
    "no_contig": "the genome lacks the contig (missing_contigs=skip)",
    "border": "lies across the border of test_regions=, dev_regions= or train_regions=",
    "elsewhere": "lies in none of the regions",
}
ASKED_FOR = ("border", "elsewhere")  # by regions: no problem of a row
_MOST_CLASSES = 1000


@dataclass(frozen=True)
class SplitRules:
    """How rows without a split get one, and how many are kept.

    Attributes:
        test_regions: rows inside are tested on: contigs, or regions such as chr20:5000001-6302552.
        dev_regions: rows inside choose between fits, likewise.
        train_regions: rows inside are trained on; none: all others.
        test_share: drawn for the test, class by class, where neither files nor regions say.
        max_train: most training rows, drawn class by class; None: all.
        seed: of both draws.
        rename: of contigs, as in fracdna_prep.names.resolve_names.
        missing_contigs: "refuse", or "skip" rows on contigs that the genome lacks.
    """

    test_regions: Sequence[str] = ()
    dev_regions: Sequence[str] = ()
    train_regions: Sequence[str] = ()
    test_share: float = 0.2
    max_train: int | None = None
    seed: int = 0
    rename: str = "none"
    missing_contigs: str = "refuse"


@dataclass(frozen=True)
class LabelledSet:
    """Sequences with their classes.

    Attributes:
        sequences: ids of each row, uint8, without BOS.
        labels: (rows,) int64, positions in `classes`.
        classes: names, in the order of numbers where all are numbers.
        splits: (rows,) text, each of rows.SPLITS.
        rows: as they were read.
        dropped: rows that were left out, with a key of STATUSES.
        divided: who told the splits apart, in words.
    """

    sequences: list[np.ndarray]
    labels: np.ndarray
    classes: tuple[str, ...]
    splits: np.ndarray
    rows: list[Row]
    dropped: list[tuple[Row, str]]
    divided: str

    def __len__(self) -> int:
        return len(self.sequences)

    def where(self, split: str) -> np.ndarray:
        """Positions of the rows of a split."""
        return np.flatnonzero(self.splits == split)

    def counts(self) -> dict[str, dict[str, int]]:
        """Rows by split and class."""
        return {
            split: {
                name: int(np.sum((self.splits == split) & (self.labels == number)))
                for number, name in enumerate(self.classes)
            }
            for split in SPLITS
        }

    def statuses(self) -> dict[str, int]:
        """Left out rows by status."""
        return dict(Counter(status for _, status in self.dropped))

    @property
    def has_problems(self) -> bool:
        """Whether a row was left out for another reason than that no region wanted it."""
        return any(status not in ASKED_FOR for _, status in self.dropped)

    @property
    def unknown_bases(self) -> int:
        """Positions that hold N or another letter that is not one base."""
        return sum(int(np.count_nonzero(ids == DNA.n)) for ids in self.sequences)

    @property
    def bases(self) -> int:
        """Positions of all rows."""
        return sum(map(len, self.sequences))

    def digest(self) -> str:
        """SHA-256 of all sequences, labels, classes and splits, in their order."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for ids, label, split in zip(self.sequences, self.labels, self.splits, strict=True):
            digest.update(f"{split} {label} {len(ids)} ".encode() + ids.tobytes())
        return digest.hexdigest()

    def without(self, positions: np.ndarray) -> Self:
        """The set without some rows."""
        return self.keep(np.setdiff1d(np.arange(len(self)), positions))

    def keep(self, positions: np.ndarray) -> Self:
        """The set of some rows alone."""
        return replace(
            self,
            sequences=[self.sequences[n] for n in positions],
            labels=self.labels[positions],
            splits=self.splits[positions],
            rows=[self.rows[n] for n in positions],
        )

    def shortened(self, most: int | None, seed: int) -> Self:
        """At most so many training rows, drawn class by class in the order of the set."""
        train = self.where(TRAIN)
        if most is None or len(train) <= most:
            return self
        kept = draw(self.labels[train], most, np.random.default_rng(seed))
        return self.without(np.setdiff1d(train, train[kept]))

    def check(self) -> None:
        """Refuses what nothing can be learned from, or tested on.

        Raises:
            InputError: names what is missing, with counts.
        """
        counts = self.counts()
        train = {name: n for name, n in counts[TRAIN].items() if n}
        for split in (TRAIN, TEST):
            if not sum(counts[split].values()):
                raise InputError(f"no row is left for {split}: {self._told()}")
        for split in (DEV, TEST):
            unknown = [name for name, n in counts[split].items() if n and name not in train]
            if unknown:
                raise InputError(
                    f"{split} has the class {listed(unknown)}, which no training row has; training "
                    f"has {listed(train)}: correct labels or files"
                )
        if len(train) < 2:
            raise InputError(
                f"all training rows are of the class {listed(train)}: a probe tells two or more "
                "classes apart"
            )
        few = [name for name, n in train.items() if n < 2]
        if few:
            raise InputError(
                f"one training row alone is of the class {listed(few)}: give at least two of each "
                "class, one of them to choose with"
            )
        total = sum(train.values())
        if len(train) > min(_MOST_CLASSES, total // 2):
            raise InputError(
                f"{len(train):,} classes in {counted(total, 'training row')}: labels are classes, "
                "not measurements; choose the column with label_column="
            )

    def _told(self) -> str:
        """Counts of rows and of those left out."""
        rows = ", ".join(f"{len(self.where(split)):,} {split}" for split in SPLITS)
        dropped = ", ".join(f"{n:,} {status}" for status, n in self.statuses().items())
        first = f" (the first is {self.dropped[0][0].place})" if dropped else ""
        return f"{rows}; left out: {dropped or 'none'}{first}"


def assemble(rows: Sequence[Row], store: GenomeStore | None, rules: SplitRules) -> LabelledSet:
    """Cut, encode and divide rows; those that cannot be used are kept with their status.

    Args:
        rows: of one set, at least one.
        store: the genome of intervals; None for letters.
        rules: for rows without a split.

    Raises:
        InputError: contigs that the genome lacks, splits that only some rows have, or regions that
            cannot be used.
    """
    contigs = {} if store is None else _contigs(rows, store, rules)
    kept, sequences, dropped = [], [], []
    for row in rows:
        ids = _read(row, store, contigs)
        if isinstance(ids, str):
            dropped.append((row, ids))
        else:
            kept.append(row)
            sequences.append(ids)
    splits, divided = _divide(kept, store, contigs, rules)
    outside = [n for n, split in enumerate(splits) if split not in SPLITS]
    dropped += [(kept[n], splits[n]) for n in outside]
    inside = [n for n, split in enumerate(splits) if split in SPLITS]
    names = _classes({kept[n].label for n in inside})
    numbers = {name: number for number, name in enumerate(names)}
    return LabelledSet(
        sequences=[sequences[n] for n in inside],
        labels=np.array([numbers[kept[n].label] for n in inside], dtype=np.int64),
        classes=names,
        splits=np.array([splits[n] for n in inside], dtype=object),
        rows=[kept[n] for n in inside],
        dropped=dropped,
        divided=divided,
    )


def draw(labels: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Ascending positions of so many rows, each class in its share.

    Args:
        labels: (rows,) int64.
        count: of rows to be drawn.
        random: the generator.
    """
    numbers, members = np.unique(labels, return_counts=True)
    exact = members * (count / len(labels))
    shares = np.floor(exact).astype(int)
    # what rounding leaves goes to the largest remainders, the lowest class first
    shares[np.argsort(shares - exact, kind="stable")[: count - shares.sum()]] += 1
    drawn = [
        random.choice(np.flatnonzero(labels == number), share, replace=False)
        for number, share in zip(numbers, shares, strict=True)
    ]
    return np.sort(np.concatenate(drawn))


def region_of(text: str, contigs: Mapping[str, int], rename: str) -> Interval:
    """A contig, or a region of one, under the genome's name.

    Args:
        text: a name, or a region such as chr20:50000001-63025520.
        contigs: lengths by the genome's names.
        rename: as in fracdna_prep.names.resolve_names.

    Raises:
        InputError: neither of the two.
    """
    whole = resolve_names([text], contigs, rename)
    if text in whole:
        return Interval(whole[text], 0, contigs[whole[text]])
    try:
        region = Interval.parse(text)
    except InputError as error:
        raise InputError(
            f"{error}; it is no contig of the genome either: {listed(contigs)}"
        ) from None
    names = require_names([region.chromosome], [text], contigs, rename)
    return replace(region, chromosome=names[region.chromosome])


def _classes(labels: Iterable[str]) -> tuple[str, ...]:
    """Names in order: as numbers where all of them are, else as text."""
    names = set(labels)
    numbers = all(name.lstrip("-").isdecimal() for name in names)
    return tuple(sorted(names, key=int) if numbers else sorted(names))


def _contigs(rows: Sequence[Row], store: GenomeStore, rules: SplitRules) -> dict[str, str]:
    """The genome's name of each contig that rows name."""
    first = {}
    for row in rows:
        first.setdefault(row.interval.chromosome, row.place)
    if rules.missing_contigs == "skip":
        found = resolve_names(first, store.contigs, rules.rename)
        if len(found) < len(first):
            print(match_names(first, store.contigs, rules.rename).describe())
        return found
    try:
        names, places = list(first), list(first.values())
        return dict(require_names(names, places, store.contigs, rules.rename))
    except InputError as error:
        raise InputError(
            f"{error}\nmissing_contigs=skip leaves such rows out and goes on with the others"
        ) from None


def _read(row: Row, store: GenomeStore | None, contigs: dict[str, str]) -> np.ndarray | str:
    """Ids of a row, or why it is left out."""
    if not row.label:
        return "no_label"
    if row.interval is not None:
        return _cut(row.interval, store, contigs)
    try:
        return DNA.encode(row.sequence) if row.sequence else "no_sequence"
    except InputError:
        return "not_dna"


def _cut(interval: Interval, store: GenomeStore, contigs: dict[str, str]) -> np.ndarray | str:
    """Ids of an interval on its strand, or why it is left out."""
    if interval.chromosome not in contigs:
        return "no_contig"
    if interval.width <= 0:
        return "inverted" if interval.width else "no_sequence"
    name = contigs[interval.chromosome]
    if interval.start < 0 or interval.end > store.contigs[name]:
        return "outside"
    return store.fetch(replace(interval, chromosome=name))


def _divide(
    rows: Sequence[Row], store: GenomeStore | None, contigs: dict[str, str], rules: SplitRules
) -> tuple[list[str], str]:
    """A split for every row, or the status of one that is in none; and who said so."""
    regions = {split: getattr(rules, f"{split}_regions") for split in SPLITS}
    if any(regions.values()):
        if store is None:
            raise InputError("test_regions= divides intervals on a genome: letters have no place")
        if not regions[TEST]:
            raise InputError("dev_regions= and train_regions= go with test_regions=")
        places = {
            split: [region_of(text, store.contigs, rules.rename) for text in texts]
            for split, texts in regions.items()
        }
        found = [_split_of_place(row.interval, contigs, places) for row in rows]
        return found, "regions"
    told = [row.split is not None for row in rows]
    if all(told):
        return [row.split for row in rows], "the set"
    if any(told):
        lacking = rows[told.index(False)].place
        raise InputError(f"{lacking} has no split, and other rows have: write one for every row")
    classes = sorted({row.label for row in rows})
    labels = np.array([classes.index(row.label) for row in rows])
    count = round(rules.test_share * len(rows))
    test = set(draw(labels, count, np.random.default_rng(rules.seed)).tolist())
    splits = [TEST if n in test else TRAIN for n in range(len(rows))]
    return splits, f"a draw of {rules.test_share:.0%} for the test, seed {rules.seed}"


def _split_of_place(
    interval: Interval, contigs: dict[str, str], places: dict[str, list[Interval]]
) -> str:
    """The split in whose regions an interval lies, or a status."""
    name = contigs[interval.chromosome]
    for split, regions in places.items():
        for region in regions:
            if region.chromosome != name:
                continue
            if region.start <= interval.start and interval.end <= region.end:
                return split
            if region.start < interval.end and interval.start < region.end:
                return "border"
    return "elsewhere" if places[TRAIN] else TRAIN
