"""How the kernels of frac_scan are launched: constants, timed offline (scripts/tune_kernels.py).

Nothing is tuned when the operator runs: a first call would stall, ranks could differ, and equal
calls could give unequal bits.
"""

import torch

from fracdna_kernels.pieces import piece_length, tile_width

LEVELS = 5  # of the tree inside a chunk
CHUNK = 1 << LEVELS  # positions that a program takes at once
# programs that keep all multiprocessors of a large GPU busy; fewer, and sequences are cut
PROGRAMS = 512
SHORTEST_PIECE = 256
FEW = 16  # pieces of a sequence whose starts are found without a kernel of its own
_EXACT_WIDTH = 32  # columns per program where products are exact, without matrix units
# by kernel and width (the next power of two, at most 256), for bfloat16 and up to 16 modes:
# value columns of a program, warps, pipeline stages
_TUNED = {
    "output": {
        256: (128, 2, 3), 128: (128, 2, 3), 64: (64, 2, 3), 32: (32, 2, 3), 16: (16, 1, 3),
    },
    "sweep": {
        256: (128, 2, 3), 128: (128, 2, 4), 64: (64, 2, 4), 32: (32, 1, 4), 16: (16, 1, 4),
    },
    "gradient": {
        256: (128, 2, 3), 128: (64, 1, 2), 64: (64, 1, 2), 32: (32, 1, 3), 16: (16, 1, 3),
    },
}  # fmt: skip
WIDEST = 256


def launch(kernel: str, M: int, V: int, dtype: torch.dtype) -> dict[str, int]:
    """Block of value columns, warps and pipeline stages of a kernel.

    Args:
        kernel: "output", "sweep", "gradient" or "carry".
        M: modes.
        V: value width.
        dtype: of the values.

    Returns:
        BV, num_warps and STAGES.
    """
    width = tile_width(V)
    if kernel == "carry":
        return {"BV": width, "num_warps": 1, "STAGES": 4}
    if dtype != torch.bfloat16:
        return {"BV": min(width, _EXACT_WIDTH), "num_warps": 4, "STAGES": 1}
    columns, warps, stages = _TUNED[kernel][min(width, WIDEST)]
    if M > 16:
        # tiles of modes are twice as wide; those of the output fit into no fewer warps
        if kernel != "output":
            warps *= 2
        elif columns <= 32:
            columns, warps = 16, 1
        else:
            warps = 4 if columns < 128 else 8
    return {"BV": columns, "num_warps": warps, "STAGES": stages}


def default_segment(N: int, T: int, H: int, V: int, *, packed: bool) -> int:
    """Positions of a piece, a multiple of 32, or 0 where whole sequences fill the GPU.

    Args:
        N: sequences.
        T: positions of a row.
        H: heads.
        V: value width.
        packed: the lengths of the N sequences are not known, their sum is at most T.
    """
    # half as many as wanted still run as fast as the passes that cutting costs
    return piece_length(
        H * -(-V // WIDEST), N, T, enough=PROGRAMS // 2, wanted=PROGRAMS, shortest=SHORTEST_PIECE,
        chunk=CHUNK, packed=packed,
    )  # fmt: skip


def plan_bytes(B: int, T: int, H: int, V: int, M: int, *, backward: bool) -> int:
    """Bytes that the kernels read and write in bfloat16, as planned for unpacked rows.

    Args:
        B: rows.
        T: positions of a row.
        H: heads.
        V: value width.
        M: modes.
        backward: those of a training step, forward and backward; else of a forward pass alone.
    """
    modes, width, states = 2 * M, 2 * V, 2 * M * V // CHUNK
    local = modes + width + 4 if default_segment(B, T, H, V, packed=False) else 0
    total = local + 2 * modes + 2 * width + 4
    if backward:
        total += states  # kept by the forward pass
        total += local + modes + width + 4 + states  # the adjoint's sweep
        total += 4 * modes + 3 * width + 8 + 2 * states  # gradients, chunk by chunk
    return B * T * H * total
