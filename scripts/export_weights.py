"""Writes the weights of a checkpoint to hand on, and says what rounding them costs.

    python scripts/export_weights.py runs/frac/checkpoints/best.ckpt frac.safetensors
    python scripts/export_weights.py best.ckpt frac.safetensors --dtype float32 --about genome=hg38

Beside frac.safetensors stands frac.json: configuration, vocabulary, hashes, and what the checkpoint
tells of its training. `fracdna.load_model` and every checkpoint= of the command open them.
"""

import argparse
import gzip
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fracdna.data.objectives import IGNORED, next_base
from fracdna.evaluation.likelihood import base_nll
from fracdna.model.checkpoint import load_model, save_weights
from fracdna.model.heads import LanguageModel
from fracdna.model.weights import DTYPES, SUFFIX, is_weights
from fracdna.provenance import training_facts
from fracdna_prep.errors import InputError
from fracdna_prep.example import example_files
from fracdna_prep.vocabulary import DNA

BASES = 4_096  # of the bundled DNA: its end, which is in none of its splits


def main(arguments_given: Sequence[str] | None = None) -> int:
    """Reads the command line, writes, prints; returns 2 where an input is refused."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("checkpoint", type=Path, help="a file written by `fracdna train`")
    parser.add_argument("output", type=Path, help="NAME.safetensors; NAME.json is written too")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument(
        "--about", action="append", default=[], metavar="NAME=VALUE",
        help="another fact for the JSON, as text; may be given several times",
    )  # fmt: skip
    arguments = parser.parse_args(arguments_given)
    try:
        export(arguments.checkpoint, arguments.output, arguments.dtype, told(arguments.about))
    except InputError as error:
        print(f"export_weights: {error}", file=sys.stderr)
        return 2
    return 0


def told(facts: Sequence[str]) -> dict[str, str]:
    """Facts of the command line."""
    pairs = [fact.partition("=") for fact in facts]
    for name, equals, _ in pairs:
        if not name or not equals or name == "training_length":
            raise InputError(
                f"--about {name}: give NAME=VALUE; training_length is the checkpoint's own"
            )
    return {name: value for name, _, value in pairs}


def export(checkpoint: Path, output: Path, dtype: str, more: Mapping[str, str]) -> None:
    """Write both files and say what they are, as read back.

    Raises:
        InputError: an input that cannot be exported, a place that cannot be written, or weights
            that would replace those they come from: what rounding takes would be lost.
    """
    given = checkpoint.with_suffix(SUFFIX) if is_weights(checkpoint) else checkpoint
    if output.resolve() == given.resolve():
        raise InputError(f"{output} is what is exported: name another file")
    model = load_model(checkpoint)
    about = training_facts(checkpoint) | more
    facts = save_weights(model, output, dtype=DTYPES[dtype], about=about)
    exported = load_model(output)
    size = output.stat().st_size
    print(f"{output}: {facts['parameters']:,} parameters in {dtype}, {size:,} bytes")
    print(f"SHA-256 of the file: {facts['sha256']}")
    print(f"model hash as loaded: {facts['model_hash']}")
    print(f"largest relative rounding of a weight: {largest_rounding(model, exported):.3g}")
    ids = example_bases()
    (before, nats), (after, rounded_nats) = (predict(network, ids) for network in (model, exported))
    print(
        f"log-probabilities of A, C, G and T on {BASES:,} bases of the bundled DNA differ by at "
        f"most {(after - before).abs().max().item():.3g} nats; nats per base: {nats:.5f} before, "
        f"{rounded_nats:.5f} as exported"
    )


def largest_rounding(model: LanguageModel, exported: LanguageModel) -> float:
    """Largest |after - before| / |before| of all weights that are not 0."""
    after = exported.state_dict()
    return max(
        ((after[name] - weight).abs() / weight.abs())[weight != 0].max().item()
        for name, weight in model.state_dict().items()
        if weight.any()
    )


def example_bases() -> Tensor:
    """(1, BASES) ids of the end of the bundled DNA."""
    with gzip.open(example_files().fasta, "rt") as fasta:
        lines = [line.strip() for line in fasta if not line.startswith(">")]
    return torch.from_numpy(DNA.encode("".join(lines)[-BASES:]))[None]


def predict(model: LanguageModel, ids: Tensor) -> tuple[Tensor, float]:
    """(1, length, 4) natural logarithms of A, C, G and T, and mean nats of the bases that came."""
    inputs, targets = next_base(ids)
    with torch.inference_mode():
        logits = model(inputs)
    _, nats = base_nll(logits, targets)
    mean = nats.sum(dtype=torch.float64) / (targets != IGNORED).sum()
    return logits[..., list(DNA.bases)].log_softmax(-1), mean.item()


if __name__ == "__main__":
    raise SystemExit(main())
