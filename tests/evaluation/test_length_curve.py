import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import tiny_model

from fracdna.data.objectives import IGNORED, next_base
from fracdna.evaluation.length_curve import (
    count_training_bases,
    position_buckets,
    score_counts,
    score_network,
)
from fracdna.evaluation.markov import MarkovModel
from fracdna.evaluation.regions import check_lengths, choose_regions, merged
from fracdna.evaluation.statistics import interval_95, resampled_nll
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval

PERIOD = 300
LENGTHS = [128, 256, 512, 1024, 2048]


@pytest.fixture(scope="module")
def periodic(tmp_path_factory):
    """A contig of period 300 with one run of N, as a store."""
    folder = tmp_path_factory.mktemp("periodic")
    unit = "".join(np.random.default_rng(0).choice(list("ACGT"), PERIOD))
    bases = (unit * 60)[:16_384]
    (folder / "g.fa").write_text(f">c\n{bases[:5000]}{'N' * 50}{bases[5050:]}\n")
    return GenomeStore.build(folder / "g.fa", folder / "store")


class Copier(torch.nn.Module):
    """Predicts the base 300 positions back with certainty, a uniform guess before that."""

    def __init__(self):
        super().__init__()
        weight = torch.nn.Parameter(torch.zeros(1))
        self.backbone = SimpleNamespace(embedding=SimpleNamespace(weight=weight))

    def forward(self, inputs):
        logits = torch.full((*inputs.shape, 16), -1e4)
        logits[..., 7:11] = 0
        # inputs[t + 1] is base t: the base 300 before target t stands at inputs[t - 299]
        source = inputs[:, 1 : max(inputs.shape[1] - PERIOD, 0) + 1]
        known = torch.nn.functional.one_hot(source, 16) * 1e4
        logits[:, PERIOD:] = torch.where(
            (source == 11)[..., None], logits[:, PERIOD:], known.float()
        )
        return logits


def whole(store):
    return [Interval("c", 0, 16_384)]


def test_context_helps_exactly_where_the_repeat_comes_into_reach(periodic):
    """Up to 256 a copier is at chance; from 512 on only the first 300 bases of a window are."""
    regions = choose_regions(periodic, whole(periodic), 2048, count=99, max_n_fraction=0.0)
    assert (regions.found, regions.with_n, len(regions.intervals)) == (8, 1, 7)
    for length in LENGTHS:
        cell = score_network(Copier(), periodic, regions, length, batch_bases=4096)
        nll = cell.nats.sum() / cell.tokens.sum()
        assert nll == pytest.approx(math.log(4) * min(1, PERIOD / length), rel=1e-5)


def test_the_same_bases_are_scored_at_every_length(periodic):
    """Counts and hash of coordinates agree; planted N are counted apart and nowhere else."""
    regions = choose_regions(periodic, whole(periodic), 2048, count=99, max_n_fraction=1.0)
    model = tiny_model("frac")
    cells = [score_network(model, periodic, regions, n, batch_bases=4096) for n in LENGTHS]
    assert len({cell.scored for cell in cells}) == 1
    assert {int(cell.tokens.sum()) for cell in cells} == {16_384 - 50}
    assert {(cell.n_skipped, cell.pad_skipped) for cell in cells} == {(50, 0)}
    fewer = choose_regions(periodic, whole(periodic), 2048, count=3, max_n_fraction=1.0)
    other = score_network(model, periodic, fewer, 128, batch_bases=4096)
    assert other.scored != cells[0].scored


@pytest.mark.parametrize("batch_bases", [1, 300, 4096])
def test_sums_are_those_of_a_plain_loop_whatever_the_batch(periodic, batch_bases):
    """Window by window, position by position, in float64."""
    regions = choose_regions(periodic, whole(periodic), 512, count=4, max_n_fraction=1.0)
    model = tiny_model("attention")
    cell = score_network(model, periodic, regions, 128, batch_bases=batch_bases)
    buckets = np.zeros(8)
    for region, interval in enumerate(regions.intervals):
        total = 0.0
        for start in range(interval.start, interval.end, 128):
            ids = torch.from_numpy(periodic.fetch(Interval("c", start, start + 128)))[None]
            inputs, targets = next_base(ids)
            log_p = torch.log_softmax(model(inputs).double(), -1)[0]
            for place, target in enumerate(targets[0].tolist()):
                if target != IGNORED:
                    total -= log_p[place, target].item()
                    bucket = int(math.log2(place)) + 1 if place else 0
                    buckets[bucket] -= log_p[place, target].item()
        assert cell.nats[region] == pytest.approx(total, rel=1e-6)
    assert cell.bucket_nats == pytest.approx(buckets[: len(cell.bucket_nats)], rel=1e-6)
    assert cell.bucket_tokens.sum() == cell.tokens.sum()


def test_renormalising_over_the_bases_never_raises_the_nats(periodic):
    regions = choose_regions(periodic, whole(periodic), 512, count=4)
    cell = score_network(tiny_model("frac"), periodic, regions, 512, batch_bases=4096)
    assert (cell.nats_acgt < cell.nats).all()


def test_count_models_score_what_networks_score(periodic):
    """Equal hash; order 0 is the entropy of the counts; order 12 knows a periodic contig."""
    regions = choose_regions(periodic, whole(periodic), 2048, count=99)
    counts = count_training_bases(periodic, whole(periodic))
    network = score_network(tiny_model("frac"), periodic, regions, 128, batch_bases=4096)
    model = MarkovModel(counts)
    orders = {length: score_counts(model, periodic, regions, length) for length in (128, 2048)}
    for cells in orders.values():
        assert {cell.scored for cell in cells} == {network.scored}
    nll = [cell.nats.sum() / cell.tokens.sum() for cell in orders[2048]]
    assert nll[0] == pytest.approx(math.log(4), abs=0.03)
    assert nll[12] < 0.4


def test_a_weight_that_is_no_number_names_the_region(periodic):
    model = tiny_model("frac")
    model.backbone.final_norm.weight.data[0] = torch.nan
    regions = choose_regions(periodic, whole(periodic), 512, count=2)
    with pytest.raises(NotFinite, match="c:1-512 at length 512"):
        score_network(model, periodic, regions, 512, batch_bases=4096)


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


def test_buckets_double():
    assert position_buckets(9).tolist() == [0, 1, 2, 2, 3, 3, 3, 3, 4]
    assert position_buckets(8).tolist() == [0, 1, 2, 2, 3, 3, 3, 3]
    assert position_buckets(1).tolist() == [0]


def test_bootstrap_interval_covers_the_truth():
    """Regions of unequal size, 95 % intervals: the mean lies inside about 95 times of 100."""
    random, inside = np.random.default_rng(0), 0
    for trial in range(100):
        tokens = random.integers(50, 150, 40)
        nats = tokens * random.normal(1.3, 0.2, 40)
        low, high = interval_95(resampled_nll(nats, tokens, seed=trial))
        inside += low < 1.3 < high
    assert 88 <= inside <= 100


def test_paired_models_share_their_resamples():
    """A constant difference has an interval of no width: the noise of the regions cancels."""
    random = np.random.default_rng(0)
    tokens = random.integers(50, 150, 40)
    nats = tokens * random.normal(1.3, 0.2, 40)
    both = resampled_nll(np.stack([nats, nats + 0.1 * tokens]), tokens)
    assert np.ptp(both[1] - both[0]) < 1e-12
