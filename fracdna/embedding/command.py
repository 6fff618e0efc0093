"""`fracdna embed`: regions of a genome to a Parquet file of pooled hidden states."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from fracdna.devices import choose_device
from fracdna.embedding.options import EmbeddingOptions
from fracdna.embedding.region_states import embed_regions
from fracdna.embedding.regions import (
    Regions,
    is_sequence_file,
    place_regions,
    read_regions,
    whole_records,
)
from fracdna.embedding.table import write_embeddings
from fracdna.genome import open_genome
from fracdna.model.checkpoint import load_model
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import FINE, ROW_PROBLEMS, NotFinite
from fracdna.provenance import provenance
from fracdna_prep.errors import InputError
from fracdna_prep.files import check_writable, writing_refusals
from fracdna_prep.genome import GenomeStore

_SHOWN = 10
_FILLED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class _Job:
    """Everything that a run needs, opened and checked."""

    options: EmbeddingOptions
    model: LanguageModel
    store: GenomeStore
    regions: Regions
    output: Path
    metadata: dict[str, Any]


def run(config: DictConfig) -> int:
    """Run `fracdna embed`.

    Everything that can be refused is refused before the first pass of the model.

    Args:
        config: the composed configuration of configs/embed.yaml.

    Returns:
        0; 1 where a region was dropped or clipped.

    Raises:
        InputError: unusable inputs or options.
        NotFinite: a vector that is NaN or infinite; nothing is written.
    """
    with contextlib.ExitStack() as stack:
        job = _open(config, stack)
        _announce(job)
        vectors = stack.enter_context(_scratch_array(job))
        started = time.perf_counter()
        try:
            embed_regions(
                job.model, job.store, job.regions, job.options,
                out=vectors, progress=config.progress,
            )  # fmt: skip
        except NotFinite as error:
            raise NotFinite(
                f"{error}; nothing was written: check the weights of {config.checkpoint}, or "
                "compute with precision=float32",
                error.row,
            ) from None
        seconds = time.perf_counter() - started
        write_embeddings(job.output, job.regions, job.store, vectors, job.metadata)
    _summarize(job, seconds)
    return ROW_PROBLEMS if job.regions.problems else FINE


def _open(config: DictConfig, stack: contextlib.ExitStack) -> _Job:
    """Check options, then open the checkpoint, then the genome: the cheapest refusal first."""
    chosen = OmegaConf.to_container(config, resolve=True)
    options = EmbeddingOptions(**{name: chosen[name] for name in asdict(EmbeddingOptions())})
    options.check()
    for name, what in (
        ("checkpoint", "a file of `fracdna train`, or weights that were exported"),
        ("regions", "a BED, a FASTA or regions such as chr1:1-2000"),
        ("output", "a Parquet file"),
    ):
        if chosen[name] is None:
            raise InputError(f"{name}= is missing: name {what}")
    if not isinstance(chosen["checkpoint"], str):
        raise InputError(f"checkpoint={chosen['checkpoint']}: name one checkpoint, not several")
    output = _output_path(config.output)
    device = choose_device(config.device, options.precision)
    model = load_model(config.checkpoint, device)
    options.check_layer(model.backbone)
    store, regions = _open_regions(chosen, stack)
    metadata = _metadata(chosen, options, model, store, device)
    return _Job(options, model, store, regions, output, metadata)


def _output_path(output: str) -> Path:
    """The absolute path of the table, if it can be written."""
    path = Path(output).absolute()
    if path.suffix != ".parquet" or path.is_dir():
        raise InputError(f"output={output}: the table is a Parquet file, name it so: x.parquet")
    # the folder: the table itself is renamed into place, also over an older one
    check_writable(path.parent)
    return path


def _open_regions(
    chosen: dict[str, Any], stack: contextlib.ExitStack
) -> tuple[GenomeStore, Regions]:
    """The genome and the regions on it; the records of a FASTA are a genome of their own."""
    regions, progress = chosen["regions"], chosen["progress"]
    if isinstance(regions, str) and Path(regions).is_file() and is_sequence_file(Path(regions)):
        if chosen["genome"] is not None:
            raise InputError(
                f"regions={regions} holds sequences, each a region of its own: leave out genome=, "
                "or give regions as BED or region strings"
            )
        folder = chosen["store"]
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "genome"
        store = GenomeStore.build(regions, folder, progress=progress)
        asked = whole_records(store)
    else:
        asked = read_regions(regions if isinstance(regions, list) else str(regions))
        store = open_genome(chosen["genome"], chosen["store"], progress)
    return store, place_regions(asked, store.contigs, chosen["rename"])


def _metadata(
    chosen: dict[str, Any],
    options: EmbeddingOptions,
    model: LanguageModel,
    store: GenomeStore,
    device: torch.device,
) -> dict[str, Any]:
    """What the vectors are, in plain values."""
    options_used = asdict(options)
    return {
        "format": "fracdna embeddings 1",
        **provenance(model, chosen["checkpoint"], store, device),
        "regions": chosen["regions"],
        "rename": chosen["rename"],
        "compute_dtype": options_used.pop("precision"),
        **options_used,
    }


@contextlib.contextmanager
def _scratch_array(job: _Job) -> Iterator[np.ndarray]:
    """(regions, d_model) float32 of NaN in a nameless file beside the output.

    A file, because the vectors of millions of regions need not fit in memory; nameless, so that
    nothing is left of it however the run ends.
    """
    shape = (len(job.regions), job.model.backbone.d_model)
    folder = job.output.parent
    with contextlib.ExitStack() as stack:
        with writing_refusals(job.output):
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
            _fill(file, 4 * shape[0] * shape[1])
        yield np.memmap(file, dtype=np.float32, mode="r+", shape=shape)


def _fill(file: BinaryIO, size: int) -> None:
    """Write `size` bytes of NaN: a full disk then says so, where a mapped hole would crash."""
    nan = np.full(min(size, _FILLED_AT_ONCE) // 4, np.nan, dtype=np.float32).tobytes()
    for start in range(0, size, len(nan)):
        file.write(nan[: size - start])
    file.flush()


def _announce(job: _Job) -> None:
    """Say what is about to be computed, defaults included."""
    about = job.metadata
    print(
        f"{len(job.regions):,} regions, {job.regions.bases:,} bases; {job.options.describe()}; "
        f"{about['compute_dtype']} on {about['device']}; segments of {about['segment']:,} bases"
    )


def _summarize(job: _Job, seconds: float) -> None:
    """Say what came out, and every kind of problem with its first rows."""
    rows, width = len(job.regions), job.model.backbone.d_model
    print(
        f"{job.output}: {rows:,} rows of {width} values, {rows / seconds:,.1f} rows/s, "
        f"{job.regions.bases / seconds:,.0f} bases/s"
    )
    problems = job.regions.problems
    for row in problems[:_SHOWN]:
        print(f"  row {row} ({job.regions.intervals[row]}): {job.regions.statuses[row]}")
    if len(problems) > _SHOWN:
        print(f"  ... {len(problems):,} rows with problems, see the column `status`")
