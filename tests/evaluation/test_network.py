"""Nats of every base under a network, however its windows are cut."""

import numpy as np
import pytest
import torch
from models import MIXERS, tiny_model

from fracdna.evaluation.network import base_nats
from fracdna.model.carried import state_grows

GROWING = {"attention", "interleaved"}


def nats_of(model, windows, batch_bases, **options):
    parts = list(base_nats(model, windows, batch_bases=batch_bases, **options))
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("mixer", MIXERS)
def test_segments_give_the_nats_of_one_pass(mixer, monkeypatch):
    """1, 2 and 8 segments agree for every mixer; no pass is longer than a segment, but where the
    state grows, and then there is one pass."""
    model = tiny_model(mixer)
    ids = np.random.default_rng(0).integers(7, 12, (2, 64), dtype=np.uint8)
    whole = nats_of(model, [ids], 128)
    assert state_grows(model) == (mixer in GROWING)
    steps, step = [], model.step

    def counted(inputs, state):
        steps.append(inputs.shape)
        return step(inputs, state)

    monkeypatch.setattr(model, "step", counted)
    for segment in (32, 8):
        steps.clear()
        np.testing.assert_allclose(nats_of(model, [ids], segment), whole, atol=2e-4)
        passes = [shape for shape in steps if shape[1] > 1]
        assert passes == ([] if mixer in GROWING else [(1, segment)] * (128 // segment))


def test_windows_come_back_in_order_whatever_arrives_together():
    """One, several, or all windows at a time: the same nats, and 0 at N."""
    model = tiny_model("frac")
    ids = np.random.default_rng(1).integers(7, 12, (5, 16), dtype=np.uint8)
    together = nats_of(model, [ids], 4096)
    assert together.shape == (2, 80)
    assert not together[:, ids.ravel() == 11].any()
    assert (together[1] <= together[0]).all()
    for size in (16, 40):
        apart = nats_of(model, [ids[:2], ids[2:3], ids[3:]], size)
        np.testing.assert_allclose(apart, together, atol=1e-5)


def test_half_precision_is_close_and_different():
    """The compute type reaches the network, on one pass and in segments."""
    model = tiny_model("frac")
    ids = np.random.default_rng(2).integers(7, 11, (1, 64), dtype=np.uint8)
    exact = nats_of(model, [ids], 64)
    for segment in (64, 16):
        low = nats_of(model, [ids], segment, precision=torch.bfloat16)
        assert not np.array_equal(low, exact)
        np.testing.assert_allclose(low.mean(1), exact.mean(1), rtol=2e-2)
