import pytest
import torch
from models import MIXERS, tiny_model
from numerics import relative_error


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def ids_of(batch, length):
    return torch.randint(7, 11, (batch, length), dtype=torch.uint8)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("split", [[1] * 20, [63, 1, 36], [500, 500]], ids=str)
def test_carried_model_equals_one_pass(mixer, split):
    """Case 33: 1, 2 or many pieces give the same logits."""
    model = tiny_model(mixer)
    ids = ids_of(2, sum(split))
    with torch.inference_mode():
        whole = model(ids)
        state, pieces = model.initial_state(2), []
        for piece in ids.split(split, dim=1):
            logits, state = model.step(piece, state)
            pieces.append(logits)
    assert relative_error(torch.cat(pieces, 1), whole) < 1e-5


@pytest.mark.parametrize("mixer", MIXERS)
def test_rows_of_a_padded_batch_equal_single_rows(mixer):
    """Case 30: rows of 5, 17 and 64 in one batch, padded on the right, within 1e-5."""
    model = tiny_model(mixer)
    rows = [ids_of(1, length) for length in (5, 17, 64)]
    batch = torch.full((3, 64), 4, dtype=torch.uint8)
    for place, row in enumerate(rows):
        batch[place, : row.shape[1]] = row
    with torch.inference_mode():
        together = model(batch)
        for place, row in enumerate(rows):
            length = row.shape[1]
            assert relative_error(together[place : place + 1, :length], model(row)) < 1e-5


@pytest.mark.parametrize("mixer", MIXERS)
def test_observers_see_the_embedding_and_every_block(mixer):
    """Layer 0 is the embedding, n the stream after block n; both roads show the same."""
    model = tiny_model(mixer)
    ids = ids_of(1, 12)
    seen, carried = {}, {}
    with torch.inference_mode():
        hidden = model.backbone(ids, observe=seen.__setitem__)
        model.backbone.step(ids, model.initial_state(1), observe=carried.__setitem__)
        last = model.backbone.final_norm(seen[max(seen)])
    assert list(seen) == list(range(len(model.backbone.blocks) + 1))
    assert torch.equal(seen[0], model.backbone.embedding(ids.long()))
    assert torch.equal(last, hidden)
    for layer, x in seen.items():
        assert relative_error(carried[layer], x) < 1e-5


@pytest.mark.parametrize("mixer", MIXERS)
def test_activation_checkpointing_changes_neither_names_nor_gradients(mixer):
    """Case 23: weights saved with it on load strictly with it off, and the reverse."""
    plain = tiny_model(mixer).train()
    saving = tiny_model(mixer, "model.activation_checkpointing=true").train()
    saving.load_state_dict(plain.state_dict())
    plain.load_state_dict(saving.state_dict())
    ids = ids_of(2, 33)
    for model in (plain, saving):
        torch.manual_seed(1)  # of dropout
        model(ids).square().mean().backward()
    for (name, one), (other_name, other) in zip(
        plain.named_parameters(), saving.named_parameters(), strict=True
    ):
        assert name == other_name
        assert relative_error(other.grad, one.grad) < 1e-6


def test_the_embedding_is_dropped_in_training_alone():
    """As in HyenaDNA; what is kept grows, so that the mean stays."""
    model = tiny_model("hyena", "model.embedding_dropout=0.25")
    ids, seen = ids_of(4, 200), {}
    embedded = model.backbone.embedding(ids.long())
    model.backbone(ids, observe=seen.__setitem__)
    assert torch.equal(seen[0], embedded)
    model.train().backbone(ids, observe=seen.__setitem__)
    dropped = seen[0] == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.01)
    torch.testing.assert_close(seen[0][~dropped], embedded[~dropped] / 0.75)


def test_packed_model_equals_separate_sequences():
    model = tiny_model("interleaved")
    ids = ids_of(1, 50)
    with torch.inference_mode():
        packed = model(ids, cu_seqlens=torch.tensor([0, 20, 50]))
        assert relative_error(packed[:, 20:], model(ids[:, 20:])) < 1e-5


def test_the_head_is_tied_to_the_embedding():
    model = tiny_model("frac")
    assert model(ids_of(1, 3)).shape == (1, 3, 16)
    assert [n for n, _ in model.named_parameters() if "embedding" in n or "head" in n] == [
        "backbone.embedding.weight"
    ]
