"""Training of small models on synthetic tasks.

A loop of its own, and not the Trainer of `fracdna train`: samples are made where they are used, a
step at this size takes the device milliseconds, and Lightning's hooks, windows and checkpoints
would take longer than the step. Optimizer, schedule and CUDA graphs are those of `fracdna train`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from fracdna.benchmarks.examples import Examples, ExampleSource, nll_at, numbers_from
from fracdna.data.objectives import IGNORED
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna.training.graphs import GraphedPass
from fracdna.training.optimizer import build_optimizer, warmup_cosine

BETAS = (0.9, 0.95)
AHEAD = 16  # steps whose samples are made together, and after which losses are looked at


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        rate: learning rate.
        seed: of initial weights and samples.
        steps: of the optimizer.
        batch: sequences of a step.
        weight_decay: on matrices only.
        warmup: share of the steps with a linear rise of the rate.
        final: factor on the rate at the last step, which a cosine leads to.
        clip: largest norm of a gradient.
        epochs: in place of rise and cosine, the rate falls by one of so many equal steps after
            each of so many equal parts of the run, to 0 at its end; None: it does not.
    """

    rate: float
    seed: int
    steps: int
    batch: int
    weight_decay: float
    warmup: float
    final: float
    clip: float
    epochs: int | None = None

    def factor(self, step: int) -> float:
        """On the learning rate, at a step from 0."""
        if self.epochs is not None:
            return 1 - step * self.epochs // self.steps / self.epochs
        return warmup_cosine(step, steps=self.steps, warmup=self.warmup, final=self.final)


def train_small(
    model: LanguageModel,
    source: ExampleSource,
    recipe: Recipe,
    precision: torch.dtype,
    advance: Callable[[int], object],
) -> list[float]:
    """Train a model where it is.

    Args:
        model: trained in place; left in evaluation mode.
        source: of samples that are never seen twice.
        recipe: see Recipe.
        precision: of the computation; parameters are float32.
        advance: told of positions that were read.

    Returns:
        The loss of every step, in nats.

    Raises:
        NotFinite: a loss is NaN or infinite; names the first step and its samples.
    """
    device = next(model.parameters()).device
    low = {"device_type": device.type, "dtype": precision, "enabled": precision != torch.float32}
    optimizer = build_optimizer(
        model, partial(torch.optim.AdamW, lr=recipe.rate, betas=BETAS, fused=True),
        recipe.weight_decay,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.factor)
    compute = partial(_loss, model)
    if device.type == "cuda":
        compute = GraphedPass(compute, model.parameters())
    model.train()
    losses: list[float] = []
    for batches in _batches(source, recipe, device):
        found = []
        for batch in batches:
            with torch.autocast(**low):
                (loss,) = compute(batch)
            loss.backward()
            clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=False)  # a graph adds to the same tensors again
            found.append(loss.detach())
        losses += torch.stack(found).tolist()
        _check(losses, len(found), recipe)
        advance(len(found) * recipe.batch * source.length)
    model.eval()
    return losses


def _loss(model: LanguageModel, batch: dict[str, Tensor]) -> tuple[Tensor]:
    """Nats per answer."""
    examples = Examples(**batch)
    nll, _ = nll_at(model, model.backbone(examples.ids), examples)
    return (nll.sum() / (examples.targets != IGNORED).sum(),)


def _batches(
    source: ExampleSource, recipe: Recipe, device: torch.device
) -> Iterator[list[dict[str, Tensor]]]:
    """The samples of all steps, several steps at a time."""
    for step in range(0, recipe.steps, AHEAD):
        count = min(AHEAD, recipe.steps - step)
        numbers = numbers_from(step * recipe.batch, count * recipe.batch, device)
        examples = source.examples("train", recipe.seed, numbers)
        parts = zip(*(part.split(recipe.batch) for part in examples), strict=True)
        yield [dict(zip(Examples._fields, part, strict=True)) for part in parts]


def _check(losses: list[float], newest: int, recipe: Recipe) -> None:
    """Refuse to go on from a loss that is no number."""
    finite = torch.tensor(losses[-newest:]).isfinite()
    if not finite.all():
        step = len(losses) - newest + int(finite.logical_not().nonzero()[0])
        first = step * recipe.batch
        raise NotFinite(
            f"the loss of step {step + 1} (samples {first} to {first + recipe.batch - 1}) is NaN "
            "or infinite: lower the learning rate",
            first,
        )


@torch.inference_mode()
def validation_nll(
    model: LanguageModel,
    source: ExampleSource,
    count: int,
    precision: torch.dtype,
    batch_positions: int,
    seed: int = 0,
) -> float:
    """Nats of an answer, in the mean over those of fresh samples of the training length.

    Args:
        model: the network.
        source: of samples.
        count: of them.
        precision: of the computation.
        batch_positions: most positions of one pass.
        seed: of validation data.
    """
    device = next(model.parameters()).device
    nats, answers, batch = 0.0, 0, max(1, batch_positions // source.length)
    for first in range(0, count, batch):
        numbers = numbers_from(first, min(batch, count - first), device)
        examples = source.examples("valid", seed, numbers)
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            hidden = model.backbone(examples.ids)
        nats += float(nll_at(model, hidden, examples)[0].double().sum())
        answers += int((examples.targets != IGNORED).sum())
    return nats / answers
