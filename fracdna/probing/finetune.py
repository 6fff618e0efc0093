"""Fine-tuning: a network and a linear head are trained, and the best epoch by validation counts."""

import copy
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, EarlyStopping
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from tqdm import tqdm

from fracdna.embedding.options import EQUIVARIANT, FINAL_NORM, EmbeddingOptions
from fracdna.embedding.pooling import Pool
from fracdna.embedding.reads import Read
from fracdna.embedding.states import padded
from fracdna.model.backbone import Backbone
from fracdna.model.checkpoint import model_hash
from fracdna.outcomes import NotFinite
from fracdna.probing.job import Job
from fracdna.probing.kept import Kept, key_of
from fracdna.probing.labelled import LabelledSet
from fracdna.probing.linear import Division
from fracdna.probing.networks import Network
from fracdna.probing.rows import DEV, TEST, TRAIN
from fracdna.training.engine import quiet_lightning
from fracdna.training.optimizer import build_optimizer, warmup_cosine
from fracdna.training.saving import BestCheckpoint, Interrupted, KeepLast, RandomState
from fracdna_prep.errors import InputError
from fracdna_prep.files import writing_refusals
from fracdna_prep.progress import progress_bar

_WARMUP, _FINAL = 0.1, 0.1  # shares of the steps with a rising rate, and of the rate at the end
_CLIP = 1.0
_MONITORED = "validation/nll"


class Run(NamedTuple):
    """One training of one network.

    Attributes:
        network: with its weights before training.
        seed: of the rows held out, the head's initial weights and the order of rows.
        rate: full learning rate.
        about: all that its numbers depend on, in plain values.
    """

    network: Network
    seed: int
    rate: float
    about: dict[str, Any]


class Tuned(NamedTuple):
    """What a training came to.

    Attributes:
        probabilities: (test rows, classes) of the best epoch.
        nll: nats per validation row after each epoch.
    """

    probabilities: np.ndarray
    nll: np.ndarray


def fine_tune(job: Job) -> dict[str, tuple[np.ndarray, dict[str, Any]]]:
    """Train every network with every seed and learning rate; validation chooses rate and epoch.

    Returns:
        By network: probabilities (seeds, test rows, classes) and what was chosen, in plain values.

    Raises:
        InputError: sequences that are longer than one pass.
        NotFinite: no learning rate of a seed gave a finite validation.
    """
    longest = max(map(len, job.data.sequences))
    if longest > job.options.embedding.segment:
        raise InputError(
            f"method=finetune reads sequences whole, and one has {longest:,} bases: raise segment= "
            "where memory allows it, or use method=linear"
        )
    quiet_lightning()
    kept = Kept(job.output / "fits")
    runs = [
        _run(job, network, seed, rate)
        for network in job.networks
        for seed in job.options.seeds
        for rate in job.options.learning_rates
    ]
    rows = job.options.epochs * len(job.data.where(TRAIN))
    tuned: dict[tuple[str, int], list[Tuned]] = {}
    with progress_bar(rows * len(runs), "fine-tuning", job.progress, unit="row") as bar:
        for number, run in enumerate(runs, 1):
            content = kept.read(run.about)
            found = _train(job, run, kept, bar) if content is None else Tuned(**content)
            tuned.setdefault((run.network.name, run.seed), []).append(found)
            # an early stop leaves rows of its share
            bar.update(number * rows - bar.n)
    names = [network.name for network in job.networks]
    return {name: _best(job, [tuned[name, seed] for seed in job.options.seeds]) for name in names}


def _run(job: Job, network: Network, seed: int, rate: float) -> Run:
    """A training with all that its numbers depend on."""
    options = job.options
    about = {
        "finetune": model_hash(network.model),
        "set": job.data.digest(),
        "device": job.device.type,
        "seed": seed,
        "rate": rate,
        "epochs": options.epochs,
        "patience": options.patience,
        "batch_size": options.batch_size,
        "weight_decay": options.weight_decay,
        **asdict(options.embedding),
    }
    return Run(network, seed, rate, about)


