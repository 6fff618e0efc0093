"""Checkpoints of fracdna to folders of transformers."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fracdna.hf.config import FracdnaConfig
from fracdna.hf.models import FracdnaForCausalLM
from fracdna.hf.tokenizer import FracdnaTokenizer
from fracdna.model.checkpoint import load_model
from fracdna.model.heads import LanguageModel
from fracdna.model.pretrained import CONFIG_FILE
from fracdna.provenance import training_facts
from fracdna_prep.errors import InputError
from fracdna_prep.files import remove, writing_refusals


def export(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    max_shard_size: int | str = "5GB",
) -> FracdnaForCausalLM:
    """Write a model and its tokenizer as a folder that transformers and fracdna.load_model open.

    The folder appears when it is whole.

    Args:
        checkpoint: what fracdna.load_model opens.
        folder: a new one.
        dtype: of the tensors, torch.float32, bfloat16 or float16. transformers computes in the
            dtype that it finds, so bfloat16 halves precision and not only the file.
        max_shard_size: most bytes of a file, as in transformers.

    Returns:
        The model that was written.

    Raises:
        InputError: a checkpoint that cannot be opened, another dtype, or a folder that is
            there already or cannot be made.
    """
    folder = Path(folder).absolute()
    if folder.exists():
        raise InputError(f"{folder} is there already: remove it, or name another folder")
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise InputError(f"dtype={dtype}: choose torch.float32, torch.bfloat16 or torch.float16")
    model = wrap(load_model(checkpoint), about=training_facts(Path(checkpoint))).to(dtype)
    temporary = folder.with_name(f".{secrets.token_hex(4)}.{folder.name}")
    with writing_refusals(folder):
        try:
            temporary.mkdir(parents=True)
            model.save_pretrained(temporary, max_shard_size=max_shard_size)
            FracdnaTokenizer().save_pretrained(temporary)
            usual = (temporary / CONFIG_FILE).stat().st_mode
            for file in temporary.iterdir():  # safetensors keeps its files from other users
                file.chmod(usual)
            temporary.rename(folder)
        finally:
            remove(temporary)
    return model


def wrap(model: LanguageModel, about: Mapping[str, Any] | None = None) -> FracdnaForCausalLM:
    """A network of fracdna as a model of transformers; the weights are the same, not copies.

    Args:
        model: built from a configuration.
        about: what is told of its training; "training_length" is the bases of a window.

    Raises:
        InputError: a model without a configuration.
    """
    if not model.config:
        raise InputError("the model has no configuration: build it with build_model")
    wrapped = FracdnaForCausalLM(FracdnaConfig(model=model.config, about=dict(about or {})))
    wrapped.model = model
    return wrapped.train(model.training)
