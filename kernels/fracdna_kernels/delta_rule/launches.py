"""How the kernels of the delta rules are launched: constants, timed offline.

Nothing is tuned when the operators run: a first call would stall, ranks could differ, and equal
calls could give unequal bits.
"""

import torch

from fracdna_kernels.pieces import piece_length, tile_width

LEVELS = 5  # of the tree inside a chunk
CHUNK = 1 << LEVELS  # positions that a program takes at once
MOST_KEYS = 128  # key channels: the state of a block of value columns lies in registers
MOST_VALUES = 256  # value columns: a program of the gradients holds all of a chunk
# programs that keep all multiprocessors of a large GPU busy; fewer, and sequences are cut
PROGRAMS = 1024
SHORTEST_PIECE = 256
_EXACT_WIDTH = 16  # columns per program where products are exact, without matrix units
# by kernel and key width (the next power of two, at most 128), for bfloat16: value columns of a
# program, warps, pipeline stages
_TUNED = {
    "output": {128: (32, 2, 2), 64: (32, 2, 3), 32: (32, 2, 3), 16: (32, 2, 3)},
    "local": {128: (32, 2, 3), 64: (32, 2, 3), 32: (32, 2, 3), 16: (32, 2, 3)},
    "adjoint": {128: (32, 2, 2), 64: (32, 2, 3), 32: (32, 2, 3), 16: (32, 2, 3)},
    "carry": {128: (16, 8, 2), 64: (16, 4, 2), 32: (16, 2, 2), 16: (16, 1, 2)},
}


def launch(kernel: str, K: int, V: int, dtype: torch.dtype) -> dict[str, int]:
    """Block of value columns, warps and pipeline stages of a kernel.

    Args:
        kernel: "output", "local", "adjoint", "carry" or "prepare".
        K: key width.
        V: value width.
        dtype: of the values.

    Returns:
        BV, num_warps and STAGES; of "prepare" BK, a block of keys, in the place of BV.
    """
    if kernel == "prepare":
        keys = min(32, tile_width(K))
        if dtype != torch.bfloat16:
            return {"BK": keys, "num_warps": 4, "STAGES": 1}
        return {"BK": keys, "num_warps": 1, "STAGES": 2}
    columns, warps, stages = _TUNED[kernel][tile_width(K)]
    if dtype != torch.bfloat16 and kernel != "carry":
        columns, warps, stages = _EXACT_WIDTH, 4, 1
    return {"BV": min(columns, tile_width(V)), "num_warps": warps, "STAGES": stages}


def default_segment(N: int, T: int, H: int, V: int, *, packed: bool) -> int:
    """Positions of a piece, a multiple of 32, or 0 where whole sequences fill the GPU.

    Args:
        N: sequences.
        T: positions of a row.
        H: heads.
        V: value width.
        packed: the lengths of the N sequences are not known, their sum is at most T.
    """
    # the passes that cutting costs do more than twice the work of the one that it spares
    return piece_length(
        H * -(-V // 32), N, T, enough=PROGRAMS // 4, wanted=PROGRAMS, shortest=SHORTEST_PIECE,
        chunk=CHUNK, packed=packed,
    )  # fmt: skip
