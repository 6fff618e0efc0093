"""Which parameters decay, and how the learning rate moves over the true steps of a run."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fracdna.mixers.mixer import Mixer


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for an optimizer: decayed matrices, all that weight decay leaves alone, own rates.

    Exempt are parameters with fewer than two axes (norms, biases, gains) and those that a mixer
    names in no_weight_decay. The first two groups learn at the common rate; others follow, one for
    each decay and each factor of learning_rate_factors that there is.

    Returns:
        Groups with their parameters, "weight_decay" and "rate_factor", of the learning rate.
    """
    exempt = {p for p in module.parameters() if p.ndim < 2}
    factors: dict[nn.Parameter, float] = {}
    for part in module.modules():
        if isinstance(part, Mixer):
            exempt.update(part.get_parameter(name) for name in part.no_weight_decay)
            for name, factor in part.learning_rate_factors.items():
                factors[part.get_parameter(name)] = factor
    kinds: dict[tuple[float, bool], list[nn.Parameter]] = {(1.0, False): [], (1.0, True): []}
    for parameter in module.parameters():
        if parameter.requires_grad:
            kind = factors.get(parameter, 1.0), parameter in exempt
            kinds.setdefault(kind, []).append(parameter)
    return [
        {"params": kept, "weight_decay": 0.0 if free else weight_decay, "rate_factor": factor}
        for (factor, free), kept in kinds.items()
    ]


def build_optimizer(
    module: nn.Module, optimizer: Callable[..., torch.optim.Optimizer], weight_decay: float
) -> torch.optim.Optimizer:
    """An optimizer over parameter_groups, whose rates have their factors.

    A schedule multiplies what it finds, so the factors hold at every step; both are in the state
    that a checkpoint keeps.

    Args:
        module: whose parameters are trained.
        optimizer: called with the groups.
        weight_decay: on matrices only.
    """
    built = optimizer(parameter_groups(module, weight_decay))
    for group in built.param_groups:
        group["lr"] = group["lr"] * group["rate_factor"]
    return built


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
