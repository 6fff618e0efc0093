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
    layers = EmbeddingOptions(layer=(2, -1))
    out = np.zeros((3, 2, models().backbone.d_model), dtype=np.float32)
    embed_regions(models(), store, asked, layers, out=out)
    np.testing.assert_array_equal(out[[0, 2], 1], vectors[[0, 2]])
    np.testing.assert_array_equal(out, np.nan_to_num(embed_regions(models(), store, asked, layers)))


def test_every_base_has_its_vector(models, store):
    """A list by region, in the order of the forward strand; a dropped region has none."""
    asked = [Interval("chr2", 0, 30), Interval("chr2", 900, 930), Interval("chr1", 10, 20, "-")]
    options = EmbeddingOptions(pooling="none")
    found = embed_regions(models(), store, asked, options)
    width = models().backbone.d_model
    assert [states.shape for states in found] == [(30, width), (0, width), (10, width)]
    means = embed_regions(models(), store, asked)
    for row in (0, 2):
        np.testing.assert_allclose(found[row].mean(0), means[row], rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="out= does not go with pooling=none"):
        embed_regions(models(), store, asked, options, out=means)


@pytest.mark.parametrize("columns", range(3, 13))
def test_a_bed_may_have_3_to_12_columns(tmp_path, columns):
    """Name and strand are read where they are; blocks and colours change nothing."""
    full = ["chr1", "3", "9", "gene", "960", "-", "4", "8", "255,0,0", "2", "2,3", "0,3"]
    bed = tmp_path / "regions.bed"
    bed.write_text("\t".join(full[:columns]) + "\n")
    asked = read_regions(bed)
    assert asked.intervals == [Interval("chr1", 3, 9, "-" if columns > 5 else "+")]
    assert asked.names == ["gene" if columns > 3 else None]


def test_a_window_keeps_its_width_at_the_end_of_its_contig():
    """Case 17: 10 bases from the end, window of 1,000: whole, marked shifted, region inside it."""
    asked = [Interval("c", 2000, 2002), Interval("c", 2990, 2992, "-"), Interval("c", 5, 7)]
    regions = place_regions(asked, {"c": 3000}, flank=499)
    assert regions.intervals == asked
    assert regions.windows == [
        Interval("c", 1501, 2501), Interval("c", 2000, 3000, "-"), Interval("c", 0, 1000)
    ]  # fmt: skip
    assert regions.statuses == ["ok", "shifted by -491", "shifted by 494"]
    # nothing is missing of these regions
    assert regions.problems == []
    clipped = place_regions([Interval("c", 2995, 3010)], {"c": 3000}, flank=10)
    assert clipped.statuses == ["clipped right 10, shifted by -10"]
    assert clipped.windows == [Interval("c", 2975, 3000)]
    assert clipped.problems == [0]


def test_a_contig_may_be_shorter_than_a_window():
    regions = place_regions([Interval("c", 40, 50)], {"c": 60}, flank=30)
    assert regions.windows == [Interval("c", 0, 60)]
    assert regions.statuses == ["flanks cut"]


@pytest.mark.parametrize("flank", [-1, 2.5, True])
def test_flanks_are_numbers_of_bases(models, store, flank):
    with pytest.raises(InputError, match=f"flank={flank}: give a whole number of at least 0"):
        embed_regions(models(), store, [Interval("chr1", 0, 9)], flank=flank)
    placed = place_regions([Interval("chr1", 0, 9)], store.contigs)
    with pytest.raises(InputError, match="flank=5: these regions are placed"):
        embed_regions(models(), store, placed, flank=5)


@pytest.mark.parametrize("strand", ["+", "-"])
def test_flanks_are_read_and_do_not_count(models, store, states_alone, strand):
    """One plain pass over the whole window, of which the region's rows are pooled; in the middle of
    a contig, at its end, streamed or whole.
    """
    model, flank = models(), 30
    regions = [Interval("chr1", 1500, 1521, strand), Interval("chr1", 2980, 3000, strand)]
    windows = place_regions(regions, store.contigs, flank=flank).windows
    own, other = [], []
    for region, window in zip(regions, windows, strict=True):
        one = states_alone(model, store.fetch(window))
        two = states_alone(model, DNA.reverse_complement(store.fetch(window)))
        # both by the forward strand of the genome
        one, two = (one, two[::-1]) if strand == "+" else (one[::-1], two)
        first = region.start - window.start
        own.append(one[first : first + region.width])
        other.append(two[first : first + region.width])
    last = {"+": (-1, 0), "-": (0, -1)}[strand]
    expected = {
        "mean": [[x.mean(0) for x in states] for states in (own, other)],
        "centre": [[x[len(x) // 2] for x in states] for states in (own, other)],
        "last": [[x[at] for x in states] for states, at in zip((own, other), last, strict=True)],
        "none": [own, other],
    }
    for pooling, (one, two) in expected.items():
        both = [(a + b) / 2 for a, b in zip(one, two, strict=True)]
        for name, right in (("forward", one), ("reverse", two), ("average", both)):
            for segment in (65_536, 40):
                options = EmbeddingOptions(pooling=pooling, strand=name, segment=segment)
                found = embed_regions(model, store, regions, options, flank=flank)
                for a, b in zip(found, right, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [40, 41])
def test_a_region_on_the_reverse_strand_is_read_on_it(models, store, states_alone, width):
    """forward is the region's own strand; centre is the same base of the genome on either one."""
    plus, minus = Interval("chr1", 100, 100 + width), Interval("chr1", 100, 100 + width, "-")
    for pooling in POOLINGS:
        own, other, both, beside = (
            embed_regions(
                models(), store, [plus, minus], EmbeddingOptions(pooling=pooling, strand=s)
            )
            for s in STRANDS
        )
        np.testing.assert_allclose(own, other[::-1], atol=1e-5)
        np.testing.assert_allclose(both[0], both[1], atol=1e-5)
        np.testing.assert_allclose(beside, np.concatenate([own, other], axis=1), atol=1e-5)
        assert np.abs(own[0] - own[1]).max() > 1e-3
    states = states_alone(models(), DNA.reverse_complement(store.fetch(plus)))
    centre = embed_regions(models(), store, [minus], EmbeddingOptions(pooling="centre"))[0]
    np.testing.assert_allclose(centre, states[::-1][width // 2], rtol=1e-5, atol=1e-5)