def _best(job: Job, by_seed: Sequence[list[Tuned]]) -> tuple[np.ndarray, dict[str, Any]]:
    """The rate of each seed whose best epoch has the least validation; of equal ones the first."""
    chosen = [min(tuned, key=lambda one: one.nll.min()) for tuned in by_seed]
    for seed, best in zip(job.options.seeds, chosen, strict=True):
        if not math.isfinite(best.nll.min()):
            raise NotFinite(
                f"seed {seed}: every learning rate of {list(job.options.learning_rates)} diverged: "
                "give smaller ones with learning_rates="
            )
    places = [
        next(n for n, one in enumerate(tuned) if one is best)
        for tuned, best in zip(by_seed, chosen, strict=True)
    ]
    choices = {
        "learning_rate": [job.options.learning_rates[place] for place in places],
        "epoch": [int(best.nll.argmin()) + 1 for best in chosen],
        "validation_nll": [[one.nll.tolist() for one in tuned] for tuned in by_seed],
    }
    return np.stack([best.probabilities for best in chosen]), choices


def _train(job: Job, run: Run, kept: Kept, bar: tqdm) -> Tuned:
    """Train, or go on, to the end; what is kept then takes the place of the checkpoints."""
    folder = kept.folder / f"{key_of(run.about)}.running"
    last = folder / "last.ckpt"
    pl.seed_everything(run.seed, verbose=False)
    module = FineTuning(job, run)
    best = BestCheckpoint(
        folder,
        "best",
        monitor=_MONITORED,
        save_on_train_epoch_end=False,
        enable_version_counter=False,
    )
    trainer = _trainer(job, module, [best, _KeepEpoch(last), _Shown(bar)])
    try:
        with writing_refusals(folder):
            folder.mkdir(parents=True, exist_ok=True)
            resumed = last if last.is_file() else None
            # a checkpoint holds plain values only, so it is opened as data, never as code
            trainer.fit(module, ckpt_path=resumed, weights_only=True)
    except Interrupted:
        raise KeyboardInterrupt from None
    content = torch.load(best.best_model_path, map_location="cpu", weights_only=True)
    module.load_state_dict(content["state_dict"])
    module.to(job.device)
    tuned = Tuned(module.probabilities(job.data.where(TEST)), np.array(module.history))
    kept.write(run.about, tuned._asdict())
    shutil.rmtree(folder)
    return tuned


def _trainer(job: Job, module: "FineTuning", callbacks: list[Callback]) -> pl.Trainer:
    """Lightning's engine on the device of the probe."""
    cuda = job.device.type == "cuda"
    half = job.options.embedding.precision == "bf16"
    # when validation ends, because that is where a resumed run begins
    stopping = EarlyStopping(
        _MONITORED, patience=job.options.patience, check_on_train_epoch_end=False
    )
    return pl.Trainer(
        accelerator="gpu" if cuda else "cpu",
        devices=[job.device.index or 0] if cuda else 1,
        precision="bf16-mixed" if half else "32-true",
        max_epochs=job.options.epochs,
        accumulate_grad_batches=module.accumulate,
        gradient_clip_val=_CLIP,
        num_sanity_val_steps=0,
        reload_dataloaders_every_n_epochs=1,
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=job.output,
        # what is asked to stop comes last: it saves what the others know of this validation
        callbacks=[RandomState(), stopping, *callbacks],
    )


class Classifier(nn.Module):
    """Probabilities of classes from the pooled hidden states of one layer.

    Args:
        backbone: the network, trained with the head.
        classes: how many.
        options: layer, pooling and strand, as of `fracdna embed`.
    """

    def __init__(self, backbone: Backbone, classes: int, options: EmbeddingOptions) -> None:
        super().__init__()
        self.backbone, self.options = backbone, options
        self.head = nn.Linear(options.width(backbone.d_model), classes)

    def forward(self, sequences: Sequence[np.ndarray]) -> Tensor:
        """Logits (sequences, classes); padding on the right of a batch changes none of them."""
        reads = [Read.whole(ids).by_strand(self.options.strand) for ids in sequences]
        strands = [self._pooled(strand) for strand in zip(*reads, strict=True)]
        side_by_side = self.options.strand == EQUIVARIANT
        joined = torch.cat(strands, dim=1) if side_by_side else torch.stack(strands).mean(0)
        return self.head(joined.to(self.head.weight.dtype))

    def _pooled(self, reads: Sequence[Read]) -> Tensor:
        """(sequences, d_model) float64 of one strand."""
        device = self.head.weight.device
        kept: dict[int, Tensor] = {}
        ids = torch.from_numpy(padded([read.ids[: read.stop] for read in reads])).to(device)
        kept[FINAL_NORM] = self.backbone(ids, observe=kept.__setitem__)
        pool = Pool(self.options.pooling, reads, device)
        pool.add([kept[self.options.layer][:, 1:]], 0)
        return pool.vectors()[:, 0]


