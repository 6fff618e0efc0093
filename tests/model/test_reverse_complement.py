"""Both strands beside each other: what holds for any causal network, whatever its weights."""

import functools

import numpy as np
import pytest
import torch
from models import CONSUMED, MIXERS, model_config, tiny_model
from numerics import relative_error

import fracdna
from fracdna import StrandEquivariant
from fracdna.model.checkpoint import build_model
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

# odd, even, one base, N at an end and in the middle
TEXTS = ["ACGTNAC", "GGATCCATTGCA", "A", "NACGGTTA", "N"]


@functools.cache
def encoder_of(mixer):
    torch.manual_seed(0)
    return StrandEquivariant(tiny_model(mixer))


def framed(text, *, other_strand=False, opened=True):
    """Ids of a text or of its other strand, behind BOS."""
    ids = DNA.encode(text)
    ids = DNA.reverse_complement(ids) if other_strand else ids
    return torch.tensor([DNA.bos] * opened + ids.tolist())


def padded(texts, **how):
    """Rows padded on the right, and how long each is."""
    rows = [framed(text, **how) for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=DNA.pad)
    return ids, torch.tensor([len(row) for row in rows])


def mirrored(states, opened=True):
    """Positions reversed behind BOS, and the halves of the channels exchanged."""
    states = torch.cat([states[:opened], states[opened:].flip(0)])
    return states.roll(states.shape[-1] // 2, dims=-1)


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_other_strand_exchanges_halves_and_positions(mixer):
    """F(Rx) = flip and swap of F(x), to the last bit: rows of any length, float32 and bfloat16."""
    encoder = encoder_of(mixer)
    ids, lengths = padded(TEXTS)
    others, _ = padded(TEXTS, other_strand=True)
    for half in (False, True):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            states, swapped = (encoder(x, lengths=lengths) for x in (ids, others))
        assert states.shape == (*ids.shape, 2 * encoder.model.backbone.d_model)
        for one, other, length in zip(states, swapped, lengths, strict=True):
            assert torch.equal(other[:length], mirrored(one[:length]))


@pytest.mark.parametrize("mixer", CONSUMED)
def test_halves_are_plain_passes_over_both_strands(mixer):
    """f(x), and f(Rx) turned around: padding changes neither; no network is symmetric by itself."""
    encoder = encoder_of(mixer)
    ids, lengths = padded(TEXTS)
    with torch.no_grad():
        states = encoder(ids, lengths=lengths)
        for row, text in enumerate(TEXTS):
            forward, backward = (
                encoder.model.backbone(framed(text, other_strand=other)[None])[0]
                for other in (False, True)
            )
            expected = torch.cat([forward, torch.cat([backward[:1], backward[1:].flip(0)])], -1)
            assert relative_error(states[row, : lengths[row]], expected) < 1e-5
        first, second = states[1, 1:].chunk(2, dim=-1)
        assert relative_error(first, second) > 1e-2


@pytest.mark.parametrize("mixer", CONSUMED)
def test_packed_sequences_equal_separate_ones(mixer):
    """With BOS and without; an empty sequence is legal, as is what stands behind the last bound."""
    encoder = encoder_of(mixer)
    rows = [framed(text, opened=opened) for opened in (True, False) for text in TEXTS]
    bounds = torch.tensor([0, 0, *np.cumsum([len(row) for row in rows])])
    ids = torch.cat([*rows, framed("ACG")])[None].to(torch.uint8)
    with torch.no_grad():
        packed = encoder(ids, cu_seqlens=bounds)[0]
        for row, first, stop in zip(rows, bounds[1:-1], bounds[2:], strict=True):
            assert relative_error(packed[first:stop], encoder(row[None])[0]) < 1e-5


@pytest.mark.parametrize("mixer", CONSUMED)
def test_a_pooled_vector_knows_no_strand(mixer):
    """The same bits; it is the mean of both halves over the bases, BOS and padding left out."""
    encoder = encoder_of(mixer)
    ids, lengths = padded(TEXTS)
    others, _ = padded(TEXTS, other_strand=True)
    with torch.no_grad():
        vectors, states = encoder.pooled(ids, lengths=lengths), encoder(ids, lengths=lengths)
        assert torch.equal(encoder.pooled(others, lengths=lengths), vectors)
        for vector, one, length in zip(vectors, states, lengths, strict=True):
            expected = one[1:length].unflatten(-1, (2, -1)).mean((0, 1))
            assert relative_error(vector, expected) < 1e-5


@pytest.mark.parametrize("mixer", CONSUMED)
def test_both_strands_teach_the_same(mixer):
    """Gradients reach the weights through both halves: those of Rx are those of x."""
    encoder = encoder_of(mixer)
    gradients = []
    for other in (False, True):
        encoder.zero_grad()
        ids, lengths = padded(TEXTS, other_strand=other)
        encoder.pooled(ids, lengths=lengths).pow(3).sum().backward()
        gradients.append({n: p.grad for n, p in encoder.named_parameters() if p.grad is not None})
    one, other = gradients
    assert one["model.backbone.embedding.weight"][[*DNA.bases, DNA.n]].abs().amin() > 0
    for name, gradient in one.items():
        assert relative_error(other[name], gradient) < 1e-4


def test_the_weights_are_those_of_the_model(tmp_path):
    """An encoder of what was saved and opened again gives the same bits."""
    encoder, ids = encoder_of("frac"), framed("ACGTTGCAN")[None]
    fracdna.save_weights(encoder.model, tmp_path / "model.safetensors", dtype=torch.float32)
    opened = StrandEquivariant(fracdna.load_model(tmp_path / "model.safetensors"))
    assert {name.partition(".")[0] for name in opened.state_dict()} == {"model"}
    with torch.no_grad():
        assert torch.equal(opened(ids), encoder(ids))


def test_what_makes_no_sense_is_refused():
    encoder, ids = encoder_of("frac"), framed("ACGT")[None]
    with pytest.raises(InputError, match="StrandEquivariant predicts no next base: give a lang"):
        fracdna.generate(encoder, "ACGT", 5)
    with pytest.raises(InputError, match="StrandEquivariant is neither a language model, such as"):
        fracdna.embed(encoder, "ACGT")
    with pytest.raises(InputError, match=r"lengths= is for padded rows, cu_seqlens= for packed"):
        encoder(ids, lengths=torch.tensor([5]), cu_seqlens=torch.tensor([0, 5]))
    text = build_model(model_config("frac", "+model.vocabulary_rows=256"))
    with pytest.raises(InputError, match="vocabulary_rows=256 does not read DNA"):
        StrandEquivariant(text)
