"""How far windows reach around a variant, and the limits of one pass."""

from dataclasses import dataclass

from fracdna.devices import choose_precision
from fracdna_prep.errors import InputError
from fracdna_prep.option_checks import check_share, check_whole_number

_MOST = 2**31  # no window or pass has so many bases


@dataclass(frozen=True)
class ScoringOptions:
    """What a score is computed from.

    Attributes:
        left: bases of the reference strand before the variant.
        right: bases of the reference strand behind it.
        max_n_fraction: windows with a greater share of N are not scored.
        batch_bases: most positions of one pass, padding and BOS included; windows of more are read
            in segments that carry the state on. A model whose state grows reads a window at once.
        precision: of the computation, "float32" or "bf16"; softmax and sums are float64 either way.
    """

    left: int = 8192
    right: int = 1024
    max_n_fraction: float = 1.0
    batch_bases: int = 65_536
    precision: str = "float32"

    def check(self) -> None:
        """Refuses values that no model could make good.

        Raises:
            InputError: names the option, its value and what it may be.
        """
        for name, least in (("left", 0), ("right", 0), ("batch_bases", 1)):
            value = getattr(self, name)
            check_whole_number(name, value, least)
            if value >= _MOST:
                raise InputError(f"{name}={value}: give a whole number below {_MOST:,}")
        check_share("max_n_fraction", self.max_n_fraction)
        choose_precision(self.precision)

    def describe(self) -> str:
        """The windows in one line."""
        return f"{self.left:,} bases before and {self.right:,} behind each variant, both strands"


DEFAULTS = ScoringOptions()
