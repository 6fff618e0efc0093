"""What results keep about the model and the genome that they come from."""

from typing import Any

import torch

from fracdna import __version__
from fracdna.model.checkpoint import model_hash
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
