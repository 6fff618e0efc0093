from itertools import islice, pairwise

import pytest
import torch
from numerics import relative_error

from fracdna_kernels.chunks import chunk_layout, chunk_states, later_sum, mode_decay

BOUNDS = [None, [0, 13], [0, 0, 5, 5, 12], [0, 1, 2, 3, 13], [2, 3, 11], [0, 0, 0]]
each_bounds = pytest.mark.parametrize("bounds", BOUNDS, ids=str)


def layout_of(bounds, length=13, chunk=4):
    return chunk_layout(length, chunk, None if bounds is None else torch.tensor(bounds))


def inside(bounds, length=13):
    """Whether a position lies in a sequence."""
    position = torch.arange(length)
    ends = (0, length) if bounds is None else (bounds[0], bounds[-1])
    return (ends[0] <= position) & (position < ends[1])


@each_bounds
def test_chunks_joined_again_are_the_row(bounds):
    """And zeros outside the sequences, whatever stands there."""
    layout = layout_of(bounds)
    row = torch.randn(1 if bounds else 2, 13, 3, 5)
    expected = torch.where(inside(bounds)[:, None, None], row, 0.0)
    assert torch.equal(layout.join(layout.split(row)), expected)
    row[:, ~inside(bounds)] = torch.nan
    assert torch.equal(layout.join(layout.split(row)), expected)


@each_bounds
def test_no_chunk_holds_positions_of_two_sequences(bounds):
    """Positions stand in order, the first of a sequence in the first slot of a chunk."""
    ends = [0, 13] if bounds is None else bounds
    number = torch.zeros(13)  # of a sequence, from 1 on
    for n, (start, end) in enumerate(pairwise(ends), start=1):
        number[start:end] = n
    count = torch.arange(1.0, 14)
    rows = torch.stack([number, count], dim=-1)[None, :, None]
    chunks = layout_of(bounds).split(rows)[0, :, 0]  # (N, 4, 2)
    held = []
    for chunk in chunks:
        filled = chunk[chunk[:, 0] > 0]
        assert torch.equal(chunk[: len(filled)], filled)
        assert (chunk[len(filled) :] == 0).all()
        assert len(filled[:, 0].unique()) <= 1
        held += filled[:, 1].tolist()
    assert held == count[inside(bounds)].tolist()


def test_sums_of_what_comes_later_keep_small_terms_after_a_jump():
    """The total less a prefix would leave 0 of them."""
    x = torch.tensor([[1.0, 1e16, 0.25, 0.5, 2.0]], dtype=torch.float64)
    assert later_sum(x).tolist() == [[1e16 + 2.75, 2.75, 2.5, 2.0, 0.0]]


@pytest.mark.parametrize("modes", [1, 3], ids=["one rate", "a rate for each mode"])
@each_bounds
def test_states_between_chunks_are_those_of_a_loop(bounds, modes):
    """Every sequence from its own state, empty ones keep theirs."""
    layout = layout_of(bounds, length=43)
    lengths = [43] if bounds is None else [b - a for a, b in pairwise(bounds)]
    counts = [-(-length // 4) for length in lengths]
    rows = 2 if bounds is None else 1
    chunks = counts[0] if bounds is None else layout.owner.shape[0]
    total = torch.rand(rows, chunks, 2, dtype=torch.float64)
    gained = torch.randn(rows, chunks, 2, 3, 5, dtype=torch.float64)
    rate = torch.rand(modes, dtype=torch.float64)
    initial = torch.randn(rows * len(counts), 2, 3, 5, dtype=torch.float64)
    start, final = chunk_states(total, gained, rate, initial, layout)
    for row in range(rows):
        number = iter(range(chunks))
        for sequence, count in enumerate(counts, start=row):
            state = initial[sequence]
            for n in islice(number, count):
                assert relative_error(start[row, n], state) < 1e-14
                kept = mode_decay(total[row, n], rate)[..., None]
                state = kept * state + gained[row, n]
            assert relative_error(final[sequence], state) < 1e-14


def test_an_advance_of_any_size_leaves_numbers_from_0_to_1():
    left = mode_decay(torch.tensor([0.0, 1.0, 1e6]), torch.tensor([1.0, 2.0**-17]))
    assert torch.equal(left, torch.exp(-torch.tensor([[0, 0], [1, 2**-17], [1e6, 1e6 * 2**-17]])))
