"""`fracdna score`: variants of a genome to a Parquet file of log-likelihood ratios, and a VCF."""

import contextlib
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from fracdna.devices import AUTO_BATCH_BASES, choose_device
from fracdna.genome import open_genome
from fracdna.model.checkpoint import load_model
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import FINE, ROW_PROBLEMS, NotFinite
from fracdna.provenance import provenance
from fracdna.resumable import output_path, unfinished_folder
from fracdna.scoring.alleles import STATUSES, Alleles, judge_alleles
from fracdna.scoring.block_run import BlockRun
from fracdna.scoring.options import ScoringOptions
from fracdna.scoring.output import Results, write_table, write_vcf
from fracdna.scoring.reference import ReferenceCheck, check_reference
from fracdna.scoring.saturation import draw_map, every_substitution, place_region
from fracdna.scoring.scores import Values
from fracdna.scoring.variants import Record, read_vcf
from fracdna.scoring.windows import Site
from fracdna_prep.compression import reading_refusals
from fracdna_prep.errors import InputError
from fracdna_prep.files import sha256_file
from fracdna_prep.genome import GenomeStore
from fracdna_prep.names import match_names, require_names, resolve_names
from fracdna_prep.option_checks import check_choice
from fracdna_prep.wording import counted

FORMAT = "fracdna scores 1"
_TABLES = {".parquet": "a table"}
_VCFS = {".vcf": "a VCF", ".vcf.gz": "bgzip", ".vcf.bgz": "bgzip"}
_SHOWN = 10


@dataclass(frozen=True)
class _Inputs:
    """What is scored, read and checked.

    Attributes:
        store: the genome.
        alleles: one row for each ALT.
        check: of their REF alleles.
        source: of the records, in words.
        sha256: of the VCF; None without one.
    """

    store: GenomeStore
    alleles: Alleles
    check: ReferenceCheck
    source: str
    sha256: str | None


@dataclass(frozen=True)
class _Job:
    """Everything that a run needs, opened and checked."""

    options: ScoringOptions
    model: LanguageModel
    inputs: _Inputs
    output: Path
    vcf: Path | None
    metadata: dict[str, Any]
    progress: bool


def run(config: DictConfig) -> int:
    """Run `fracdna score`.

    Everything that can be refused is refused before the first pass of the model. A run that is
    interrupted keeps its finished blocks beside the output; the same command goes on from them.

    Args:
        config: the composed configuration of configs/score.yaml.

    Returns:
        0; 1 where a row has another status than "ok".

    Raises:
        InputError: unusable inputs or options, or a VCF that is not of this genome.
        NotFinite: a likelihood that is NaN or infinite; nothing is written.
    """
    chosen = OmegaConf.to_container(config, resolve=True)
    job = _open(chosen)
    with contextlib.ExitStack() as held:
        folder = held.enter_context(unfinished_folder(job.output))
        if job.vcf is not None:  # a run with another table may write the same one
            held.enter_context(unfinished_folder(job.vcf))
        work = _plan(job, folder)
        _announce(job, work.finished)
        started = time.perf_counter()
        values = _values(job, work, chosen["checkpoint"])
        seconds = time.perf_counter() - started
        results = _results(job, work.sites, values)
        _write(job, results, chosen)
        work.forget()
    _summarize(job, results, work.computed, seconds)
    return FINE if results.alleles.counts().keys() <= {"ok"} else ROW_PROBLEMS


def _open(chosen: dict[str, Any]) -> _Job:
    """Check options, then open genome and variants, then the checkpoint."""
    device = choose_device(chosen["device"], chosen["precision"])
    if chosen["batch_bases"] == "auto":
        chosen["batch_bases"] = AUTO_BATCH_BASES[device.type]
    options = ScoringOptions(**{name: chosen[name] for name in asdict(ScoringOptions())})
    options.check()
    check_choice("missing_contigs", chosen["missing_contigs"], ("refuse", "skip"))
    _check_sources(chosen)
    output = output_path("output", chosen["output"], _TABLES, Path.is_file)
    vcf = None
    if chosen["vcf"] is not None:
        vcf = output_path("vcf", chosen["vcf"], _VCFS, Path.is_file)
        if Path(chosen["variants"]).resolve() == vcf.resolve():
            raise InputError(f"vcf={chosen['vcf']} is the input: name another file")
    model = load_model(chosen["checkpoint"], device)
    inputs = _open_inputs(chosen)
    metadata = _metadata(chosen, options, model, inputs, device)
    return _Job(options, model, inputs, output, vcf, metadata, chosen["progress"])


