import pytest
import torch
from numerics import relative_error

from fracdna.mixers.trapezoid import handed_on, trapezoidal_attention, with_last_pairs
from fracdna_kernels import decay_attention
from fracdna_kernels.shapes import sequence_of


def inputs(rank, length=11):
    draw = lambda *shape: torch.randn(2, length, *shape, dtype=torch.float64)  # noqa: E731
    return draw(rank, 3, 4), draw(rank, 3, 4), draw(rank, 3, 5), -draw(3).exp(), draw(3), draw(3)


def attend(q, k, v, g, now, before, memory=None, last=None, bounds=None):
    """The readings with what a position adds of its own, and the memory."""
    later = handed_on(before, None if bounds is None else sequence_of(bounds, q.shape[1]))
    weight = now + later
    if memory is not None:
        memory = with_last_pairs(memory, *(y.transpose(1, 2) for y in last), before)
    products = torch.einsum("btrhk,btshk->bthrs", q, k)
    read, own, memory = trapezoidal_attention(
        q, k * weight[:, :, None, :, None], v, g, products, weight, later,
        memory=memory, cu_seqlens=bounds,
    )  # fmt: skip
    return read + torch.einsum("bthrs,btshv->btrhv", own, v), memory


@pytest.mark.parametrize("piece", [10, 3, 1])
@pytest.mark.parametrize("rank", [1, 3])
def test_equals_its_recurrence(rank, piece):
    """Position by position, from a memory and a last pair, also in pieces and one at a time."""
    q, k, v, g, now, before = given = inputs(rank)
    state = memory = torch.randn(2, 3, 4, 5).double()
    outputs = []
    for start in range(1, 11, piece):
        part = [y[:, start : min(start + piece, 11)] for y in given]
        read, memory = attend(*part, memory, (k[:, start - 1], v[:, start - 1]))
        outputs.append(read)
    output, final = torch.cat(outputs, dim=1), memory
    for t in range(1, 11):
        pairs = [torch.einsum("brhk,brhv->bhkv", k[:, s], v[:, s]) for s in (t - 1, t)]
        state = state + before[:, t, :, None, None] * pairs[0]
        state = g[:, t].exp()[..., None, None] * state + now[:, t, :, None, None] * pairs[1]
        expected = torch.einsum("brhk,bhkv->brhv", q[:, t], state)
        assert relative_error(output[:, t - 1], expected) < 1e-12
    assert relative_error(final, state) < 1e-12


@pytest.mark.parametrize("rank", [1, 3])
def test_without_the_earlier_pair_it_is_decay_attention(rank):
    """The core of Mamba-2 with write weights, and with its own axis for the rank: before = 0."""
    q, k, v, g, now, _ = inputs(rank)
    output, final = attend(q, k, v, g, now, torch.zeros_like(now))
    ranked = (y.transpose(2, 3) for y in (q, k, v * now[:, :, None, :, None]))
    expected, state = decay_attention(*ranked, g)
    assert relative_error(output, expected.transpose(2, 3)) < 1e-12
    assert relative_error(final, state) < 1e-12


def test_nothing_is_handed_over_a_border_of_packed_sequences():
    """Also where a sequence is empty and where the row goes on."""
    given = [y[:1] for y in inputs(2)]
    output, final = attend(*given, bounds=torch.tensor([0, 4, 4, 5, 9]))
    for number, (start, end) in enumerate([(0, 4), (4, 4), (4, 5), (5, 9)]):
        expected, state = attend(*(y[:, start:end] for y in given))
        assert relative_error(output[:, start:end], expected) < 1e-12
        assert relative_error(final[number], state[0]) < 1e-12
