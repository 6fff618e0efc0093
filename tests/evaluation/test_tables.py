"""Rows of all tables, from sums of regions."""

import math

import numpy as np
import pytest
import torch
from models import tiny_model

from fracdna.data.objectives import next_base
from fracdna.evaluation.classes import BaseClasses
from fracdna.evaluation.length_curve import score_network
from fracdna.evaluation.likelihood import token_nll
from fracdna.evaluation.plan import CURVES, Plan
from fracdna.evaluation.regions import Regions, choose_regions
from fracdna.evaluation.statistics import interval_95, mean_nll, resampled_nll
from fracdna.evaluation.tables import make_tables
from fracdna.evaluation.tally import Cell, Reading, Sums
from fracdna_prep.interval import Interval


def regions_of(*contigs):
    places = tuple(Interval(name, 64 * n, 64 * n + 64) for n, name in enumerate(contigs))
    return Regions(places, 64, len(places), 0, 0)


def cell(random, count, tokens=64):
    """A cell of made-up sums."""

    def sums(columns):
        values = random.normal(1.3, 0.2, (count, columns)) * tokens
        return Sums(values, values - 1, np.full((count, columns), tokens))

    return Cell(sums(1), sums(1), sums(7), 0, 0, "", "")


def tables_of(contigs, scores, strands=("forward",), networks=("one", "two")):
    plan = Plan((64,), ("tiling", "fixed"), strands, 16)
    return make_tables(plan, BaseClasses(regions_of(*contigs)), scores, networks, {}, [])


def test_gains_are_those_of_computing_both_passes(mixed):
    """Carried: one forward over the region; control: its windows; position by position."""
    model = tiny_model("gla")
    regions = choose_regions(mixed.store, [Interval("a", 0, 1024)], 256, count=9, max_n_fraction=1)
    classes = BaseClasses(regions)
    plan = Plan((128, 256), CURVES, ("forward",), 64)
    cells = {
        ("forward", length): score_network(
            model, Reading(mixed.store, classes, length, span, 64), batch_bases=64
        )
        for length, span in plan.passes(32).items()
    }
    assert set(cells) == {("forward", n) for n in (32, 128, 256)}
    tables = make_tables(plan, classes, {"m": cells}, ["m"], {"m": 32}, [])
    nats = {}
    for length in (32, 256):
        ids = torch.from_numpy(np.stack([mixed.store.fetch(p) for p in regions.intervals]))
        inputs, targets = next_base(ids.view(-1, length))
        with torch.inference_mode():
            nats[length] = token_nll(model(inputs), targets).view(-1, 256).double().numpy()
    counted = (ids >= 7) & (ids <= 10)
    assert [row.context_from for row in tables.gains] == [0, 1, 2, 4, 8, 16, 32, 64, 128]
    assert tables.gains[-1].context_to == 255
    for row in tables.gains:
        here = slice(row.context_from, row.context_to + 1)
        known = counted[:, here].numpy().sum(1)
        assert row.bases == known.sum()
        carried, control = (nats[n][:, here].sum() / row.bases for n in (256, 32))
        assert row.nll_carried == pytest.approx(carried, rel=1e-5)
        assert row.nll_reset == pytest.approx(control, rel=1e-5)
        assert row.gain_nats == pytest.approx(control - carried, abs=1e-5)
        if row.context_from >= 32:
            assert row.gain_low < row.gain_nats < row.gain_high
        else:
            assert row.gain_nats == pytest.approx(0, abs=1e-6)
    position = tables.positions[-1]
    assert position.nll_nats == tables.gains[-1].nll_carried
    assert position.perplexity_low < position.perplexity < position.perplexity_high


