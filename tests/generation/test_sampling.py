"""Draws: from the probabilities of the model, and each sequence by itself."""

import numpy as np
import pytest
import torch

from fracdna.generation.sampling import Noise, choose

ROWS = 40_000
LOGITS = torch.tensor([0.3, 2.0, -1.0, 1.2])


@pytest.fixture(scope="module")
def noise():
    return torch.from_numpy(Noise(0, [(0, 0)], 4).next(ROWS)[:, 0])


def shares(noise, **options):
    options = {"temperature": 1.0, "top_k": None, "top_p": 1.0} | options
    chosen = choose(LOGITS.expand(ROWS, 4), noise, **options)
    return torch.bincount(chosen, minlength=4) / ROWS


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_letters_come_with_their_probabilities(noise, temperature):
    """Within four standard errors."""
    expected = (LOGITS / temperature).softmax(-1)
    error = (shares(noise, temperature=temperature) - expected).abs()
    assert (error < 4 * (expected * (1 - expected) / ROWS).sqrt()).all()


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.5}, [1]),
        ({"top_p": 0.7}, [1, 3]),
        ({"top_p": 0.99}, [0, 1, 2, 3]),
        ({"top_k": 3, "top_p": 0.88}, [1, 3]),
    ],
    ids=str,
)
def test_limits_keep_the_most_probable_letters_in_their_proportions(noise, limits, kept):
    expected = torch.zeros(4)
    expected[kept] = LOGITS[kept].softmax(-1)
    assert (shares(noise, **limits) - expected).abs().max() < 0.015
    assert (shares(noise, **limits) > 0).nonzero()[:, 0].tolist() == kept


def test_noise_belongs_to_seed_prompt_and_sample():
    """It does not depend on the other rows, nor on how many positions are asked for at once."""
    rows = [(0, 0), (0, 1), (1, 0)]
    together = Noise(5, rows, 4).next(30)
    for index, row in enumerate(rows):
        alone = Noise(5, [row], 4)
        pieces = [alone.next(positions)[:, 0] for positions in (1, 9, 20)]
        np.testing.assert_array_equal(np.concatenate(pieces), together[:, index])
    assert len({together[:, index].tobytes() for index in range(3)}) == 3
    assert (Noise(6, rows, 4).next(30) != together).any()


def test_noise_is_gumbel():
    """Mean 0.5772, variance pi^2 / 6, finite."""
    values = Noise(1, [(3, 4)], 4).next(50_000).astype(np.float64)
    assert np.isfinite(values).all()
    assert values.mean() == pytest.approx(np.euler_gamma, abs=0.01)
    assert values.var() == pytest.approx(np.pi**2 / 6, rel=0.02)
