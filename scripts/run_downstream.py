r"""Probes of pretrained networks on GUE sets and on interval sets cut from a genome.

    python scripts/run_downstream.py intervals --fasta chr20.fa.gz chrX.fa.gz \
        --starts tss.bed.gz --islands CpG_islands.bed.gz --output downstream
    python scripts/run_downstream.py run --gue GUE --output downstream \
        --network FRAC=frac_7m.safetensors --network Transformer=transformer_7m.safetensors
    python scripts/run_downstream.py seen --gue GUE --output downstream
    python scripts/run_downstream.py add downstream/probes/*
    python scripts/run_downstream.py page

`intervals` builds OUTPUT/genome and writes two labelled BED files, the same ones for the same seed:
promoters beside background of equal GC, CpG islands beside background of equal length; regions say
what is trained on and what is tested on. `run` probes every set into OUTPUT/probes/SET: networks,
the same networks untrained, k-mers. What is finished is not computed again, so the same command
goes on after an interruption. `seen` counts the sequences that stand, on either strand, in the
regions of the genome that the networks were pretrained on. `add` joins finished probes to
docs/results/downstream; `page` fills the tables of docs/results/downstream.md and draws.
Without installation: PYTHONPATH=.:kernels:data_prep.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from downstream.intervals import facts, islands, promoters, read_parts, write_labelled_bed
from downstream.results import Results
from downstream.seen import find_seen
from kernel_benchmark.report import circumstances
from length_study.page import fill

from fracdna.configuration import compose_configuration
from fracdna.outcomes import FINE, INTERRUPTED, REFUSED, ROW_PROBLEMS, NotFinite
from fracdna.probing.command import run as probe
from fracdna.probing.labelled import SplitRules, assemble, region_of
from fracdna.probing.readers import Columns, read_set
from fracdna.probing.rows import SPLITS
from fracdna_prep.bed import read_bed
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file, exclusive_lock
from fracdna_prep.genome import GenomeStore

GUE = ("prom_prom_core_notata", "prom_prom_300_tata", "tf_0", "tf_1", "tf_2", "mouse_0")
INTERVALS = ("promoters", "cpg_islands")
SETS = (*GUE, *INTERVALS)
TRAIN = ("chr20:1000001-45000000", "chrX")
TEST = ("chr20:50000001-63000000",)
# of the pretrained weights in docs/results/pretrained
PRETRAINING = ("chr20:1000001-45000000", "chrX:1000001-69999930")
RESULTS = Path("docs/results/downstream")


def main(arguments_given: Sequence[str] | None = None) -> int:
    """Reads the command line and does what it says.

    Returns:
        0; 1 where a set has rows that were left out, 2 where an input is refused, 130 after an
        interruption.
    """
    arguments = command_line(arguments_given)
    try:
        return arguments.does(arguments)
    except InputError as error:
        print(f"run_downstream: {error}", file=sys.stderr)
        return REFUSED
    except NotFinite as error:
        print(f"run_downstream: {error}", file=sys.stderr)
        return ROW_PROBLEMS
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        return INTERRUPTED


def command_line(arguments_given: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; `does` is the function of the action."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(required=True)
    action = actions.add_parser("intervals", help="write labelled BED files of a genome")
    action.set_defaults(does=write_intervals)
    action.add_argument("--fasta", nargs="+", type=Path, required=True)
    action.add_argument("--starts", type=Path, required=True, help="BED6 of transcription starts")
    action.add_argument("--islands", type=Path, required=True, help="BED of CpG islands")
    action.add_argument("--rename", default="chr_prefix", help="of contigs, as in `fracdna probe`")
    action.add_argument("--train", nargs="+", default=TRAIN, help="contigs or regions")
    action.add_argument("--test", nargs="+", default=TEST, help="contigs or regions")
    action.add_argument("--seed", type=int, default=0, help="of the background")
    action = actions.add_parser("run", help="probe what is not probed yet")
    action.set_defaults(does=run_probes)
    action.add_argument(
        "--network", action="append", default=[], metavar="NAME=CHECKPOINT", help="once for each"
    )
    action.add_argument("--max-train", type=int, default=20_000, help="training rows of a set")
    action.add_argument("--commit", help="name of the code, where it is no git checkout")
    action.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="of `fracdna probe`"
    )
    action = actions.add_parser("seen", help="count sequences that pretraining has read")
    action.set_defaults(does=count_seen)
    action.add_argument("--pretraining", nargs="+", default=PRETRAINING, help="contigs or regions")
    action.add_argument("--rename", default="chr_prefix", help="of their contigs")
    for name in ("run", "seen"):
        action = actions.choices[name]
        action.add_argument(
            "--gue", type=Path, required=True, help="folder of SET_train.csv.gz ..."
        )
        action.add_argument("--sets", nargs="+", choices=SETS, default=SETS, metavar="SET")
    for name in ("intervals", "run", "seen"):
        actions.choices[name].add_argument("--output", type=Path, required=True, help="folder")
    action = actions.add_parser("add", help="take over finished probes")
    action.set_defaults(does=add_probes)
    action.add_argument("probes", nargs="+", type=Path, help="folders in OUTPUT/probes")
    action = actions.add_parser("page", help="fill the tables of the page, draw the pictures")
    action.set_defaults(does=write_page)
    for name in ("add", "page"):
        actions.choices[name].add_argument(
            "--results", type=Path, default=RESULTS, help="folder; the page is RESULTS.md"
        )
    return parser.parse_args(arguments_given)


def write_intervals(arguments: argparse.Namespace) -> int:
    """The genome store, both labelled BED files, and what is in them."""
    store = GenomeStore.build(arguments.fasta, arguments.output / "genome", progress=True)
    sources = {"promoters": arguments.starts, "cpg_islands": arguments.islands}
    makers = {"promoters": promoters, "cpg_islands": islands}
    for name, source in sources.items():
        # anew for each set: what one takes is free for the other
        parts = read_parts(store, arguments.train, arguments.test, arguments.rename)
        rows = read_bed(source)
        examples = makers[name](parts, rows, arguments.rename, store.contigs, arguments.seed)
        path = arguments.output / f"{name}.bed"
        write_labelled_bed(path, examples)
        about = {
            "source": source.name,
            "genome": store.checksum,
            "train": list(arguments.train),
            "test": list(arguments.test),
            "seed": arguments.seed,
            "groups": facts(parts, examples),
        }
        with atomic_file(path.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps(about, indent=1) + "\n")
        for group, numbers in about["groups"].items():
            print(f"{path}: {group}: {numbers['rows']:,} rows, GC {numbers['gc']:.3f}")
    return FINE


def run_probes(arguments: argparse.Namespace) -> int:
    """Probe every set; vectors and fits that are finished are read."""
    networks = dict(text.partition("=")[::2] for text in arguments.network)
    if not all(networks.values()) or len(networks) < len(arguments.network):
        raise InputError("--network: write NAME=CHECKPOINT, each name once")
    about = {k: v for k, v in circumstances(arguments.commit).items() if k != "command"}
    code = FINE
    with exclusive_lock(arguments.output / ".lock", wait=False):
        for name in arguments.sets:
            print(f"== {name}", flush=True)
            folder = arguments.output / "probes" / name
            config = compose_configuration("probe", words_of(name, networks, arguments))
            code = max(code, probe(config))
            with atomic_file(folder / "circumstances.json") as temporary:
                temporary.write_text(json.dumps(about, indent=1) + "\n")
    return code


def words_of(name: str, networks: dict[str, str], arguments: argparse.Namespace) -> list[str]:
    """The words of `fracdna probe` for one set; a text with "=" or blanks is in quotes."""
    output = arguments.output
    words = [f"output='{output / 'probes' / name}'", f"max_train={arguments.max_train}"]
    if networks:
        for option, values in (("checkpoint", networks.values()), ("names", networks)):
            words.append(f"{option}=[{','.join(repr(str(value)) for value in values)}]")
    words.append(f"dataset='{place_of(name, arguments)}'")
    if name in INTERVALS:
        words.append(f"genome='{output / 'genome'}'")
    # repeats are removed: what a table of promoters repeats is nothing that was learned
    return [*words, "dedup=true", *arguments.option]


def place_of(name: str, arguments: argparse.Namespace) -> Path:
    """Where a set is."""
    return arguments.output / f"{name}.bed" if name in INTERVALS else arguments.gue / name


def count_seen(arguments: argparse.Namespace) -> int:
    """Rows of every set, by split, whose sequence stands in what pretraining has read."""
    store = GenomeStore(arguments.output / "genome")
    regions = [region_of(text, store.contigs, arguments.rename) for text in arguments.pretraining]
    sets = {}
    for name in arguments.sets:
        raw = read_set(str(place_of(name, arguments)), Columns())
        sets[name] = assemble(raw.rows, store if raw.needs_genome else None, SplitRules())
    sequences = [ids for data in sets.values() for ids in data.sequences]
    seen = iter(find_seen(store, regions, sequences).tolist())
    counts = {}
    for name, data in sets.items():
        mine = np.array([next(seen) for _ in range(len(data))], dtype=bool)
        rows = {split: data.where(split) for split in SPLITS}
        counts[name] = {
            split: {"rows": len(found), "seen": int(mine[found].sum())}
            for split, found in rows.items()
        }
        print(f"{name}: {counts[name]}")
    with atomic_file(arguments.output / "seen.json") as temporary:
        temporary.write_text(json.dumps(counts, indent=1) + "\n")
    return FINE


def add_probes(arguments: argparse.Namespace) -> int:
    """Join finished probes to the results."""
    results = Results(arguments.results)
    for folder in arguments.probes:
        path = folder / "circumstances.json"
        if not path.is_file():
            raise InputError(f"{path}: no such file; `run` writes it when a probe is finished")
        about = json.loads(path.read_text())
        counted = folder.parents[1] / "seen.json"
        if counted.is_file():
            about["seen"] = json.loads(counted.read_text()).get(folder.name)
        results.add(folder, about)
    results.write()
    return FINE


def write_page(arguments: argparse.Namespace) -> int:
    """Tables and pictures from what is known."""
    results = Results(arguments.results)
    if not results.sets:
        raise InputError(f"{arguments.results} holds no results yet: `add` finished probes first")
    page = arguments.results.with_suffix(".md")
    without = fill(page, results.tables())
    print(f"{page}; without a place there: {', '.join(without) or 'none'}")
    for path in results.draw():
        print(path)
    return FINE


if __name__ == "__main__":
    raise SystemExit(main())
