"""One pass: layers, losses, padding, caches, and what is refused."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import DataCollatorForLanguageModeling, DynamicCache

import fracdna
from fracdna import hf
from fracdna.data.objectives import next_base
from fracdna.evaluation.likelihood import TokenLikelihood
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

TIGHT = {"rtol": 1e-5, "atol": 1e-5}


def padded(sequences, side):
    """Ids and mask of rows of unequal length; what stands at padding is no PAD but a base."""
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), DNA.bases[0])
    mask = torch.zeros(len(sequences), width, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        places = slice(0, len(sequence)) if side == "right" else slice(width - len(sequence), None)
        ids[row, places], mask[row, places] = sequence, 1
    return ids, mask


@pytest.fixture
def sequences(draw):
    """The second does not begin with BOS: padding before it must not predict its first base."""
    rows = [draw(1, length, seed=length)[0] for length in (5, 17, 40)]
    rows[1][0] = DNA.bases[2]
    return rows


def test_layers_are_numbered_like_those_of_embed(model):
    """hidden_states[n] is layer=n, the last one layer=-1, and it is last_hidden_state."""
    text = "ACGTTGCAGGTCNA"
    ids = torch.from_numpy(np.concatenate([[DNA.bos], DNA.encode(text)]))[None]
    with torch.inference_mode():
        output = model(ids, output_hidden_states=True)
    depth = model.config.num_hidden_layers
    assert len(output.hidden_states) == depth + 2
    layers = [*range(depth + 1), -1]
    expected = fracdna.embed(model.model, [text], pooling="none", layer=layers)[0]
    for place, layer in enumerate(layers):
        vectors = output.hidden_states[layer][0, 1:].numpy()
        assert_close(vectors, expected.reshape(len(text), len(layers), -1)[:, place], **TIGHT)


def test_the_loss_is_the_likelihood_of_the_project(frac, tokenizer):
    """Nats per counted base: neither BOS, N, padding nor -100 counts, whatever the batch."""
    texts = ["ACGTNACCA", "GG", "TTNACGTACGTAA"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    labels = batch["input_ids"].clone()
    labels[2, 4] = -100
    likelihood = TokenLikelihood()
    for row, text in enumerate(texts):
        inputs, targets = next_base(torch.from_numpy(DNA.encode(text))[None])
        if row == 2:
            targets[0, 3] = -100
        likelihood.update(frac.model(inputs), targets)
    assert likelihood.totals()[1] == 8 + 2 + 11
    assert_close(frac(**batch, labels=labels).loss.double(), likelihood.compute(), **TIGHT)
    assert frac(labels=torch.full_like(labels, 11), **batch).loss == 0


@pytest.mark.parametrize("side", ["right", "left"])
@torch.inference_mode()
def test_padding_changes_nothing_on_either_side(model, sequences, side):
    """Cases 29 to 31: logits, losses and states of a row alone, next to longer ones."""
    ids, mask = padded(sequences, side)
    together = model(ids, attention_mask=mask, labels=ids.where(mask == 1, -100))
    last = model(ids, attention_mask=mask, logits_to_keep=2, use_cache=True)
    more = model(ids[:, :3], cache=last.cache).logits
    losses = []
    for row, sequence in enumerate(sequences):
        alone = model(sequence[None], labels=sequence[None], use_cache=True)
        assert_close(together.logits[row][mask[row] == 1], alone.logits[0], **TIGHT)
        assert_close(last.logits[row], alone.logits[0, -2:], **TIGHT)
        after = model(ids[row : row + 1, :3], cache=alone.cache).logits[0]
        assert_close(more[row], after, **TIGHT)
        losses += [alone.loss] * (len(sequence) - 1)
    assert_close(together.loss, torch.stack(losses).mean(), **TIGHT)


@torch.inference_mode()
def test_a_sequence_in_pieces_is_the_sequence(model, draw):
    """With a cache that goes on, in pieces of any size, some of them padded."""
    ids = draw(2, 30)
    whole = model(ids).logits
    first = model(ids[:, :7], use_cache=True)
    second = model(ids[:, 7:8], cache=first.cache)
    third = model(ids[:, 8:], cache=second.cache)
    pieces = [piece.logits for piece in (first, second, third)]
    assert_close(torch.cat(pieces, dim=1), whole, **TIGHT)
    assert third.cache is first.cache
    assert third.cache.get_seq_length() == 30
    wide, mask = padded([ids[0, :20], ids[1, :15]], "right")
    start = model(wide, attention_mask=mask, use_cache=True)
    mask = torch.cat([mask, torch.ones(2, 5, dtype=torch.long)], dim=1)
    rest = torch.stack([ids[0, 20:25], ids[1, 15:20]])
    gone_on = model(rest, attention_mask=mask, cache=start.cache).logits
    assert_close(gone_on, torch.stack([whole[0, 20:25], whole[1, 15:20]]), **TIGHT)


@torch.inference_mode()
def test_positions_and_tuples_on_request(frac, draw):
    ids = draw(2, 12)
    whole = frac(ids).logits
    assert torch.equal(frac(ids, logits_to_keep=3).logits, whole[:, -3:])
    assert torch.equal(frac(ids, logits_to_keep=torch.tensor([0, 5])).logits, whole[:, [0, 5]])
    (logits,) = frac(ids, return_dict=False)
    assert torch.equal(logits, whole)
    trunk = hf.FracdnaModel(frac.config)
    assert len(trunk(ids, use_cache=True, return_dict=False)) == 2


def test_recomputing_layers_changes_no_gradient(networks, draw):
    """The option of transformers is that of the backbone."""
    model = hf.wrap(networks("frac"))
    gradients = []
    for recompute in (False, True):
        if recompute:
            model.activation_checkpointing_enable()
        assert model.model.backbone.activation_checkpointing is recompute
        assert model.is_activation_checkpointing is recompute
        model.train().zero_grad()
        ids = draw(2, 20)
        model(ids, labels=ids).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    model.activation_checkpointing_disable()
    model.zero_grad()
    model.eval()
    for before, after in zip(*gradients, strict=True):
        assert_close(after, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention_mask": torch.ones(2, 9)}, r"shape \(2, 9\).*need \(2, 8\)"),
        ({"attention_mask": torch.tensor([[1] * 8, [0] * 8])}, "nothing to read in row 1"),
        ({"cache": DynamicCache()}, "DynamicCache, which holds no states"),
        ({"labels": torch.zeros(2, 8), "logits_to_keep": 1}, "leave logits_to_keep= out"),
    ],
)
def test_what_does_not_fit_is_refused(frac, draw, arguments, message):
    with pytest.raises(InputError, match=message):
        frac(draw(2, 8), **arguments)


def test_caches_of_other_batches_and_ways_back_are_refused(frac, draw):
    cache = frac(draw(2, 8), use_cache=True).cache
    with pytest.raises(InputError, match="carries 2 sequences and input_ids has 3"):
        frac(draw(3, 1), cache=cache)
    with pytest.raises(InputError, match="cannot be taken out"):
        cache.crop(-1)
    with pytest.raises(InputError, match="makes a new one"):
        cache.reset()


def test_the_vocabulary_keeps_its_size(frac):
    """Another number of rows would be another alphabet."""
    rows = frac.config.vocab_size
    assert frac.resize_token_embeddings(rows) is frac.model.backbone.embedding
    with pytest.raises(InputError, match=r"20 rows: .* fixed"):
        frac.resize_token_embeddings(20)
    assert frac.model.backbone.embedding.num_embeddings == rows


def test_new_models_come_from_the_options_of_training(draw):
    """The numbers of the configuration are those of the network; without one it is refused."""
    config = hf.FracdnaConfig.compose("experiment=dna_tiny", "mixer=gla", "model.num_layers=1")
    model = hf.FracdnaForCausalLM(config).eval()
    assert model(draw(1, 5)).logits.shape == (1, 5, config.vocab_size) == (1, 5, DNA.rows)
    assert (config.num_hidden_layers, config.hidden_size) == (1, config.model["d_model"])
    with pytest.raises(InputError, match="no network"):
        hf.FracdnaForCausalLM(hf.FracdnaConfig())


def three_steps(model, tokenizer, texts):
    """As the Trainer does them: its collator, the model's loss, AdamW."""
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    batch = collate([tokenizer(text) for text in texts])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(3):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_training_lowers_the_loss_and_gives_the_weights_a_new_hash(tokenizer, tmp_path):
    """What was trained on is saved under its own hash, not under that of its beginning."""
    torch.manual_seed(0)
    config = hf.FracdnaConfig.compose("experiment=dna_tiny", "mixer=frac", "model.num_layers=1")
    model = hf.FracdnaForCausalLM(config)
    model.save_pretrained(tmp_path / "before")
    first = model.config.model_hash
    losses = three_steps(model.train(), tokenizer, ["ACACACACACAC", "ACACACAC"])
    assert losses[2] < losses[0]
    model.save_pretrained(tmp_path / "after")
    assert hf.FracdnaForCausalLM.from_pretrained(tmp_path / "after").config.model_hash != first


def test_the_trainer_trains(tokenizer, tmp_path):
    """Three steps of transformers' Trainer on the processor, with its own collator."""
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(0)
    config = hf.FracdnaConfig.compose("experiment=dna_tiny", "mixer=frac", "model.num_layers=1")
    options = TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=2, logging_steps=1,
        learning_rate=3e-3, use_cpu=True, report_to=[], save_steps=3, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        hf.FracdnaForCausalLM(config),
        options,
        DataCollatorForLanguageModeling(tokenizer, mlm=False),
        [tokenizer(text) for text in ["ACACACACACAC", "ACACACAC"] * 3],
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    hf.FracdnaForCausalLM.from_pretrained(tmp_path / "checkpoint-3")
