"""From a BED, a FASTA or region strings to intervals inside their contigs."""

import numpy as np
import pytest

from fracdna.embedding import embed_regions, place_regions, pooled_states, read_regions
from fracdna.embedding.options import POOLINGS, STRANDS, EmbeddingOptions
from fracdna.embedding.regions import RegionIds, is_sequence_file, whole_records
from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA


def test_region_strings_are_one_based_and_closed():
    asked = read_regions(["chr1:1,000-2,000", "chr2:5-5:-"])
    assert asked.intervals == [Interval("chr1", 999, 2000), Interval("chr2", 4, 5, "-")]
    assert asked.names == [None, None]


def test_one_region_string_needs_no_list():
    assert read_regions("chr1:1-10").intervals == [Interval("chr1", 0, 10)]


def test_a_bed_keeps_names_and_strands(tmp_path):
    bed = tmp_path / "regions.bed"
    bed.write_text("chr1\t3\t9\tone\t0\t-\nchr1\t0\t4\t.\t0\t.\nchr2\t1\t2\n")
    asked = read_regions(bed)
    assert [region.strand for region in asked.intervals] == ["-", "+", "+"]
    assert asked.names == ["one", None, None]
    assert asked.intervals[0] == Interval("chr1", 3, 9, "-")
    assert asked.places[2] == f"{bed}:3"


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ("peaks.bed", "there is no such file, and 'peaks.bed' is not a region"),
        ("chr1:5-2", "counts from 1 and ends at or after its start"),
        ([], "regions is an empty list"),
    ],
)
def test_what_is_neither_file_nor_region_is_refused(regions, message):
    with pytest.raises(InputError, match=message):
        read_regions(regions)


def test_sequences_are_told_from_intervals_by_content(tmp_path):
    """The name says nothing."""
    sequences, intervals = tmp_path / "a.bed", tmp_path / "b.fa"
    sequences.write_text("\n>x\nACGT\n")
    intervals.write_text("chr1\t0\t4\n")
    assert is_sequence_file(sequences)
    assert not is_sequence_file(intervals)


def test_a_region_is_clipped_to_its_contig():
    """What was cut off is in the status, on the forward strand whatever the region's."""
    asked = [
        Interval("c", -20, 30),
        Interval("c", 90, 105, "-"),
        Interval("c", -1, 102),
        Interval("c", 0, 100),
    ]
    regions = place_regions(asked, {"c": 100})
    assert regions.statuses == [
        "clipped left 20",
        "clipped right 5",
        "clipped left 1 right 2",
        "ok",
    ]
    spans = [(region.start, region.end) for region in regions.intervals]
    assert spans == [(0, 30), (90, 100), (0, 100), (0, 100)]
    assert regions.intervals[1].strand == "-"
    assert regions.problems == [0, 1, 2]
    assert regions.bases == 30 + 10 + 100 + 100


def test_regions_without_a_base_keep_their_coordinates():
    asked = [
        Interval("c", 100, 120),
        Interval("c", 5, 5),
        Interval("c", 9, 2),
        Interval("c", -9, 0),
    ]
    regions = place_regions(asked, {"c": 100})
    assert regions.statuses == [
        "dropped: outside the contig",
        "dropped: empty interval",
        "dropped: inverted interval",
        "dropped: outside the contig",
    ]
    assert regions.intervals == asked
    assert regions.usable.size == 0
    assert regions.bases == 0


def test_unknown_contigs_are_refused_unless_renamed():
    """Case 11 for embeddings: the report names both sides and the option that explains it."""
    asked = [Interval("1", 0, 5), Interval("2", 0, 5)]
    with pytest.raises(InputError, match="contig '1' is not in the genome") as caught:
        place_regions(asked, {"chr1": 100, "chr2": 100})
    assert "rename=chr_prefix would read 1 -> chr1, 2 -> chr2" in str(caught.value)
    regions = place_regions(asked, {"chr1": 100, "chr2": 100}, "chr_prefix")
    assert [region.chromosome for region in regions.intervals] == ["chr1", "chr2"]
    with pytest.raises(InputError, match="rename=chr_prefix does not explain it"):
        place_regions([Interval("chrZZ", 0, 5)], {"chr1": 100}, "chr_prefix")


@pytest.mark.parametrize("strand", ["+", "-"])
def test_parts_of_a_region_are_those_of_the_whole(store, strand):
    region = Interval("chr1", 990, 1060, strand)
    ids, whole = RegionIds(store, region), store.fetch(region)
    assert len(ids) == 70
    np.testing.assert_array_equal(ids[:], whole)
    np.testing.assert_array_equal(np.concatenate([ids[:13], ids[13:50], ids[50:99]]), whole)


def test_share_of_n(store):
    spans = [("chr1", 990, 1030), ("chr1", 0, 10), ("chrN", 0, 99), ("chr2", 400, 500)]
    regions = place_regions([Interval(*span) for span in spans], store.contigs)
    assert [regions.n_fraction(row, store) for row in range(4)] == [0.25, 0.0, 1.0, None]


def test_every_record_is_a_region(store):
    asked = whole_records(store)
    assert asked.intervals == [
        Interval("chr1", 0, 3000), Interval("chr2", 0, 301), Interval("chrN", 0, 40)
    ]  # fmt: skip
    assert asked.names == ["chr1", "chr2", "chrN"]


def test_the_python_door_gives_an_array(models, store):
    """Rows in the order given, NaN where a region is dropped; out= is filled in place."""
    asked = [Interval("chr2", 0, 30), Interval("chr2", 900, 930), Interval("chr1", 10, 20, "-")]
    vectors = embed_regions(models(), store, asked)
    assert vectors.shape == (3, models().backbone.d_model)
    assert np.isnan(vectors[1]).all()
    for row in (0, 2):
        alone = pooled_states(models(), [store.fetch(asked[row])])[0]
        np.testing.assert_allclose(vectors[row], alone, rtol=1e-5, atol=1e-5)
    out = np.zeros_like(vectors)
    assert embed_regions(models(), store, asked, out=out) is out
    np.testing.assert_array_equal(out[[0, 2]], vectors[[0, 2]])
    assert not out[1].any()


@pytest.mark.parametrize("width", [40, 41])
def test_a_region_on_the_reverse_strand_is_read_on_it(models, store, states_alone, width):
    """forward is the region's own strand; centre is the same base of the genome on either one."""
    plus, minus = Interval("chr1", 100, 100 + width), Interval("chr1", 100, 100 + width, "-")
    for pooling in POOLINGS:
        own, other, both = (
            embed_regions(
                models(), store, [plus, minus], EmbeddingOptions(pooling=pooling, strand=s)
            )
            for s in STRANDS
        )
        np.testing.assert_allclose(own, other[::-1], atol=1e-5)
        np.testing.assert_allclose(both[0], both[1], atol=1e-5)
        assert np.abs(own[0] - own[1]).max() > 1e-3
    states = states_alone(models(), DNA.reverse_complement(store.fetch(plus)))
    centre = embed_regions(models(), store, [minus], EmbeddingOptions(pooling="centre"))[0]
    np.testing.assert_allclose(centre, states[::-1][width // 2], rtol=1e-5, atol=1e-5)
