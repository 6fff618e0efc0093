"""Axis glossary and the one shape check of every operator.

B batch   T length   H heads   K key width   V value width   M modes   D channels   W filter width
N sequences: B, or len(cu_seqlens) - 1 where several are packed in one row (B = 1)   C chunk
"""

import torch
from torch import Tensor


def check_shapes(**tensors: tuple[Tensor | None, str]) -> dict[str, int]:
    """Match every tensor against its axis letters and return the size of each letter.

    Args:
        tensors: name=(tensor or None, letters), for example values=(values, "BTHV").

    Returns:
        The size of each letter, taken from the first tensor that has it.

    Raises:
        ValueError: a wrong number of axes, or a letter with two sizes; both shapes are shown.
    """
    sizes: dict[str, int] = {}
    for name, (tensor, letters) in tensors.items():
        if tensor is None:
            continue
        shape = tensor.shape
        if len(shape) != len(letters):
            raise ValueError(f"{name} needs axes {tuple(letters)}, got shape {tuple(shape)}")
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                other, first = next(
                    (other, first)
                    for other, (first, axes) in tensors.items()
                    if first is not None and letter in axes
                )
                raise ValueError(
                    f"axis {letter} is {size} in {name} {tuple(shape)} but {sizes[letter]} in "
                    f"{other} {tuple(first.shape)}"
                )
    return sizes


def check_packing(
    batch: int,
    length: int,
    cu_seqlens: Tensor | None,
    initial_state: Tensor | None,
    device: torch.device | None = None,
) -> None:
    """Packed rows need B = 1, ascending bounds inside the row, and one initial state each.

    The values of bounds are looked at on the CPU only, and not in compiled code: on a GPU that
    would make the host wait.

    Raises:
        ValueError: packing with B > 1, bounds that are no int vector, that descend or leave the
            row, that are not on the device of the input, or a state for another number of
            sequences.
    """
    count = batch
    if cu_seqlens is not None:
        if batch != 1:
            raise ValueError(f"cu_seqlens needs batch 1 (packed sequences), got batch {batch}")
        _check_bounds(length, cu_seqlens)
        if device is not None and cu_seqlens.device != device:
            raise ValueError(f"cu_seqlens is on {cu_seqlens.device}, the input on {device}")
        count = cu_seqlens.shape[0] - 1
    if initial_state is not None and initial_state.shape[0] != count:
        raise ValueError(
            f"initial_state is for {initial_state.shape[0]} sequences, the input has {count}"
        )


def _check_bounds(length: int, bounds: Tensor) -> None:
    """Kind of the bounds everywhere, their values on the CPU."""
    if not isinstance(bounds, Tensor) or bounds.dtype not in (torch.int32, torch.int64):
        kind = getattr(bounds, "dtype", type(bounds).__name__)
        raise ValueError(f"cu_seqlens needs an int32 or int64 tensor, got {kind}")
    if bounds.ndim != 1 or not len(bounds):
        raise ValueError(f"cu_seqlens needs a vector of N + 1 bounds, got {tuple(bounds.shape)}")
    if bounds.device.type == "cpu" and not torch.compiler.is_compiling():
        values = bounds.tolist()
        if values != sorted(values) or values[0] < 0 or values[-1] > length:
            raise ValueError(f"cu_seqlens needs ascending bounds in 0..{length}, got {values}")


def sequence_of(cu_seqlens: Tensor, length: int) -> Tensor:
    """The sequence number of each of `length` packed positions; N where there is none.

    Positions before the first and past the last bound belong to no sequence, and empty sequences
    own no position. Runs on the device of cu_seqlens, without a host transfer.
    """
    bounds = cu_seqlens.long()
    positions = torch.arange(length, device=bounds.device)
    number = torch.searchsorted(bounds[1:].contiguous(), positions, right=True)
    return torch.where(positions >= bounds[0], number, bounds.shape[0] - 1)
