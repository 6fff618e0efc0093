"""Pooled states against one plain pass of the backbone, in any batch and any number of pieces."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fracdna.embedding import EmbeddingOptions, pooled_batches, pooled_states, states
from fracdna.embedding.options import POOLINGS, STRANDS
from fracdna.model.carried import state_tensors
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA


def assert_near(value, reference):
    """Within 1e-5 of a float32 result."""
    assert value.dtype == np.float32
    np.testing.assert_allclose(value, reference, rtol=1e-5, atol=1e-5)


def pooled_by_hand(states, pooling, reverse=False):
    """From (L, d_model) states in the order of reading; centre counts on the forward strand."""
    length = len(states)
    if pooling == "mean":
        return states.mean(axis=0)
    forward = states[::-1] if reverse else states
    return states[-1] if pooling == "last" else forward[length // 2]


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("length", [1, 2, 20, 37])
def test_vectors_are_those_of_a_plain_pass(models, states_alone, random_ids, pooling, length):
    """BOS is read and its row dropped; what each strand option gives follows from two passes."""
    model, ids = models(), random_ids(length)
    forward = pooled_by_hand(states_alone(model, ids), pooling)
    other = states_alone(model, DNA.reverse_complement(ids))
    reverse = pooled_by_hand(other, pooling, reverse=True)
    expected = {"forward": forward, "reverse": reverse, "average": (forward + reverse) / 2}
    expected["equivariant"] = np.concatenate([forward, reverse])
    for strand in STRANDS:
        options = EmbeddingOptions(pooling=pooling, strand=strand)
        assert_near(pooled_states(model, [ids], options)[0], expected[strand])


def test_every_layer_has_its_number(model, states_alone, random_ids):
    """0 is the embedding, n the stream after block n, -1 the final norm: for every mixer."""
    ids = random_ids(30)
    depth = len(model.backbone.blocks)
    vectors = []
    for layer in range(-1, depth + 1):
        vectors.append(pooled_states(model, [ids], EmbeddingOptions(layer=layer))[0])
        assert_near(vectors[-1], states_alone(model, ids, layer).mean(axis=0))
    embedding = model.backbone.embedding.weight.detach().numpy()
    assert_near(vectors[1], embedding[ids].mean(axis=0))
    assert len({vector.tobytes() for vector in vectors}) == depth + 2


def test_several_layers_are_an_axis_in_their_order(models, random_ids):
    """The numbers of each are those of the layer alone; for every pooling."""
    model, rows, layers = models(), [random_ids(30), random_ids(11)], (2, -1, 0)
    for pooling in POOLINGS:
        options = EmbeddingOptions(layers, pooling, "average", segment=20)
        together = pooled_states(model, rows, options)
        assert together.shape == (2, 3, model.backbone.d_model)
        for number, layer in enumerate(layers):
            alone = pooled_states(model, rows, replace(options, layer=layer))
            np.testing.assert_array_equal(together[:, number], alone)


def test_layers_that_do_not_exist_are_refused(models, random_ids):
    model = models()
    for layer in (-2, len(model.backbone.blocks) + 1):
        with pytest.raises(InputError, match=rf"layer={layer}: this model has 0"):
            pooled_states(model, [random_ids(3)], EmbeddingOptions(layer=layer))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"pooling": "max"}, "pooling=max: choose one of mean, centre, last, none"),
        ({"pooling": "none"}, "pooling=none: call fracdna.embed"),
        ({"layer": ()}, "layer is an empty list"),
        ({"layer": (1, 2, 1)}, r"layer=\[1, 2, 1\]: name each layer once"),
        ({"strand": "both"}, "strand=both: choose one of forward, reverse, average, equiv"),
        ({"precision": "fp16"}, "precision=fp16: choose one of float32, bf16"),
        ({"segment": 0}, "segment=0: give a whole number of at least 1"),
        ({"batch_bases": -1}, "batch_bases=-1: give a whole number"),
    ],
)
def test_unknown_choices_are_refused(models, random_ids, option, message):
    with pytest.raises(InputError, match=message):
        pooled_states(models(), [random_ids(3)], EmbeddingOptions(**option))


def test_padding_changes_no_vector(model_and_pooling, states_alone, random_ids):
    """Case 29: a 20-mer alone, and with 1,000 PAD after it; for every mixer and pooling."""
    model, pooling = model_and_pooling
    short, long = random_ids(20), random_ids(1020, seed=1)
    expected = pooled_by_hand(states_alone(model, short), pooling)
    assert_near(pooled_states(model, [short, long], EmbeddingOptions(pooling=pooling))[0], expected)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_changes_no_average(models, random_ids, pooling):
    """Case 29: on the other strand pads stand on the right too."""
    short, long = random_ids(20), random_ids(120, seed=1)
    options = EmbeddingOptions(pooling=pooling, strand="average")
    together = pooled_states(models(), [short, long], options)
    assert_near(together[0], pooled_states(models(), [short], options)[0])


def test_rows_of_unequal_length_equal_single_runs(model_and_pooling, states_alone, random_ids):
    """Case 30: rows of 5, 17 and 64 in one batch; for every mixer and pooling."""
    model, pooling = model_and_pooling
    rows = [random_ids(length, seed=length) for length in (5, 17, 64)]
    together = pooled_states(model, rows, EmbeddingOptions(pooling=pooling))
    for vector, ids in zip(together, rows, strict=True):
        assert_near(vector, pooled_by_hand(states_alone(model, ids), pooling))


def test_partners_change_no_vector(model_and_pooling, random_ids):
    """Case 31: the same row in batches of 1, 2 and 8 with longer partners; for every mixer."""
    model, pooling = model_and_pooling
    options, row = EmbeddingOptions(pooling=pooling), random_ids(50)
    partners = [random_ids(60 + 10 * n, seed=n) for n in range(7)]
    alone = pooled_states(model, [row], options)[0]
    for count in (1, 7):
        assert_near(pooled_states(model, [*partners[:count], row], options)[-1], alone)


def test_very_short_sequences(model_and_pooling, random_ids):
    """Case 32: lengths 2, 573 and 1 give finite vectors of the right shape; for every mixer."""
    model, pooling = model_and_pooling
    rows = [random_ids(length) for length in (2, 573, 1)]
    vectors = pooled_states(model, rows, EmbeddingOptions(pooling=pooling))
    assert vectors.shape == (3, model.backbone.d_model)
    assert np.isfinite(vectors).all()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pieces_change_no_vector(models, random_ids, pooling):
    """Case 33: 4,096 bases in 1, 2 and 8 pieces; every pooling."""
    ids = random_ids(4096)
    whole = pooled_states(models(), [ids], EmbeddingOptions(pooling=pooling, batch_bases=5000))
    for segment in (2048, 512):
        options = EmbeddingOptions(pooling=pooling, segment=segment)
        assert_near(pooled_states(models(), [ids], options), whole)


def test_the_last_piece_may_be_of_any_length(model, random_ids):
    """130 bases on both strands, with none or 1 left over; for every mixer."""
    ids = random_ids(130)
    options = EmbeddingOptions(strand="average")
    whole = pooled_states(model, [ids], options)
    for segment in (65, 129):
        assert_near(pooled_states(model, [ids], replace(options, segment=segment)), whole)


def test_a_state_of_fixed_size_goes_on_where_a_batch_ends(models, random_ids):
    """A pass is never larger than a batch; with keys and values only a segment ends it."""
    for mixer, longest in (("frac", 101), ("attention", 301)):
        model, ids, passes = models(mixer), Recorded(random_ids(300)), []
        hook = model.backbone.embedding.register_forward_hook(
            lambda module, inputs, output, seen=passes: seen.append(inputs[0].numel())
        )
        try:
            cut = pooled_states(model, [ids], EmbeddingOptions(batch_bases=100))
            assert max(passes) == longest
        finally:
            hook.remove()
        assert_near(cut, pooled_states(model, [ids], EmbeddingOptions(batch_bases=400)))


def test_pieces_of_one_base(models, random_ids):
    ids = random_ids(20)
    whole = pooled_states(models(), [ids])
    assert_near(pooled_states(models(), [ids], EmbeddingOptions(segment=1)), whole)


class Recorded:
    """Ids that note which parts of them are read."""

    def __init__(self, ids):
        self.ids, self.parts = ids, []

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, part):
        self.parts.append(len(self.ids[part]))
        return self.ids[part]


@pytest.mark.parametrize("strand", STRANDS)
def test_a_long_sequence_is_read_and_held_by_the_piece(models, random_ids, strand):
    """Case 33: neither what is read, nor a pass, nor the state grows with the length."""
    model, passes, carried = models(), [], []
    step = model.backbone.step

    def spy(ids, state, **options):
        output, after = step(ids, state, **options)
        passes.append(ids.numel())
        carried.append(sum(x.numel() for x in state_tensors(after)))
        return output, after

    model.backbone.step = spy
    try:
        for length in (512, 2048):
            ids = Recorded(random_ids(length))
            pooled_states(model, [ids], EmbeddingOptions(segment=256, strand=strand))
            assert max(ids.parts) == 256
            assert max(passes) == 257
            assert len(set(carried)) == 1
    finally:
        del model.backbone.step


def test_a_growing_cache_takes_smaller_pieces(models, random_ids, monkeypatch):
    """Attention's mask over all earlier positions stays bounded, and the vector the same."""
    ids = random_ids(1000)
    whole = pooled_states(models("attention"), [ids])
    monkeypatch.setattr(states, "_PAIRS", 64_000)
    recorded = Recorded(ids)
    streamed = pooled_states(models("attention"), [recorded], EmbeddingOptions(segment=512))
    assert max(recorded.parts) == 64
    assert_near(streamed, whole)


