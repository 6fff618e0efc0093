"""Random numbers that belong to a sample: the same on every device, in any batch and any order.

Every sample has a SplitMix64 generator of its own, seeded from task, split, seed and number of the
sample. Its numbers are a function of their place alone, so that tensors of them are made at once,
where they are used.

Source: Steele, Lea, Flood 2014, Fast splittable pseudorandom number generators.
"""

import hashlib

import torch
from torch import Tensor

STEP = 0x9E3779B97F4A7C15
FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31


def sample_seeds(stream: str, numbers: Tensor) -> Tensor:
    """Seeds of the generators of samples.

    Args:
        stream: what the samples are of, as "heavy_tail test 1".
        numbers: (n,) int64, of the samples.

    Returns:
        (n,) int64, 64 bits each.
    """
    key = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little")
    return _mixed((numbers + 1) * _signed(STEP) + _signed(key))


def random_bits(seeds: Tensor, count: int, first: int = 0) -> Tensor:
    """Numbers of every sample.

    Args:
        seeds: (n,) from sample_seeds.
        count: numbers of each.
        first: number of the first of them.

    Returns:
        (n, count) int64, 64 random bits each.
    """
    places = torch.arange(first + 1, first + 1 + count, device=seeds.device)
    return _mixed(seeds[:, None] + places * _signed(STEP))


def uniform(bits: Tensor) -> Tensor:
    """Bits as float64 numbers of equal chance from 0 to below 1, of their upper 53."""
    return _shifted(bits, 11).double() * 2.0**-53


def _mixed(x: Tensor) -> Tensor:
    """A bijection of 64 bits that leaves no trace of what goes in; products wrap around."""
    for shift, factor in FACTORS:
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    return x ^ _shifted(x, LAST_SHIFT)


def _shifted(x: Tensor, places: int) -> Tensor:
    """To the right, with zeros from the left where PyTorch would repeat the sign."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def _signed(bits: int) -> int:
    """64 bits as the signed number that PyTorch takes them for."""
    return bits - (1 << 64) if bits >> 63 else bits
