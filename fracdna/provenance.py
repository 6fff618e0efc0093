"""What results keep of the model and the genome they come from, and weights of their training."""

import contextlib
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fracdna import __version__
from fracdna.devices import describe_device
from fracdna.evaluation.likelihood import perplexity
from fracdna.model.checkpoint import model_hash, read_checkpoint
from fracdna.model.heads import LanguageModel
from fracdna_prep.genome import GenomeStore


def provenance(
    model: LanguageModel, checkpoint: str, store: GenomeStore | None, device: torch.device
) -> dict[str, Any]:
    """Plain values that tell model, genome, versions and device.

    Args:
        model: the network.
        checkpoint: the path that it was opened from.
        store: the genome; None where sequences have none.
        device: where the network computes.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    mixers = [block.mixer for block in model.backbone.blocks]
    # a mixer without operators of several forms is plain PyTorch
    forms = {type(mixer).__name__: getattr(mixer, "form", "torch") for mixer in mixers}
    return {
        "version": __version__,
        "torch": torch.__version__,
        "checkpoint": checkpoint,
        "model_hash": model_hash(model),
        "model": model.config,
        "genome": None if store is None else [source.name for source in store.record.sources],
        "genome_checksum": None if store is None else store.checksum,
        "device": name,
        "kernel_form": forms,
    }


def training_facts(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint tells of its training; of exported weights what was told of them.

    Raises:
        InputError: a checkpoint that cannot be read.
    """
    content = read_checkpoint(checkpoint)
    facts = content["fracdna"]
    if "about" in facts:
        return facts["about"]
    recipe = facts.get("recipe", {})
    data, step = recipe.get("data", {}), content.get("global_step")
    per_step = data["length"] * data["windows_per_step"] if data else None
    known = {
        "mixer": str(facts["model"].get("mixer", {}).get("_target_", "")).rpartition(".")[2],
        "training_length": data.get("length"),
        "stages": data.get("stages"),
        "bases_per_step": per_step,
        "step": step,
        "bases": per_step * step if per_step and step is not None else None,
        "planned_steps": recipe.get("steps"),
        "learning_rate": recipe.get("optimizer", {}).get("lr"),
        "optimizer": recipe.get("optimizer"),
        "schedule": recipe.get("schedule"),
        "seed": data.get("seed"),
        "reverse_complement": data.get("reverse_complement"),
        "soft_mask_weight": recipe.get("soft_mask_weight"),
        "precision": recipe.get("precision"),
        "windows": data.get("windows"),
    } | _validation(checkpoint.name, content)
    return {name: value for name, value in known.items() if value not in (None, "")}


def _validation(name: str, content: Mapping[str, Any]) -> dict[str, float]:
    """Of the best checkpoint, by its name: only its score is that of its weights."""
    for state in content.get("callbacks", {}).values():
        score = state.get("best_model_score")
        if score is not None and Path(state["best_model_path"]).name == name:
            nll = float(score)
            return {"validation_nll_nats": nll, "validation_perplexity": perplexity(nll)}
    return {}


def circumstances(device: torch.device) -> dict[str, Any]:
    """Versions, device, and the commit of the code where it is a checkout, for results."""
    return {
        "version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "device": describe_device(device),
    } | _commit(Path(__file__).parents[1])


def _version(package: str) -> str | None:
    """Of an installed distribution."""
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return None


def _commit(checkout: Path) -> dict[str, Any]:
    """The commit of a checkout and whether files were changed since; nothing where git tells none.

    A folder above that happens to be a checkout of something else says nothing about the code.
    """
    told = {"commit": None, "changed_since": None}
    if not (checkout / ".git").exists():
        return told
    for name, words in (("commit", ["rev-parse", "HEAD"]), ("changed_since", ["status", "-s"])):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            done = subprocess.run(
                ["git", "-C", checkout, *words], capture_output=True, text=True, check=True
            )
            told[name] = done.stdout.strip() if name == "commit" else bool(done.stdout.strip())
    return told
