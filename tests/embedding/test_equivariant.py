"""strand=equivariant: both strands side by side, which change places on the other strand."""

import itertools

import numpy as np
import pytest
import torch

import fracdna
from fracdna import StrandEquivariant, cli
from fracdna.embedding import EmbeddingOptions, embed_regions, pooled_states
from fracdna.embedding.options import POOLINGS
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA


def exchanged(vectors):
    """The halves of the last axis change places."""
    return np.roll(vectors, vectors.shape[-1] // 2, axis=-1)


def assert_near(value, reference):
    np.testing.assert_allclose(value, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [20, 21])
def test_the_other_strand_exchanges_the_halves(models, random_ids, length):
    """To the last bit, for every pooling and layer, whole and in segments."""
    ids, model = random_ids(length), models()
    others = DNA.reverse_complement(ids)
    for pooling, segment in itertools.product(POOLINGS, (65_536, 13)):
        options = EmbeddingOptions((1, -1), pooling, "equivariant", segment=segment)
        one, other = (pooled_states(model, [x], options)[0] for x in (ids, others))
        assert one.shape == (2, 2 * model.backbone.d_model)
        if pooling == "centre" and length % 2 == 0:  # two middle bases
            assert np.abs(exchanged(one) - other).max() > 1e-3
        else:
            np.testing.assert_array_equal(exchanged(one), other)


def test_bases_are_those_of_the_module(model, random_ids):
    """In a batch or in segments that carry the state; on the other strand turned around; for every
    mixer.
    """
    rows = [random_ids(n, seed=n) for n in (20, 7, 30)]
    options = {"pooling": "none", "strand": "equivariant", "batch_bases": 50, "segment": 25}
    found, others = (
        fracdna.embed(model, map(DNA.decode, ids), **options)
        for ids in (rows, map(DNA.reverse_complement, rows))
    )
    encoder = StrandEquivariant(model)
    for states, other, ids in zip(found, others, rows, strict=True):
        with torch.no_grad():
            expected = encoder(torch.tensor([[DNA.bos, *ids.tolist()]]))[0, 1:]
        assert_near(states, expected.numpy())
        np.testing.assert_array_equal(exchanged(states)[::-1], other)


def test_a_region_of_the_other_strand_exchanges_the_halves(checkpoint, models, store, tmp_path):
    """In the array of `fracdna embed`, whose bases are those of the forward strand either way."""
    zarr = pytest.importorskip("zarr", reason="the extra zarr is not installed")
    assert cli.run([
        "embed", f"checkpoint={checkpoint}", f"genome={store.directory}", "flank=10",
        "regions=[chr1:101-140,chr1:101-140:-]", "pooling=none", "strand=equivariant",
        f"output={tmp_path / 'out.zarr'}", "device=cpu", "progress=false",
    ]) == 0  # fmt: skip
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    plus, minus = np.split(group["embedding"][:], 2)
    assert group.attrs["fracdna"]["strand"] == "equivariant"
    assert_near(exchanged(plus), minus)
    options = EmbeddingOptions(pooling="none", strand="forward")
    (own,) = embed_regions(models(), store, [Interval("chr1", 100, 140)], options, flank=10)
    assert_near(np.split(plus, 2, axis=-1)[0], own)


def test_an_average_is_the_mean_of_the_halves(models, random_ids):
    for pooling in POOLINGS:
        both, average = (
            pooled_states(models(), [random_ids(30)], EmbeddingOptions(0, pooling, strand))[0]
            for strand in ("equivariant", "average")
        )
        np.testing.assert_allclose(both.reshape(2, -1).mean(0), average, rtol=1e-6, atol=1e-7)


def test_a_linear_probe_on_averages_sees_no_strand(models, random_ids):
    """Its values for both strands of every sequence are the same; those of one strand are not."""
    rows = [random_ids(30, seed=n) for n in range(40)]
    others = [DNA.reverse_complement(ids) for ids in rows]
    labels = np.random.default_rng(0).normal(size=len(rows))
    moved = {}
    for strand in ("average", "forward"):
        options = EmbeddingOptions(strand=strand)
        one, other = (pooled_states(models(), x, options).astype(float) for x in (rows, others))
        weights = np.linalg.lstsq(one, labels, rcond=None)[0]
        moved[strand] = np.abs(one @ weights - other @ weights).max()
    assert moved["average"] == 0
    assert moved["forward"] > 0.1
