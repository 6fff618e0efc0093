"""Multi-query associative recall: keys are shown with their values, and later asked for.

A sequence opens with K pairs of a key and its value. The rest is cut in slots of two tokens; every
key gets a slot i = 1, 2, ..., drawn without replacement with weight i^(power - 1). Its first token
is the key again; what is asked there is the value, which is not read again. All else is filler.

Source: HazyResearch/zoology, arXiv 2312.04927; power and sizes as in arXiv 2604.07658.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fracdna.benchmarks.examples import Examples, nll_at
from fracdna.benchmarks.sample_random import random_bits, sample_seeds, uniform
from fracdna.benchmarks.stream_reading import Reading, StreamReader
from fracdna.data.objectives import IGNORED
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError

RANDOM, ZERO, CLEAN = "random", "zero", "clean"
FILLERS = (RANDOM, ZERO, CLEAN)
Columns = dict[str, np.ndarray]


class Kind(NamedTuple):
    """Sequences of one length with so many pairs."""

    length: int
    pairs: int


class Recall(NamedTuple):
    """Sequences of one kind.

    Attributes:
        ids: (n, length) int64.
        places: (n, pairs) int64, where a value is asked for, by the order of its key.
        targets: (n, pairs) int64, the values.
        lags: (n, pairs) int64, from the key's last place in the beginning to there.
    """

    ids: Tensor
    places: Tensor
    targets: Tensor
    lags: Tensor


@dataclass(frozen=True)
class AssociativeRecall:
    """The task.

    Attributes:
        kinds: of training sequences; samples take turns.
        vocabulary_rows: V: keys are 1 .. V/2 - 1, values V/2 .. V - 1.
        examples_per_kind: different training samples, seen once in an epoch, in random order.
        passes: how often the pairs are shown.
        power: of the slots' weights, above 0; at 1 all slots are alike.
        filler: "random": uniform over the vocabulary; "zero": id 0; "clean": uniform over all but
            the keys of the sequence.

    Raises:
        InputError: sequences that have no room for their pairs, or options that make no sense.
    """

    kinds: tuple[Kind, ...]
    vocabulary_rows: int = 8192
    examples_per_kind: int = 262_144
    passes: int = 1
    power: float = 0.01
    filler: str = RANDOM

    name = "associative_recall"

    def __post_init__(self) -> None:
        if self.filler not in FILLERS:
            raise InputError(f"task.filler={self.filler}: choose one of {', '.join(FILLERS)}")
        if self.power <= 0:
            raise InputError(f"task.power={self.power} must be above 0")
        for kind in self.kinds:
            self.check(kind)

    def check(self, kind: Kind) -> None:
        """Refuse sequences without room for their pairs, or without as many keys."""
        needed = 2 * kind.pairs * (self.passes + 1)
        if needed > kind.length:
            raise InputError(
                f"{kind.pairs} pairs shown {self.passes} times and asked for need {needed} "
                f"positions, and sequences have {kind.length}: fewer pairs, or longer sequences"
            )
        keys = self.vocabulary_rows // 2 - 1
        if kind.pairs > keys or self.vocabulary_rows <= kind.length:
            raise InputError(
                f"task.vocabulary_rows={self.vocabulary_rows} must be above the length "
                f"{kind.length} and leave a key for each of {kind.pairs} pairs"
            )

    @property
    def length(self) -> int:
        """Of the longest training sequences; shorter ones are padded to it."""
        return max(kind.length for kind in self.kinds)

    @property
    def epoch(self) -> int:
        """Training samples."""
        return self.examples_per_kind * len(self.kinds)

    def examples(self, split: str, seed: int, numbers: Tensor) -> Examples:
        """Sequences of all kinds in turn, padded on the right; see ExampleSource."""
        if split == "train":
            numbers = self._shuffled(seed, numbers)
        most, length = max(kind.pairs for kind in self.kinds), self.length
        ids = numbers.new_zeros(len(numbers), length)
        places = numbers.new_zeros(len(numbers), most)
        targets = numbers.new_full((len(numbers), most), IGNORED)
        for turn, kind in enumerate(self.kinds):
            of_kind = (numbers % len(self.kinds) == turn).nonzero().flatten()
            found = self.sequences(kind, f"{split} {seed}", numbers[of_kind])
            ids[of_kind] = pad(found.ids, (0, length - kind.length))
            places[of_kind] = pad(found.places, (0, most - kind.pairs))
            targets[of_kind] = pad(found.targets, (0, most - kind.pairs), value=IGNORED)
        return Examples(ids, places, targets)

    def sequences(self, kind: Kind, stream: str, numbers: Tensor) -> Recall:
        """Sequences of one kind.

        Args:
            kind: see Kind.
            stream: split and seed.
            numbers: (n,) int64, of the samples.
        """
        rows, pairs = self.vocabulary_rows, kind.pairs
        half, shown = rows // 2, 2 * pairs * self.passes
        slots = (kind.length - shown) // 2
        seeds = sample_seeds(f"{self.name} {kind.length} {pairs} {stream}", numbers)
        bits = random_bits(seeds, 2 * half - 1 + slots + kind.length)
        for_keys, for_values, for_slots, for_filler = bits.split(
            [half - 1, half, slots, kind.length], dim=1
        )
        keys = 1 + _first(for_keys, pairs)
        values = half + _first(for_values, pairs)
        # the largest of log weight plus Gumbel noise, in falling order: draws without replacement
        weights = torch.arange(1, slots + 1, device=bits.device, dtype=torch.float64).log()
        noise = -torch.log(-torch.log((uniform(for_slots) + 2.0**-54).clamp(max=1 - 2.0**-53)))
        chosen = ((self.power - 1) * weights + noise).topk(pairs, dim=1).indices
        places = shown + 2 * chosen
        ids = self._filler(for_filler, keys)
        ids[:, :shown] = torch.stack([keys, values], -1).flatten(1).repeat(1, self.passes)
        ids.scatter_(1, places, keys)
        last_shown = shown - 2 * pairs + 2 * torch.arange(pairs, device=bits.device)
        return Recall(ids, places, values, places - last_shown)

    def _filler(self, bits: Tensor, keys: Tensor) -> Tensor:
        """(n, length) ids where nothing else stands."""
        if self.filler == ZERO:
            return torch.zeros_like(bits)
        free = self.vocabulary_rows - (keys.shape[1] if self.filler == CLEAN else 0)
        drawn = (uniform(bits) * free).long()
        if self.filler == RANDOM:
            return drawn
        # the r-th id that is no key: as many keys are passed as lie below it
        ordered = keys.sort(dim=1).values - torch.arange(keys.shape[1], device=keys.device)
        return drawn + torch.searchsorted(ordered, drawn, right=True)

    def _shuffled(self, seed: int, numbers: Tensor) -> Tensor:
        """Numbers of training samples: each once in an epoch, in an order of its own."""
        epochs = numbers // self.epoch
        found = torch.empty_like(numbers)
        for epoch in epochs.unique().tolist():
            inside = epochs == epoch
            order = torch.from_numpy(_order(seed, epoch, self.epoch)).to(numbers.device)
            found[inside] = order[numbers[inside] - epoch * self.epoch]
        return found


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
    """A permutation of the samples of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def _first(bits: Tensor, count: int) -> Tensor:
    """(n, count) different places of equal chance, in random order."""
    return bits.topk(count, dim=1).indices


