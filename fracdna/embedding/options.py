"""What an embedding is: layer, pooling, strand, and the limits of one pass."""

from dataclasses import dataclass

from fracdna.devices import choose_precision
from fracdna.model.backbone import Backbone
from fracdna_prep.errors import InputError

POOLINGS = ("mean", "centre", "last")
STRANDS = ("forward", "reverse", "average")
FINAL_NORM = -1


@dataclass(frozen=True)
class EmbeddingOptions:
    """Which hidden states are pooled, and how they are computed.

    Attributes:
        layer: 0 is the embedding, n the stream after block n, -1 the output of the final norm.
        pooling: over the L positions of a region: "mean" of all of them, N included; "centre", the
            base floor(L / 2) counted from 0 on the forward strand of the genome, whatever strand is
            read; "last", the base that is read last, where a causal model has seen the whole
            region.
        strand: "forward" reads a region on its own strand (+ where it names none), "reverse" on the
            other one, "average" is the mean of both vectors.
        batch_bases: most positions of a batch, padding and BOS included.
        segment: a region of more bases is read in segments with carried state.
        precision: of the computation, "float32" or "bf16"; vectors are float32 either way.
    """

    layer: int = FINAL_NORM
    pooling: str = "mean"
    strand: str = "forward"
    batch_bases: int = 65_536
    segment: int = 65_536
    precision: str = "float32"

    def check(self) -> None:
        """Refuses values that no model could make good.

        Raises:
            InputError: names the option, its value and what it may be.
        """
        for name, choices in (
            ("pooling", POOLINGS),
            ("strand", STRANDS),
        ):
            if getattr(self, name) not in choices:
                raise InputError(
                    f"{name}={getattr(self, name)}: choose one of {', '.join(choices)}"
                )
        choose_precision(self.precision)
        for name in ("batch_bases", "segment"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: it is at least 1 base")

    def check_layer(self, backbone: Backbone) -> None:
        """Refuses a layer that the model lacks.

        Raises:
            InputError: names the layers that exist.
        """
        depth = len(backbone.blocks)
        if not FINAL_NORM <= self.layer <= depth:
            raise InputError(
                f"layer={self.layer}: this model has 0 (the embedding), 1 to {depth} (the stream "
                f"after a block) and {FINAL_NORM} (the output of the final norm)"
            )

    def describe(self) -> str:
        """The choices in one line."""
        return f"layer {self.layer}, pooling {self.pooling}, strand {self.strand}"


DEFAULTS = EmbeddingOptions()
