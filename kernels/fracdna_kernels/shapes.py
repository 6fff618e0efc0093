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
    owner: dict[str, str] = {}
    for name, (tensor, letters) in tensors.items():
        if tensor is None:
            continue
        shape = tuple(tensor.shape)
        if len(shape) != len(letters):
            raise ValueError(f"{name} needs axes {tuple(letters)}, got shape {shape}")
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                other = owner[letter]
                raise ValueError(
                    f"axis {letter} is {size} in {name} {shape} but {sizes[letter]} in "
                    f"{other} {tuple(tensors[other][0].shape)}"
                )
            owner.setdefault(letter, name)
    return sizes


def check_packing(batch: int, cu_seqlens: Tensor | None, initial_state: Tensor | None) -> int:
    """Return the number of sequences N; packed rows need B = 1 and one initial state each.

    Raises:
        ValueError: packing with B > 1, bounds that are no int vector, or a state for another N.
    """
    if cu_seqlens is None:
        count = batch
    else:
        if batch != 1:
            raise ValueError(f"cu_seqlens needs batch 1 (packed sequences), got batch {batch}")
        if cu_seqlens.ndim != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"cu_seqlens needs an int32 or int64 vector of N + 1 bounds, got "
                f"{cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
            )
        count = cu_seqlens.shape[0] - 1
    if initial_state is not None and initial_state.shape[0] != count:
        raise ValueError(
            f"initial_state is for {initial_state.shape[0]} sequences, the input has {count}"
        )
    return count


def sequence_of(cu_seqlens: Tensor, length: int) -> Tensor:
    """The sequence number of each of `length` packed positions; N at positions past the end.

    Empty sequences own no position. Runs on the device of cu_seqlens, without a host transfer.
    """
    positions = torch.arange(length, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens[1:].contiguous().long(), positions, right=True)
