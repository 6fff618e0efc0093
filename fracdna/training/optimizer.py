"""Which parameters decay, and how the learning rate moves over the true steps of a run."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fracdna.mixers.mixer import Mixer
from fracdna_prep.errors import InputError


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


def warmup_cosine(
    step: int, *, steps: int, warmup: float, final: float, start: float | None = None
) -> float:
    """Factor on the learning rate for one optimizer step.

    Args:
        step: optimizer steps taken before it.
        steps: steps of the whole run.
        warmup: share of the run with a linear rise.
        final: factor that the cosine reaches at the last step.
        start: factor of the first step, from which the first one after the warm-up is reached;
            None: the rise is even from 0 on, and its last step has the full rate.
    """
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising if start is None else start + (1 - start) * step / rising
    progress = (step - rising) / max(steps - 1 - rising, 1)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def schedule_factors(schedule: Mapping[str, Any], rate: float) -> tuple[float | None, float]:
    """First and last factor on the learning rate, from options that may be learning rates.

    Args:
        schedule: start_lr and final_lr, learning rates or None, and final, a factor.
        rate: the full learning rate.

    Raises:
        InputError: a learning rate above the full one.
    """
    factors = {}
    for name in ("start_lr", "final_lr"):
        value = schedule[name]
        if value is not None and value > rate:
            raise InputError(
                f"schedule.{name}={value} is above optimizer.lr={rate}, to which the rate rises "
                "and from which it falls: lower the one or raise the other"
            )
        # a rate of 0 stays 0 whatever it is multiplied by
        factors[name] = value if value is None else value / rate if rate else 0.0
    final = factors["final_lr"]
    return factors["start_lr"], schedule["final"] if final is None else final
