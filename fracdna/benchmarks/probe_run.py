"""One run of a synthetic benchmark: a small model, trained, validated and tested.

Its folder holds model.safetensors (with its JSON) once it is trained, samples.parquet while it is
tested, and result.json, the mark that all is there.
"""

import hashlib
import json
import re
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fracdna.benchmarks.examples import ExampleSource
from fracdna.benchmarks.small_training import Recipe, train_small, validation_nll
from fracdna.benchmarks.stream_reading import Reading
from fracdna.devices import choose_precision
from fracdna.model.checkpoint import build_model, load_model, save_weights
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna.provenance import training_facts
from fracdna_prep.files import atomic_file

FORMAT = 1  # of runs: what is computed otherwise since gets another number
FINE = "fine"
KEEP_EVERY = 30.0  # seconds, that a test may lose
Columns = dict[str, np.ndarray]
Advance = Callable[[int], object]


class ModelTest(Protocol):
    """What a task asks of a trained model; a frozen dataclass, whose fields say what is tested."""

    task: ExampleSource

    @property
    def variant(self) -> dict[str, Any]:
        """What tells it from the other tests of the same benchmark."""

    @property
    def positions(self) -> int:
        """Positions that a model reads in it."""

    def run(
        self,
        model: LanguageModel,
        reading: Reading,
        done: Mapping[str, set[int]],
        advance: Advance,
    ) -> Iterator[Columns]:
        """Rows of samples, several samples at a time.

        They have at least set (samples of one kind), index, length, correct (0 to 1) and nll_nats.

        Args:
            model: in evaluation mode.
            reading: how streams are read.
            done: by set, indices that have their rows already.
            advance: told of positions that were read.
        """


@dataclass(frozen=True, eq=False)
class Run:
    """All that the numbers of a run depend on.

    Attributes:
        network: mixer and options, as they were typed.
        model: plain configuration.
        test: of the trained model; its task is trained on.
        recipe: of the training.
        validation: samples.
        precision: of the computation, by name.
    """

    network: str
    model: Mapping[str, Any]
    test: ModelTest
    recipe: Recipe
    validation: int
    precision: str

    @property
    def about(self) -> dict[str, Any]:
        """What tells it from the other runs of a sweep."""
        varied = {"learning_rate": self.recipe.rate, "seed": self.recipe.seed}
        return {"network": self.network} | self.test.variant | varied

    @property
    def name(self) -> str:
        """Its folder: for people, and by a hash of all that the numbers depend on."""
        parts = [self.model, type(self.test).__name__, asdict(self.test), asdict(self.recipe)]
        facts = json.dumps([FORMAT, *parts, self.validation, self.precision], sort_keys=True)
        words = "-".join(str(value) for value in self.about.values())
        key = hashlib.sha256(facts.encode()).hexdigest()[:12]
        return f"{re.sub(r'[^-.,=a-zA-Z0-9]+', '_', words)[:120]}-{key}"

    @property
    def training_positions(self) -> int:
        """Positions that are read in training."""
        return self.recipe.steps * self.recipe.batch * self.test.task.length

    @property
    def positions(self) -> int:
        """Positions that are read in training and test."""
        return self.training_positions + self.test.positions


@dataclass(frozen=True)
class Place:
    """Where and how runs are computed, which does not change what they find.

    Attributes:
        folder: of the runs' folders.
        device: by name.
        reading: of test streams.
    """

    folder: Path
    device: str
    reading: Reading


def finished(run: Run, folder: Path) -> dict[str, Any] | None:
    """The result of a run that is complete; None: it is still to be computed, or gone on with."""
    try:
        result = json.loads((folder / run.name / "result.json").read_text())
    except (OSError, ValueError):
        return None
    return result if result.get("complete") else None


def read_samples(run: Run, folder: Path) -> pa.Table:
    """Rows of the test of a run, so far; none where there are none."""
    path = folder / run.name / "samples.parquet"
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid):  # not there, or not readable: computed again
        return pa.table({})


