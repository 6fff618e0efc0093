"""Classes of bases: which base is in which, on both strands, and what is refused."""

import numpy as np
import pytest

from fracdna.evaluation.classes import (
    GC_BLOCK,
    MOST_CLASSES,
    BaseClasses,
    ClassBed,
    divide,
    read_classes,
)
from fracdna.evaluation.regions import choose_regions
from fracdna.evaluation.tally import FORWARD, REVERSE, Tally, position_buckets
from fracdna_prep.coverage import union
from fracdna_prep.errors import InputError
from fracdna_prep.interval import Interval


def bed_file(path, rows):
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return str(path)


def test_a_class_covers_the_bases_of_its_intervals():
    """Against a mask of single bases: touching, overlapping, at both ends, and none."""
    random = np.random.default_rng(0)
    for _ in range(50):
        starts = random.integers(0, 190, 8)
        ends = np.minimum(starts + random.integers(1, 30, 8), 200)
        mask = np.zeros(200, dtype=bool)
        for start, end in zip(starts, ends, strict=True):
            mask[start:end] = True
        bed = ClassBed("x", None, {"a": union(starts, ends)}, 8, (), 0)
        first = int(random.integers(0, 150))
        place = Interval("a", first, first + 50)
        np.testing.assert_array_equal(bed.covers(place), mask[first : first + 50])
        assert not bed.covers(Interval("b", 0, 50)).any()


