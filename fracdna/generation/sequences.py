"""Continuations of prompts: batches of sequences, each with its own draws."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fracdna.devices import choose_precision
from fracdna.embedding.states import Ids, evaluating
from fracdna.generation.decoding import BLOCK, Decoder
from fracdna.generation.options import GenerationOptions
from fracdna.generation.sampling import Noise
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError
from fracdna_prep.progress import progress_bar
from fracdna_prep.vocabulary import DNA


@dataclass
class Continuations:
    """What came out, and what it took.

    Attributes:
        ids: (prompts, count, length) uint8.
        prompt_seconds: reading prompts.
        seconds: drawing the new bases.
        state_bytes: bytes carried per sequence at the end.
        grows: whether they grew with every base.
    """

    ids: np.ndarray
    prompt_seconds: float = 0.0
    seconds: float = 0.0
    state_bytes: int = 0
    grows: bool = False


def generate(
    model: LanguageModel,
    prompt: str | Sequence[str],
    length: int,
    *,
    count: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    progress: bool = False,
    **further: Any,
) -> list[str]:
    """Continue DNA.

    Args:
        model: such as load_model returns, on the device to be used.
        prompt: DNA letters, or several prompts; "" starts from nothing.
        length: new bases of each sequence.
        count: sequences per prompt.
        temperature: divides the logits; 0 takes the most probable base.
        top_k: draw from so many most probable letters only.
        top_p: draw from the most probable letters that reach this probability together.
        seed: same seed, same draws, whatever the batch; rounding may still tip a close choice.
        progress: show bases done, their rate and the time left.
        **further: the other attributes of GenerationOptions.

    Returns:
        The new bases: `count` sequences of the first prompt, then those of the next.

    Raises:
        InputError: an unusable option, a letter that is no nucleotide, or no language model.
        NotFinite: a logit is NaN or infinite.
    """
    if not isinstance(model, LanguageModel):
        raise InputError(
            f"{type(model).__name__} predicts no next base: give a language model, such as "
            "fracdna.load_model returns"
        )
    options = GenerationOptions(
        length=length, count=count, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
        **further,
    )  # fmt: skip
    options.check()
    prompts = [DNA.encode(text) for text in ([prompt] if isinstance(prompt, str) else prompt)]
    with progress_bar(total_bases(prompts, options), "generate", progress) as bar:
        made = continue_sequences(model, prompts, options, advance=bar.update)
    return [DNA.decode(ids) for ids in made.ids.reshape(-1, length)]


def total_bases(prompts: Sequence[Ids], options: GenerationOptions) -> int:
    """What continue_sequences tells `advance` in all."""
    return options.count * sum(1 + len(ids) + options.length for ids in prompts)


def continue_sequences(
    model: LanguageModel,
    prompts: Sequence[Ids],
    options: GenerationOptions,
    *,
    advance: Callable[[int], Any] | None = None,
) -> Continuations:
    """Continue every prompt `count` times.

    Args:
        model: on the device to be used.
        prompts: ids without BOS, such as DNA.encode("ACGT"); read in parts when they are due.
        options: see GenerationOptions.
        advance: told the positions of every pass: BOS, prompts and new bases.

    Raises:
        InputError, NotFinite: as generate.
    """
    options.check()
    made = Continuations(_room(len(prompts), options.count, options.length))
    # prompts of like length together: the shorter ones of a batch wait for the longest
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    rows = [(prompt, sample) for prompt in order for sample in range(options.count)]
    with _computing(model, options.precision):
        for first in range(0, len(rows), options.batch):
            batch = rows[first : first + options.batch]
            _continue_batch(model, prompts, batch, options, made, advance or _ignore)
    return made


def _room(prompts: int, count: int, length: int) -> np.ndarray:
    """Places for all new bases, a byte each.

    Raises:
        InputError: they do not fit into memory.
    """
    try:
        return np.zeros((prompts, count, length), dtype=np.uint8)
    except (MemoryError, ValueError) as error:
        raise InputError(
            f"{prompts:,} prompts x count={count} x length={length} are more bases than fit into "
            "memory: ask for fewer"
        ) from error


def _continue_batch(
    model: LanguageModel,
    prompts: Sequence[Ids],
    rows: Sequence[tuple[int, int]],
    options: GenerationOptions,
    made: Continuations,
    advance: Callable[[int], Any],
) -> None:
    """The sequences of one batch, put into their places."""
    started = time.perf_counter()
    decoder = Decoder(model, [prompts[prompt] for prompt, _ in rows], options, advance)
    decoder.check_finite()
    read = time.perf_counter()
    noise = Noise(options.seed, rows, len(options.ids))
    where = tuple(np.array(rows).T)
    for start in range(0, options.length, BLOCK):
        positions = min(BLOCK, options.length - start)
        drawn = None if options.temperature == 0 else noise.next(positions)
        try:
            made.ids[(*where, slice(start, start + positions))] = decoder.next(drawn, positions)
        except NotFinite as error:
            raise NotFinite(f"{error}, at most {start + positions} bases after a prompt") from None
        advance(len(rows) * positions)
    made.prompt_seconds += read - started
    made.seconds += time.perf_counter() - read
    made.state_bytes = max(made.state_bytes, decoder.state_bytes() // len(rows))
    made.grows |= decoder.grows


@contextlib.contextmanager
def _computing(model: LanguageModel, precision: str) -> Iterator[None]:
    """Evaluation in a precision, without gradients; the caller's model is left as it was."""
    low = choose_precision(precision)
    device = model.backbone.embedding.weight.device.type
    with (
        evaluating(model),
        torch.inference_mode(),
        torch.autocast(device, dtype=low, enabled=low != torch.float32),
    ):
        yield


def _ignore(bases: int) -> None:
    """Progress that nobody watches."""
