"""What is drawn, how often, and the limits of one pass."""

import math
from dataclasses import dataclass
from typing import Any

from fracdna.devices import choose_precision
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

LETTERS = "ACGTN"


@dataclass(frozen=True)
class GenerationOptions:
    """How sequences are continued.

    Attributes:
        length: new bases of each sequence.
        count: sequences per prompt.
        temperature: divides the logits; 0 takes the most probable letter.
        top_k: draw from so many most probable letters only; None: from all.
        top_p: draw from the fewest most probable letters whose probabilities reach it together.
        letters: what may be drawn, of A, C, G, T and N; nothing else ever is.
        seed: of the draws; each sequence of each prompt has draws of its own, whatever the batch.
        batch: sequences at once.
        segment: most positions of one pass over prompts, all sequences of a batch together.
        precision: of the computation, "float32" or "bf16".
    """

    length: int = 1000
    count: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    letters: str = "ACGT"
    seed: int = 0
    batch: int = 64
    segment: int = 65_536
    precision: str = "float32"

    def check(self) -> None:
        """Refuses values that no model could make good.

        Raises:
            InputError: names the option, its value and what it may be.
        """
        least = {"length": 1, "count": 1, "batch": 1, "segment": 1, "seed": 0}
        if self.top_k is not None:
            least["top_k"] = 1
        for name, low in least.items():
            value = getattr(self, name)
            if not _is_number(value, int) or not low <= value < 2**63:
                raise InputError(f"{name}={value}: it is a whole number, at least {low}")
        if not _is_number(self.temperature, float) or not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature={self.temperature}: it is a number, at least 0")
        if not _is_number(self.top_p, float) or not 0 < self.top_p <= 1:
            raise InputError(f"top_p={self.top_p}: it is a number above 0, at most 1")
        known = isinstance(self.letters, str) and set(self.letters) <= set(LETTERS)
        if not known or not self.letters or len(set(self.letters)) != len(self.letters):
            raise InputError(f"letters={self.letters}: name some of {LETTERS}, each once: ACGT")
        choose_precision(self.precision)

    @property
    def ids(self) -> list[int]:
        """Ids of the letters that may be drawn."""
        return DNA.encode(self.letters).tolist()

    def summary(self) -> str:
        """What is needed to draw the same again, in the form of options."""
        names = ("seed", "temperature", "top_k", "top_p", "letters", "precision")
        given = {name: getattr(self, name) for name in names}
        # a limit that is off has nothing to say
        drawn = {k: v for k, v in given.items() if v is not None and (k, v) != ("top_p", 1)}
        return " ".join(f"{name}={value}" for name, value in drawn.items())

    def describe(self) -> str:
        """How letters are drawn, in words."""
        if self.temperature == 0:
            return f"the most probable of {self.letters}"
        limits = "" if self.top_k is None else f", top_k {self.top_k}"
        limits += "" if self.top_p == 1 else f", top_p {self.top_p}"
        return (
            f"drawn from {self.letters}, temperature {self.temperature}{limits}, seed {self.seed}"
        )


def _is_number(value: Any, kind: type) -> bool:
    """Whether a value is a number; a whole number is one of any kind, a switch is none."""
    return isinstance(value, (int, kind)) and not isinstance(value, bool)
