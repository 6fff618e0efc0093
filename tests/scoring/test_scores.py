"""Scores against whole windows, and the laws that they keep."""

import copy

import numpy as np
import pytest
import torch

from fracdna.outcomes import NotFinite
from fracdna.scoring import (
    ScoringOptions,
    SiteScorer,
    check_reference,
    judge_alleles,
    plan_sites,
)
from fracdna.scoring.scores import Values
from fracdna.scoring.variants import Record
from fracdna.scoring.windows import rows_of, site_windows
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

OPTIONS = ScoringOptions(left=21, right=13)
OTHER = dict(zip("ACGT", "CGTA", strict=True))


def scored(model, store, records, options=OPTIONS, advance=None):
    """Values by name of all rows, scores with them."""
    names = {record.contig: record.contig for record in records}
    alleles = judge_alleles(records, names, check_reference(records, names, store))
    sites = plan_sites(alleles, store.contigs, options)
    values = np.full((len(alleles), len(Values._fields)), np.nan)
    values[rows_of(sites)] = SiteScorer(model, store, options, advance).values(sites)
    found = dict(zip(Values._fields, values.T, strict=True))
    for strand in ("forward", "reverse"):
        found[strand] = found[f"logp_alt_{strand}"] - found[f"logp_ref_{strand}"]
    found["score"] = (found["forward"] + found["reverse"]) / 2
    return found


def variant(letters, place, ref_length, *alts, contig="chr1"):
    return Record(contig, place, ".", letters[contig][place : place + ref_length], alts)


@pytest.fixture
def records(letters):
    """Every kind, beside N, at both ends of a contig, and with several alleles."""

    def snv(place, contig="chr1"):
        ref = letters[contig][place]
        return variant(letters, place, 1, OTHER[ref], contig=contig)

    anchor = letters["chr1"][120]
    return [
        snv(100),
        variant(letters, 120, 1, OTHER[anchor], anchor + "GATTACA", anchor + "C"),
        variant(letters, 140, 4, letters["chr1"][140]),
        variant(letters, 160, 3, "".join(OTHER[x] for x in letters["chr1"][160:163])),
        variant(letters, 180, 2, "GGGTT"),
        snv(295),
        snv(315),
        snv(0),
        snv(5, "chr2"),
        snv(89, "chr2"),
        variant(letters, 80, 3, letters["chr2"][80], contig="chr2"),
    ]


def windows_as_text(letters, record, alt, options=OPTIONS):
    """Both windows, built by slicing text."""
    contig = letters[record.contig]
    start = max(0, record.position - options.left)
    end = record.position + len(record.ref)
    with_alt = contig[start : record.position] + alt + contig[end:]
    length = min(end + options.right - start, len(contig) - start, len(with_alt))
    return contig[start:][:length], with_alt[:length]


def first_difference(texts):
    return next(i for i, (a, b) in enumerate(zip(*texts, strict=True)) if a != b)


def test_scores_are_those_of_whole_windows(models, mixer_name, store, letters, records, plain,
                                           reverse_complement):  # fmt: skip
    """To 1e-5 in float32: log p(ALT window) - log p(REF window) from BOS on each strand, and the
    distances of mean states from the first difference on."""
    model = models(mixer_name)
    found = scored(model, store, records)
    rows = [(record, alt) for record in records for alt in record.alts]
    for row, (record, alt) in enumerate(rows):
        texts = windows_as_text(letters, record, alt)
        (ref, with_alt), states = plain(model, texts)
        assert found["forward"][row] == pytest.approx(with_alt - ref, abs=1e-5)
        (ref, with_alt), _ = plain(model, [reverse_complement(text) for text in texts])
        assert found["reverse"][row] == pytest.approx(with_alt - ref, abs=1e-5)
        first = first_difference(texts)
        one, other = states[:, first:].mean(1)
        cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert found["embedding_l2"][row] == pytest.approx(np.linalg.norm(one - other), rel=1e-4)
        assert found["embedding_cosine"][row] == pytest.approx(1 - cosine, rel=1e-3, abs=1e-6)
    assert np.ptp(found["score"]) > 1


def test_counts_are_of_the_bases_from_the_first_difference(models, store, letters, records,
                                                          reverse_complement):  # fmt: skip
    """On both strands, N left out; the share of N is that of the REF window."""
    found = scored(models(), store, records)
    rows = [(record, alt) for record in records for alt in record.alts]
    for row, (record, alt) in enumerate(rows):
        windows = windows_as_text(letters, record, alt)
        for strand, texts in (
            ("forward", windows),
            ("reverse", [reverse_complement(text) for text in windows]),
        ):
            first = first_difference(texts)
            counts = [len(text[first:]) - text[first:].count("N") for text in texts]
            assert found[f"bases_ref_{strand}"][row] == counts[0]
            assert found[f"bases_alt_{strand}"][row] == counts[1]
        assert found["n_fraction"][row] == windows[0].count("N") / len(windows[0])
    assert found["n_fraction"].max() > 0


@pytest.mark.parametrize(
    ("mixer", "limits"),
    [
        ("frac", {"batch_bases": 1}),
        ("frac", {"batch_bases": 50}),
        ("attention", {"batch_bases": 1}),
    ],
)
def test_batches_and_segments_change_nothing(mixer, limits, models, store, records):
    """Alone, together, and in short pieces with carried state: equal to 1e-5."""
    together = scored(models(mixer), store, records)
    apart = scored(models(mixer), store, records, ScoringOptions(left=21, right=13, **limits))
    for name in ("forward", "reverse", "embedding_l2"):
        np.testing.assert_allclose(apart[name], together[name], atol=1e-5)
    assert (apart["bases_ref_reverse"] == together["bases_ref_reverse"]).all()