def test_a_constant_difference_has_an_interval_of_no_width():
    """The noise of the regions cancels in the comparison of two models on the same bases."""
    one = cell(np.random.default_rng(0), 40)
    two = Cell(
        Sums(one.bases.nats + 6.4, one.bases.nats_acgt, one.bases.tokens),
        Sums(one.target.nats * 2, one.target.nats_acgt, one.target.tokens),
        one.contexts, 0, 0, "", "",
    )  # fmt: skip
    cells = {"one": {("forward", 64): one}, "two": {("forward", 64): two}}
    tiling, fixed = tables_of("c" * 40, cells).differences
    assert (tiling.curve, fixed.curve) == ("tiling", "fixed")
    assert (tiling.model, tiling.minus) == ("one", "two")
    for value in (tiling.nll_nats, tiling.low, tiling.high):
        assert value == pytest.approx(-0.1, rel=1e-9)
    assert fixed.low < fixed.nll_nats < fixed.high < -1


def test_the_average_of_strands_is_that_of_their_tokens():
    """Strands with unequal counts weigh by them; both resample the same regions."""
    random = np.random.default_rng(1)
    forward, reverse = cell(random, 10, tokens=60), cell(random, 10, tokens=20)
    cells = {("forward", 64): forward, ("reverse", 64): reverse}
    tables = tables_of("c" * 10, {"m": cells}, ("forward", "reverse"), ("m",))
    rows = {row.strand: row for row in tables.rows if (row.model, row.curve) == ("m", "tiling")}
    assert rows["average"].bases == 800
    assert rows["average"].nll_nats == pytest.approx(
        0.75 * rows["forward"].nll_nats + 0.25 * rows["reverse"].nll_nats
    )
    uniform = [row for row in tables.rows if row.model == "uniform"]
    assert len(uniform) == 6
    assert [row.perplexity for row in uniform] == pytest.approx([4] * 6)


def test_contigs_have_rows_where_there_are_several():
    """They add up to all, and one region alone has no interval."""
    cells = {"m": {("forward", 64): cell(np.random.default_rng(2), 5)}}
    rows = tables_of("aaaab", cells, networks=("m",)).rows
    mine = [row for row in rows if (row.model, row.curve) == ("m", "tiling")]
    assert [(row.part, row.group, row.bases) for row in mine] == [
        ("all", "all", 320), ("chromosome", "a", 256), ("chromosome", "b", 64),
    ]  # fmt: skip
    total = sum(row.nll_nats * row.bases for row in mine[1:])
    assert total == pytest.approx(mine[0].nll_nats * 320)
    assert mine[2].perplexity_low is mine[2].perplexity_high is None
    assert mine[1].perplexity_low < mine[1].perplexity < mine[1].perplexity_high
    assert len(tables_of("aaaaa", cells, networks=("m",)).rows) == 4


def test_the_best_count_model_is_the_one_with_the_lowest_nats():
    cells = {f"markov-{n}": cell(np.random.default_rng(n), 5) for n in range(3)}
    cells["markov-1"].bases.nats[:] = 1
    scores = {name: {("forward", 64): it} for name, it in cells.items()}
    scores["one"] = scores["two"] = scores["markov-0"]
    tables = tables_of("c" * 5, scores)
    assert tables.best == "markov-1"
    pairs = {(row.model, row.minus) for row in tables.differences}
    assert pairs == {("one", "two"), ("one", "markov-1"), ("two", "markov-1")}


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
    random = np.random.default_rng(0)
    tokens = random.integers(50, 150, 40)
    nats = tokens * random.normal(1.3, 0.2, 40)
    both = resampled_nll(np.stack([nats, nats + 0.1 * tokens]), tokens)
    assert np.ptp(both[1] - both[0]) < 1e-12


def test_regions_without_a_base_of_a_class_are_not_resampled():
    """A resample of such regions alone would be 0/0."""
    nats, tokens = np.array([2.0, 0.0, 3.0, 0.0]), np.array([2, 0, 2, 0])
    assert mean_nll(nats, tokens) == (1.25, 1.0, 1.5)
    assert mean_nll(nats[:2], tokens[:2]) == (1.0, None, None)
    assert math.isfinite(mean_nll(np.append(nats, np.zeros(40)), np.append(tokens, [0] * 40)).low)
