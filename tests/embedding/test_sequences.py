"""`fracdna.embed`: sequences in memory to arrays."""

import numpy as np
import pytest
import torch
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord

import fracdna
from fracdna.embedding.options import STRANDS
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA


@pytest.fixture
def letters():
    """Text of a length and a seed."""

    def text(length, seed=0):
        return "".join(np.random.default_rng(seed).choice(list("ACGTNacgtn"), length))

    return text


def assert_near(value, reference):
    np.testing.assert_allclose(value, reference, rtol=1e-5, atol=1e-5)


def test_vectors_come_in_the_order_given(models, letters, states_alone):
    """(sequences, d_model) float32."""
    model = models()
    texts = [letters(30), letters(7), letters(64)]
    vectors = fracdna.embed(model, texts)
    assert vectors.shape == (3, model.backbone.d_model)
    assert vectors.dtype == np.float32
    for vector, text in zip(vectors, texts, strict=True):
        assert_near(vector, states_alone(model, DNA.encode(text)).mean(axis=0))


def test_a_sequence_may_be_text_bytes_or_a_record(models, letters):
    text = letters(40)
    expected = fracdna.embed(models(), [text])
    record = SeqRecord(Seq(text), id="one")
    for given in (text, text.encode(), record, (x for x in [text]), [record], [Seq(text)]):
        np.testing.assert_array_equal(fracdna.embed(models(), given), expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["ACGT", "AC-T"], "sequence 1: position 2 .* holds '-'"),
        (["ACGT", ""], "sequence 1 is empty"),
        (["ACGT", 7], "sequence 1: int is no sequence: give text, bytes or Biopython records"),
        ([["A", "C"]], "sequence 0: list is no sequence"),
    ],
)
def test_what_is_no_sequence_is_refused(models, given, message):
    with pytest.raises(InputError, match=message):
        fracdna.embed(models(), given)


def test_layers_and_bases_have_their_axes(models, letters, states_alone):
    """Case 34: two layers and no pooling: (bases, layers, d_model) each."""
    model = models()
    texts = [letters(30), letters(7, seed=1)]
    found = fracdna.embed(model, texts, layer=[2, -1], pooling="none")
    assert [states.shape for states in found] == [
        (30, 2, model.backbone.d_model), (7, 2, model.backbone.d_model)
    ]  # fmt: skip
    for states, text in zip(found, texts, strict=True):
        for number, layer in enumerate((2, -1)):
            assert_near(states[:, number], states_alone(model, DNA.encode(text), layer))
    single = fracdna.embed(model, texts, pooling="none")
    for one, several in zip(single, found, strict=True):
        np.testing.assert_array_equal(one, several[:, 1])
    pooled = fracdna.embed(model, texts, layer=[2, -1])
    assert pooled.shape == (2, 2, model.backbone.d_model)


@pytest.mark.parametrize("strand", STRANDS)
def test_bases_are_those_of_the_forward_strand(models, letters, states_alone, strand):
    """Whatever strand is read, alone or in segments."""
    model, text = models(), letters(50)
    forward = states_alone(model, DNA.encode(text))
    reverse = states_alone(model, DNA.reverse_complement(DNA.encode(text)))[::-1]
    expected = {"forward": forward, "reverse": reverse, "average": (forward + reverse) / 2}
    expected["equivariant"] = np.concatenate([forward, reverse], axis=1)
    for segment in (65_536, 16):
        (found,) = fracdna.embed(model, text, pooling="none", strand=strand, segment=segment)
        assert_near(found, expected[strand])


def test_company_changes_no_vector(model, letters):
    """Alone, in a batch, next to longer ones, streamed or whole; every base, for every mixer."""
    text = letters(50)
    (alone,) = fracdna.embed(model, [text], pooling="none", strand="average")
    longer = letters(60, seed=1)
    for segment in (65_536, 30):
        _, found = fracdna.embed(
            model, [longer, text], pooling="none", strand="average", segment=segment
        )
        assert_near(found, alone)


def test_a_model_may_be_a_file(checkpoint, models, letters):
    text = letters(20)
    expected = fracdna.embed(models(), text)
    np.testing.assert_array_equal(fracdna.embed(checkpoint, text, device="cpu"), expected)
    np.testing.assert_array_equal(fracdna.embed(models(), text, device="cpu"), expected)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"pooling": "max"}, "pooling=max: choose one of mean, centre, last, none"),
        ({"layer": 9}, "layer=9: this model has 0"),
        ({"layer": []}, "layer is an empty list"),
        ({"device": "tpu"}, "device=tpu: choose auto, cpu"),
        ({"batch_bases": 0}, "batch_bases=0: give a whole number"),
    ],
)
def test_unknown_choices_are_refused(models, option, message):
    with pytest.raises(InputError, match=message):
        fracdna.embed(models(), "ACGT", **option)


def test_no_sequences_give_no_vectors(models):
    width = models().backbone.d_model
    assert fracdna.embed(models(), []).shape == (0, width)
    assert fracdna.embed(models(), [], pooling="none") == []


@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_the_first_affected_sequence_is_named(models, pooling):
    """Case 38: by the order given, although batches go by length."""
    model = models()
    weight = model.backbone.embedding.weight
    before = weight[DNA.n, 0].item()
    with torch.no_grad():
        weight[DNA.n, 0] = float("nan")
    try:
        with pytest.raises(NotFinite, match="sequence 1: its vector holds NaN") as caught:
            fracdna.embed(model, ["ACGT", "ACGN", "A", "ACGTACGTN"], pooling=pooling, batch_bases=5)
        assert caught.value.row == 1
    finally:
        with torch.no_grad():
            weight[DNA.n, 0] = before
