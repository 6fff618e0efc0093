"""Next-base pretraining as a Lightning module."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from fracdna.data.dataset import Batch
from fracdna.data.objectives import IGNORED, next_base
from fracdna.evaluation.likelihood import TokenLikelihood, token_nll
from fracdna.model.checkpoint import description
from fracdna.model.heads import LanguageModel
from fracdna.training.graphs import Pass
from fracdna.training.optimizer import build_optimizer, warmup_cosine


def batch_loss(
    model: LanguageModel, soft_mask_weight: float, batch: Batch
) -> tuple[Tensor, Tensor, Tensor]:
    """Nats of the counted bases, soft-masked ones weighed, over the positions of the batch.

    Divided by positions, not by what is counted: a base weighs the same whichever batch or device
    it falls to.

    Args:
        model: the network.
        soft_mask_weight: weight of soft-masked bases, 0 to 1.
        batch: ids (batch, length) and, where known, soft_mask (batch, length).

    Returns:
        The loss, the nats (batch, length) of all targets, unweighed, and the targets.
    """
    inputs, targets = next_base(batch["ids"])
    nll = token_nll(model(inputs), targets)
    weight = (targets != IGNORED).to(nll.dtype)
    if "soft_mask" in batch:
        weight = torch.where(batch["soft_mask"], soft_mask_weight * weight, weight)
    return (nll * weight).mean(), nll, targets


class LanguageModelling(pl.LightningModule):
    """Trains a language model on windows of ids.

    Args:
        model: the network.
        optimizer: called with parameter groups.
        weight_decay: on matrices only.
        steps: optimizer steps of the run.
        warmup: share of the steps with a rising learning rate.
        final: factor on the learning rate at the end.
        start: factor at the first step; None: an even rise from 0.
        soft_mask_weight: weight of soft-masked bases in the training loss, 0 to 1.
        recipe: plain values that a resumed run must repeat.
        graphs: called with a pass and the parameters, gives a pass to use in its place
            (fracdna.training.graphs.GraphedPass); None: the pass as it is.
        compiled: the network runs through torch.compile; names of parameters stay the same.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        optimizer: Callable[..., torch.optim.Optimizer],
        weight_decay: float,
        steps: int,
        warmup: float,
        final: float,
        start: float | None = None,
        soft_mask_weight: float = 1.0,
        recipe: dict[str, Any] | None = None,
        graphs: Callable[..., Pass] | None = None,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.build_optimizer = partial(build_optimizer, model, optimizer, weight_decay)
        self.factor = partial(warmup_cosine, steps=steps, warmup=warmup, final=final, start=start)
        self.plain_pass: Pass = partial(batch_loss, model, soft_mask_weight)
        self.training_pass = self.plain_pass
        if graphs is not None:
            self.training_pass = graphs(self.plain_pass, model.parameters())
        self.compiled = compiled
        self.recipe = recipe or {}
        self.training_likelihood = TokenLikelihood()
        # a resumed run's first row counts the steps before the interruption too
        self.training_likelihood.persistent(True)
        self.validation_likelihood = TokenLikelihood()
        self.validated_bases = 0  # counted by the newest validation

    def on_fit_start(self) -> None:
        """Compile for the shapes of this run, not for those that were tried before it.

        Each for itself: a run has few, and code for any length is slower.
        """
        if self.compiled:
            self.model.compile(dynamic=False)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a batch; its nats are added to the training likelihood."""
        loss, nll, targets = self.training_pass(batch)
        self.training_likelihood.update(nll, targets)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a batch to the validation likelihood."""
        inputs, targets = next_base(batch["ids"])
        self.validation_likelihood.update(self.model(inputs), targets)

    def on_validation_epoch_end(self) -> None:
        """Log the metric object: sums, not means, are reduced over devices, and then reset."""
        _, self.validated_bases = self.validation_likelihood.totals()
        self.log("validation/nll", self.validation_likelihood)

    def configure_optimizers(self) -> dict[str, Any]:
        """The optimizer, and a schedule that moves with every optimizer step."""
        optimizer = self.build_optimizer()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make the file one that load_model opens: plain configuration beside the weights."""
        checkpoint["fracdna"] = description(self.model) | {"recipe": self.recipe}
