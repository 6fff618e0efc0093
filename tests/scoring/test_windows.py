"""Where windows lie, by hand-made cases."""

import numpy as np
import pytest

from fracdna.scoring import ScoringOptions, check_reference, judge_alleles, plan_sites
from fracdna.scoring.variants import Record
from fracdna.scoring.windows import blocks_of, site_windows
from fracdna_prep.vocabulary import DNA

TEXT = "".join(np.random.default_rng(8).choice(list("ACGT"), 110)) + "ACGTACGTTT"


@pytest.fixture(scope="module")
def genome(build_store):
    return build_store({"c": TEXT})


def sites_of(genome, place, width, *alts, left=10, right=5):
    record = Record("c", place, ".", TEXT[place : place + width], alts)
    check = check_reference([record], {"c": "c"}, genome)
    alleles = judge_alleles([record], {"c": "c"}, check)
    return plan_sites(alleles, genome.contigs, ScoringOptions(left=left, right=right))


def texts(genome, site):
    ref, alts = site_windows(genome, site)
    return DNA.decode(ref), [DNA.decode(alt) for alt in alts]


def test_a_deletion_is_refilled_on_the_right(genome):
    """Case 42: both windows are equally long, bases behind the window fill that of ALT."""
    (site,) = sites_of(genome, 50, 4, TEXT[50])
    ref, (alt,) = texts(genome, site)
    assert ref == TEXT[40:59]
    assert alt == TEXT[40:51] + TEXT[54:62]
    assert len(ref) == len(alt) == 19
    assert not site.clipped


def test_an_insertion_is_cut_on_the_right(genome):
    (site,) = sites_of(genome, 50, 1, TEXT[50] + "GGG")
    ref, (alt,) = texts(genome, site)
    assert ref == TEXT[40:56]
    assert alt == TEXT[40:51] + "GGG" + TEXT[51:53]


@pytest.mark.parametrize(
    ("place", "start", "end", "clipped"),
    [(10, 0, 16, False), (9, 0, 15, True), (0, 0, 6, True), (114, 104, 120, False),
     (115, 105, 120, True), (119, 109, 120, True)],
)  # fmt: skip
def test_windows_are_shorter_at_the_ends_of_a_contig(place, start, end, clipped, genome):
    """They begin and end with the contig, and say so."""
    (site,) = sites_of(genome, place, 1, "A" if TEXT[place] != "A" else "C")
    assert (site.start, site.start + site.length, site.clipped) == (start, end, clipped)
    ref, (alt,) = texts(genome, site)
    assert ref == TEXT[start:end]
    assert [x for x, (a, b) in enumerate(zip(ref, alt, strict=True)) if a != b] == [place - start]


def test_a_deletion_without_refill_shortens_both_windows(genome):
    """No base of the genome is invented and none is read behind the contig's end."""
    (site,) = sites_of(genome, 112, 3, TEXT[112])
    ref, (alt,) = texts(genome, site)
    assert ref == TEXT[102:118]
    assert alt == TEXT[102:113] + TEXT[115:120]
    assert site.clipped


def test_alleles_of_other_lengths_have_windows_of_their_own_at_an_end(genome):
    """Away from the ends they share that of REF."""
    ref = TEXT[50]
    (site,) = sites_of(genome, 50, 1, *(x for x in "ACGT" if x != ref), ref + "TT")
    assert site.rows == (0, 1, 2, 3)
    sites = sites_of(genome, 112, 3, TEXT[112], TEXT[112:114] + "G")
    assert [site.rows for site in sites] == [(0,), (1,)]
    assert [site.length for site in sites] == [16, 18]


def test_what_follows_an_snv_is_read_once_on_the_other_strand(genome):
    """An indel moves the end of the window, so that nothing is shared there."""
    (snv,) = sites_of(genome, 50, 1, "A" if TEXT[50] != "A" else "C")
    (indel,) = sites_of(genome, 50, 1, TEXT[50] + "A")
    assert [snv.read_once(reverse=reverse) for reverse in (False, True)] == [10, 5]
    assert [indel.read_once(reverse=reverse) for reverse in (False, True)] == [10, 0]
    assert snv.positions(split=True) == (10 + 2 * 7) + (5 + 2 * 12)
    assert snv.positions(split=False) == 2 * 2 * 17


def test_blocks_hold_all_sites_in_order(genome):
    """Each takes at least what was asked for, the last one what is left."""
    sites = [sites_of(genome, place, 1, TEXT[place] + "A")[0] for place in range(20, 31)]
    blocks = blocks_of(sites, 3 * sites[0].positions(split=True), split=True)
    assert [len(block) for block in blocks] == [3, 3, 3, 2]
    assert [site for block in blocks for site in block] == sites
    assert blocks_of([], 5, split=True) == []