def _check_sources(chosen: dict[str, Any]) -> None:
    """Refuses what is missing, given twice or of another kind."""
    for name, what in (
        ("checkpoint", "a file of `fracdna train`, or weights that were exported"),
        ("output", "a Parquet file"),
    ):
        if not isinstance(chosen[name], str):
            given = f"={chosen[name]}" if chosen[name] is not None else "= is missing"
            raise InputError(f"{name}{given}: name {what}")
    wanted = "region" if chosen["saturation"] else "variants"
    what = {"region": "bases such as chr20:1000000-1000200", "variants": "a VCF"}
    for name, sense in what.items():
        if name == wanted and not isinstance(chosen[name], str):
            given = f"={chosen[name]}" if chosen[name] is not None else "= is missing"
            raise InputError(f"{name}{given}: name {sense}")
        if name != wanted and chosen[name] is not None:
            without = "goes with" if name == "region" else "does not go with"
            raise InputError(f"{name}={chosen[name]} {without} saturation=true")
    if chosen["vcf"] is not None and chosen["saturation"]:
        raise InputError(f"vcf={chosen['vcf']} does not go with saturation=true")


def _open_inputs(chosen: dict[str, Any]) -> _Inputs:
    """The genome and the alleles on it, REF checked against it.

    Raises:
        InputError: also where so much differs that the file must be of another genome.
    """
    if chosen["saturation"]:
        store = open_genome(chosen["genome"], chosen["store"], chosen["progress"])
        region = place_region(chosen["region"], store.contigs, chosen["rename"])
        records = every_substitution(store, region)
        contigs, source, digest = {region.chromosome: region.chromosome}, str(region), None
    else:
        path = Path(chosen["variants"])
        records, source, digest = read_vcf(path), str(path), sha256_file(path)
        store = open_genome(chosen["genome"], chosen["store"], chosen["progress"])
        contigs = _contigs(records, source, store, chosen)
    check = check_reference(records, contigs, store)
    if check.is_another_genome and not chosen["allow_mismatches"]:
        raise InputError(
            f"{source}: {check.describe()}\ncorrect the VCF or name its genome; "
            "allow_mismatches=true reports such rows and scores the others"
        )
    return _Inputs(store, judge_alleles(records, contigs, check), check, source, digest)


def _contigs(
    records: list[Record], source: str, store: GenomeStore, chosen: dict[str, Any]
) -> dict[str, str]:
    """The genome's name of each contig that records name.

    Raises:
        InputError: one that the genome lacks, unless such are to be skipped.
    """
    first: dict[str, int] = {}
    for record in records:
        first.setdefault(record.contig, record.line)
    names, rename = list(first), chosen["rename"]
    if chosen["missing_contigs"] == "skip":
        found = resolve_names(names, store.contigs, rename)
        if len(found) < len(names):
            print(match_names(names, store.contigs, rename).describe())
        return found
    places = [f"{source}:{line}" for line in first.values()]
    try:
        return dict(require_names(names, places, store.contigs, rename))
    except InputError as error:
        raise InputError(
            f"{error}\nmissing_contigs=skip reports such records and scores the others"
        ) from None


def _metadata(
    chosen: dict[str, Any],
    options: ScoringOptions,
    model: LanguageModel,
    inputs: _Inputs,
    device: torch.device,
) -> dict[str, Any]:
    """What the scores are, in plain values."""
    options_used = asdict(options)
    return {
        "format": FORMAT,
        **provenance(model, chosen["checkpoint"], inputs.store, device),
        "variants": inputs.source,
        "variants_sha256": inputs.sha256,
        "saturation": chosen["saturation"],
        "rename": chosen["rename"],
        "missing_contigs": chosen["missing_contigs"],
        "reference_check": {
            "checked": inputs.check.checked,
            "mismatches": inputs.check.mismatches,
            **{f"matched_at_{o:+d}": n for o, n in inputs.check.matched.items()},
        },
        "compute_dtype": options_used.pop("precision"),
        **options_used,
    }


def _plan(job: _Job, folder: Path) -> BlockRun:
    """What is to be computed, with what an interrupted run has left."""
    # what the values depend on, by content: the same files elsewhere are gone on with too
    places = ("checkpoint", "variants", "genome")
    identity = {name: value for name, value in job.metadata.items() if name not in places}
    if job.inputs.sha256 is None:
        identity["region"] = job.inputs.source
    # rename= may name a file, which may say something else by now
    identity["contigs"] = dict(job.inputs.alleles.contigs)
    return BlockRun(job.model, job.inputs.store, job.inputs.alleles, job.options, folder, identity)


def _values(job: _Job, work: BlockRun, checkpoint: str) -> np.ndarray:
    """All values, or where the first one is no number, its variant and the remedy."""
    try:
        return work.run(progress=job.progress)
    except NotFinite as error:
        alleles, row = job.inputs.alleles, error.row
        ref = alleles.records[alleles.record[row]].ref
        raise NotFinite(
            f"{error} ({_place(alleles, row)}, {_short(ref)} > {_short(alleles.alt(row))}); "
            f"nothing was written: check the weights of {checkpoint}, or compute with "
            "precision=float32",
            row,
        ) from None


