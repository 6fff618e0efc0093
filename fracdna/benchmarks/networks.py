"""Small networks of synthetic benchmarks: a mixer by name, with options, at a size by name."""

import shlex
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from fracdna.benchmarks.examples import ExampleSource
from fracdna.configuration import compose_configuration
from fracdna.model.checkpoint import build_model
from fracdna_prep.errors import InputError


def network_config(words: str, task: ExampleSource, options: Mapping[str, Any]) -> dict[str, Any]:
    """The plain configuration of a network without MLPs, as `fracdna train` would compose it.

    Args:
        words: a mixer and options of the model, as "frac mixer.gain=zoh".
        task: what it is trained on.
        options: size and d_model, of the benchmark.

    Raises:
        InputError: no such mixer or option, or a size without numbers for the mixer.
    """
    try:
        mixer, *chosen = shlex.split(words)
    except ValueError as error:
        raise InputError(f"task.mixers: {words!r} cannot be read: {error}") from error
    overrides = [
        f"size={options['size']}", f"mixer={mixer}", "model.mlp=null",
        f"data.length={task.length}", f"+model.vocabulary_rows={task.vocabulary_rows}",
    ]  # fmt: skip
    if options["d_model"] is not None:
        overrides.append(f"model.d_model={options['d_model']}")
    for word in chosen:
        plus, name = ("+", word[1:]) if word.startswith("+") else ("", word)
        overrides.append(f"{plus}model.{name}")
    try:
        composed = compose_configuration("train", overrides)
        config = OmegaConf.to_container(composed.model, resolve=True)
        build_model(config)  # refuses what cannot be built before any run begins
    except InputError as error:
        raise InputError(f"task.mixers, {words!r}: {error}") from error
    return config