def test_a_cache_that_memory_cannot_hold_is_refused(models, random_ids, monkeypatch):
    """Before any pass, with the longest that fits; recurrent models have no such limit."""
    model, ids = models("attention"), random_ids(300)
    before = state_tensors(model.backbone.initial_state(1))
    _, after = model.backbone.step(torch.full((1, 300), 7), model.backbone.initial_state(1))
    grown = sum(x.nbytes for x in state_tensors(after)) - sum(x.nbytes for x in before)
    # room for 299 bases, twice because caches are copied when they grow
    monkeypatch.setattr(states, "_memory", lambda device: 2 * grown // 300 * 299)
    options = EmbeddingOptions(segment=100)
    with pytest.raises(InputError, match=r"a region of 300 bases.*at most 299 bases.*mixer=frac"):
        pooled_states(model, [ids], options)
    assert np.isfinite(pooled_states(model, [ids[:299]], options)).all()
    assert np.isfinite(pooled_states(models(), [ids], options)).all()


def test_batches_hold_every_row_once_and_respect_the_limit():
    lengths = np.random.default_rng(0).integers(1, 300, size=500)
    found = list(states.batches(lengths, batch_bases=1000, segment=250))
    assert sorted(np.concatenate(found)) == list(range(500))
    for rows in found:
        longest = lengths[rows].max()
        assert len(rows) == 1 or (len(rows) * (longest + 1) <= 1000 and longest <= 250)
    for rows in found[:-1]:
        # one more row would have been too much
        longest = lengths[rows].max()
        assert longest > 250 or (len(rows) + 1) * (longest + 1) > 1000


def test_results_keep_the_order_given(models, random_ids):
    """Batches go by length; rows come back as they were asked for, and the same every time."""
    rows = [random_ids(length, seed=length) for length in (3, 90, 1, 40, 90, 7)]
    options = EmbeddingOptions(batch_bases=100)
    together = pooled_states(models(), rows, options)
    for vector, ids in zip(together, rows, strict=True):
        assert_near(vector, pooled_states(models(), [ids], options)[0])
    np.testing.assert_array_equal(together, pooled_states(models(), rows, options))


@pytest.mark.parametrize("length", [40, 41])
def test_strand_symmetry(model_and_pooling, random_ids, length):
    """An average knows no strand; centre needs an odd length, else there are two middle bases."""
    (model, pooling), ids = model_and_pooling, random_ids(length)
    both = [ids, DNA.reverse_complement(ids)]
    one, other = pooled_states(model, both, EmbeddingOptions(pooling=pooling, strand="average"))
    if pooling == "centre" and length % 2 == 0:
        assert np.abs(one - other).max() > 1e-3
    else:
        assert_near(one, other)


@pytest.mark.parametrize("length", [40, 41])
def test_a_flipped_sequence_is_pooled_on_the_forward_strand(models, random_ids, length):
    """The other strand, said to be flipped, is the same region: centre means the same base."""
    ids = random_ids(length)
    for pooling in POOLINGS:
        for strand, opposite in (("forward", "reverse"), ("reverse", "forward")):
            one = pooled_states(models(), [ids], EmbeddingOptions(pooling=pooling, strand=strand))
            other = pooled_states(
                models(), [DNA.reverse_complement(ids)],
                EmbeddingOptions(pooling=pooling, strand=opposite), flipped=[True],
            )  # fmt: skip
            np.testing.assert_array_equal(one, other)


def test_only_n_is_a_sequence_like_any_other(models, states_alone):
    ids = DNA.encode("N" * 30)
    expected = states_alone(models(), ids).mean(axis=0)
    assert_near(pooled_states(models(), [ids])[0], expected)


def test_an_empty_sequence_is_refused(models, random_ids):
    with pytest.raises(InputError, match="sequence 1 is empty"):
        pooled_states(models(), [random_ids(3), random_ids(0)])


def test_no_sequences_give_no_vectors(models):
    assert pooled_states(models(), []).shape == (0, models().backbone.d_model)


def test_bf16_stays_near_float32(models, random_ids):
    """Case 37: half precision is a choice; what comes out is float32 and close."""
    rows = [random_ids(100), random_ids(60)]
    exact = pooled_states(models(), rows)
    low = pooled_states(models(), rows, EmbeddingOptions(precision="bf16"))
    assert low.dtype == np.float32
    assert 0 < np.abs(low - exact).max() < 5e-2 * np.abs(exact).max()


def test_the_first_affected_sequence_is_named(models, random_ids):
    """Case 38: by the order given, although batches go by length; sound rows do not hide it."""
    model = models()
    weight = model.backbone.embedding.weight
    rows = [random_ids(n) for n in (5, 50, 8, 200, 9)]
    rows = [np.where(ids == DNA.n, DNA.bases[0], ids) for ids in rows]
    for row in (2, 3):
        rows[row][1] = DNA.n
    before = weight[DNA.n, 0].item()
    with torch.no_grad():
        weight[DNA.n, 0] = float("nan")
    try:
        with pytest.raises(NotFinite, match="sequence 2: its vector holds NaN") as caught:
            pooled_states(model, rows, EmbeddingOptions(batch_bases=60))
        assert caught.value.row == 2
        sound = [rows[0], rows[1], rows[4]]
        assert np.isfinite(pooled_states(model, sound)).all()
    finally:
        with torch.no_grad():
            weight[DNA.n, 0] = before


def test_the_model_is_left_as_it_was(models, random_ids):
    """Evaluation mode holds for the run only, and no gradient is kept."""
    model = models().train()
    try:
        pooled_states(model, [random_ids(10)])
        assert model.training
        assert torch.is_grad_enabled()
    finally:
        model.eval()


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see memory")
def test_memory_is_flat_over_many_windows(models, random_ids):
    """Case 39: 200 windows one after another; each is read when it is due and then let go."""
    windows = [Recorded(random_ids(256, seed=n)) for n in range(200)]
    options = EmbeddingOptions(batch_bases=257)
    before = None
    batches = pooled_batches(models("attention"), windows, options)
    for count, (rows, _) in enumerate(batches, start=1):
        assert len(rows) == 1
        assert sum(bool(window.parts) for window in windows) == count
        if count == 20:
            before = resident_bytes()
    # the states of 180 windows are 12 MB in one layer alone
    assert resident_bytes() - before < 6e6
