"""`fracdna generate`: prompts to a FASTA file of sequences that a model draws."""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from fracdna.devices import choose_device, describe_device
from fracdna.generation.options import GenerationOptions
from fracdna.generation.prompts import Prompt, read_prompts
from fracdna.generation.sequences import Continuations, continue_sequences, total_bases
from fracdna.model.checkpoint import load_model, model_hash
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import FINE, NotFinite
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file, check_writable
from fracdna_prep.progress import progress_bar
from fracdna_prep.vocabulary import DNA

_SUFFIXES = (".fa", ".fasta", ".fna")
_LINE = 80


@dataclass(frozen=True)
class _Job:
    """Everything that a run needs, opened and checked."""

    options: GenerationOptions
    model: LanguageModel
    prompts: list[Prompt]
    output: Path
    with_prompt: bool


def run(config: DictConfig) -> int:
    """Run `fracdna generate`.

    Everything that can be refused is refused before the first pass of the model.

    Args:
        config: the composed configuration of configs/generate.yaml.

    Returns:
        0.

    Raises:
        InputError: unusable inputs or options.
        NotFinite: a logit that is NaN or infinite; nothing is written.
    """
    with contextlib.ExitStack() as stack:
        job = _open(config, stack)
        ids = [prompt.ids for prompt in job.prompts]
        with progress_bar(total_bases(ids, job.options), "generate", config.progress) as bar:
            try:
                made = continue_sequences(job.model, ids, job.options, advance=bar.update)
            except NotFinite as error:
                raise NotFinite(
                    f"{error}; nothing was written: check the weights of {config.checkpoint}, or "
                    "compute with precision=float32"
                ) from None
        _write(job, made)
    _summarize(job, made)
    return FINE


def _open(config: DictConfig, stack: contextlib.ExitStack) -> _Job:
    """Check options, then open the checkpoint, then the prompts: the cheapest refusal first."""
    chosen: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    options = GenerationOptions(**{name: chosen[name] for name in asdict(GenerationOptions())})
    options.check()
    for name, what in (
        ("checkpoint", "a file of `fracdna train`, or weights that were exported"),
        ("prompt", "DNA letters, or a FASTA"),
        ("output", "a FASTA file"),
    ):
        if not chosen[name]:
            raise InputError(f"{name}= is missing: name {what}")
        if not isinstance(chosen[name], str):
            raise InputError(f"{name}={chosen[name]}: name one, {what}")
    output = _output_path(config)
    device = choose_device(config.device, options.precision)
    model = load_model(config.checkpoint, device)
    prompts = read_prompts(config.prompt, stack, config.progress)
    bases = sum(len(prompt.ids) for prompt in prompts)
    print(
        f"{len(prompts):,} prompts, {bases:,} bases; {options.count:,} sequences of "
        f"{options.length:,} new bases each, {options.describe()}; "
        f"{options.precision} on {describe_device(device)}"
    )
    return _Job(options, model, prompts, output, config.with_prompt)


def _output_path(config: DictConfig) -> Path:
    """The absolute path of the sequences, if it can be written and is no input."""
    output = config.output
    path = Path(output).absolute()
    for name in ("prompt", "checkpoint"):
        if path.exists() and Path(str(config[name])).absolute().resolve() == path.resolve():
            raise InputError(
                f"output={output} is the {name}, which would be lost: name another file"
            )
    if path.is_dir():
        raise InputError(f"output={output} is a folder: name a file in it: {output}/x.fa")
    if path.suffix not in _SUFFIXES:
        raise InputError(f"output={output}: sequences are a FASTA file, name it so: x.fa")
    # the folder: the file itself is renamed into place, also over an older one
    check_writable(path.parent)
    return path


def _write(job: _Job, made: Continuations) -> None:
    """One record a sequence, named after its prompt and numbered from 1."""
    about = f"{job.options.summary()} model={model_hash(job.model)[:12]}"
    with atomic_file(job.output) as path, path.open("w") as file:
        for prompt, sequences in zip(job.prompts, made.ids, strict=True):
            before = DNA.decode(np.asarray(prompt.ids[:])) if job.with_prompt else ""
            for number, ids in enumerate(sequences, start=1):
                file.write(f">{prompt.name}_{number} prompt={len(prompt.ids)} {about}\n")
                file.writelines(f"{line}\n" for line in _lines(before + DNA.decode(ids)))


def _lines(text: str) -> Sequence[str]:
    """A sequence in the lines of a FASTA."""
    return [text[start : start + _LINE] for start in range(0, len(text), _LINE)]


def _summarize(job: _Job, made: Continuations) -> None:
    """Say what came out, how fast, and what was carried."""
    sequences, bases = made.ids[..., 0].size, made.ids.size
    read = job.options.count * sum(len(prompt.ids) for prompt in job.prompts)
    print(
        f"{job.output}: {sequences:,} sequences, {bases:,} new bases, "
        f"{bases / made.seconds:,.0f} tokens/s after {made.prompt_seconds:,.1f} s for "
        f"{read:,} bases of prompts"
    )
    if made.grows:
        print(
            f"the state grew to {made.state_bytes:,} bytes per sequence: this model caches every "
            "position, so memory and time per base grow with the length"
        )
    else:
        print(f"a state of {made.state_bytes:,} bytes per sequence, whatever the length")
