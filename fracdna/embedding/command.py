"""`fracdna embed`: regions of a genome to a file of hidden states."""

import contextlib
import hashlib
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from fracdna.devices import choose_device
from fracdna.embedding.annotated import write_annotated
from fracdna.embedding.arrays import write_arrays
from fracdna.embedding.block_run import BlockRun, Workplaces
from fracdna.embedding.options import EmbeddingOptions
from fracdna.embedding.output import Results, check_output
from fracdna.embedding.region_states import describe_row
from fracdna.embedding.regions import (
    Regions,
    is_sequence_file,
    place_regions,
    read_regions,
    whole_records,
)
from fracdna.embedding.rows import Rows
from fracdna.embedding.table import write_table
from fracdna.genome import open_genome
from fracdna.model.checkpoint import load_model
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import FINE, ROW_PROBLEMS, NotFinite
from fracdna.provenance import provenance
from fracdna.resumable import unfinished_folder
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.option_checks import check_whole_number
from fracdna_prep.wording import counted

_SHOWN = 10


@dataclass(frozen=True)
class _Job:
    """Everything that a run needs, opened and checked."""

    options: EmbeddingOptions
    model: LanguageModel
    store: GenomeStore
    regions: Regions
    places: Workplaces
    output: Path
    dtype: str
    metadata: dict[str, Any]


