import gzip
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from fracdna.evaluation import markov
from fracdna.evaluation.markov import MarkovCounts, MarkovModel
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

STRENGTH = 16.0
COMPLEMENT = str.maketrans("ACGT", "TGCA")


def reverse_complement(text):
    return text[::-1].translate(COMPLEMENT)


def random_text(generator, length, alphabet="ACGT"):
    return "".join(generator.choice(list(alphabet), size=length))


def repetitive_text(generator, pieces):
    """Few motifs in random order, so that contexts of 12 bases do come back, and some N."""
    motifs = [random_text(generator, int(n)) for n in (3, 9, 17, 30)] + ["N", "AANT"]
    return "".join(motifs[i] for i in generator.integers(0, len(motifs), pieces))


class DictionaryChain:
    """The definition, word for word, on strings."""

    def __init__(self, stretches, max_order, strength):
        self.max_order, self.strength = max_order, strength
        self.count = Counter()
        for stretch in stretches:
            for strand in (stretch, reverse_complement(stretch)):
                for i in range(len(strand)):
                    for k in range(min(i, max_order) + 1):
                        if set(strand[i - k : i + 1]) <= set("ACGT"):
                            self.count[strand[i - k : i], strand[i]] += 1

    def probability(self, context, base):
        lower = self.probability(context[1:], base) if context else 0.25
        total = sum(self.count[context, other] for other in "ACGT")
        return (self.count[context, base] + self.strength * lower) / (total + self.strength)

    def nll_nats(self, window):
        nats = np.full((self.max_order + 1, len(window)), np.nan)
        for i, base in enumerate(window):
            before = i - window[:i].rfind("N") - 1
            for k in range(self.max_order + 1):
                if base in "ACGT":
                    context = window[i - min(k, before) : i]
                    nats[k, i] = -math.log(self.probability(context, base))
        return nats


def model_of(*stretches, max_order, strength=STRENGTH):
    counts = MarkovCounts(max_order)
    for stretch in stretches:
        counts.update(DNA.encode(stretch))
    return MarkovModel(counts, strength)


@pytest.mark.parametrize(
    ("max_order", "strength"), [(0, 16.0), (1, 0.5), (3, 16.0), (7, 2.0), (11, 16.0), (12, 16.0)]
)
def test_every_order_equals_the_definition_on_dictionaries(max_order, strength):
    """All orders, at window starts and after N, on both strands of the counts, to 1e-12."""
    generator = np.random.default_rng(max_order)
    stretches = [repetitive_text(generator, 40), "", "N", "ACGTTGCA", random_text(generator, 50)]
    windows = [stretches[0][20:200], reverse_complement(stretches[0]), random_text(generator, 60)]
    expected = DictionaryChain(stretches, max_order, strength)
    model = model_of(*stretches, max_order=max_order, strength=strength)
    for window in windows:
        np.testing.assert_allclose(
            model.nll_nats(DNA.encode(window)), expected.nll_nats(window), rtol=0, atol=1e-12
        )


def test_the_strand_of_the_training_bases_does_not_matter():
    """A stretch and its reverse complement leave the same counts, at every order."""
    text = repetitive_text(np.random.default_rng(1), 60)
    tables = []
    for strand in (text, reverse_complement(text)):
        counts = MarkovCounts(6)
        counts.update(DNA.encode(strand))
        tables.append(counts.close())
    for one, other in zip(*tables, strict=True):
        assert one.sum() > 0
        np.testing.assert_array_equal(one, other)


def test_the_four_probabilities_of_a_context_sum_to_one():
    """Each order is a distribution over A, C, G and T, seen or unseen context."""
    generator = np.random.default_rng(2)
    text = repetitive_text(generator, 60)
    model = model_of(text, max_order=11)
    for context in (text[:14].replace("N", "A"), random_text(generator, 14)):
        nats = [model.nll_nats(DNA.encode(context + base))[:, -1] for base in "ACGT"]
        np.testing.assert_allclose(np.exp(-np.array(nats)).sum(0), 1, rtol=1e-13)


