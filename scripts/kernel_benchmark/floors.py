"""Bytes that an operator cannot avoid: every input read once, every output written once.

Weights and other tensors without a token axis are not counted. Sizes are in bytes per element:
2 for bfloat16, 4 for float32. `backward` counts the backward pass alone; a training step moves
forward + backward. The formulas:

operator                  forward                          backward
frac_scan, token, head    values, out 2V + 2V;             also reads dO, writes dvalues:
                          write, read 2M + 2M; u 4         6V; 8M for k, q, dk, dq; 8 for u, du
frac_gates, token, head   3 pre-activations; logits 4M;    reads inputs, du, dread, dwrite;
                          read, write 4M; u 4              writes 3 + 4M gradients
gated_rms_norm, element   x, gate, out 6; values of the    reads x, gate, dO, writes dx, dgate:
                          skip 2                           10; skip: values, dvalues 4
add_rms_norm, element     x, residual, normed, sum         reads sum, dnormed, dsum; writes
                                                           dresidual, and dx if its dtype differs
short_convolution, elem.  x, y 4                           x, dy, dx 6

H heads   V value width   M modes   D, E widths of the stream and of the layer's inside
"""

from dataclasses import dataclass

HALF, SINGLE = 2, 4


@dataclass(frozen=True)
class Bytes:
    """Bytes of a forward pass and of a backward pass, per the unit that the function names."""

    forward: int
    backward: int

    @property
    def both(self) -> int:
        """Bytes of forward and backward pass."""
        return self.forward + self.backward

    def of(self, backward: bool) -> int:
        """Bytes of a forward pass, or of forward and backward."""
        return self.both if backward else self.forward

    def __mul__(self, count: int) -> "Bytes":
        return Bytes(count * self.forward, count * self.backward)

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.forward + other.forward, self.backward + other.backward)


def frac_scan_bytes(width: int, modes: int, size: int = HALF) -> Bytes:
    """Per token and head; 68 + 4V and 136 + 6V for 16 modes in bfloat16."""
    rows = size * (width + modes)
    return Bytes(2 * rows + SINGLE, size * (3 * width + 4 * modes) + 2 * SINGLE)


def decode_bytes(width: int, modes: int) -> int:
    """Per sequence and head: the float32 state is read and written."""
    return 2 * SINGLE * width * modes


def frac_gates_bytes(modes: int, size: int = HALF, gate_size: int = SINGLE) -> Bytes:
    """Per token and head, pre-activations of `gate_size`, logits and weights of `size` bytes."""
    forward = 3 * gate_size + 4 * size * modes + SINGLE
    return Bytes(forward, forward + 3 * gate_size + 2 * size * modes)


def gated_rms_norm_bytes(skip: bool, size: int = HALF) -> Bytes:
    """Per element."""
    return Bytes(size * (3 + skip), size * (5 + 2 * skip))


def add_rms_norm_bytes(size: int = HALF, stream_size: int = HALF) -> Bytes:
    """Per element: branch and normed values of `size`, the residual stream of `stream_size`."""
    separate = size if size != stream_size else 0
    return Bytes(2 * size + 2 * stream_size, size + 3 * stream_size + separate)


def short_convolution_bytes(size: int = HALF) -> Bytes:
    """Per element."""
    return Bytes(2 * size, 3 * size)


def layer_bytes(
    d_model: int, inner: int, heads: int, modes: int, stream_size: int = HALF
) -> dict[str, Bytes]:
    """Per token of one FRAC layer, all that is neither a matrix product nor the scan.

    These are the operators alone: casts, copies and sums of gradients beside them could all be
    fused away, so in a measurement they count as excess over this floor.
    """
    return {
        "norms": add_rms_norm_bytes(stream_size=stream_size) * d_model
        + gated_rms_norm_bytes(skip=True) * inner,
        "convolution": short_convolution_bytes() * inner,
        "gates": frac_gates_bytes(modes) * heads,
    }


def share(bytes_moved: float, milliseconds: float, copy_rate: float) -> float:
    """Part of the time that moving the bytes at the copy rate (bytes per second) would take."""
    return bytes_moved / copy_rate / (milliseconds * 1e-3)


# share of the floor that frac_scan shall reach at 16 rows of 4,096: (forward, forward + backward)
SCAN_GOALS = {(4, 128): (0.45, 0.35), (16, 128): (0.60, 0.40), (16, 256): (0.70, 0.50)}
OPERATOR_GOAL = 0.70
# time of a layer outside matrix products and scan, over its own byte floor
LAYER_GOAL = 1.5
# a long row may take so many times what the same tokens take in 16 rows
LONG_ROW_GOAL = 2.0
# the public chain of kernels for the same recurrence shall take so many times as long
PEER_GOAL = 3.0