@dataclass(frozen=True)
class RecallTest:
    """What is tested.

    Attributes:
        task: see AssociativeRecall.
        parts: kinds of sequences, each under the name that it has in tables.
        sequences: of each kind.
        seed: of the test.
    """

    task: AssociativeRecall
    parts: tuple[tuple[str, Kind], ...]
    sequences: int
    seed: int = 1

    def __post_init__(self) -> None:
        for _, kind in self.parts:
            self.task.check(kind)

    @property
    def variant(self) -> dict[str, Any]:
        """See ModelTest."""
        return {"filler": self.task.filler, "power": self.task.power}

    @property
    def positions(self) -> int:
        """See ModelTest."""
        return self.sequences * sum(kind.length for _, kind in self.parts)

    def run(
        self,
        model: LanguageModel,
        reading: Reading,
        done: Mapping[str, set[int]],
        advance: Callable[[int], object],
    ) -> Iterator[Columns]:
        """One row per sequence; see ModelTest."""
        device = next(model.parameters()).device
        reader = StreamReader(model.backbone, reading, advance)
        lags = max(kind.length for _, kind in self.parts).bit_length()
        for part, kind in self.parts:
            name = f"{part} {kind.length} {kind.pairs}"
            left = [n for n in range(self.sequences) if n not in done.get(name, ())]
            batch = max(1, reading.batch_positions // kind.length)
            for first in range(0, len(left), batch):
                numbers = left[first : first + batch]
                index = torch.tensor(numbers, device=device)
                found = self.task.sequences(kind, f"test {self.seed}", index)
                columns = _rows(model, reader.whole(found.ids), found, numbers, lags)
                about = {"set": name, "part": part, "length": kind.length, "pairs": kind.pairs}
                yield {key: np.full(len(numbers), value) for key, value in about.items()} | columns


@torch.inference_mode()
def _rows(
    model: LanguageModel, hidden: Tensor, found: Recall, numbers: Sequence[int], lags: int
) -> Columns:
    """Shares of the values that were right, and by lag, counted in powers of 2.

    Of equal logits the lowest id is the answer.
    """
    nll, logits = nll_at(model, hidden, Examples(found.ids, found.places, found.targets))
    wrong = ~logits.isfinite().all(-1).all(-1)
    if wrong.any():
        sample = numbers[int(wrong.nonzero()[0])]
        raise NotFinite(
            f"an answer to sequence {sample} of {found.ids.shape[1]} positions is NaN or infinite",
            sample,
        )
    best = logits.max(-1, keepdim=True).values
    right = logits.argmax(-1) == found.targets
    columns = {
        "correct": right.double().mean(1),
        "tied": ((logits == best).sum(-1) > 1).double().mean(1),
        "nll_nats": nll.double().mean(1),
    }
    power = found.lags.double().log2().long()
    for lag in range(lags):
        columns[f"asked_lag_{1 << lag}"] = (power == lag).sum(1)
        columns[f"right_lag_{1 << lag}"] = ((power == lag) & right).sum(1)
    return {"index": np.array(numbers)} | {k: v.cpu().numpy() for k, v in columns.items()}


def accuracy_by_lag(lags: Columns) -> dict[str, float]:
    """Accuracy by lag, each bucket from a power of 2 to below the next."""
    asked = {name: int(v.sum()) for name, v in lags.items() if name.startswith("asked_lag_")}
    return {
        name.replace("asked", "accuracy"): int(lags[name.replace("asked", "right")].sum()) / count
        for name, count in asked.items()
        if count
    }
