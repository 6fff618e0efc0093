"""What a model draws, against its forward pass over whole sequences."""

import copy

import numpy as np
import pytest
import torch

import fracdna
from fracdna.generation import GenerationOptions, continue_sequences, decoding, sequences
from fracdna.generation.decoding import Decoder, state_tensors
from fracdna.generation.sampling import Noise
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

PROMPTS = ["ACGTTGCANACGGT", "", "T", "GATTACAGATTACAGATTACAGATTACAGATTACA"]


def by_forward(model, prompt, length, noise=None, letters=DNA.bases):
    """The continuation by passes over the whole sequence, one for every base."""
    ids = [DNA.bos, *DNA.encode(prompt).tolist()]
    for position in range(length):
        with torch.no_grad():
            logits = model(torch.tensor([ids]))[0, -1, list(letters)].numpy()
        ids.append(letters[int(np.argmax(logits + (0 if noise is None else noise[position, 0])))])
    return DNA.decode(ids[len(ids) - length :])


def test_greedy_is_the_most_probable_base_of_the_forward_pass(model):
    """Also after no prompt at all and after prompts of other lengths in the same batch."""
    made = fracdna.generate(model, PROMPTS, 15, temperature=0)
    assert made == [by_forward(model, prompt, 15) for prompt in PROMPTS]
    assert len(set("".join(made))) > 1


def test_a_draw_is_the_argmax_of_logits_and_the_noise_of_its_sequence(model):
    """Sample 1 of prompt 2 has its own noise, which a batch does not change."""
    made = fracdna.generate(model, PROMPTS, 12, count=2, seed=7)
    noise = Noise(7, [(2, 1)], 4).next(12)
    assert made[2 * 2 + 1] == by_forward(model, PROMPTS[2], 12, noise)


@pytest.mark.parametrize(
    "limits", [{"batch": 1}, {"batch": 3}, {"segment": 1}, {"segment": 37}], ids=str
)
def test_batches_and_segments_change_nothing(model, limits):
    """Prompts read in segments, rows in batches of any size: the same bases."""
    options = {"count": 2, "seed": 3}
    whole = fracdna.generate(model, PROMPTS, 8, **options)
    assert fracdna.generate(model, PROMPTS, 8, **options, **limits) == whole


def test_a_prompt_s_bases_do_not_depend_on_the_others(model):
    together = fracdna.generate(model, PROMPTS, 10, count=2, seed=5)
    assert together[:2] == fracdna.generate(model, PROMPTS[0], 10, count=2, seed=5)


def test_seeds_prompts_and_samples_draw_differently(models):
    """Same seed, same bases; everything else that names a sequence changes them."""
    model = models()
    first = fracdna.generate(model, ["ACGT", "ACGT"], 40, count=2, seed=1)
    assert fracdna.generate(model, ["ACGT", "ACGT"], 40, count=2, seed=1) == first
    assert len({*first, *fracdna.generate(model, "ACGT", 40, count=2, seed=2)}) == 6


def test_a_longer_sequence_begins_with_the_shorter_one(models, monkeypatch):
    """Noise goes on where it stopped, also across blocks of positions."""
    long = fracdna.generate(models(), "ACGT", 30, seed=4)[0]
    for module in (decoding, sequences):
        monkeypatch.setattr(module, "BLOCK", 7)
    assert fracdna.generate(models(), "ACGT", 30, seed=4)[0] == long
    assert fracdna.generate(models(), "ACGT", 11, seed=4)[0] == long[:11]


def test_only_the_letters_that_are_asked_for_are_drawn(models):
    """A, C, G and T unless told otherwise, though an untrained model likes all 16 rows alike."""
    flat = {"temperature": 1e6, "seed": 1}
    assert set(fracdna.generate(models(), "A", 200, **flat)[0]) == set("ACGT")
    assert set(fracdna.generate(models(), "A", 200, letters="ACGTN", **flat)[0]) == set("ACGTN")
    assert set(fracdna.generate(models(), "A", 50, letters="CG", **flat)[0]) == set("CG")


def test_a_low_temperature_or_one_letter_is_greedy(models):
    greedy = fracdna.generate(models(), "ACGT", 25, temperature=0)
    assert fracdna.generate(models(), "ACGT", 25, temperature=1e-6) == greedy
    assert fracdna.generate(models(), "ACGT", 25, top_k=1) == greedy
    assert fracdna.generate(models(), "ACGT", 25, top_p=1e-6) == greedy


