"""What a probe is asked to do."""

from dataclasses import dataclass

from fracdna.embedding.options import DEFAULTS, PER_BASE, EmbeddingOptions
from fracdna.probing.labelled import SplitRules
from fracdna_prep.errors import InputError
from fracdna_prep.names import check_rename
from fracdna_prep.option_checks import check_choice, check_whole_number, shown

LINEAR, FINETUNE = "linear", "finetune"
METHODS = (LINEAR, FINETUNE)


@dataclass(frozen=True)
class ProbeOptions:
    """Choices that the numbers depend on; those of one method are not read by the other.

    Attributes:
        method: "linear" fits a regression on frozen vectors, "finetune" trains the whole network.
        seeds: each gives a fit of its own; see linear.Division.drawn and finetune.
        l2: strengths of the penalty of regressions; see linear.fit_path.
        baselines: also what needs no network: majority, GC and length, k-mers.
        untrained: also each network with the initial weights that untrained_seed draws.
        untrained_seed: of these weights.
        max_k: k-mers of 1 to max_k letters.
        dedup: training and dev rows that a test row repeats are left out.
        embedding: layer, pooling, strand and limits, as of `fracdna embed`.
        epochs: of fine-tuning, at most.
        patience: epochs without a better validation after which it stops.
        batch_size: rows of an optimizer step.
        learning_rates: each is tried with each seed.
        weight_decay: of matrices.
    """

    method: str = LINEAR
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    l2: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
    baselines: bool = True
    untrained: bool = True
    untrained_seed: int = 0
    max_k: int = 6
    dedup: bool = False
    embedding: EmbeddingOptions = DEFAULTS
    epochs: int = 10
    patience: int = 3
    batch_size: int = 256
    learning_rates: tuple[float, ...] = (1e-3, 2e-3)
    weight_decay: float = 0.1

    def check(self) -> None:
        """Refuses values that no set could make good.

        Raises:
            InputError: names the option, its value and what it may be.
        """
        check_choice("method", self.method, METHODS)
        self.embedding.check()
        if self.embedding.per_base:
            raise InputError(f"pooling={PER_BASE}: a probe reads one vector for each sequence")
        for name in ("max_k", "epochs", "patience", "batch_size"):
            check_whole_number(name, getattr(self, name), 1)
        for name in ("seeds", "l2", "learning_rates"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise InputError(f"{name}={list(values)}: name at least one, and each once")
        for seed in self.seeds:
            check_whole_number("seeds", seed, 0)
        for value in (*self.l2, *self.learning_rates):
            if not 0 < value < float("inf"):
                raise InputError(f"{shown(value)}: l2= and learning_rates= are above 0")


def check_rules(rules: SplitRules) -> None:
    """Refuses rules that no set could make good.

    Raises:
        InputError: names the option, its value and what it may be.
    """
    check_rename(rules.rename)
    check_choice("missing_contigs", rules.missing_contigs, ("refuse", "skip"))
    if not 0 < rules.test_share < 1:
        raise InputError(f"test_share={rules.test_share}: give a share above 0 and below 1")
    if rules.max_train is not None:
        check_whole_number("max_train", rules.max_train, 2)
