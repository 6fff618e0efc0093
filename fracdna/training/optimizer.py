"""Which parameters decay, and how the learning rate moves over the true steps of a run."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fracdna.mixers.mixer import Mixer


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups for an optimizer: decayed matrices, and all that weight decay leaves alone.

    Exempt are parameters with fewer than two axes (norms, biases, gains) and those that a mixer
    names in no_weight_decay.
    """
    exempt = {p for p in module.parameters() if p.ndim < 2}
    for part in module.modules():
        if isinstance(part, Mixer):
            exempt.update(part.get_parameter(name) for name in part.no_weight_decay)
    trained = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p not in exempt], "weight_decay": weight_decay},
        {"params": [p for p in trained if p in exempt], "weight_decay": 0.0},
    ]


def build_optimizer(
    module: nn.Module, optimizer: Callable[..., torch.optim.Optimizer], weight_decay: float
) -> torch.optim.Optimizer:
    """An optimizer over parameter_groups; `optimizer` is called with them."""
    return optimizer(parameter_groups(module, weight_decay))


def warmup_cosine(step: int, *, steps: int, warmup: float, final: float) -> float:
    """Factor on the learning rate for one optimizer step.

    Args:
        step: optimizer steps taken before it.
        steps: steps of the whole run.
        warmup: share of the run with a linear rise; its last step has the full rate.
        final: factor that the cosine reaches at the last step.
    """
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    progress = (step - rising) / max(steps - 1 - rising, 1)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
