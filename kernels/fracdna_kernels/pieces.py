"""How fused forms cut sequences into pieces and tensors into tiles; imported before Triton is.

A piece is a number of chunks, and all run at once.

In packed rows every sequence opens a piece and a chunk of its own. Sizes follow from shapes, so a
device is not waited for.

B rows   T positions of a row   N sequences   G pieces
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fracdna_kernels.shapes import sequence_of

MANY = 8  # times as many programs as are wanted


class Pieces(NamedTuple):
    """Pieces of at most `length` positions: by arithmetic, or by a table where rows are packed.

    Attributes:
        count: G, places for pieces; some stay empty where rows are packed.
        length: most positions of one.
        per_row: pieces of a row that is one sequence.
        table: (5, G) begin, end, sequence or -1, chunk slot, edges (1 opens, 2 ends a sequence).
        first: (N + 1,) number of the first piece of each sequence.
    """

    count: int
    length: int
    per_row: int
    table: Tensor | None = None
    first: Tensor | None = None


class Rows:
    """Rows of positions, how they are cut and where what is kept of each chunk lies.

    Args:
        B: rows.
        T: positions of a row, at least 1.
        cu_seqlens: (N + 1,) bounds of packed sequences, needs B = 1; None: each row is one.
        chunk: positions of a chunk.

    Attributes:
        N: sequences.
        chunks: most chunks of a row that is one sequence.
        slots: places for what is kept of a chunk.
    """

    def __init__(self, B: int, T: int, cu_seqlens: Tensor | None, chunk: int) -> None:
        self.B, self.T, self.cu_seqlens, self.chunk = B, T, cu_seqlens, chunk
        self.N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
        self.chunks = -(-T // chunk)
        self.slots = slots(B, T, cu_seqlens, chunk)

    def cut(self, length: int = 0) -> Pieces:
        """Pieces of up to `length` positions; every sequence has at least one.

        Args:
            length: a multiple of the chunk; 0: whole sequences.
        """
        length = length or self.chunks * self.chunk
        if self.cu_seqlens is None:
            per_row = -(-self.T // length)
            return Pieces(self.B * per_row, length, per_row)
        # a device cannot refuse wrong ones: none may leave the row or descend
        bounds = self.cu_seqlens.long().clamp(0, self.T).cummax(0).values
        sizes = bounds.diff()
        number = ((sizes + length - 1) // length).clamp(min=1)
        first = torch.nn.functional.pad(number.cumsum(0), (1, 0))
        chunks = ((sizes + self.chunk - 1) // self.chunk).clamp(min=1).cumsum(0)
        slots = torch.nn.functional.pad(chunks, (1, 0))
        count = -(-self.T // length) + self.N
        index = torch.arange(count, device=bounds.device)
        owner = sequence_of(first, count)  # N where there are more places than pieces
        sequence = owner.clamp(max=self.N - 1)
        part = index - first[sequence]
        begin = bounds[sequence] + part * length
        end = torch.minimum(begin + length, bounds[sequence + 1])
        edges = (part == 0).long() + 2 * (index + 1 == first[sequence + 1]).long()
        slot = slots[sequence] + part * (length // self.chunk)
        exists = owner < self.N
        sequence = torch.where(exists, sequence, -1)
        rows = torch.stack([begin, end, sequence, slot, edges])
        # places that no piece takes: sequence -1 and no position
        return Pieces(count, length, 1, torch.where(exists | (rows < 0), rows, 0), first)

    def geometry(self, pieces: Pieces) -> dict[str, object]:
        """Arguments of a kernel that say where pieces lie, see `piece` in triton_chunks.py."""
        return {
            "table": pieces.table, "count": pieces.count, "T": self.T, "length": pieces.length,
            "per_row": pieces.per_row, "chunks": self.chunks, "BT": self.chunk,
            "PACKED": pieces.table is not None,
        }  # fmt: skip

    def of_chunks(self) -> tuple[int, dict[str, object]]:
        """Places for chunks, and the arguments of a kernel that takes each by itself."""
        chunks = self.cut(self.chunk)
        geometry = self.geometry(chunks)
        # no piece of one chunk needs them
        del geometry["length"], geometry["chunks"]
        return chunks.count, geometry

    def cuts(self, pieces: Pieces) -> bool:
        """Whether some sequence may have more than one piece."""
        return pieces.length < self.T


def slots(B: int, T: int, cu_seqlens: Tensor | None, chunk: int) -> int:
    """Places for what is kept of each chunk; some stay empty where rows are packed."""
    chunks = -(-T // chunk)
    return B * chunks if cu_seqlens is None else chunks + cu_seqlens.shape[0] - 1


def piece_length(
    programs: int,
    N: int,
    T: int,
    *,
    enough: int,
    wanted: int,
    shortest: int,
    chunk: int,
    packed: bool,
) -> int:
    """Positions of a piece, a multiple of the chunk, or 0 where whole sequences fill the GPU.

    Args:
        programs: that run at once on a sequence that is not cut.
        N: sequences.
        T: positions of a row.
        enough: programs with which cutting costs more than it brings.
        wanted: programs, where sequences are cut.
        shortest: positions of a piece, at least.
        chunk: positions of a chunk.
        packed: the lengths of the N sequences are not known, their sum is at most T.
    """
    # of very many packed sequences most are short; each would need a state more in every pass
    if N * programs >= (MANY * wanted if packed else enough):
        return 0
    pieces = -(-wanted // (programs if packed else programs * N))
    length = max(-(-T // (chunk * pieces)) * chunk, shortest)
    return length if length < T else 0


def tile_width(size: int) -> int:
    """The width of a tile: the next power of two, and what a product takes, at least 16."""
    return max(16, 1 << (size - 1).bit_length())