def test_a_sequence_of_period_seven_is_known_from_order_three_on():
    """The seven contexts of three bases differ, those of two leave an even choice in six of 7."""
    repeats = 2_000
    text = "AACACCC" * repeats  # only A and C, so that the reverse strand shares no context
    model = model_of(text, max_order=5)
    nats = model.nll_nats(DNA.encode(text[:7_000]))[:, 700:].mean(1)
    assert nats[2] == pytest.approx(6 / 7 * math.log(2), rel=0.01)
    assert np.all(nats[3:] > 0)
    assert np.all(nats[3:] < math.log1p(STRENGTH / (repeats - 1)))


def test_the_order_falls_to_the_bases_that_stand_before():
    """With d bases in front, all orders above d say what order d says; the target N is NaN."""
    text = repetitive_text(np.random.default_rng(3), 60).replace("N", "")[:30]
    model = model_of(text * 2, max_order=8)
    broken = text[:10] + "N" + text[10:]
    nats = model.nll_nats(DNA.encode(broken))
    for start, stop in ((0, 10), (11, 20)):
        for i in range(start, stop):
            assert np.unique(nats[min(i - start, 8) :, i]).size == 1
    assert np.isnan(nats[:, 10]).all()
    assert not np.isnan(np.delete(nats, 10, axis=1)).any()
    np.testing.assert_array_equal(nats[:, :10], model.nll_nats(DNA.encode(text[:10])))


@pytest.mark.parametrize("other", [DNA.bos, DNA.pad, DNA.n])
def test_windows_joined_by_another_id_are_scored_as_if_alone(other):
    """One call over many windows gives the rows of one call per window."""
    text = repetitive_text(np.random.default_rng(4), 60)
    windows = [DNA.encode(text[start : start + 50]) for start in range(0, 300, 50)]
    model = model_of(text, max_order=9)
    joined = np.concatenate([np.concatenate([[other], w]) for w in windows]).astype(np.uint8)
    together = model.nll_nats(joined).reshape(10, len(windows), 51)[:, :, 1:]
    for i, window in enumerate(windows):
        np.testing.assert_array_equal(together[:, i], model.nll_nats(window))


@pytest.mark.parametrize("block", [1, 5, 12, 13, 64])
def test_the_block_length_changes_nothing(monkeypatch, block):
    """Counts and scores are the same wherever the work is cut."""
    text = repetitive_text(np.random.default_rng(5), 40)
    whole = model_of(text, max_order=8)
    monkeypatch.setattr(markov, "BLOCK", block)
    cut = model_of(text, max_order=8)
    np.testing.assert_array_equal(cut.nll_nats(DNA.encode(text)), whole.nll_nats(DNA.encode(text)))


def test_counting_moves_the_bar_by_all_that_is_read():
    class Bar:
        moved = 0

        def update(self, by):
            self.moved += by

    text = repetitive_text(np.random.default_rng(6), 60)
    counts, bar = MarkovCounts(8), Bar()
    counts.update(DNA.encode(text), progress=bar)
    assert bar.moved == len(text)


