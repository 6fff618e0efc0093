"""Every experiment trains every mixer: a few steps through its own configuration and module."""

import pytest
import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from models import MIXERS
from omegaconf import OmegaConf
from torch.utils.data import DataLoader

from fracdna.configuration import compose_configuration, configs_folder
from fracdna.model.checkpoint import build_model
from fracdna.training.language_modelling import LanguageModelling
from fracdna_prep.vocabulary import DNA

EXPERIMENTS = sorted(path.stem for path in (configs_folder() / "experiment").glob("*.yaml"))
STEPS, LENGTH, ROWS = 5, 32, 2
# all other numbers are those of the experiment
SCALE = [f"data.length={LENGTH}", f"data.bases_per_step={ROWS * LENGTH}", f"steps={STEPS}"]
# bf16 keeps 8 bits: of a loss before any step, and of one that two steps have moved
START, AFTER = 2e-3, 5e-2
MOTIF = "GATTACAGCT"


class Losses(pl.Callback):
    """The loss of every step, in nats per base."""

    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, module, outputs, *_):
        self.values.append(outputs["loss"].item())


def repeated_motif():
    """The same batch for every step: windows that start at neighbouring bases of the motif."""
    bases = torch.tensor(DNA.encode(MOTIF * (LENGTH // len(MOTIF) + 2)).tolist())
    rows = [{"ids": bases[start : start + LENGTH]} for start in range(ROWS)]
    return DataLoader(rows * STEPS, batch_size=ROWS)


def scaled_down(experiment, mixer):
    """The configuration of the experiment, with layers of every kind but no more than needed."""
    words = [f"experiment={experiment}", f"mixer={mixer}", *SCALE]
    config = compose_configuration("train", words)
    config.model.num_layers = max(2, len(config.model.mixer.get("pattern", ())))
    return config


def losses(config, precision, steps=STEPS):
    """Those of the first steps, by Lightning's engine on a CPU."""
    torch.manual_seed(config.seed)
    module = LanguageModelling(
        build_model(OmegaConf.to_container(config.model, resolve=True)),
        optimizer=instantiate(config.optimizer.algorithm, _convert_="all"),
        weight_decay=config.optimizer.weight_decay,
        steps=config.steps,
        warmup=config.schedule.warmup,
        final=config.schedule.final,
        soft_mask_weight=config.soft_mask_weight,
    )
    seen = Losses()
    pl.Trainer(
        accelerator="cpu", precision=precision, max_steps=steps,
        gradient_clip_val=config.trainer.gradient_clip_val, callbacks=[seen], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(module, repeated_motif())  # fmt: skip
    return seen.values


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`", "ignore:.*LeafSpec")
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_five_steps_lower_the_loss_and_bf16_goes_the_same_way(experiment, mixer):
    """By a fifth at least, in nats per base of a motif that repeats itself."""
    config = scaled_down(experiment, mixer)
    exact = losses(config, "32-true")
    assert len(exact) == STEPS
    assert exact[-1] < 0.8 * exact[0]
    low = losses(config, "bf16-mixed", steps=3)
    assert low[0] == pytest.approx(exact[0], rel=START)
    assert low == pytest.approx(exact[:3], rel=AFTER)
    assert low != exact[:3]
