"""The one command: fracdna VERB key=value ...

Only what a verb needs is imported, when it is needed: help answers within a second.
"""

import difflib
import importlib
import os
import re
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from fracdna import __version__
from fracdna.outcomes import FINE, INTERRUPTED, REFUSED, ROW_PROBLEMS, NotFinite
from fracdna_prep.errors import InputError

OVERRIDE = re.compile(r"[+~]*[\w.@]+=")


class Verb(NamedTuple):
    """One thing that the command does."""

    does: str
    function: str  # module:function, called with the composed configuration, returns an exit code
    example: str
    places: str | None = None  # option that words without "=" belong to


VERBS = {
    "prepare": Verb(
        "FASTA and BED to a genome store and window tables",
        "fracdna.preparation:run",
        "fracdna prepare fasta=hg38.fa.gz intervals=sequences.bed split=bed length=[1024,8192] "
        "output=prepared",
    ),
    "train": Verb(
        "pretrain a model on prepared windows",
        "fracdna.training.run:train",
        "fracdna train experiment=dna_7m mixer=frac data.prepared=prepared output=runs/frac",
    ),
    "evaluate": Verb(
        "perplexity by length on the same bases, beside count models",
        "fracdna.evaluation.run:evaluate",
        "fracdna evaluate checkpoint=runs/frac/checkpoints/best.ckpt prepared=prepared "
        "lengths=[1024,65536] output=results",
    ),
    "embed": Verb(
        "hidden states of genomic regions, pooled to Parquet or AnnData, or of every base to Zarr",
        "fracdna.embedding:run",
        "fracdna embed checkpoint=runs/frac/checkpoints/best.ckpt genome=prepared/genome "
        "regions=peaks.bed output=embeddings.parquet",
    ),
    "score": Verb(
        "variants of a VCF: log-likelihood of ALT against REF, both strands, to Parquet and VCF",
        "fracdna.scoring:run",
        "fracdna score checkpoint=runs/frac/checkpoints/best.ckpt genome=prepared/genome "
        "variants=calls.vcf.gz output=scores.parquet vcf=scored.vcf.gz",
    ),
    "probe": Verb(
        "what the vectors of networks know of a labelled set, beside k-mer counts",
        "fracdna.probing.command:run",
        "fracdna probe checkpoint=runs/frac/checkpoints/best.ckpt dataset=GUE/prom_core "
        "output=probes/prom_core",
    ),
    "generate": Verb(
        "DNA continued by a model, base by base, in constant memory",
        "fracdna.generation:run",
        "fracdna generate checkpoint=runs/frac/checkpoints/best.ckpt prompt=seeds.fa length=10000 "
        "output=generated.fa",
    ),
    "benchmark": Verb(
        "what memories hold and for how long: synthetic tasks that train small models",
        "fracdna.benchmarks.command:benchmark",
        "fracdna benchmark task=heavy_tail preset=smoke output=results/heavy_tail",
    ),
    "report": Verb(
        "one page, with pictures, of training runs and evaluations",
        "fracdna.report.run:report",
        "fracdna report runs/frac runs/transformer results/perplexity output=report",
        places="runs",
    ),
    "doctor": Verb(
        "versions, devices, and what to install for what is missing",
        "fracdna.doctor:run",
        "fracdna doctor",
    ),
}


def main() -> None:
    """Entry point of the fracdna command."""
    # read when OpenMP loads with torch: threads that spin at barriers starve each other as soon as
    # another program uses a core
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = INTERRUPTED
    sys.exit(code)


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends like Ctrl-C: temporary files are removed, the exit code says resumable."""
    raise KeyboardInterrupt


def run(arguments: Sequence[str]) -> int:
    """Run one verb.

    Returns:
        0 all fine; 1 finished, some rows had problems; 2 refused before work; 130 interrupted.
    """
    verb, *overrides = arguments or ["--help"]
    try:
        if verb in ("-h", "--help", "help"):
            print(_overview())
        elif verb in ("-V", "--version"):
            print(f"fracdna {__version__}")
        elif any(word in ("-h", "--help") for word in overrides):
            words = [word for word in overrides if word not in ("-h", "--help")]
            print(_help(_known(verb), split_words(verb, words)[1]))
        else:
            return _call(_known(verb), overrides)
    except InputError as error:
        print(f"fracdna {verb}: {error}", file=sys.stderr)
        return REFUSED
    except NotFinite as error:
        print(f"fracdna {verb}: {error}", file=sys.stderr)
        return ROW_PROBLEMS
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return FINE


def _known(verb: str) -> str:
    """The verb itself, if it exists."""
    if verb not in VERBS:
        close = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise InputError(f"there is no such verb; {hint}The verbs are {', '.join(VERBS)}")
    return verb


def _call(verb: str, overrides: list[str]) -> int:
    """Compose the configuration and hand it to the verb's function."""
    from fracdna.configuration import compose_configuration

    places, overrides = split_words(verb, overrides)
    config = compose_configuration(verb, overrides)
    if places:
        option = VERBS[verb].places
        if config[option]:
            raise InputError(
                f"{places[0]} and {option}= both name folders: name all of them in one way"
            )
        # a name is text, whatever it holds: nothing is put in for ${...}
        config[option] = [word.replace("${", "\\${") for word in places]
    module, function = VERBS[verb].function.split(":")
    return getattr(importlib.import_module(module), function)(config)


def split_words(verb: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words that stand for themselves, where the verb takes such, and those of the form key=value.

    A path with a "=" in its name stands for itself from its first "/" on: ./a=b.
    """
    if VERBS[verb].places is None:
        return [], list(words)
    overrides = [word for word in words if OVERRIDE.match(word)]
    return [word for word in words if not OVERRIDE.match(word)], overrides


def _help(verb: str, overrides: list[str]) -> str:
    """Groups, defaults and an example of one verb, with the files that the overrides choose."""
    from fracdna.configuration import describe

    return (
        f"fracdna {verb}: {VERBS[verb].does}\n\n{describe(verb, overrides)}\n\n"
        f"Example:\n  {VERBS[verb].example}"
    )


def _overview() -> str:
    """The verbs that exist."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {verb.does}" for name, verb in VERBS.items())
    return (
        f"fracdna {__version__}: sequence models of the genome\n\n"
        f"usage: fracdna VERB key=value ...\n\n{verbs}\n\n"
        "fracdna VERB --help shows the options of a verb, their defaults and an example."
    )
