"""Networks and count models on the same bases, in windows of every length."""

import math

import numpy as np
import pytest
import torch
from models import tiny_model

from fracdna.data.objectives import IGNORED, next_base
from fracdna.evaluation import markov
from fracdna.evaluation.length_curve import count_training_bases, score_counts, score_network
from fracdna.evaluation.markov import MarkovModel
from fracdna.evaluation.regions import check_lengths, choose_regions, merged
from fracdna.evaluation.tally import FORWARD, REVERSE
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval

PERIOD = 300
LENGTHS = [128, 256, 512, 1024, 2048]


def whole(store):
    return [Interval("c", 0, store.contigs["c"])]


def mean(sums):
    return sums.nats[:, 0].sum() / sums.tokens[:, 0].sum()


@pytest.mark.parametrize("strand", [FORWARD, REVERSE])
def test_context_helps_exactly_where_the_repeat_comes_into_reach(periodic, copier, read, strand):
    """Tiling: at chance up to 256, then only the first 300 bases of a window are. Fixed target:
    the last 64 bases are at chance up to 256 and known from 512 on, and nothing changes after."""
    regions = choose_regions(periodic, whole(periodic), 2048, count=99, max_n_fraction=0.0)
    assert (regions.found, regions.with_n, len(regions.intervals)) == (8, 1, 7)
    for length in LENGTHS:
        reading = read(periodic, regions, length, strand=strand)
        cell = score_network(copier, reading, batch_bases=4096)
        assert mean(cell.bases) == pytest.approx(math.log(4) * min(1, PERIOD / length), rel=1e-5)
        expected = math.log(4) if length < PERIOD else 0
        assert mean(cell.target) == pytest.approx(expected, abs=1e-6)
        assert cell.target.tokens.sum() == 7 * 64


def test_the_last_windows_alone_say_the_same_of_the_target(periodic, read):
    """A fixed curve without the other curves reads less and scores the same bases alike."""
    regions = choose_regions(periodic, whole(periodic), 512, count=4, max_n_fraction=1.0)
    model = tiny_model("frac")
    for strand in (FORWARD, REVERSE):
        all_of_it = score_network(
            model, read(periodic, regions, 128, strand=strand), batch_bases=1024
        )
        part = read(periodic, regions, 128, span=128, strand=strand)
        assert part.total == 4 * 128
        alone = score_network(model, part, batch_bases=1024)
        np.testing.assert_allclose(alone.target.nats, all_of_it.target.nats, rtol=1e-6)
        np.testing.assert_array_equal(alone.target.tokens, all_of_it.target.tokens)
        assert alone.target_scored == all_of_it.target_scored != alone.scored


@pytest.mark.parametrize("strand", [FORWARD, REVERSE])
def test_the_same_bases_are_scored_at_every_length(periodic, read, strand):
    """Counts and hash of coordinates agree; planted N are counted apart and nowhere else."""
    regions = choose_regions(periodic, whole(periodic), 2048, count=99, max_n_fraction=1.0)
    model = tiny_model("frac")
    cells = [
        score_network(model, read(periodic, regions, n, strand=strand), batch_bases=4096)
        for n in (128, 2048)
    ]
    assert len({cell.scored for cell in cells}) == len({cell.target_scored for cell in cells}) == 1
    assert cells[0].scored != cells[0].target_scored
    assert {int(cell.bases.tokens.sum()) for cell in cells} == {16_384 - 50}
    assert {int(cell.contexts.tokens.sum()) for cell in cells} == {16_384 - 50}
    assert {(cell.n_skipped, cell.pad_skipped) for cell in cells} == {(50, 0)}
    fewer = choose_regions(periodic, whole(periodic), 2048, count=3, max_n_fraction=1.0)
    other = score_network(model, read(periodic, fewer, 2048, strand=strand), batch_bases=4096)
    assert other.scored != cells[0].scored


