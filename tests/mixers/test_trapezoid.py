import pytest
import torch
from numerics import relative_error

from fracdna.mixers.trapezoid import trapezoidal_attention
from fracdna_kernels import decay_attention


def inputs(rank, length=11):
    draw = lambda *shape: torch.randn(2, length, 3, *shape, dtype=torch.float64)  # noqa: E731
    return draw(rank, 4), draw(rank, 4), draw(rank, 5), -draw().exp(), draw(), draw()


@pytest.mark.parametrize("rank", [1, 3])
def test_equals_its_recurrence(rank):
    """Position by position, also from a memory and a last pair."""
    q, k, v, g, now, before = inputs(rank)
    memory, last = torch.randn(2, 3, 4, 5).double(), (k[:, 0], v[:, 0])
    output, final = trapezoidal_attention(
        q[:, 1:], k[:, 1:], v[:, 1:], g[:, 1:], now[:, 1:], before[:, 1:], memory=memory, last=last
    )
    state = memory
    for t in range(1, 11):
        pairs = [torch.einsum("bhrk,bhrv->bhkv", k[:, s], v[:, s]) for s in (t - 1, t)]
        state = state + before[:, t, :, None, None] * pairs[0]
        state = g[:, t].exp()[..., None, None] * state + now[:, t, :, None, None] * pairs[1]
        expected = torch.einsum("bhrk,bhkv->bhrv", q[:, t], state)
        assert relative_error(output[:, t - 1], expected) < 1e-12
    assert relative_error(final, state) < 1e-12


@pytest.mark.parametrize("rank", [1, 3])
def test_without_the_earlier_pair_it_is_decay_attention(rank):
    """The core of Mamba-2 with write weights: before = 0."""
    q, k, v, g, now, _ = inputs(rank)
    output, final = trapezoidal_attention(q, k, v, g, now, torch.zeros_like(now))
    expected, state = decay_attention(q, k, v * now[..., None, None], g)
    assert relative_error(output, expected) < 1e-12
    assert relative_error(final, state) < 1e-12


def test_nothing_is_handed_over_a_border_of_packed_sequences():
    """Also where a sequence is empty and where the row goes on."""
    q, k, v, g, now, before = (y[:1] for y in inputs(2))
    output, final = trapezoidal_attention(
        q, k, v, g, now, before, cu_seqlens=torch.tensor([0, 4, 4, 5, 9])
    )
    for number, (start, end) in enumerate([(0, 4), (4, 4), (4, 5), (5, 9)]):
        part = slice(start, end)
        expected, state = trapezoidal_attention(*(y[:, part] for y in (q, k, v, g, now, before)))
        assert relative_error(output[:, part], expected) < 1e-12
        assert relative_error(final[number], state[0]) < 1e-12
