"""Rows of unequal length: what an attention mask leaves out is not read, wherever it stands."""

import torch
from torch import Tensor

from fracdna_prep.errors import InputError


class Packing:
    """Rows pushed together on the left, which is the padding that carried states need.

    Args:
        valid: (batch, length) bool; at least one position of every row.

    Attributes:
        valid: as given.
        lengths: (batch,) valid positions.
    """

    def __init__(self, valid: Tensor) -> None:
        self.valid, self.lengths = valid, valid.sum(dim=1)
        # stable: valid positions keep their order, and so do the others behind them
        self._columns = valid.logical_not().int().argsort(dim=1, stable=True)

    def pack(self, ids: Tensor) -> Tensor:
        """(batch, length) columns to valid ones first."""
        return ids.gather(1, self._columns)

    def unpack(self, hidden: Tensor) -> Tensor:
        """(batch, length, width) back to the columns that were given; padding has no meaning."""
        return torch.take_along_dim(hidden, self._columns.argsort(dim=1)[..., None], dim=1)

    def last(self, count: int) -> Tensor:
        """(batch, count) columns of the last valid positions; of shorter rows the first again."""
        back = torch.arange(-count, 0, device=self.lengths.device)
        return self._columns.gather(1, (self.lengths[:, None] + back).clamp(min=0))


def packing_of(mask: Tensor | None, ids: Tensor, seen: int) -> Packing | None:
    """How rows are packed; None where nothing is padded.

    Args:
        mask: (batch, seen + length) or (batch, length), 0 at padding; None: nothing is padded.
        ids: (batch, length), what is read now.
        seen: columns that were read before.

    Raises:
        InputError: a mask of another shape, or a row without a position to read.
    """
    if mask is None:
        return None
    batch, length = ids.shape
    if tuple(mask.shape) not in {(batch, length), (batch, seen + length)}:
        raise InputError(
            f"attention_mask has the shape {tuple(mask.shape)}, where input_ids {(batch, length)} "
            f"after {seen} positions need {(batch, seen + length)}: 1 at what is read, 0 at padding"
        )
    valid = mask[:, -length:].to(ids.device, torch.bool)
    if valid.all():
        return None
    empty = (~valid.any(dim=1)).nonzero().flatten().tolist()
    if empty:
        raise InputError(
            f"attention_mask leaves nothing to read in row {empty[0]}: begin every row with BOS "
            "(the tokenizer does), and leave finished rows out"
        )
    return Packing(valid)
