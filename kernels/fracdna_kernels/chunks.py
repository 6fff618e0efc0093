"""What the chunk forms of operators share: how rows are cut, and the states between chunks.

A row is cut into chunks of equal size, all of which are worked on at once. In packed rows every
sequence opens a chunk of its own, so that no chunk holds positions of two.

B rows   T positions of a row   N chunks of a row   C positions of a chunk   H heads   M modes
V value width
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fracdna_kernels.shapes import sequence_of


class ChunkLayout(NamedTuple):
    """Where positions and sequences stand in the chunks of each row; see chunk_layout.

    Of rows that are not packed only the first two are there: each row is one sequence, and slots
    are positions.

    Attributes:
        length: T, positions of a row.
        chunk: C, slots of a chunk.
        slots: (T,), slot of each position.
        first: (N,), whether a chunk opens a sequence.
        owner: (N,), sequence of each chunk.
        last: (sequences,), last chunk of each, -1 where it is empty.
        valid: (T,), whether a position lies inside a sequence.
    """

    length: int
    chunk: int
    slots: Tensor | None = None
    first: Tensor | None = None
    owner: Tensor | None = None
    last: Tensor | None = None
    valid: Tensor | None = None

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H, *) to (B, N, H, C, *), zeros in the slots that hold no position."""
        if self.slots is None:
            pad = -self.length % self.chunk
            x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, pad))
        else:
            x = torch.where(self.valid[:, None, None], x, 0.0)
            empty = x.new_zeros(1, self.owner.shape[0] * self.chunk, *x.shape[2:])
            x = empty.index_add(1, self.slots, x)
        return x.unflatten(1, (-1, self.chunk)).transpose(2, 3)

    def join(self, x: Tensor) -> Tensor:
        """(B, N, H, C, *) back to (B, T, H, *), zeros outside the sequences."""
        x = x.transpose(2, 3).flatten(1, 2)
        if self.slots is None:
            return x[:, : self.length]
        return torch.where(self.valid[:, None, None], x.index_select(1, self.slots), 0.0)


def chunk_layout(length: int, chunk: int, cu_seqlens: Tensor | None = None) -> ChunkLayout:
    """Cut rows into chunks; sizes follow from shapes, with no host transfer.

    Args:
        length: T, positions of a row.
        chunk: C, positions of a chunk.
        cu_seqlens: (sequences + 1,) bounds of at least one packed sequence; None: each row is one.
    """
    if cu_seqlens is None:
        return ChunkLayout(length, chunk)
    bounds = cu_seqlens.long()
    count = bounds.shape[0] - 1
    chunks = (bounds.diff() + chunk - 1) // chunk  # (sequences,)
    ends = chunks.cumsum(0)
    position = torch.arange(length, device=bounds.device)
    sequence = sequence_of(cu_seqlens, length)
    valid = sequence < count
    safe = sequence.clamp(max=count - 1)
    slots = (ends - chunks)[safe] * chunk + position - bounds[safe]
    room = (length + chunk - 1) // chunk + count  # at least as many as the sequences fill
    number = torch.arange(room, device=bounds.device)
    owner = torch.searchsorted(ends, number, right=True).clamp(max=count - 1)
    first = number == (ends - chunks)[owner]
    last = torch.where(chunks > 0, ends - 1, -1)
    return ChunkLayout(length, chunk, torch.where(valid, slots, 0), first, owner, last, valid)


def mode_decay(advance: Tensor, rate: Tensor) -> Tensor:
    """What is left of every mode after an advance of its clock: exp(-advance * rate).

    Args:
        advance: (...,), at least 0.
        rate: (M,), 1 / tau of each mode.

    Returns:
        (..., M).
    """
    return torch.exp(-advance[..., None] * rate)


def later_sum(x: Tensor) -> Tensor:
    """Sum over the positions after each one, along the last axis.

    By a scan of its own: the total minus a prefix would cancel.
    """
    shifted = torch.nn.functional.pad(x[..., 1:], (0, 1))
    return shifted.flip(-1).cumsum(-1).flip(-1)


def chunk_states(
    total: Tensor, gained: Tensor, rate: Tensor, initial: Tensor, layout: ChunkLayout
) -> tuple[Tensor, Tensor]:
    """States between chunks, each of which fades what it finds and adds to it.

    Args:
        total: (B, N, H), advance of the clock over each chunk.
        gained: (B, N, H, M, V), what each chunk adds to an empty state.
        rate: (M,), 1 / tau of each mode, or (1,) where all fade alike.
        initial: (sequences, H, M, V).
        layout: of the chunks.

    Returns:
        The state at the start of each chunk (B, N, H, M, V), and the one at the end of each
        sequence (sequences, H, M, V).
    """
    if layout.owner is None:
        before = initial[:, None]
        first = torch.zeros(total.shape[1], dtype=torch.bool, device=total.device)
        first[0] = True
    else:
        before = initial[layout.owner][None]
        first = layout.first
    first = first[None, :, None]
    # a chunk that opens a sequence takes that sequence's state and nothing of the chunk before it
    opened = gained + mode_decay(total, rate)[..., None] * before
    gained = torch.where(first[..., None, None], opened, gained)
    ends = _prefix_states(total, gained, first, rate)
    carried = torch.nn.functional.pad(ends[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))
    start = torch.where(first[..., None, None], before, carried)
    if layout.owner is None:
        return start, ends[:, -1]
    last = layout.last
    final = torch.where((last >= 0)[:, None, None, None], ends[0, last.clamp(min=0)], initial)
    return start, final


def _prefix_states(total: Tensor, gained: Tensor, opens: Tensor, rate: Tensor) -> Tensor:
    """S_n = exp(-U_n / tau) S_{n-1} + gained_n over the chunk axis 1, by pairing neighbours.

    Two neighbours act as one chunk whose clock advance is the sum of theirs, so the odd states come
    from the same problem at half the size, and the even ones from one more step. A chunk that opens
    a sequence takes nothing from before it: selected, not multiplied away, since 0 times what is
    not finite is not 0.
    """
    count = total.shape[1]
    if count == 1:
        return gained
    pairs = count // 2
    even, odd = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)

    def after(earlier: Tensor, part: slice) -> Tensor:
        kept = mode_decay(total[:, part], rate)[..., None] * earlier
        return gained[:, part] + torch.where(opens[:, part, ..., None, None], 0.0, kept)

    odd_states = _prefix_states(
        total[:, even] + total[:, odd],
        after(gained[:, even], odd),
        opens[:, even] | opens[:, odd],
        rate,
    )
    earlier = odd_states if count % 2 else odd_states[:, :-1]
    even_states = torch.cat([gained[:, :1], after(earlier, slice(2, None, 2))], dim=1)
    states = torch.stack([even_states[:, :pairs], odd_states], dim=2).flatten(1, 2)
    return torch.cat([states, even_states[:, pairs:]], dim=1)
