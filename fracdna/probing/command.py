"""`fracdna probe`: a labelled set to metrics of networks beside baselines."""

import json
import platform
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from fracdna.devices import choose_device
from fracdna.embedding.options import EmbeddingOptions
from fracdna.genome import open_genome
from fracdna.outcomes import FINE, ROW_PROBLEMS
from fracdna.probing.job import Job
from fracdna.probing.labelled import SplitRules, assemble
from fracdna.probing.leakage import find_leakage
from fracdna.probing.networks import open_networks
from fracdna.probing.options import ProbeOptions, check_rules
from fracdna.probing.readers import Columns, RawSet, read_files, read_set
from fracdna.probing.rows import SPLITS
from fracdna.provenance import provenance
from fracdna_prep.errors import InputError
from fracdna_prep.files import (
    atomic_file,
    check_writable,
    exclusive_lock,
    sha256_file,
    writing_refusals,
)
from fracdna_prep.genome import GenomeStore
from fracdna_prep.option_checks import check_whole_number, items_of

FORMAT = "fracdna probe 1"


def run(config: DictConfig) -> int:
    """Run `fracdna probe`.

    Everything that can be refused is refused before the first pass of a network. Vectors and fits
    are kept in the folder as they are finished: the same command goes on from them.

    Args:
        config: the composed configuration of configs/probe.yaml.

    Returns:
        0; 1 where a row of the set could not be used.

    Raises:
        InputError: unusable inputs or options.
        NotFinite: a vector that is NaN or infinite.
    """
    chosen = OmegaConf.to_container(config, resolve=True)
    started = time.perf_counter()
    output = _check(chosen)
    # an extra: whoever asks for no probe need not have it
    from fracdna.probing import contest, figures, results

    with exclusive_lock(output.with_name(f".{output.name}.lock"), wait=False):
        job, about = _open(chosen, output)
        print("\n".join(results.about_set(job.data, job.found, job.removed)))
        print("\n".join(results.about_leakage(job.leakage, job.found, job.removed)))
        with writing_refusals(output):
            output.mkdir(parents=True, exist_ok=True)
            for name in results.WRITTEN:  # what is there may be of another set
                (output / name).unlink(missing_ok=True)
        report = results.Report(
            job.data, job.leakage, job.found, job.removed, contest.compare(job), job.options.method
        )
        report.write(output)
        figures.draw_all(output, report, Path(chosen["dataset"] or chosen["train"]).name)
        seconds = time.perf_counter() - started
        result = {"format": FORMAT, "config": chosen, **about, "seconds": seconds}
        with atomic_file(output / "result.json") as temporary:
            content = result | report.result() | {"complete": True}
            temporary.write_text(json.dumps(content, indent=1) + "\n")
    print(results.terminal_table(report))
    print(f"tables and pictures in {output}, {seconds:,.1f} s")
    return ROW_PROBLEMS if job.data.has_problems else FINE


def _check(chosen: dict[str, Any]) -> Path:
    """Refuse what can be refused without opening anything; the folder of results."""
    if find_spec("sklearn") is None:
        raise InputError(
            "a probe needs the package scikit-learn, which is missing: pip install 'fracdna[probe]'"
        )
    if chosen["output"] is None:
        raise InputError("output= is missing: name a folder")
    if chosen["jobs"] is not None:
        check_whole_number("jobs", chosen["jobs"], 1)
    _options(chosen)
    check_rules(_rules(chosen))
    if chosen["checkpoint"] is None and not chosen["baselines"]:
        raise InputError("checkpoint= is missing, and with baselines=false nothing is left")
    output = Path(chosen["output"]).absolute()
    if output.is_file():
        raise InputError(f"output={chosen['output']} is a file: name a folder")
    check_writable(output)
    return output


def _options(chosen: dict[str, Any]) -> ProbeOptions:
    """The choices that the numbers depend on, checked."""
    embedding = {name: chosen[name] for name in asdict(EmbeddingOptions())}
    named = {name: chosen[name] for name in vars(ProbeOptions()) if name != "embedding"}
    for name in ("seeds", "l2", "learning_rates"):
        named[name] = tuple(named[name])
    options = ProbeOptions(**named, embedding=EmbeddingOptions(**embedding))
    options.check()
    return options


def _rules(chosen: dict[str, Any]) -> SplitRules:
    """How rows without a split get one."""
    # a contig called 20 is read as a number by the command line
    options = [f"{split}_regions" for split in SPLITS]
    regions = {option: tuple(map(str, chosen[option])) for option in options}
    names = ("test_share", "max_train", "rename", "missing_contigs")
    return SplitRules(**regions, **{n: chosen[n] for n in names}, seed=chosen["split_seed"])


def _open(chosen: dict[str, Any], output: Path) -> tuple[Job, dict[str, Any]]:
    """Networks, then the set; and what they are, in plain values."""
    options, rules = _options(chosen), _rules(chosen)
    device = choose_device(chosen["device"], options.embedding.precision)
    options = ProbeOptions(**vars(options) | {"embedding": options.embedding.on(device)})
    seed = options.untrained_seed if options.untrained else None
    names = items_of(chosen["names"]) or None
    networks = open_networks(items_of(chosen["checkpoint"]), names, seed)
    for network in networks:
        options.embedding.check_layer(network.model.backbone)
    raw = _read(chosen)
    store = _store(chosen, raw)
    found = assemble(raw.rows, store, rules)
    found.check()
    leakage = find_leakage(found)
    removed = leakage.repeated if options.dedup else np.array([], dtype=np.int64)
    data = found.without(removed).shortened(rules.max_train, rules.seed)
    data.check()
    job = Job(
        options, networks, data, found, leakage, len(removed), device, output, chosen["jobs"],
        chosen["progress"],
    )  # fmt: skip
    about = {
        "networks": {n.name: provenance(n.model, n.checkpoint, store, device) for n in networks},
        "genome_checksum": None if store is None else store.checksum,
        "files": {str(path): sha256_file(path) for path in raw.files},
        "versions": _versions(),
        "training_rows_found": int(np.sum(found.splits == SPLITS[0])),
    }
    return job, about


def _read(chosen: dict[str, Any]) -> RawSet:
    """The rows of the set that is named one way or the other."""
    columns = Columns(*(chosen[f"{name}_column"] for name in ("sequence", "label", "split")))
    files = {split: chosen[split] for split in SPLITS}
    if chosen["dataset"] is not None:
        given = next((split for split, path in files.items() if path is not None), None)
        if given is not None:
            raise InputError(f"dataset= and {given}= both name the set: name it one way")
        return read_set(chosen["dataset"], columns)
    return read_files(files, columns)


def _store(chosen: dict[str, Any], raw: RawSet) -> GenomeStore | None:
    """The genome of intervals."""
    if raw.needs_genome:
        return open_genome(chosen["genome"], chosen["store"], chosen["progress"])
    if chosen["genome"] is not None:
        raise InputError(
            f"genome={chosen['genome']}: this set holds letters, which are on no genome: leave it "
            "out"
        )
    return None


def _versions() -> dict[str, str]:
    """What the numbers were computed with."""
    import sklearn

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }
