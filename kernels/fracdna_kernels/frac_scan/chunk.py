"""frac_scan parallel in time, in PyTorch: chunks, a tree inside each, a tree over their states.

Every exponent is a sum of clock advances over one stretch of positions, never a difference of two
prefix sums, and every exponential is of a number at most 0: nothing overflows, and a jump of the
clock does not drown the small advances after it.

B rows   N chunks of a row   C positions of a chunk   H heads   M modes   V value width
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fracdna_kernels.forms import accumulator
from fracdna_kernels.shapes import sequence_of

CHUNK = 64


def frac_scan_chunk(
    values: Tensor,
    write: Tensor,
    read: Tensor,
    u: Tensor,
    log_tau: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All chunks at once, states by a tree over chunks; see frac_scan for shapes."""
    B, T, H, V = values.shape
    M = log_tau.shape[0]
    dtype = accumulator(values)
    rate = torch.exp(-log_tau.to(dtype))
    if initial_state is not None:
        initial_state = initial_state.to(dtype)
    elif cu_seqlens is not None:
        initial_state = values.new_zeros(cu_seqlens.shape[0] - 1, H, M, V, dtype=dtype)
    else:
        initial_state = values.new_zeros(B, H, M, V, dtype=dtype)
    if T == 0 or initial_state.shape[0] == 0:
        return torch.zeros_like(values), initial_state.clone()
    chunk = min(CHUNK, 1 << (T - 1).bit_length())
    layout = _Layout(T, chunk) if cu_seqlens is None else _packed_layout(cu_seqlens, T, chunk)
    v, k, q, clock = (
        layout.split(x.to(dtype)) for x in (values, write, read, u[..., None])
    )  # (B, N, H, C, *)
    clock = clock[..., 0]
    total = clock.sum(-1)  # (B, N, H)
    later = _later_sum(clock)
    gained = (k * _decay(later, rate)).mT @ v  # (B, N, H, M, V)
    start, final = _chunk_states(total, gained, rate, initial_state, layout)
    output = (q * _decay(clock.cumsum(-1), rate)) @ start
    output = output + _causal_weights(q, k, clock, rate) @ v
    return layout.join(output).to(values.dtype), final


class _Layout(NamedTuple):
    """Where positions and sequences stand in the chunks of each row."""

    length: int
    chunk: int
    # of packed rows only; without them each row is one sequence and slots are positions
    slots: Tensor | None = None  # (T,) slot of each position
    first: Tensor | None = None  # (N,) chunk opens a sequence
    owner: Tensor | None = None  # (N,) sequence of each chunk
    last: Tensor | None = None  # (sequences,) last chunk of each, -1 where it is empty
    valid: Tensor | None = None  # (T,) position lies inside a sequence

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
        """(B, N, H, C, V) back to (B, T, H, V), zeros past the last sequence."""
        x = x.transpose(2, 3).flatten(1, 2)
        if self.slots is None:
            return x[:, : self.length]
        return torch.where(self.valid[:, None, None], x.index_select(1, self.slots), 0.0)


def _packed_layout(cu_seqlens: Tensor, length: int, chunk: int) -> _Layout:
    """Every sequence opens a chunk of its own; sizes follow from shapes, with no host transfer."""
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
    return _Layout(length, chunk, torch.where(valid, slots, 0), first, owner, last, valid)


def _decay(advance: Tensor, rate: Tensor) -> Tensor:
    """exp(-advance / tau) for every mode: (...,) to (..., M)."""
    return torch.exp(-advance[..., None] * rate)


def _later_sum(clock: Tensor) -> Tensor:
    """Sum over the positions after each one, by a scan of its own: total minus prefix cancels."""
    shifted = torch.nn.functional.pad(clock[..., 1:], (0, 1))
    return shifted.flip(-1).cumsum(-1).flip(-1)


def _causal_weights(q: Tensor, k: Tensor, clock: Tensor, rate: Tensor) -> Tensor:
    """A_ij = sum_m q_im k_jm exp(-(u_{j+1} + .. + u_i) / tau_m) for j <= i, else 0.

    The span is halved: between halves the exponent splits at the border into a sum over the later
    half's head and one over the earlier half's tail, so a block is one matrix product; each half is
    the same problem again. log2(C) levels of M exponentials per position replace C of them.
    """
    size = q.shape[-2]
    if size == 1:
        return (q * k).sum(-1, keepdim=True)
    half = (2, size // 2)
    q, k, clock = q.unflatten(-2, half), k.unflatten(-2, half), clock.unflatten(-1, half)
    inside = _causal_weights(q, k, clock, rate)  # (..., 2, C/2, C/2)
    ahead = q[..., 1, :, :] * _decay(clock[..., 1, :].cumsum(-1), rate)
    behind = k[..., 0, :, :] * _decay(_later_sum(clock[..., 0, :]), rate)
    across = ahead @ behind.mT
    upper = torch.cat([inside[..., 0, :, :], torch.zeros_like(across)], dim=-1)
    lower = torch.cat([across, inside[..., 1, :, :]], dim=-1)
    return torch.cat([upper, lower], dim=-2)


def _chunk_states(
    total: Tensor, gained: Tensor, rate: Tensor, initial: Tensor, layout: _Layout
) -> tuple[Tensor, Tensor]:
    """State at the start of each chunk (B, N, H, M, V) and at the end of each sequence."""
    if layout.owner is None:
        before = initial[:, None]
        first = torch.zeros(total.shape[1], dtype=torch.bool, device=total.device)
        first[0] = True
    else:
        before = initial[layout.owner][None]
        first = layout.first
    first = first[None, :, None]
    # a chunk that opens a sequence takes that sequence's state and nothing of the chunk before it
    opened = gained + _decay(total, rate)[..., None] * before
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
        kept = _decay(total[:, part], rate)[..., None] * earlier
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
