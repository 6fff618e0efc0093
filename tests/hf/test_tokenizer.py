"""Letters and ids: those of the vocabulary, and nothing else."""

import json

import numpy as np
import pytest
from transformers import AutoTokenizer

from fracdna import hf
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA


def test_ids_are_those_of_the_vocabulary_after_bos(tokenizer):
    """Case 7: lower case is upper case; letters of IUPAC are N."""
    text = "ACGTNacgtnRYKMSWBDHVUXrykm"
    assert tokenizer(text)["input_ids"] == [DNA.bos, *DNA.encode(text).tolist()]
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == DNA.encode(text).tolist()
    assert tokenizer("")["input_ids"] == [DNA.bos]
    assert tokenizer.get_vocab() == {s: i for i, s in enumerate(DNA.symbols)}
    assert (len(tokenizer), tokenizer.vocab_size) == (DNA.size, DNA.size)
    assert tokenizer.eos_token_id is None


def test_batches_are_padded_on_the_right_like_the_project_does(tokenizer):
    """Case 22: the ids and the mask of encode_batch, behind BOS."""
    texts = ["ACG", "ACGTACG"]
    batch = tokenizer(texts, padding=True, return_tensors="np")
    ids, mask = DNA.encode_batch(texts)
    assert np.array_equal(batch["input_ids"][:, 1:], ids)
    assert np.array_equal(batch["attention_mask"][:, 1:], mask)
    assert set(batch) == {"input_ids", "attention_mask"}


def test_text_comes_back_without_blanks(tokenizer):
    ids = tokenizer("ACGTN")["input_ids"]
    assert tokenizer.decode([*ids, DNA.pad]) == "[BOS]ACGTN[PAD]"
    every = [*range(DNA.size), *ids]
    assert tokenizer.decode(every, skip_special_tokens=True) == "ACGTNACGTN"
    assert tokenizer("[BOS]ACG", add_special_tokens=False)["input_ids"] == ids[:4]
    with pytest.raises(InputError, match=r"0\.\.11"):
        tokenizer.decode([12])


@pytest.mark.parametrize("text", ["ACG T", "ACGZ", "[EOS]A"])
def test_what_is_no_nucleotide_is_refused(tokenizer, text):
    """Never [UNK]: no model has learned it."""
    with pytest.raises(InputError, match="not a nucleotide letter"):
        tokenizer(text)


def test_pairs_are_refused(tokenizer):
    with pytest.raises(InputError, match="one by one"):
        tokenizer("ACG", "ACG")


def test_a_saved_tokenizer_comes_back_and_swapped_ids_are_refused(tokenizer, saved):
    """Case 21: a file that gives tokens other ids opens nothing."""
    tokenizer.save_pretrained(saved)
    back = AutoTokenizer.from_pretrained(saved)
    assert isinstance(back, hf.FracdnaTokenizer)
    assert back("acgtn")["input_ids"] == tokenizer("acgtn")["input_ids"]
    assert back.padding_side == "right"
    path = saved / "tokenizer_config.json"
    told = json.loads(path.read_text())
    for changes in ({"pad_token": "[SEP]"}, {"extra_special_tokens": ["[NEW]"]}):
        path.write_text(json.dumps(told | changes))
        with pytest.raises(InputError, match="ids would change their meaning"):
            AutoTokenizer.from_pretrained(saved)
    tokens = told["added_tokens_decoder"]
    tokens["2"], tokens["4"] = tokens["4"], tokens["2"]
    path.write_text(json.dumps(told))
    with pytest.raises(InputError, match="ids would change their meaning"):
        AutoTokenizer.from_pretrained(saved)
