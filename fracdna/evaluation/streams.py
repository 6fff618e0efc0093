"""Whole contigs read in one pass with carried state, beside the same bases in short windows."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from fracdna.evaluation.stream_pass import ContigPass, StreamSettings
from fracdna.evaluation.stream_report import StreamScores, write_streams
from fracdna.evaluation.stream_splits import bases_by_split
from fracdna.model.carried import state_grows
from fracdna.model.checkpoint import model_hash
from fracdna.model.heads import LanguageModel
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.progress import progress_bar
from fracdna_prep.wording import listed

ALL = "all"
LONGEST_CACHE = 262_144  # bases that a model is carried over whose state grows with each of them

Passes = dict[tuple[str, str, int], ContigPass]  # by model, contig and window


def evaluate_streams(
    models: Mapping[str, LanguageModel],
    store: GenomeStore,
    contigs: Sequence[str],
    output: Path,
    *,
    splits: Mapping[str, Sequence[Interval]],
    segment: int,
    block: int,
    reset: Mapping[str, int | None],
    device: torch.device,
    precision: torch.dtype,
    force: bool,
    progress: bool,
) -> dict[str, Any]:
    """Perplexity along whole contigs; writes streams.csv and streams.png and prints a table.

    Args:
        models: by name, in evaluation mode; each is on the device while it is used, then on the
            CPU.
        store: the genome.
        contigs: names in the store, or "all".
        output: folder, existing; finished and unfinished passes are kept in its folder cells.
        splits: intervals of each split, to say how many bases models were trained on.
        segment: most bases of one forward pass.
        block: bases whose nats are summed together.
        reset: by model, bases between two empty states of the control; None: no control.
        device: where models compute.
        precision: compute type; the softmax and all sums stay exact.
        force: compute again what the folder holds already.
        progress: show a bar.

    Returns:
        Plain values: rows by model and contig, blocks as in streams.csv, paired differences,
        counted bases of each contig by split.

    Raises:
        InputError: contigs, sizes or models that cannot be used, before any work.
        NotFinite: a likelihood that is no number, with the place.
    """
    names = check_streams(models, store, contigs, segment=segment, block=block, reset=reset)
    settings = StreamSettings(segment, block, precision, device)
    passes = _plan(models, store, names, reset, settings, output / "cells", force)
    with progress_bar(sum(one.length for one in passes.values()), "streams", progress) as bar:
        _run(models, passes, device, bar)
    scores = [
        _scores(passes, store, name, contig, reset.get(name)) for name in models for contig in names
    ]
    counts = {contig: bases_by_split(store, contig, splits) for contig in names}
    return write_streams(output, scores, settings, counts)


def check_streams(
    models: Mapping[str, LanguageModel],
    store: GenomeStore,
    contigs: Sequence[str],
    *,
    segment: int,
    block: int,
    reset: Mapping[str, int | None],
) -> list[str]:
    """Refuse what evaluate_streams could not do; arguments are as there.

    Returns:
        Contigs to be read.

    Raises:
        InputError: contigs, sizes or models that cannot be used.
    """
    names = _contigs(store, contigs)
    _check_sizes(segment, block, reset)
    longest = max(names, key=store.contigs.__getitem__)
    length = store.contigs[longest]
    growing = [name for name, model in models.items() if state_grows(model)]
    if growing and length > LONGEST_CACHE:
        raise InputError(
            f"streams={longest}: the state of {listed(growing)} grows with every base (attention "
            f"keeps all keys and values), so {length:,} bases in one pass would take memory and "
            f"time without bound; such models read contigs of at most {LONGEST_CACHE:,} bases: "
            "leave them out of checkpoint=, or name shorter contigs"
        )
    return names


def _contigs(store: GenomeStore, contigs: Sequence[str]) -> list[str]:
    """The names asked for, each once."""
    names = [contigs] if isinstance(contigs, str) else list(dict.fromkeys(contigs))
    if names == [ALL]:
        names = [name for name, length in store.contigs.items() if length]
    if not names:
        raise InputError("streams=[]: name contigs of the genome, or give streams=all")
    for name in names:
        if not store.contigs.get(name):
            lacks = "has no bases" if name in store.contigs else "is not in the genome"
            raise InputError(
                f"streams={listed(names)}: contig {name!r} {lacks}, whose contigs are "
                f"{listed(store.contigs)}; correct the names, or give streams=all"
            )
    return names


def _check_sizes(segment: int, block: int, reset: Mapping[str, int | None]) -> None:
    """Refuse sizes below 1, and controls whose windows cross the borders of blocks."""
    if segment < 1:
        raise InputError(f"batch_bases={segment}: a segment has at least 1 base")
    if block < 1:
        raise InputError(f"stream_block={block}: a block has at least 1 base")
    for name, window in reset.items():
        if window is not None and (window < 1 or block % window):
            raise InputError(
                f"the control of {name!r} empties its state every {window} bases, which do not "
                f"divide stream_block={block}: blocks of both passes would not end together; "
                "choose another reset=, or a stream_block= that is a multiple of it"
            )


def _plan(
    models: Mapping[str, LanguageModel],
    store: GenomeStore,
    contigs: Sequence[str],
    reset: Mapping[str, int | None],
    settings: StreamSettings,
    folder: Path,
    force: bool,
) -> Passes:
    """All passes as far as the folder holds them, with a word of warning where one gets slow."""
    passes: Passes = {}
    for name, model in models.items():
        weights, grows = model_hash(model), state_grows(model)
        if grows:
            print(
                f"the state of {name} grows with every base: memory and time per base rise along "
                "a contig",
                file=sys.stderr,
            )
        for contig in contigs:
            for window in dict.fromkeys(_windows(store.contigs[contig], reset.get(name))):
                passes[name, contig, window] = ContigPass(
                    model, name, store, contig, window, settings, folder,
                    weights=weights, grows=grows, force=force,
                )  # fmt: skip
    return passes


def _windows(length: int, reset: int | None) -> tuple[int, ...]:
    """The windows of the passes over a contig; a control as long as the contig is the same pass."""
    return (length,) if reset is None else (length, min(reset, length))


def _run(
    models: Mapping[str, LanguageModel], passes: Passes, device: torch.device, bar: tqdm
) -> None:
    """All passes, one model on the device at a time; what is finished already is not timed."""
    bar.update(sum(one.progress.done for one in passes.values()))
    bar.initial = bar.n  # the rate counts from here
    for name, model in models.items():
        mine = [one for (owner, _, _), one in passes.items() if owner == name and not one.finished]
        if not mine:
            continue
        model.to(device)
        for one in mine:
            one.run(bar.update)
        model.to("cpu")


def _scores(
    passes: Passes, store: GenomeStore, name: str, contig: str, reset: int | None
) -> StreamScores:
    """What a model made of a contig, from its passes."""
    length = store.contigs[contig]
    windows = _windows(length, reset)
    carried, control = passes[name, contig, windows[0]], passes[name, contig, windows[-1]]
    starts = np.arange(0, length, carried.settings.block)
    ends = np.minimum(starts + carried.settings.block, length)
    n, _ = store.count_n_and_masked(contig, starts, ends)
    timed = carried.progress
    return StreamScores(
        model=name,
        contig=contig,
        starts=starts,
        ends=ends,
        tokens=ends - starts - n,
        nats=timed.sums[0].numpy(),
        nats_acgt=timed.sums[1].numpy(),
        reset=reset,
        nats_reset=None if reset is None else control.progress.sums[0].numpy(),
        bases_per_second=timed.timed_bases / timed.seconds if timed.seconds else None,
        peak_memory_bytes=timed.peak_bytes,
    )
