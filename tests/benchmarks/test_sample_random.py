import pytest
import torch

from fracdna.benchmarks.sample_random import random_bits, sample_seeds, uniform

# of SplitMix64 seeded with 1234567, as its authors' C code prints them
PUBLISHED = [
    6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
    16408922859458223821,
]  # fmt: skip


def test_numbers_are_those_of_splitmix64():
    bits = random_bits(torch.tensor([1234567]), 5)[0]
    assert [number % (1 << 64) for number in bits.tolist()] == PUBLISHED


def test_numbers_depend_on_nothing_but_their_sample_and_place():
    """Other samples of a batch, their order and the number of places change nothing."""
    numbers = torch.arange(7)
    whole = random_bits(sample_seeds("task test 1", numbers), 40)
    turned = random_bits(sample_seeds("task test 1", numbers.flip(0)), 40).flip(0)
    assert whole.equal(turned)
    assert whole[3:4, 10:25].equal(random_bits(sample_seeds("task test 1", numbers[3:4]), 15, 10))


@pytest.mark.parametrize("other", ["task test 2", "task valid 1", "other test 1"])
def test_task_split_and_seed_have_streams_of_their_own(other):
    numbers = torch.arange(2000)
    both = torch.cat([sample_seeds("task test 1", numbers), sample_seeds(other, numbers)])
    assert len(both.unique()) == 4000


def test_numbers_are_uniform_and_samples_do_not_resemble_each_other():
    values = uniform(random_bits(sample_seeds("task test 1", torch.arange(200)), 2000))
    assert float(values.min()) >= 0
    assert float(values.max()) < 1
    tenths = values.mul(10).long().flatten().bincount(minlength=10)
    # 400,000 draws: the standard deviation of a tenth is 190
    assert int((tenths - 40_000).abs().max()) < 900
    correlations = torch.corrcoef(values).fill_diagonal_(0.0)
    # 19,900 pairs of 2,000 numbers: the largest of as many normal ones is near 4.2 / sqrt(2000)
    assert float(correlations.abs().max()) < 0.12