def execute(run: Run, place: Place, advance: Advance) -> dict[str, Any]:
    """Train, validate and test, or go on with what an interruption has left.

    Args:
        run: not finished yet.
        place: see Place.
        advance: told of positions that were read.

    Returns:
        What result.json holds; a run whose numbers are not finite says so in its status.
    """
    folder, device = place.folder / run.name, torch.device(place.device)
    folder.mkdir(parents=True, exist_ok=True)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    result: dict[str, Any] = run.about | {"status": FINE}
    try:
        model = _trained(run, folder, device, advance)
        trained = training_facts(folder / "model.safetensors")
        result |= {name: value for name, value in trained.items() if name not in result}
        result |= _sizes(model)
        result["validation_nll"] = validation_nll(
            model, run.test.task, run.validation, choose_precision(run.precision),
            place.reading.batch_positions,
        )  # fmt: skip
        started = time.monotonic()
        result["tested_rows"] = _test(run, place, model, advance)
        result["test_seconds"] = time.monotonic() - started
    except NotFinite as error:
        result["status"] = str(error)
    result |= {"peak_memory_bytes": _peak_memory(device), "complete": True}
    with atomic_file(folder / "result.json") as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n")
    return result


def _trained(run: Run, folder: Path, device: torch.device, advance: Advance) -> LanguageModel:
    """The trained model, opened where an earlier call has left it."""
    path = folder / "model.safetensors"
    if path.exists() and path.with_suffix(".json").exists():
        return load_model(path, device)
    torch.manual_seed(run.recipe.seed)
    model = build_model(run.model).to(device)
    started = time.monotonic()
    losses = train_small(model, run.test.task, run.recipe, choose_precision(run.precision), advance)
    if not all(weight.isfinite().all() for weight in model.state_dict().values()):
        raise NotFinite("a weight is NaN or infinite after the last step: lower the learning rate")
    seconds = time.monotonic() - started
    about = {
        "training_length": run.test.task.length,
        "training_positions": run.training_positions,
        "training_seconds": seconds,
        "last_loss": sum(losses[-20:]) / len(losses[-20:]),
        "losses": [round(loss, 5) for loss in losses[:: max(1, len(losses) // 200)]],
    }
    save_weights(model, path, dtype=torch.float32, about=run.about | about)
    return model


def _sizes(model: LanguageModel) -> dict[str, int]:
    """Parameters and state."""
    embedding = model.backbone.embedding.weight.numel()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {
        "parameters": parameters,
        "parameters_without_embedding": parameters - embedding,
        "state_scalars": model.backbone.state_size(),
    }


def _test(run: Run, place: Place, model: LanguageModel, advance: Advance) -> int:
    """Add the rows that are missing to samples.parquet; the number of all."""
    table, written = read_samples(run, place.folder), time.monotonic()
    done: dict[str, set[int]] = {}
    if table.num_rows:
        for name, index in zip(table["set"].to_pylist(), table["index"].to_pylist(), strict=True):
            done.setdefault(name, set()).add(index)
    found = [table] if table.num_rows else []
    try:
        for columns in run.test.run(model, place.reading, done, advance):
            found.append(pa.table(columns))
            if time.monotonic() - written > KEEP_EVERY:
                found = [_write_samples(run, place, found)]
                written = time.monotonic()
    finally:
        if found:
            found = [_write_samples(run, place, found)]
    return sum(part.num_rows for part in found)


def _write_samples(run: Run, place: Place, parts: list[pa.Table]) -> pa.Table:
    """All rows so far in one file."""
    table = pa.concat_tables(parts)
    with atomic_file(place.folder / run.name / "samples.parquet") as temporary:
        pq.write_table(table, temporary)
    return table


def _peak_memory(device: torch.device) -> int:
    """Bytes: on a GPU of tensors in this run, elsewhere of the process so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
