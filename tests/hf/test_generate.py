"""Generation with transformers: the bases of fracdna.generate, whatever the batch and the road."""

import pytest
import torch
from torch.testing import assert_close
from transformers import pipeline

import fracdna
from fracdna import hf

PROMPTS = ["ACGTTGCA", "G", "TTGACCAGTAGATTACA", ""]
NEW = 8
TIGHT = {"rtol": 1e-5, "atol": 1e-5}


def continued(model, tokenizer, prompts, side="right", **options):
    """New bases of each prompt."""
    batch = tokenizer(prompts, padding=True, padding_side=side, return_tensors="pt")
    made = model.generate(**batch, max_new_tokens=NEW, **options)
    return tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :])


@pytest.mark.parametrize("side", ["right", "left"])
def test_greedy_bases_are_those_of_fracdna(network, model, tokenizer, side):
    """Prompts of unequal length in one batch, padded on either side, an empty one among them."""
    expected = fracdna.generate(network, PROMPTS, NEW, temperature=0)
    assert len(set(expected)) > 1
    assert continued(model, tokenizer, PROMPTS, side) == expected


def test_a_cache_changes_no_logit(model, tokenizer):
    """From the state, or from the whole sequence again: the same to 1e-5 of the largest logit."""
    batch = tokenizer(PROMPTS, padding=True, return_tensors="pt")
    options = {"max_new_tokens": NEW, "output_logits": True, "return_dict_in_generate": True}
    cached, anew = (model.generate(**batch, **options, use_cache=x) for x in (True, False))
    assert isinstance(cached.cache, hf.FracdnaCache)
    assert getattr(anew, "cache", None) is None
    assert torch.equal(cached.sequences, anew.sequences)
    logits, expected = torch.stack(cached.logits), torch.stack(anew.logits)
    assert (logits - expected).abs().max() <= 1e-5 * max(1, expected.abs().max())


@pytest.mark.parametrize("mixer", ["frac", "attention"], indirect=True)
def test_a_returned_cache_goes_on(model, tokenizer):
    """The sequence so far with the state after it: nothing is read twice."""
    batch = tokenizer(PROMPTS[:1], return_tensors="pt")
    whole = model.generate(**batch, max_new_tokens=NEW)
    half = model.generate(**batch, max_new_tokens=NEW // 2, return_dict_in_generate=True)
    seen = half.cache.get_seq_length()
    assert seen == half.sequences.shape[1] - 1
    rest = model.generate(half.sequences, cache=half.cache, max_new_tokens=NEW - NEW // 2)
    assert torch.equal(rest, whole)
    assert half.cache.get_seq_length() == rest.shape[1] - 1


@pytest.mark.parametrize("mixer", ["frac", "attention"], indirect=True)
def test_beams_carry_their_own_states(model, tokenizer):
    """Beam search reorders rows of the state: the beams of a search without a cache."""
    cached, anew = (
        continued(model, tokenizer, PROMPTS[:2], num_beams=3, use_cache=x) for x in (True, False)
    )
    assert cached == anew
    assert cached != continued(model, tokenizer, PROMPTS[:2])


def test_drawn_bases_are_bases_and_follow_the_seed(frac, tokenizer):
    """N and special symbols are never drawn, though they have logits."""
    frac.model.backbone.embedding.weight.data[11:] += 0.3
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        options = {"do_sample": True, "temperature": 3.0, "num_return_sequences": 4}
        drawn.append(continued(frac, tokenizer, PROMPTS[:2], **options))
    frac.model.backbone.embedding.weight.data[11:] -= 0.3
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 8
    assert set("".join(drawn[0])) == set("ACGT")


def test_no_prompt_begins_with_bos(frac, tokenizer):
    made = frac.generate(max_new_tokens=NEW)
    assert tokenizer.decode(made[0]) == "[BOS]" + continued(frac, tokenizer, [""])[0]


def test_prompts_are_read_in_parts_where_asked(frac, tokenizer):
    """With a cache that is given, as transformers wants it."""
    ids = tokenizer(PROMPTS[2:3], return_tensors="pt")["input_ids"]
    cache = hf.FracdnaCache(frac.model.initial_state(1))
    made = frac.generate(ids, cache=cache, prefill_chunk_size=5, max_new_tokens=NEW)
    assert torch.equal(made, frac.generate(ids, max_new_tokens=NEW))


def test_rows_of_a_cache_can_be_chosen_and_repeated(frac, draw):
    """One prompt read once, and continued in several ways."""
    ids, more = draw(2, 9), draw(4, 3, seed=1)
    cache = frac(ids, use_cache=True).cache
    cache.batch_select_indices(torch.tensor([1]))
    cache.batch_repeat_interleave(4)
    expected = frac(torch.cat([ids[1:].expand(4, -1), more], dim=1)).logits[:, 9:]
    assert_close(frac(more, cache=cache).logits, expected, **TIGHT)


def test_assisted_generation_is_refused(frac, tokenizer):
    """It takes positions out of the cache again."""
    with pytest.raises(ValueError, match="stateful"):
        continued(frac, tokenizer, PROMPTS[:1], assistant_model=frac)


def test_pipelines_generate_and_embed(frac, tokenizer, saved, network_bases):
    """Text in, text out, several at once; or the hidden states of fracdna.embed."""
    tokenizer.save_pretrained(saved)
    write = pipeline("text-generation", model=str(saved))
    options = {"max_new_tokens": NEW, "do_sample": False, "batch_size": 2}
    made = [row[0]["generated_text"] for row in write(PROMPTS[:3], **options)]
    assert made == [a + b for a, b in zip(PROMPTS, network_bases, strict=False)]
    short = write("acgt", max_new_tokens=2, do_sample=False, return_full_text=False)
    assert short[0]["generated_text"] == fracdna.generate(frac.model, "ACGT", 2, temperature=0)[0]
    read = pipeline("feature-extraction", model=str(saved))
    vectors = fracdna.embed(frac.model, ["ACGTT"], pooling="none")[0]
    assert_close(torch.tensor(read("ACGTT"))[0, 1:], torch.from_numpy(vectors), **TIGHT)


@pytest.fixture
def network_bases(networks):
    return fracdna.generate(networks("frac"), PROMPTS[:3], NEW, temperature=0)
