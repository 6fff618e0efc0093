"""What a model is asked to predict from a window."""

import torch
from torch import Tensor

from fracdna_prep.vocabulary import DNA

# a target that is never counted; a value of the loss, not a token of the vocabulary
IGNORED = -100


def next_base(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Predict every base of a window from those before it.

    Args:
        ids: (batch, length) integer ids of windows x1 .. xL, without BOS.

    Returns:
        inputs (batch, length) int64: BOS, x1 .. x(L-1); targets (batch, length) int64: x1 .. xL
        where the base is A, C, G or T, IGNORED at N, PAD and any special id.
    """
    ids = ids.long()
    inputs = torch.nn.functional.pad(ids[:, :-1], (1, 0), value=DNA.bos)
    first, last = min(DNA.bases), max(DNA.bases)
    return inputs, torch.where((ids >= first) & (ids <= last), ids, IGNORED)
