import math

import pytest
import torch

from fracdna.mixers.selective_rotary import STRETCH, running_sum, selective_angles, turn_half


def test_angles_add_up_and_start_afresh_in_packed_sequences():
    delta, speed = torch.rand(1, 9, 2), torch.randn(1, 9, 3)
    bounds = torch.tensor([1, 4, 4, 8])
    packed = selective_angles(delta, speed, cu_seqlens=bounds)
    for start, end in ((1, 4), (4, 8)):
        expected = torch.zeros(2, 3)
        for t in range(start, end):
            expected = expected + delta[0, t, :, None] * math.pi * torch.tanh(speed[0, t])
            turn = torch.remainder(expected - packed[0, t] + 1, 2 * math.pi) - 1
            assert turn.abs().max() < 1e-6


@pytest.mark.parametrize("length", [0, 1, STRETCH, STRETCH + 1, 3 * STRETCH - 5])
def test_sums_in_stretches_are_the_running_sum(length):
    """Values and gradients, whatever is left over at the end."""
    x = torch.randn(2, length, 3, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, length, 3, 2, dtype=torch.float64)
    results = []
    for total in (running_sum(x), x.cumsum(1)):
        results.append((total, *torch.autograd.grad((total * weight).sum(), x)))
    for one, two in zip(*results, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-11)


def test_angles_keep_their_digits_over_a_million_positions():
    """A sum in float32 would drift; the last step's turn must come out whole."""
    length = 2**20
    delta, speed = torch.full((1, length, 1), 0.1), torch.full((1, length, 1), 0.3)
    angle = selective_angles(delta, speed)[0, :, 0, 0].double()
    step = delta[0, 0, 0].double() * math.pi * torch.tanh(speed[0, 0, 0]).double()
    moved = torch.remainder(angle[-1] - angle[-2], 2 * math.pi)
    assert moved.item() == pytest.approx(step.item(), abs=1e-6)


@pytest.mark.parametrize(
    ("neighbours", "pairs"), [(True, [(0, 1), (2, 3)]), (False, [(0, 4), (1, 5)])]
)
def test_which_coordinates_turn(neighbours, pairs):
    x, angle = torch.randn(5, 8), torch.randn(5, 2)
    turned = turn_half(x, angle, neighbours=neighbours)
    for i, (one, two) in enumerate(pairs):
        point = torch.complex(x[:, one], x[:, two]) * torch.polar(torch.ones(5), angle[:, i])
        assert torch.allclose(turned[:, one], point.real, atol=1e-6)
        assert torch.allclose(turned[:, two], point.imag, atol=1e-6)
    still = [i for i in range(8) if i not in {n for pair in pairs for n in pair}]
    assert torch.equal(turned[:, still], x[:, still])