@pytest.mark.parametrize("strand", [FORWARD, REVERSE])
@pytest.mark.parametrize("batch_bases", [128, 300, 4096])
def test_sums_are_those_of_a_plain_loop_whatever_the_batch(periodic, read, batch_bases, strand):
    """Window by window, position by position, in float64."""
    regions = choose_regions(periodic, [Interval("c", 4700, 5700)], 256, count=3, max_n_fraction=1)
    model = tiny_model("attention")
    reading = read(periodic, regions, 128, target=100, strand=strand)
    cell = score_network(model, reading, batch_bases=batch_bases)
    contexts = np.zeros_like(cell.contexts.nats)
    for region, place in enumerate(regions.intervals):
        sign = "-" if strand == REVERSE else "+"
        ids = periodic.fetch(Interval("c", place.start, place.end, sign))
        inputs, targets = next_base(torch.from_numpy(ids).view(2, 128))
        with torch.inference_mode():
            log_p = torch.log_softmax(model(inputs).double(), -1).view(256, 16)
        known = targets.flatten() != IGNORED
        nats = -log_p[torch.arange(256), targets.flatten().clamp(min=0)].where(known, 0).numpy()
        acgt = log_p[:, 7:11].logsumexp(-1).where(known, 0).numpy()
        assert cell.bases.nats[region, 0] == pytest.approx(nats.sum(), rel=1e-6)
        assert cell.bases.nats_acgt[region, 0] == pytest.approx((nats + acgt).sum(), rel=1e-6)
        assert cell.target.nats[region, 0] == pytest.approx(nats[-100:].sum(), rel=1e-6)
        assert cell.target.tokens[region, 0] == known[-100:].sum()
        for position, value in enumerate(nats):
            bucket = int(math.log2(position)) + 1 if position else 0
            contexts[region, bucket] += value
    np.testing.assert_allclose(cell.contexts.nats, contexts, rtol=1e-5)


def test_count_models_score_what_networks_score(periodic, read, monkeypatch):
    """Equal hash, sums as of windows alone; order 12 knows a periodic contig."""
    regions = choose_regions(periodic, whole(periodic), 2048, count=99, max_n_fraction=1.0)
    model = MarkovModel(count_training_bases(periodic, whole(periodic)))
    reading = read(periodic, regions, 128)
    network = score_network(tiny_model("frac"), reading, batch_bases=4096)
    monkeypatch.setattr(markov, "BLOCK", 1000)  # windows are cut, also at the BOS between two
    cells = score_counts(model, reading)
    assert {cell.scored for cell in cells} == {network.scored}
    for region, place in enumerate(regions.intervals):
        windows = periodic.fetch(place).reshape(-1, 128)
        alone = sum(np.nansum(model.nll_nats(window), axis=1) for window in windows)
        found = [cell.bases.nats[region, 0] for cell in cells]
        np.testing.assert_allclose(found, alone, rtol=1e-12)
    long = score_counts(model, read(periodic, regions, 2048))
    assert mean(long[0].bases) == pytest.approx(math.log(4), abs=0.03)
    assert mean(long[12].bases) < 0.4


def test_a_weight_that_is_no_number_names_the_region(periodic, read):
    model = tiny_model("frac")
    model.backbone.final_norm.weight.data[0] = torch.nan
    regions = choose_regions(periodic, whole(periodic), 512, count=2)
    with pytest.raises(NotFinite, match="c:1-512 at length 256"):
        score_network(model, read(periodic, regions, 256), batch_bases=4096)


def test_lengths_and_regions_that_cannot_be_scored_are_refused(periodic):
    assert check_lengths([64, 16, 64]) == (16, 64)
    with pytest.raises(InputError, match="48 does not divide 64"):
        check_lengths([48, 64])
    with pytest.raises(InputError, match="at least 1"):
        check_lengths([])
    with pytest.raises(InputError, match="longest interval of this split has 16,384"):
        choose_regions(periodic, whole(periodic), 32_768, count=1)


def test_regions_are_evenly_spaced_and_inside(periodic):
    regions = choose_regions(periodic, [Interval("c", 100, 4_200)], 1000, count=3)
    assert [i.start for i in regions.intervals] == [100, 2100, 3100]
    assert regions.unused == 100
    assert (
        regions.manifest_hash
        != choose_regions(periodic, [Interval("c", 0, 4_100)], 1000, count=3).manifest_hash
    )


def test_choosing_regions_reads_a_contig_once(periodic, monkeypatch):
    """Counting N tile by tile read the whole contig for each tile."""
    calls, original = [], GenomeStore.count_n_and_masked

    def count(self, contig, starts, ends):
        calls.append(contig)
        return original(self, contig, starts, ends)

    monkeypatch.setattr(GenomeStore, "count_n_and_masked", count)
    assert choose_regions(periodic, whole(periodic), 64, count=999).found == 256
    assert calls == ["c"]


def test_overlapping_rows_count_once():
    """A base in two BED rows is one base of training and one of test."""
    rows = [Interval("b", 5, 9), Interval("a", 0, 10, "-"), Interval("a", 8, 20)]
    assert merged(rows) == [Interval("b", 5, 9), Interval("a", 0, 20)]
    assert merged([]) == []