def run(config: DictConfig) -> int:
    """Run `fracdna embed`.

    Everything that can be refused is refused before the first pass of the model. A run that is
    interrupted keeps its finished batches beside the output; the same command goes on from them.

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
        folder = stack.enter_context(unfinished_folder(job.output))
        rows = Rows.of_regions(job.regions, job.store, job.options)
        work = BlockRun(job.model, rows, job.places, folder, _identity(job))
        _announce(job, work)
        positions, left = work.positions, len(rows.reads) - work.resumed
        started = time.perf_counter()
        try:
            values = work.run(progress=config.progress)
        except NotFinite as error:
            work.forget()
            raise NotFinite(
                f"{describe_row(job.regions, error.row)}; nothing was written: check the weights "
                f"of {config.checkpoint}, or compute with precision=float32",
                error.row,
            ) from None
        seconds = time.perf_counter() - started
        _write(job, rows, values)
        work.forget()
    _summarize(job, rows, f"{left / seconds:,.1f} rows/s, {positions / seconds:,.0f} bases/s")
    return ROW_PROBLEMS if job.regions.problems else FINE


def _open(config: DictConfig, stack: contextlib.ExitStack) -> _Job:
    """Check options, then open the checkpoint, then the genome: the cheapest refusal first."""
    chosen = OmegaConf.to_container(config, resolve=True)
    options = _options(chosen)
    for name, what in (
        ("checkpoint", "a file of `fracdna train`, or weights that were exported"),
        ("regions", "a BED, a FASTA or regions such as chr1:1-2000"),
        ("output", "a file"),
    ):
        if chosen[name] is None:
            raise InputError(f"{name}= is missing: name {what}")
    if not isinstance(chosen["checkpoint"], str):
        raise InputError(f"checkpoint={chosen['checkpoint']}: name one checkpoint, not several")
    output = check_output(chosen["output"], options, chosen["dtype"])
    devices = _devices(chosen, options.precision)
    options = options.on(devices[0])
    model = load_model(config.checkpoint, devices[0])
    options.check_layer(model.backbone)
    store, regions = _open_regions(chosen, stack)
    metadata = _metadata(chosen, options, model, store, devices[0])
    places = Workplaces(chosen["checkpoint"], devices)
    return _Job(options, model, store, regions, places, output, chosen["dtype"], metadata)


def _options(chosen: dict[str, Any]) -> EmbeddingOptions:
    """The choices that the numbers depend on, checked; a single layer stands alone."""
    layers = tuple(chosen["layer"])
    named = {name: chosen[name] for name in asdict(EmbeddingOptions())}
    options = EmbeddingOptions(**named | {"layer": layers[0] if len(layers) == 1 else layers})
    options.check()
    check_whole_number("flank", chosen["flank"], 0)
    check_whole_number("devices", chosen["devices"], 1)
    return options


def _devices(chosen: dict[str, Any], precision: str) -> list[torch.device]:
    """One for each process; several on a CPU share its cores."""
    device, count = choose_device(chosen["device"], precision), chosen["devices"]
    if count == 1 or device.type == "cpu":
        return [device] * count
    if device.index is not None:
        raise InputError(f"device={device} is one device: devices={count} goes with device=cuda")
    return [choose_device(f"cuda:{index}", precision) for index in range(count)]


def _identity(job: _Job) -> dict[str, Any]:
    """What the vectors depend on, by content: the same files elsewhere are gone on with too."""
    places = ("checkpoint", "genome", "regions", "rename", "dtype")
    about = {name: value for name, value in job.metadata.items() if name not in places}
    regions = job.regions
    pairs = zip(regions.intervals, regions.windows, strict=True)
    text = "\n".join(f"{interval} {window}" for interval, window in pairs)
    return about | {"rows": hashlib.sha256(text.encode() + regions.usable.tobytes()).hexdigest()}


def _open_regions(
    chosen: dict[str, Any], stack: contextlib.ExitStack
) -> tuple[GenomeStore, Regions]:
    """The genome and the regions on it; the records of a FASTA are a genome of their own."""
    regions, progress, flank = chosen["regions"], chosen["progress"], chosen["flank"]
    if isinstance(regions, str) and Path(regions).is_file() and is_sequence_file(Path(regions)):
        if chosen["genome"] is not None:
            raise InputError(
                f"regions={regions} holds sequences, each a region of its own: leave out genome=, "
                "or give regions as BED or region strings"
            )
        if flank:
            raise InputError(
                f"flank={flank}: the sequences of {regions} have no bases beside them: leave out "
                "flank=, or give regions of a genome"
            )
        folder = chosen["store"]
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "genome"
        store = GenomeStore.build(regions, folder, progress=progress)
        asked = whole_records(store)
    else:
        asked = read_regions(regions if isinstance(regions, list) else str(regions))
        store = open_genome(chosen["genome"], chosen["store"], progress)
    return store, place_regions(asked, store.contigs, chosen["rename"], flank)


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
        "flank": chosen["flank"],
        "dtype": chosen["dtype"],
        "compute_dtype": options_used.pop("precision"),
        **options_used,
    }


def _write(job: _Job, rows: Rows, values: np.ndarray) -> None:
    """The file of the kind that the name of the output asks for."""
    results = Results(job.regions, job.store, rows.offsets, values, job.options.layers)
    if job.output.suffix == ".parquet":
        write_table(job.output, results, job.metadata)
    elif job.output.suffix == ".h5ad":
        write_annotated(job.output, results, job.metadata)
    else:
        for name, error in write_arrays(job.output, results, job.metadata, job.dtype).items():
            print(f"{name} is float16 on request: the largest difference to float32 is {error:.2g}")


def _announce(job: _Job, work: BlockRun) -> None:
    """Say what is about to be computed, defaults included."""
    about = job.metadata
    flanks = f"; flanks of {about['flank']:,} bases" if about["flank"] else ""
    processes = len(job.places.devices)
    several = f" in {processes} processes" if processes > 1 else ""
    print(
        f"{counted(len(job.regions), 'region')}, {job.regions.bases:,} bases; "
        f"{job.options.describe()}{flanks}; {about['compute_dtype']} on {about['device']}"
        f"{several}; segments of {about['segment']:,} bases"
    )
    if work.resumed:
        print(f"{counted(work.resumed, 'row')} of an interrupted run: not computed again")


def _summarize(job: _Job, rows: Rows, rate: str) -> None:
    """Say what came out, and every kind of problem with its first rows."""
    vectors, layers, width = rows.shape(job.model.backbone.d_model)
    each = f"{width} values" if layers == 1 else f"{layers} layers of {width} values"
    what = counted(vectors, "base") if job.options.per_base else counted(vectors, "row")
    print(f"{job.output}: {what} of {each}, {rate}")
    problems = job.regions.problems
    shifted = sum(status.startswith("shifted") for status in job.regions.statuses)
    if shifted:
        print(f"  {counted(shifted, 'row')} shifted: the flanks moved inside the contig")
    for row in problems[:_SHOWN]:
        print(f"  row {row} ({job.regions.intervals[row]}): {job.regions.statuses[row]}")
    if len(problems) > _SHOWN:
        print(f"  ... {len(problems):,} rows with problems, see the column `status`")
