"""How the kernels of decay_attention are launched: constants, timed offline.

Nothing is tuned when the operator runs: a first call would stall, ranks could differ, and equal
calls could give unequal bits.
"""

import torch

from fracdna_kernels.pieces import piece_length, tile_width

LEVELS = 5  # of the tree inside a chunk
CHUNK = 1 << LEVELS  # positions that a program takes at once
WIDEST = 256  # keys: a program keeps the state of all of them
# programs that keep all multiprocessors of a large GPU busy; fewer, and sequences are cut
PROGRAMS = 512
SHORTEST_PIECE = 256
_EXACT_TILE = 4096  # elements of a state where products are exact, without matrix units
# by kernel and key width (a power of two from 16), for bfloat16: most value columns of a program,
# parts of the keys, warps, pipeline stages, most registers of a thread. 64 rows of a product by 4
# warps would take other instructions.
_TUNED = {
    "output": {
        256: (16, 2, 4, 2, 255), 128: (32, 2, 2, 2, 255), 64: (32, 1, 2, 3, 255),
        32: (32, 1, 2, 3, 255), 16: (32, 1, 2, 3, 255),
    },
    # keeping the states of chunks takes registers
    "keep": {
        256: (16, 2, 4, 2, 255), 128: (32, 2, 4, 3, 168), 64: (32, 1, 2, 3, 255),
        32: (32, 1, 2, 3, 255), 16: (32, 1, 2, 3, 255),
    },
    "sweep": {
        256: (16, 2, 4, 2, 255), 128: (32, 2, 4, 3, 168), 64: (32, 1, 2, 3, 255),
        32: (32, 1, 2, 3, 255), 16: (32, 1, 2, 3, 255),
    },
}  # fmt: skip


def launch(kernel: str, K: int, V: int, dtype: torch.dtype) -> dict[str, int]:
    """Tiles, warps and pipeline stages of a kernel.

    Args:
        kernel: "fade", "output", "keep" (output that keeps states), "sweep" or "carry".
        K: key width.
        V: value width.
        dtype: of the values.

    Returns:
        num_warps, STAGES and, of those that the kernel has, BV value columns of a program, PARTS
        of the keys and maxnreg; BK keys at once for "fade".
    """
    keys, values = tile_width(K), tile_width(V)
    if kernel == "carry":
        return {"BV": values, "num_warps": 1, "STAGES": 4}
    if kernel == "fade":
        return {"BK": min(keys, 32), "num_warps": 2 if dtype == torch.bfloat16 else 4, "STAGES": 1}
    if dtype != torch.bfloat16:
        columns = max(16, min(values, _EXACT_TILE // keys, 32))
        return {"BV": columns, "PARTS": 1, "num_warps": 4, "STAGES": 1, "maxnreg": 255}
    columns, parts, warps, stages, registers = _TUNED[kernel][keys]
    return {
        "BV": min(values, columns), "PARTS": parts, "num_warps": warps, "STAGES": stages,
        "maxnreg": registers,
    }  # fmt: skip


def default_segment(N: int, T: int, H: int, K: int, V: int, *, packed: bool) -> int:
    """Positions of a piece, a multiple of 32, or 0 where whole sequences fill the GPU.

    Args:
        N: sequences.
        T: positions of a row.
        H: heads.
        K: key width.
        V: value width.
        packed: the lengths of the N sequences are not known, their sum is at most T.
    """
    programs = H * -(-V // launch("output", K, V, torch.bfloat16)["BV"])
    # half as many as wanted still run as fast as the passes that cutting costs
    return piece_length(
        programs, N, T, enough=PROGRAMS // 2, wanted=PROGRAMS, shortest=SHORTEST_PIECE,
        chunk=CHUNK, packed=packed,
    )  # fmt: skip
