"""How the memories of FRAC layers are used on DNA: orders, clocks, time scales, responses."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fracdna.benchmarks.memory_use_result import MemoryUse, layer_uses
from fracdna.benchmarks.memory_use_tally import (
    GROUPS,
    NO_GROUP,
    REPEATS,
    UNIQUE,
    LagPairs,
    LayerTally,
)
from fracdna.data.objectives import next_base
from fracdna.embedding.states import evaluating
from fracdna.mixers.frac import Frac
from fracdna.model.carried import state_grows
from fracdna.model.heads import LanguageModel
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.progress import progress_bar
from fracdna_prep.vocabulary import DNA

TARGETS = 256  # positions of a window at which the response is taken
SHORTEST = 4

Gates = tuple[Tensor, Tensor, Tensor]


def measure_memory_use(
    model: LanguageModel,
    store: GenomeStore,
    regions: Sequence[Interval],
    *,
    batch_bases: int = 65_536,
    targets: int = TARGETS,
    progress: bool = True,
) -> MemoryUse:
    """Read regions as an evaluation does, each as one window after BOS, and watch FRAC's gates.

    A base counts at the position that reads it, so the last base of a window, which is only
    predicted, does not; neither do BOS and N.

    Args:
        model: on its device.
        store: the genome.
        regions: all of one width.
        batch_bases: most bases of one forward pass. Longer windows are read in segments that carry
            the state, unless that grows with what was read, as attention's does.
        targets: evenly spaced positions of each window at which the impulse response is taken.
        progress: show a bar.

    Raises:
        InputError: no FRAC layer, regions of several widths, too short, or of N alone, or a number
            that cannot be.
        NotFinite: a layer's gates hold NaN or infinity.
    """
    layers = frac_layers(model)
    width = _checked_width(regions, batch_bases, targets)
    device = model.backbone.embedding.weight.device
    lags = LagPairs(width, targets, device)
    tallies = {number: LayerTally(mixer, lags) for number, mixer in layers.items()}
    size = max(batch_bases // width, 1)
    with evaluating(model), progress_bar(width * len(regions), "memory use", progress) as bar:
        for first in range(0, len(regions), size):
            _read(model, store, regions[first : first + size], batch_bases, tallies, bar.update)
    uses = [
        use
        for number, mixer in layers.items()
        for use in layer_uses(number, mixer, tallies[number], lags.lags)
    ]
    if not uses:
        raise InputError("the regions hold no A, C, G or T: choose others")
    return MemoryUse(width, len(regions), tuple(lags.lags.tolist()), tuple(uses))


def frac_layers(model: LanguageModel) -> dict[int, Frac]:
    """The FRAC layers of a model by their numbers, from 1.

    Raises:
        InputError: it has none.
    """
    mixers = {number: block.mixer for number, block in enumerate(model.backbone.blocks, start=1)}
    layers = {number: mixer for number, mixer in mixers.items() if isinstance(mixer, Frac)}
    if not layers:
        kinds = ", ".join(sorted({type(mixer).__name__ for mixer in mixers.values()}))
        raise InputError(
            f"this model has no FRAC layer, its mixers are {kinds}: give a checkpoint of mixer=frac"
        )
    return layers


def _checked_width(regions: Sequence[Interval], batch_bases: int, targets: int) -> int:
    """The width of all regions."""
    widths = {region.width for region in regions}
    if len(widths) != 1 or min(widths) < SHORTEST:
        raise InputError(
            f"regions of {sorted(widths)} bases: give one or more, all of one width of at least "
            f"{SHORTEST}"
        )
    for name, value in {"batch_bases": batch_bases, "targets": targets}.items():
        if value < 1:
            raise InputError(f"{name}={value} must be at least 1")
    return widths.pop()


@torch.inference_mode()
def _read(
    model: LanguageModel,
    store: GenomeStore,
    regions: Sequence[Interval],
    batch_bases: int,
    tallies: dict[int, LayerTally],
    advance: Callable[[int], Any],
) -> None:
    """One batch of windows, whole or in segments."""
    device = model.backbone.embedding.weight.device
    ids = np.stack([store.fetch(region) for region in regions])
    inputs, _ = next_base(torch.from_numpy(ids).to(device))
    masked = np.stack([store.soft_mask(region) for region in regions])
    groups = _groups(inputs, torch.from_numpy(masked).to(device))
    length = inputs.shape[1]
    in_segments = length > batch_bases and not state_grows(model)
    state = model.initial_state(len(ids)) if in_segments else None
    size = batch_bases if in_segments else length
    for start in range(0, length, size):
        segment, group = (x[:, start : start + size] for x in (inputs, groups))
        with _watched(model, tallies, group, start):
            if state is None:
                model.backbone(segment)
            else:
                _, state = model.backbone.step(segment, state)
        advance(segment.numel())
    for tally in tallies.values():
        tally.end_windows()


def _groups(inputs: Tensor, masked: Tensor) -> Tensor:
    """(batch, length) number in GROUPS of what each position reads.

    Args:
        inputs: (batch, length) ids, BOS and all bases but the last.
        masked: (batch, length) bool, where the bases are in lower case.
    """
    # the last base comes to stand at BOS, which is no base anyway
    groups = torch.where(masked.roll(1, dims=1), GROUPS.index(REPEATS), GROUPS.index(UNIQUE))
    known = (inputs >= min(DNA.bases)) & (inputs <= max(DNA.bases))
    return torch.where(known, groups, NO_GROUP)


@contextlib.contextmanager
def _watched(
    model: LanguageModel, tallies: dict[int, LayerTally], group: Tensor, start: int
) -> Iterator[None]:
    """Inside the block, tallies see what the gates of their layers are given and return."""
    mixers = {number: model.backbone.blocks[number - 1].mixer for number in tallies}
    for number, mixer in mixers.items():
        mixer.gates = partial(_tell, mixer.gates, tallies[number], group, start)
    try:
        yield
    finally:
        for mixer in mixers.values():
            del mixer.gates  # the method of its class shows again


def _tell(
    gates: Callable[[Tensor, Tensor], Gates],
    tally: LayerTally,
    group: Tensor,
    start: int,
    dynamics: Tensor,
    mixed: Tensor,
) -> Gates:
    """Frac.gates, with a witness."""
    result = gates(dynamics, mixed)
    tally.add(dynamics, result, group, start)
    return result
