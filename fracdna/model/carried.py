"""What a model carries from one step to the next, whatever holds it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fracdna.model.backbone import Backbone
from fracdna.model.heads import LanguageModel
from fracdna_prep.vocabulary import DNA


@torch.inference_mode()
def state_grows(model: Backbone | LanguageModel) -> bool:
    """Whether what a model carries gets longer with the sequence, as a cache of keys does."""
    base = torch.full((1, 1), DNA.bos, device=next(model.parameters()).device)
    before = model.initial_state(1)
    _, after = model.step(base, before)
    sizes = [[x.shape for x in state_tensors(state)] for state in (before, after)]
    return sizes[0] != sizes[1]


def state_tensors(state: Any) -> list[Tensor]:
    """The tensors in a state, whatever holds them, always in the same order."""
    return [leaf for leaf in state_leaves(state) if isinstance(leaf, Tensor)]


def state_leaves(state: Any) -> Iterator[Any]:
    """What a nest of containers holds."""
    if isinstance(state, Mapping):
        state = list(state.values())
    if isinstance(state, Sequence) and not isinstance(state, str):
        for part in state:
            yield from state_leaves(part)
    else:
        yield state