def test_the_memory_of_pieces_does_not_grow_with_the_window(monkeypatch):
    """Thirty times the bases take no more than twice the memory, and all of them come."""
    monkeypatch.setattr(markov, "BLOCK", 2**13)
    model = model_of(random_text(np.random.default_rng(7), 1_000), max_order=5)

    def peak(blocks):
        ids = DNA.encode("ACGTT" * (blocks * 2**13 // 5))
        tracemalloc.start()
        assert sum(nats.shape[1] for nats in model.pieces(ids)) == len(ids)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    assert peak(30) < 2 * peak(1)


def test_nothing_counted_is_the_uniform_guess():
    """Without counts every order costs two bits a base; an empty window costs nothing."""
    model = model_of(max_order=4)
    np.testing.assert_allclose(model.nll_nats(DNA.encode("ACGTTGCA")), math.log(4), rtol=1e-15)
    assert model.nll_nats(DNA.encode("")).shape == (5, 0)


def test_what_makes_no_sense_is_refused():
    """Orders out of range, a strength of zero, a batch, and updates behind a model's back."""
    for order in (-1, 13):
        with pytest.raises(InputError, match=f"max_order={order}"):
            MarkovCounts(order)
    counts = MarkovCounts(2)
    with pytest.raises(InputError, match="strength=0"):
        MarkovModel(counts, strength=0)
    with pytest.raises(InputError, match=r"\(2, 3\)"):
        counts.update(np.full((2, 3), 7, np.uint8))
    model = MarkovModel(counts)
    with pytest.raises(InputError, match=r"\(2, 3\)"):
        model.nll_nats(np.full((2, 3), 7, np.uint8))
    with pytest.raises(InputError, match="update before"):
        counts.update(DNA.encode("ACGT"))


def read_fasta(path):
    """Ids of the only record of a gzip FASTA."""
    with gzip.open(path, "rt") as handle:
        handle.readline()
        return DNA.encode(handle.read().replace("\n", ""))


def perplexities(train, test):
    counts = MarkovCounts()
    counts.update(train)
    pieces = MarkovModel(counts).pieces(test)
    nats = sum(np.nansum(piece, axis=1) for piece in pieces)
    counted = int(np.isin(test, DNA.bases).sum())
    return np.exp(nats / counted), counted


def test_one_megabase_of_chromosome_7(shared_data):
    """Order 0 is the cross-entropy of the composition, and context helps as it was measured to."""
    ids = read_fasta(shared_data / "human_stretches" / "GRCh37_chr7_86-87M.fa.gz")
    train, test = ids[:800_000], ids[800_000:]
    perplexity, counted = perplexities(train, test)
    bases = np.asarray(DNA.bases)
    seen = np.array([np.count_nonzero(train == base) for base in bases])
    both = seen + seen[::-1]
    smoothed = (both + STRENGTH / 4) / (both.sum() + STRENGTH)
    there = np.array([np.count_nonzero(test == base) for base in bases])
    assert counted == there.sum()
    assert perplexity[0] == pytest.approx(math.exp(-there @ np.log(smoothed) / there.sum()))
    np.testing.assert_array_equal(
        np.round(perplexity[[0, 1, 3, 6, 9, 12]], 3), [3.929, 3.798, 3.771, 3.731, 3.668, 3.611]
    )


# Chromosome 20 of GRCh37, order 0 to 12; order 5 is 3.76746.
CHROMOSOME_20 = [3.999, 3.869, 3.833, 3.816, 3.794, 3.767, 3.719, 3.664, 3.604, 3.554, 3.527]
CHROMOSOME_20 += [3.534, 3.563]


@pytest.mark.slow
def test_the_published_perplexities_of_chromosome_20(shared_data):
    """Trained on 1-45 Mb, tested on 50-63 Mb: all orders to the printed digit."""
    ids = read_fasta(shared_data / "human_large" / "GRCh37_chr20.fa.gz")
    perplexity, counted = perplexities(ids[1_000_000:45_000_000], ids[50_000_000:])
    assert counted == 12_865_520
    np.testing.assert_array_equal(np.round(perplexity, 3), CHROMOSOME_20)


@pytest.mark.slow
def test_the_published_perplexities_of_the_last_tenth(shared_data):
    """Trained on the first 80%, tested on the last 10% of chromosome 20."""
    ids = read_fasta(shared_data / "human_large" / "GRCh37_chr20.fa.gz")
    perplexity, counted = perplexities(ids[: len(ids) * 8 // 10], ids[len(ids) * 9 // 10 :])
    assert counted == 6_142_552
    printed = {0: 4.034, 3: 3.838, 6: 3.763, 8: 3.676, 10: 3.623, 12: 3.683}
    for order, value in printed.items():
        assert round(perplexity[order], 3) == value
    assert perplexity.argmin() == 10