def _results(job: _Job, sites: list[Site], values: np.ndarray) -> Results:
    """Values with what became of every row."""
    alleles = job.inputs.alleles
    statuses, windows = list(alleles.statuses), np.full((len(alleles), 2), -1, dtype=np.int64)
    n_fraction, differs = Values._fields.index("n_fraction"), Values._fields.index("differs")
    for site in sites:
        for row in site.rows:
            windows[row] = site.start, site.length
            if values[row, n_fraction] > job.options.max_n_fraction:
                statuses[row] = "too_many_n"
            elif not values[row, differs]:
                statuses[row] = "cut_off"
            elif site.clipped:
                statuses[row] = "clipped"
    values[np.array(statuses) == "same", : Values._fields.index("n_fraction")] = 0.0
    return Results(replace(alleles, statuses=statuses), job.inputs.check, values, windows)


def _write(job: _Job, results: Results, chosen: dict[str, Any]) -> None:
    """The table, then what goes with it."""
    about = job.metadata
    if job.vcf is not None:
        told = (
            f'<ID=LLR,Version="{about["version"]}",ModelHash={about["model_hash"]},'
            f"GenomeChecksum={about['genome_checksum']},Left={about['left']},"
            f"Right={about['right']},Precision={about['compute_dtype']}>"
        )
        _check_unchanged(job.inputs)
        write_vcf(job.vcf, Path(chosen["variants"]), results, told)
    if chosen["saturation"]:
        alleles = results.alleles
        alts = [alleles.alt(row) for row in range(len(alleles))]
        title = f"Every substitution in {job.inputs.source}, model {about['model_hash'][:12]}"
        draw_map(_picture(job), alleles.records, alts, results.mean_score, title)
    write_table(job.output, results, about)


def _check_unchanged(inputs: _Inputs) -> None:
    """The VCF is read again to be written with the scores: it must be the one that has them.

    Raises:
        InputError: it is another one by now.
    """
    with reading_refusals(inputs.source):
        digest = sha256_file(inputs.source)
    if digest != inputs.sha256:
        raise InputError(
            f"{inputs.source} was changed while it was scored: nothing is written, give the same "
            "command again to score what it holds now"
        )


def _picture(job: _Job) -> Path:
    """Where the heat map lies."""
    return job.output.with_suffix(".png")


def _announce(job: _Job, finished: int) -> None:
    """Say what is about to be computed, defaults included, and how REF matches the genome."""
    inputs, about = job.inputs, job.metadata
    print(
        f"{counted(len(inputs.alleles.records), 'record')}, "
        f"{counted(len(inputs.alleles), 'ALT allele')}; {job.options.describe()}; "
        f"{about['compute_dtype']} on {about['device']}"
    )
    if not about["saturation"]:
        print(inputs.check.describe())
    if finished:
        print(f"{counted(finished, 'row')} of an interrupted run: not computed again")


def _summarize(job: _Job, results: Results, computed: int, seconds: float) -> None:
    """Say what came out, and every kind of problem with its first rows."""
    alleles = results.alleles
    written = [job.output, *([job.vcf] if job.vcf else [])]
    written += [_picture(job)] * job.metadata["saturation"]
    scored = int(results.scored.sum())
    print(
        f"{', '.join(map(str, written))}: {counted(len(alleles), 'row')}, {scored:,} scored; "
        f"{counted(computed, 'row')} computed, {computed / seconds:,.1f} rows/s"
    )
    for status, rows in alleles.counts().items():
        if status == "ok":
            continue
        print(f"  {counted(rows, 'row')} {status}: {STATUSES[status]}")
        found = [row for row, one in enumerate(alleles.statuses) if one == status]
        for row in found[:_SHOWN]:
            print(f"    row {row} ({_place(alleles, row)}): {_alleles(results, row)}")
        if rows > _SHOWN:
            print(f"    ... and {rows - _SHOWN:,} more, see the column `status`")


def _place(alleles: Alleles, row: int) -> str:
    """Contig and position as the VCF has them."""
    record = alleles.records[alleles.record[row]]
    return f"{record.contig}:{record.position + 1}"


def _alleles(results: Results, row: int) -> str:
    """REF and ALT of a row, and what the genome has instead."""
    alleles = results.alleles
    place = int(alleles.record[row])
    text = f"{_short(alleles.records[place].ref)} > {_short(alleles.alt(row))}"
    genome = results.check.genome.get(place)
    return text if genome is None else f"{text}, and the genome has {_short(genome)}"


def _short(letters: str) -> str:
    """Letters that fit into a line."""
    return letters if len(letters) <= 30 else f"{letters[:20]}... ({len(letters):,} letters)"