def test_exchanged_alleles_flip_the_sign_exactly(models, store, letters, build_store):
    """A genome that has ALT, and REF as its variant: the same numbers with the other sign."""
    places = (100, 130, 200)
    records = [variant(letters, 100, 1, OTHER[letters["chr1"][100]])]
    records += [
        variant(letters, place, 2, "".join(OTHER[x] for x in letters["chr1"][place : place + 2]))
        for place in places[1:]
    ]
    there, back = [], []
    for record in records:
        text, place, alt = letters["chr1"], record.position, record.alts[0]
        changed = text[:place] + alt + text[place + len(alt) :]
        other = build_store({"chr1": changed})
        there.append(scored(models(), store, [record])["score"][0])
        swapped = Record("chr1", place, ".", alt, (record.ref,))
        back.append(scored(models(), other, [swapped])["score"][0])
    assert there == [-score for score in back]
    assert all(abs(score) > 1e-3 for score in there)


def test_a_reverse_complemented_genome_gives_the_same_scores(models, store, letters, build_store,
                                                             reverse_complement):  # fmt: skip
    """Where windows reach equally far to both sides, strands change places and the mean stays."""
    options = ScoringOptions(left=17, right=17)
    records = [
        variant(letters, place, width, "".join(OTHER[x] for x in letters["chr1"][place:][:width]))
        for place, width in ((100, 1), (150, 3), (4, 1), (590, 2))
    ]
    length = len(letters["chr1"])
    flipped = [
        Record(
            "chr1", length - record.position - len(record.ref), ".",
            reverse_complement(record.ref), (reverse_complement(record.alts[0]),),
        )
        for record in records
    ]  # fmt: skip
    other = build_store({"chr1": reverse_complement(letters["chr1"])})
    one, two = (scored(models(), s, r, options) for s, r in ((store, records), (other, flipped)))
    np.testing.assert_allclose(one["score"], two["score"], atol=1e-5)
    np.testing.assert_allclose(one["forward"], two["reverse"], atol=1e-5)
    assert np.abs(one["forward"] - one["reverse"]).max() > 1e-2


def test_an_allele_scores_the_same_beside_others(models, store, letters):
    """Several ALT of one record share what is read; each has the score that it has alone."""
    ref = letters["chr1"][120]
    alts = (*(x for x in "ACGT" if x != ref), ref + "AC", ref + "AC")
    together = scored(models(), store, [Record("chr1", 120, ".", ref, alts)])["score"]
    alone = [
        scored(models(), store, [Record("chr1", 120, ".", ref, (alt,))])["score"][0] for alt in alts
    ]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert together[-1] == together[-2]


@pytest.mark.parametrize("mixer", ["frac", "attention"])
def test_progress_ends_at_what_was_announced(mixer, models, store, letters, records):
    """All positions are told, also those of windows that are not computed."""
    told = []
    records = [*records, Record("chr2", 88, ".", letters["chr2"][88:90], (letters["chr2"][88],))]
    names = {name: name for name in letters}
    alleles = judge_alleles(records, names, check_reference(records, names, store))
    options = ScoringOptions(left=21, right=13, max_n_fraction=0.1)
    sites = plan_sites(alleles, store.contigs, options)
    scorer = SiteScorer(models(mixer), store, options, told.append)
    scorer.values(sites)
    assert sum(told) == sum(site.positions(split=scorer.split) for site in sites)


def test_much_n_and_equal_windows_are_not_computed(models, store, letters):
    """Their likelihoods stay NaN, and the values say why."""
    ends = Record("chr2", 88, ".", letters["chr2"][88:90], (letters["chr2"][88],))
    near_n = variant(letters, 295, 1, OTHER[letters["chr1"][295]])
    options = ScoringOptions(left=10, right=13, max_n_fraction=0.2)
    found = scored(models(), store, [ends, near_n], options)
    assert np.isnan(found["score"]).all()
    assert found["differs"].tolist() == [0, 1]
    assert found["n_fraction"].tolist() == [0, 9 / 24]


def test_a_weight_that_is_no_number_is_told_with_its_row(models, store, letters, records):
    """Case 38: the first row affected, no result."""
    model = copy.deepcopy(models())
    rare = DNA.n
    with torch.no_grad():
        model.backbone.embedding.weight[rare] = torch.nan
    with pytest.raises(NotFinite, match="row 0: ") as error:
        scored(model, store, records)
    assert error.value.row == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"left": -1}, "left=-1"),
        ({"right": True}, "right=True"),
        ({"batch_bases": 0}, "batch_bases=0"),
        ({"max_n_fraction": 2}, "max_n_fraction=2"),
        ({"precision": "float16"}, "precision=float16"),
    ],
)
def test_unusable_options_are_refused(options, message, models, store):
    with pytest.raises(InputError, match=message):
        SiteScorer(models(), store, ScoringOptions(**options))


def test_windows_are_those_of_the_text(store, letters, records):
    """Site by site, REF and ALT windows against slices of the text."""
    names = {name: name for name in letters}
    alleles = judge_alleles(records, names, check_reference(records, names, store))
    assert alleles.statuses == ["ok"] * len(alleles)
    for site in plan_sites(alleles, store.contigs, OPTIONS):
        ref, alts = site_windows(store, site)
        record = alleles.records[alleles.record[site.rows[0]]]
        for alt, window in zip(site.alts, alts, strict=True):
            expected = windows_as_text(letters, record, alt)
            assert (DNA.decode(ref), DNA.decode(window)) == tuple(
                text.replace("R", "N") for text in expected
            )