class FineTuning(pl.LightningModule):
    """Trains a classifier on one division of the training rows.

    Args:
        job: the probe.
        run: which network, seed and learning rate.
    """

    def __init__(self, job: Job, run: Run) -> None:
        super().__init__()
        data, options = job.data, job.options
        backbone = copy.deepcopy(run.network.model.backbone).train()
        self.classifier = Classifier(backbone, len(data.classes), options.embedding)
        self.data: LabelledSet = data
        self.division = Division.drawn(data.labels, data.where(TRAIN), data.where(DEV), run.seed)
        self.seed = run.seed
        self.rows_per_batch = _rows_per_batch(job)
        self.accumulate = options.batch_size // self.rows_per_batch
        algorithm = partial(torch.optim.AdamW, lr=run.rate, betas=(0.9, 0.95))
        self._optimizer = partial(build_optimizer, self.classifier, algorithm, options.weight_decay)
        steps = options.epochs * math.ceil(len(self.division.fitted) / options.batch_size)
        self._factor = partial(warmup_cosine, steps=steps, warmup=_WARMUP, final=_FINAL)
        self.history: list[float] = []  # nats per validation row after each epoch
        self._nats, self._rows = 0.0, 0

    def train_dataloader(self) -> DataLoader:
        """Positions of the fitted rows, in an order that seed and epoch say."""
        random = np.random.default_rng([self.seed, self.current_epoch])
        return _loader(random.permutation(self.division.fitted), self.rows_per_batch)

    def val_dataloader(self) -> DataLoader:
        """Positions of the rows that choose."""
        return _loader(self.division.validation, self.rows_per_batch)

    def training_step(self, positions: list[int], batch_idx: int) -> Tensor:
        """Nats over the rows of a full batch: a row weighs the same in the last, shorter one."""
        return self._loss(positions).sum() / self.rows_per_batch

    def validation_step(self, positions: list[int], batch_idx: int) -> None:
        """Add up nats and rows."""
        self._nats += float(self._loss(positions).sum(dtype=torch.float64))
        self._rows += len(positions)

    def on_validation_epoch_end(self) -> None:
        """One number of all rows."""
        nll = self._nats / self._rows
        self.history.append(nll if math.isfinite(nll) else math.inf)
        self._nats, self._rows = 0.0, 0
        self.log(_MONITORED, torch.tensor(nll, dtype=torch.float64))

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW with decay on matrices, a rise and a cosine that move with every step."""
        optimizer = self._optimizer()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Epochs behind an interruption keep their validation."""
        checkpoint["history"] = self.history

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The other way."""
        self.history = list(checkpoint["history"])

    @torch.inference_mode()
    def probabilities(self, positions: np.ndarray) -> np.ndarray:
        """(rows, classes) float64, by the weights of now."""
        self.eval()
        half = self.classifier.options.precision == "bf16"
        found = []
        for first in range(0, len(positions), self.rows_per_batch):
            batch = positions[first : first + self.rows_per_batch]
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
                logits = self.classifier([self.data.sequences[n] for n in batch])
            found.append(logits.double().softmax(1).cpu().numpy())
        return np.concatenate(found)

    def _loss(self, positions: list[int]) -> Tensor:
        """Nats of each row."""
        labels = torch.from_numpy(self.data.labels[positions]).to(self.device)
        logits = self.classifier([self.data.sequences[n] for n in positions])
        return cross_entropy(logits.float(), labels, reduction="none")


class _KeepEpoch(KeepLast):
    """The newest state after every epoch; Ctrl-C stops at once, and finished epochs are kept."""

    def _ask(self, number: int, frame: Any) -> None:
        """Leave the epoch that is under way."""
        raise Interrupted(saved=self.path.exists())


class _Shown(Callback):
    """Rows on a progress bar."""

    def __init__(self, bar: tqdm) -> None:
        self._bar = bar

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: FineTuning, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch is done."""
        self._bar.update(len(batch))


def _rows_per_batch(job: Job) -> int:
    """Rows of one pass: the most that divide a step evenly within the positions of a pass."""
    most = job.options.embedding.batch_bases // (1 + max(map(len, job.data.sequences)))
    size = job.options.batch_size
    return max(rows for rows in range(1, size + 1) if size % rows == 0 and rows <= max(most, 1))


def _loader(positions: np.ndarray, rows: int) -> DataLoader:
    """Positions by the batch, in the order given."""
    return DataLoader(positions.tolist(), batch_size=rows, collate_fn=list)