def decoder(model, prompt="ACGTACGT"):
    options = GenerationOptions(temperature=0)
    return Decoder(model, [DNA.encode(prompt)] * 2, options, lambda _: None)


def test_frac_carries_a_state_that_keeps_its_size(models):
    """Number, shapes and bytes of its tensors are the same after 1 base and after 60."""
    with torch.inference_mode():
        run = decoder(models())
        before, size = [x.shape for x in state_tensors(run._state)], run.state_bytes()
        for _ in range(3):
            run.next(None, 20)
            assert [x.shape for x in state_tensors(run._state)] == before
            assert run.state_bytes() == size
    assert not run.grows
    assert size == 4 * 2 * models().backbone.state_size()


def test_a_cache_is_seen_to_grow(models):
    made = continue_sequences(
        models("attention"), [DNA.encode("ACGT")], GenerationOptions(length=10)
    )
    assert made.grows
    assert made.state_bytes > 0


def test_long_prompts_on_a_growing_cache_are_read_in_smaller_pieces(models, monkeypatch):
    monkeypatch.setattr(decoding, "_PAIRS", 100)
    seen = []
    with torch.inference_mode():
        options = GenerationOptions(segment=16)
        Decoder(models("attention"), [DNA.encode("ACGT" * 10)], options, seen.append)
    assert seen[0] == 16
    assert set(seen[1:-1]) == {2}
    assert sum(seen) == 41


def test_the_caller_s_model_is_left_as_it_was(models):
    model = copy.deepcopy(models()).train()
    made = fracdna.generate(model, "ACGT", 5)
    assert model.training
    assert made == fracdna.generate(models(), "ACGT", 5)


def test_progress_counts_every_position(models):
    told = []
    prompts = [DNA.encode(prompt) for prompt in PROMPTS]
    options = GenerationOptions(length=9, count=2, batch=3, segment=20)
    continue_sequences(models(), prompts, options, advance=told.append)
    assert sum(told) == sequences.total_bases(prompts, options)


@pytest.mark.parametrize("where", ["prompt", "step"])
def test_a_number_that_is_none_ends_the_work(models, where):
    """NaN in the weights is met in the prompt; NaN that only a step meets, after some bases."""
    model = copy.deepcopy(models())
    with torch.no_grad():
        if where == "prompt":
            model.backbone.final_norm.weight[0] = torch.nan
        else:
            model.backbone.embedding.weight[DNA.bases[2]] = torch.nan
    options = {"letters": "G"} if where == "step" else {}
    with pytest.raises(NotFinite, match="a logit is NaN or infinite"):
        fracdna.generate(model, "ACT", 5, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length=0: it is a whole number, at least 1"),
        ({"length": 2.5}, "length=2.5"),
        ({"length": 5, "count": True}, "count=True"),
        ({"length": 5, "temperature": -1}, "temperature=-1"),
        ({"length": 5, "temperature": float("nan")}, "temperature=nan"),
        ({"length": 5, "top_k": 0}, "top_k=0"),
        ({"length": 5, "top_p": 0}, "top_p=0"),
        ({"length": 5, "letters": "ACGU"}, "letters=ACGU"),
        ({"length": 5, "letters": "AAC"}, "letters=AAC"),
        ({"length": 5, "seed": -1}, "seed=-1"),
        ({"length": 5, "precision": "fp8"}, "precision=fp8"),
        ({"length": 5, "prompt": "ACGE"}, "position 3"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(models, options, message):
    with pytest.raises(InputError) as refusal:
        fracdna.generate(models(), **{"prompt": "ACGT"} | options)
    assert message in str(refusal.value)


def test_half_precision_draws_bases_too(models):
    made = fracdna.generate(models(), "ACGT", 20, precision="bf16")[0]
    assert set(made) <= set("ACGT")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_captured_step_draws_what_a_plain_one_does(model, precision, monkeypatch):
    """The same bases with and without the graph, which only a state of one size gets."""
    model = copy.deepcopy(model).cuda()
    options = {"count": 3, "seed": 2, "top_p": 0.9, "precision": precision}
    captured = []
    capture = Decoder._capture

    def note(self):
        capture(self)
        captured.append(self._graph)

    monkeypatch.setattr(Decoder, "_capture", note)
    made = fracdna.generate(model, PROMPTS, 200, **options)
    monkeypatch.setattr(Decoder, "_capture", lambda self: None)
    assert fracdna.generate(model, PROMPTS, 200, **options) == made
    grows = continue_sequences(model, [DNA.encode("A")], GenerationOptions(length=3)).grows
    assert bool(captured) != grows
