"""What an embedding is: layers, pooling, strand, and the limits of one pass."""

from dataclasses import dataclass, replace
from typing import Self

import torch

from fracdna.devices import AUTO_BATCH_BASES, choose_precision
from fracdna.model.backbone import Backbone
from fracdna_prep.errors import InputError
from fracdna_prep.option_checks import check_choice, check_whole_number

POOLINGS = ("mean", "centre", "last")
PER_BASE = "none"
EQUIVARIANT = "equivariant"
STRANDS = ("forward", "reverse", "average", EQUIVARIANT)
FINAL_NORM = -1
AUTO = "auto"
# of a pass with 8,192 on a CPU the system spends up to a seventh on clearing its memory
_AUTO_BATCH_BASES = AUTO_BATCH_BASES | {"cpu": 4_096}


@dataclass(frozen=True)
class EmbeddingOptions:
    """Which hidden states are kept, and how they are computed.

    Attributes:
        layer: 0 is the embedding, n the stream after block n, -1 the output of the final norm; or
            several of them.
        pooling: over the L positions of a region: "mean" of all of them, N included; "centre", the
            base floor(L / 2) counted from 0 on the forward strand of the genome, whatever strand is
            read; "last", the base that is read last, where a causal model has seen the whole
            region; "none", one vector for each base, in the order of the forward strand.
        strand: "forward" reads a region on its own strand (+ where it names none), "reverse" on the
            other one, "average" is the mean of both vectors, "equivariant" is both, this strand's
            first: they change places where the other strand of a sequence is given.
        batch_bases: most positions of a batch, padding and BOS included; "auto" is 65,536 on a GPU
            and 4,096 on a CPU.
        segment: a region of more bases is read in segments with carried state; where that state has
            a fixed size, one of more than batch_bases is, too.
        precision: of the computation, "float32" or "bf16"; vectors are float32 either way.
    """

    layer: int | tuple[int, ...] = FINAL_NORM
    pooling: str = "mean"
    strand: str = "forward"
    batch_bases: int | str = AUTO
    segment: int = 65_536
    precision: str = "float32"

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers in the order asked for, also of a single one."""
        return (self.layer,) if isinstance(self.layer, int) else tuple(self.layer)

    @property
    def per_base(self) -> bool:
        """Whether every base keeps its vector."""
        return self.pooling == PER_BASE

    def width(self, d_model: int) -> int:
        """Values of one vector."""
        return 2 * d_model if self.strand == EQUIVARIANT else d_model

    def check(self) -> None:
        """Refuses values that no model could make good.

        Raises:
            InputError: names the option, its value and what it may be.
        """
        check_choice("pooling", self.pooling, (*POOLINGS, PER_BASE))
        check_choice("strand", self.strand, STRANDS)
        choose_precision(self.precision)
        if self.batch_bases != AUTO:
            check_whole_number("batch_bases", self.batch_bases, 1)
        check_whole_number("segment", self.segment, 1)
        if not self.layers:
            raise InputError("layer is an empty list: name at least one layer")
        if len(set(self.layers)) < len(self.layers):
            raise InputError(f"layer={list(self.layers)}: name each layer once")

    def check_layer(self, backbone: Backbone) -> None:
        """Refuses a layer that the model lacks.

        Raises:
            InputError: names the layers that exist.
        """
        depth = len(backbone.blocks)
        for layer in self.layers:
            if not FINAL_NORM <= layer <= depth:
                raise InputError(
                    f"layer={layer}: this model has 0 (the embedding), 1 to {depth} (the stream "
                    f"after a block) and {FINAL_NORM} (the output of the final norm)"
                )

    def on(self, device: torch.device) -> Self:
        """The same choices, with what suits a device in place of "auto"."""
        if self.batch_bases != AUTO:
            return self
        return replace(self, batch_bases=_AUTO_BATCH_BASES[device.type])

    def describe(self) -> str:
        """The choices in one line."""
        named = ", ".join(map(str, self.layers))
        layers = f"layer {named}" if len(self.layers) == 1 else f"layers {named}"
        return f"{layers}, pooling {self.pooling}, strand {self.strand}"


DEFAULTS = EmbeddingOptions()