@pytest.mark.parametrize("strand", [FORWARD, REVERSE])
def test_sums_of_classes_are_those_of_single_bases(mixed, read, tmp_path, strand):
    """Soft mask, a BED file and GC fifths against a loop over coordinates, and pieces of any size
    added one after the other."""
    rows = [("a", 0, 130), ("a", 120, 400), ("a", 1490, 1510), ("b", 90, 1200)]
    paths = {"exons": bed_file(tmp_path / "exons.bed", rows)}
    beds = read_classes(paths, mixed.store.contigs, "none")
    tiles = [Interval(name, 0, size) for name, size in mixed.store.contigs.items()]
    regions = choose_regions(mixed.store, tiles, 500, count=99, max_n_fraction=1.0)
    assert len(regions.intervals) == 10
    classes = divide(mixed.store, regions, beds)
    assert classes.groups == [
        ("all", "all"), ("soft_mask", "inside"), ("soft_mask", "outside"), ("exons", "inside"),
        ("exons", "outside"), *(("gc", str(fifth)) for fifth in range(1, 6)),
    ]  # fmt: skip
    nats = np.random.default_rng(1).random((2, 10 * 500)).astype(np.float32)
    tally = Tally(read(mixed.store, regions, 100, target=130, strand=strand, classes=classes), 2)
    for piece in np.split(nats, [7, 490, 1700, 1701, 4000], axis=1):
        tally.add(piece)
    cell = tally.cell(0, 1)
    gc = sorted(
        (_gc_share(getattr(mixed, p.chromosome)[p.start : p.end]), n)
        for n, p in enumerate(regions.intervals)
    )
    fifth = {region: rank // 2 for rank, (_, region) in enumerate(gc)}
    for region, place in enumerate(regions.intervals):
        expected = np.zeros((2, 2, 10))
        tokens = np.zeros((2, 10), dtype=int)
        for position in range(500):
            at = place.start + (499 - position if strand == REVERSE else position)
            letter = getattr(mixed, place.chromosome)[at]
            if letter.upper() == "N":
                continue
            inside = any(c == place.chromosome and s <= at < e for c, s, e in rows)
            columns = [0, 1 + letter.isupper(), 3 + (not inside), 5 + fifth[region]]
            for part in range(1 + (position >= 500 - 130)):
                expected[part][:, columns] += nats[:, region * 500 + position, None]
                tokens[part][columns] += 1
        for sums, values, counts in zip((cell.bases, cell.target), expected, tokens, strict=True):
            np.testing.assert_allclose(sums.nats[region], values[0], rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(sums.nats_acgt[region], values[1], rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(sums.tokens[region], counts)


def _gc_share(letters):
    letters = letters.upper()
    gc = letters.count("G") + letters.count("C")
    return gc / (gc + letters.count("A") + letters.count("T"))


def test_fifths_hold_equally_many_blocks_in_order_of_gc(mixed):
    """Regions of several blocks, the last one of each shorter; ranges do not overlap."""
    regions = choose_regions(mixed.store, [Interval("b", 0, 2100)], 1050, count=9, max_n_fraction=1)
    more = choose_regions(mixed.store, [Interval("a", 0, 2100)], 1050, count=9, max_n_fraction=1)
    both = type(regions)(regions.intervals + more.intervals, 1050, 4, 0, 0)
    classes = divide(mixed.store, both, [])
    labels = np.stack([classes.labels(region) % 5 for region in range(4)])
    blocks = np.concatenate([labels[:, 0], labels[:, GC_BLOCK]])
    assert (labels[:, :GC_BLOCK] == labels[:, :1]).all()
    assert (labels[:, GC_BLOCK:] == labels[:, -1:]).all()
    counts = np.bincount(blocks, minlength=5)
    assert counts.sum() == 8
    assert counts.max() - counts.min() <= 1
    ranges = list(classes.about["gc_share_of_fifths"].values())
    assert [high for _, high in ranges[:-1]] <= [low for low, _ in ranges[1:]]
    assert ranges[0][0] < ranges[-1][1]


def test_a_genome_without_lower_case_has_no_soft_mask(periodic):
    regions = choose_regions(periodic, [Interval("c", 0, 2000)], 500, count=9)
    assert {part for part, _ in divide(periodic, regions, []).groups} == {"all", "gc"}


def test_names_of_contigs_are_renamed_as_in_prepare(tmp_path):
    """chr_prefix and a file of pairs read the same bases as the genome's own names."""
    contigs = {"20": 1000, "X": 500}
    own = bed_file(tmp_path / "own.bed", [("20", 5, 9), ("X", 0, 7)])
    prefixed = bed_file(tmp_path / "chr.bed", [("chr20", 5, 9), ("chrX", 0, 7)])
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("chr20 20\nchrX X\n")
    for path, rename in ((own, "none"), (prefixed, "chr_prefix"), (prefixed, str(pairs))):
        (bed,) = read_classes({"exons": path}, contigs, rename)
        assert {name: [x.tolist() for x in span] for name, span in bed.spans.items()} == {
            "20": [[5], [9]],
            "X": [[0], [7]],
        }
    with pytest.raises(InputError) as refused:
        read_classes({"exons": prefixed}, contigs, "none")
    for words in ("classes.exons", "chr.bed:1", "'chr20'", "in the intervals only: chr20, chrX",
                  "rename=chr_prefix would read chr20 -> 20, chrX -> X"):  # fmt: skip
        assert words in str(refused.value)


def test_contigs_that_the_genome_lacks_are_left_out_unless_only_spelt_differently(tmp_path):
    """An annotation of a whole genome serves some of its chromosomes."""
    contigs = {"chr20": 1000, "X": 500}
    path = bed_file(tmp_path / "x.bed", [("chr22", 1, 9), ("chr20", 5, 9)])
    (bed,) = read_classes({"x": path}, contigs, "none")
    assert (list(bed.spans), bed.elsewhere, bed.rows) == (["chr20"], ("chr22",), 2)
    spelt = bed_file(tmp_path / "spelt.bed", [("chr22", 1, 9), ("chr20", 5, 9), ("chrX", 1, 2)])
    with pytest.raises(InputError, match=r"classes\.x.*chrX"):
        read_classes({"x": spelt}, contigs, "none")
    (bed,) = read_classes({"x": spelt}, contigs, "chr_prefix")
    assert sorted(bed.spans) == ["X", "chr20"]
    other = bed_file(tmp_path / "other.bed", [("chr22", 1, 9)])
    with pytest.raises(InputError, match="chr22"):
        read_classes({"x": other}, contigs, "none")


def test_rows_past_the_end_of_a_contig_are_cut_and_counted(tmp_path):
    """An interval list of a whole chromosome serves a genome that holds its beginning."""
    path = bed_file(tmp_path / "x.bed", [("a", 10, 20), ("a", 95, 120), ("a", 150, 160)])
    (bed,) = read_classes({"x": path}, {"a": 100}, "none")
    assert (bed.rows, bed.cut) == (3, 2)
    assert bed.covers(Interval("a", 0, 100)).sum() == 15


def test_classes_that_make_no_sense_are_refused(tmp_path):
    path = bed_file(tmp_path / "x.bed", [("a", 10, 20)])
    wrong = bed_file(tmp_path / "wrong.bed", [("a", 1, 2), ("a", 20, 10)])
    for classes, rename, message in (
        ({"gc": path}, "none", "classes.gc: tables use"),
        ("exons.bed", "none", "name each file"),
        ({"x": 5}, "none", "classes.x=5: name a BED file"),
        ({"x": wrong}, "none", "wrong.bed:2: bases 20 to 10"),
        ({"x": str(tmp_path / "missing.bed")}, "none", "missing.bed"),
        ({"x": path}, str(tmp_path / "none.txt"), "rename="),
        ({str(n): path for n in range(MOST_CLASSES + 1)}, "none", f"at most {MOST_CLASSES}"),
    ):
        with pytest.raises(InputError, match=message):
            read_classes(classes, {"a": 100}, rename)


def test_other_classes_have_another_digest(periodic, tmp_path):
    """What a finished part of an evaluation is kept under changes with names and coordinates."""
    regions = choose_regions(periodic, [Interval("c", 0, 2000)], 500, count=9)
    digests = [
        divide(
            periodic,
            regions,
            read_classes({name: bed_file(tmp_path / "x.bed", rows)}, periodic.contigs, "none"),
        ).digest
        for name, rows in (("x", [("c", 1, 9)]), ("x", [("c", 1, 8)]), ("y", [("c", 1, 9)]))
    ]
    assert len({*digests, divide(periodic, regions, []).digest}) == 4


def test_without_parts_there_is_one_group(periodic):
    regions = choose_regions(periodic, [Interval("c", 0, 2000)], 500, count=9)
    classes = BaseClasses(regions)
    assert classes.groups == [("all", "all")]
    assert classes.membership.tolist() == [[1]]


def test_buckets_double():
    assert position_buckets(9).tolist() == [0, 1, 2, 2, 3, 3, 3, 3, 4]
    assert position_buckets(8).tolist() == [0, 1, 2, 2, 3, 3, 3, 3]
    assert position_buckets(1).tolist() == [0]
