"""Which windows each model reads for the curves that were asked for."""

from dataclasses import dataclass

from omegaconf import DictConfig

from fracdna.evaluation.regions import check_lengths
from fracdna.evaluation.tally import AVERAGE, FORWARD, REVERSE
from fracdna_prep.errors import InputError

TILING, FIXED, CARRIED = "tiling", "fixed", "carried"
CURVES = (TILING, FIXED, CARRIED)
STRANDS = {"forward": (FORWARD,), "both": (FORWARD, REVERSE)}


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        lengths: of windows, ascending; each divides the last.
        curves: of CURVES.
        strands: that are read.
        target: bases at the end of every region that the fixed curve is about.
    """

    lengths: tuple[int, ...]
    curves: tuple[str, ...]
    strands: tuple[str, ...]
    target: int

    @property
    def width(self) -> int:
        """Bases of a region."""
        return self.lengths[-1]

    @property
    def shown_strands(self) -> tuple[str, ...]:
        """Strands in tables: both have their average beside them."""
        return (*self.strands, AVERAGE) if len(self.strands) > 1 else self.strands

    def lengths_of(self, curve: str) -> tuple[int, ...]:
        """Lengths that a curve over lengths has points at."""
        if curve not in self.curves:
            return ()
        return tuple(n for n in self.lengths if curve == TILING or n >= self.target)

    def passes(self, reset: int | None = None) -> dict[int, int]:
        """Bases of each region that are read in windows of each length.

        The last window of a tiling is what the fixed curve asks for, and the tiling at the longest
        length is the carried pass; so only a fixed curve alone reads less than whole regions.

        Args:
            reset: after how many bases the control of the carried curve empties the state; None:
                no control.
        """
        spans = {length: length for length in self.lengths_of(FIXED)}
        spans |= dict.fromkeys(self.lengths_of(TILING), self.width)
        if CARRIED in self.curves:
            spans |= dict.fromkeys({self.width, reset or self.width}, self.width)
        return dict(sorted(spans.items()))


def make_plan(config: DictConfig) -> Plan:
    """The plan of a configuration.

    Raises:
        InputError: lengths, curves, strands or a target that cannot be.
    """
    curves = tuple(curve for curve in CURVES if curve in config.curves)
    unknown = [curve for curve in config.curves if curve not in CURVES]
    if unknown or not curves:
        raise InputError(f"curves={list(config.curves)}: choose one or more of {', '.join(CURVES)}")
    if config.strands not in STRANDS:
        raise InputError(f"strands={config.strands}: choose forward or both")
    if config.target < 1:
        raise InputError(f"target={config.target}: the fixed curve needs at least 1 base")
    lengths = check_lengths(config.lengths)
    if curves == (FIXED,) and lengths[-1] < config.target:
        raise InputError(
            f"lengths={list(config.lengths)}: none reaches the {config.target:,} bases of target=, "
            "so the fixed curve has no point; use longer ones or a smaller target="
        )
    return Plan(lengths, curves, STRANDS[config.strands], config.target)


def reset_length(
    name: str, trained: int | None, chosen: int | None, width: int
) -> tuple[int | None, str | None]:
    """After how many bases the control of the carried curve empties a model's state.

    Args:
        name: of the model.
        trained: length of the windows that it was trained on, where that is known.
        chosen: the option `reset`; None: the trained length.
        width: bases of a region.

    Returns:
        The number of bases, or None and a sentence that says why there is no control.
    """
    reset = trained if chosen is None else chosen
    whose = "the length it was trained on" if chosen is None else "reset="
    if reset is None:
        return None, (
            f"{name}: no gain over an emptied state, its checkpoint does not say what length it "
            "was trained on; give reset="
        )
    if reset >= width or width % reset:
        relation = "is not below" if reset >= width else "does not divide"
        return None, (
            f"{name}: no gain over an emptied state, {whose}, {reset:,}, {relation} the "
            f"{width:,} bases of a region"
        )
    return reset, None


def reset_lengths(
    trained: dict[str, int | None], chosen: int | None, width: int
) -> tuple[dict[str, int | None], list[str]]:
    """The same for all models: by name, and the sentences."""
    found = {name: reset_length(name, n, chosen, width) for name, n in trained.items()}
    return (
        {name: reset for name, (reset, _) in found.items()},
        [sentence for _, sentence in found.values() if sentence],
    )


def check_reset(reset: object) -> int | None:
    """The option `reset`.

    Raises:
        InputError: it is neither null nor a number of bases.
    """
    whole = isinstance(reset, int) and not isinstance(reset, bool)
    if reset is not None and not (whole and reset >= 1):
        raise InputError(f"reset={reset} needs a whole number of at least 1, or null")
    return reset
