"""The downstream results: labelled intervals of a tiny genome, probes of it, page and pictures."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from models import tiny_model

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from itertools import pairwise

import run_downstream
from downstream.intervals import UPSTREAM, islands, promoters, read_parts
from downstream.results import Results
from downstream.seen import find_seen

import fracdna
from fracdna.probing import figures
from fracdna_prep.bed import read_bed
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA

TRAIN, TEST = ["chrA:1-40000"], ["chrA:50001-60000", "chrB"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A genome whose GC rises along contig A, with N, and BED files that call contigs chr*."""
    folder = tmp_path_factory.mktemp("downstream")
    random = np.random.default_rng(0)
    gc = np.linspace(0.2, 0.8, 60_000)
    strong, first = random.random(60_000) < gc, random.random(60_000) < 0.5
    contig = np.where(strong, np.where(first, "C", "G"), np.where(first, "A", "T"))
    contig[20_000:21_000] = "N"
    other = random.choice(list("ACGT"), 12_000)
    (folder / "genome.fa").write_text(f">A\n{''.join(contig)}\n>B\n{''.join(other)}\n")
    starts = [
        *range(1000, 39_000, 1900),
        20_500,
        1030,
        39_990,
        45_000,
        *range(51_000, 59_000, 1500),
    ]
    rows = [f"chrA\t{s}\t{s + 1}\tg\t0\t{'+-'[n % 2]}" for n, s in enumerate(starts)]
    rows += [f"chrB\t{s}\t{s + 1}\tg\t0\t-" for s in range(500, 11_000, 2000)]
    (folder / "starts.bed").write_text("\n".join([*rows, "chr22\t5\t6\tg\t0\t+"]) + "\n")
    widths = random.integers(60, 400, 20)
    rows = [f"chrA\t{s}\t{s + w}" for s, w in zip(range(700, 58_700, 2900), widths, strict=True)]
    (folder / "islands.bed").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def store(folder):
    return GenomeStore.build(folder / "genome.fa", folder / "store")


def made(store, maker, bed, seed=0):
    parts = read_parts(store, TRAIN, TEST, "chr_prefix")
    return maker(parts, read_bed(bed), "chr_prefix", store.contigs, seed), parts


def apart(intervals):
    """Whether no two share a base."""
    placed = sorted((i.chromosome, i.start, i.end) for i in intervals)
    return all(a[0] != b[0] or a[2] <= b[1] for a, b in pairwise(placed))


def test_promoters_lie_around_their_starts_beside_background_of_equal_gc(folder, store):
    """300 bases, 250 of them before the start on either strand; background touches no promoter."""
    examples, parts = made(store, promoters, folder / "starts.bed")
    found = {e.interval.start: e for e in examples if e.label == "promoter"}
    assert found[1000 - UPSTREAM].interval.strand == "+"
    assert (found[2900 - 49].interval.end, found[2900 - 49].interval.strand) == (3151, "-")
    assert 1030 - UPSTREAM not in found  # overlaps an earlier one
    assert {e.interval.width for e in examples} == {300}
    assert apart([e.interval for e in examples])
    assert not any((store.fetch(e.interval) == DNA.n).any() for e in examples)
    for part in parts:
        groups = [
            [part.gc(e.interval) for e in examples if part.holds(e.interval) and (e.label == label)]
            for label in ("promoter", "background")
        ]
        assert len(groups[0]) == len(groups[1]) > 3
        assert abs(np.mean(groups[0]) - np.mean(groups[1])) < 300 * 0.02
    strands = [
        sorted(e.interval.strand for e in examples if e.label == label)
        for label in ("promoter", "background")
    ]
    assert strands[0] == strands[1]


def test_starts_outside_of_the_regions_are_in_no_split(folder, store):
    """Between the regions, across their borders, on contigs that the genome lacks."""
    examples, _ = made(store, promoters, folder / "starts.bed")
    for example in examples:
        contig, start, end = (
            example.interval.chromosome, example.interval.start, example.interval.end,
        )  # fmt: skip
        train = contig == "A" and end <= 40_000
        test = contig == "B" or start >= 50_000
        assert (example.split, train, test) in (("train", True, False), ("test", False, True))


def test_islands_stand_beside_background_of_equal_length(folder, store):
    examples, parts = made(store, islands, folder / "islands.bed")
    assert apart([e.interval for e in examples])
    for part in parts[:2]:
        widths = [
            sorted(
                e.interval.width for e in examples if part.holds(e.interval) and e.label == label
            )
            for label in ("island", "background")
        ]
        assert widths[0] == widths[1] != []


@pytest.mark.parametrize("maker", [promoters, islands])
def test_the_seed_says_which_background(folder, store, maker):
    bed = folder / ("starts.bed" if maker is promoters else "islands.bed")
    one, same, other = (made(store, maker, bed, seed)[0] for seed in (0, 0, 1))
    assert one == same
    assert one != other
    kept = [[e for e in examples if e.label != "background"] for examples in (one, other)]
    assert kept[0] == kept[1]


def test_sequences_of_the_genome_are_found_wherever_they_stand(store, monkeypatch):
    """Whole, on either strand, across the border of two chunks; not with one other base."""
    monkeypatch.setattr("downstream.seen._CHUNK", 1000)
    region, outside = Interval("A", 2000, 6000), Interval("A", 6001, 6101)
    places = [Interval("A", s, s + w, x) for s, w, x in (
        (2000, 31, "+"), (2980, 60, "-"), (2999, 40, "+"), (5900, 100, "+"), (5901, 100, "+"),
    )]  # fmt: skip
    sequences = [store.fetch(place) for place in [*places, outside]]
    changed, short = sequences[3].copy(), sequences[0][:30]
    changed[90] = DNA.complement[changed[90]]
    found = find_seen(store, [region], [*sequences, changed, short])
    assert found.tolist() == [True, True, True, True, False, False, False, False]


def test_regions_that_share_bases_are_refused(store):
    with pytest.raises(InputError, match="share bases of A from 1,000"):
        read_parts(store, ["A:1-1000"], ["A:1000-2000"], "none")


@pytest.fixture(scope="module")
def probed(folder):
    """Everything from the FASTA to finished probes of a GUE set and of an interval set."""
    random, gue = np.random.default_rng(1), folder / "GUE"
    gue.mkdir()
    for split, count in (("train", 24), ("dev", 10), ("test", 12)):
        rows = [f"{''.join(random.choice(list('ACGT'), 30))},{n % 2}" for n in range(count)]
        (gue / f"tf_0_{split}.csv").write_text("\n".join(["sequence,label", *rows]) + "\n")
    torch.manual_seed(0)
    weights = folder / "a=b.safetensors"
    fracdna.save_weights(tiny_model("frac"), weights, dtype=torch.float32)
    output = folder / "out"
    words = [
        "intervals", "--fasta", folder / "genome.fa", "--starts", folder / "starts.bed",
        "--islands", folder / "islands.bed", "--train", *TRAIN, "--test", *TEST,
        "--output", output,
    ]  # fmt: skip
    assert run_downstream.main([*map(str, words)]) == 0
    words = [
        "run", "--gue", gue, "--output", output, "--network", f"tiny FRAC={weights}",
        "--sets", "tf_0", "promoters", "--max-train", 20, "--commit", "abc",
    ]  # fmt: skip
    options = ["seeds=[0]", "l2=[0.01,1.0]", "max_k=2", "progress=false", "jobs=1"]
    words += [word for option in options for word in ("--option", option)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw_all", lambda *_: None)
        assert run_downstream.main([*map(str, words)]) == 0
        before = (output / "probes" / "tf_0" / "table.csv").read_bytes()
        assert run_downstream.main([*map(str, words)]) == 0
    assert (output / "probes" / "tf_0" / "table.csv").read_bytes() == before
    words = ["seen", "--gue", gue, "--output", output, "--sets", "tf_0", "promoters"]
    assert run_downstream.main([*map(str, words), "--pretraining", "chrA:1-40000"]) == 0
    return output


def test_probes_become_tables_and_pictures_of_a_page(probed, tmp_path):
    """Rows used of rows found, values of every model; a set gives way to its newer probe."""
    results, page = tmp_path / "results", tmp_path / "results.md"
    probes = [str(probed / "probes" / name) for name in ("tf_0", "promoters")]
    assert run_downstream.main(["add", probes[0], "--results", str(results)]) == 0
    assert run_downstream.main(["add", *probes, "--results", str(results)]) == 0
    names = ("sets", "mcc", "auroc", "accuracy", "differences", "choices", "machine")
    page.write_text("".join(f"<!-- table {name} -->\n<!-- end -->\n" for name in names))
    assert run_downstream.main(["page", "--results", str(results)]) == 0
    text = page.read_text()
    known = Results(results)
    assert list(known.sets) == ["tf_0", "promoters"]
    assert known.models()[-1] == "tiny FRAC"
    seen = known.sets["promoters"]["seen"]
    assert seen["train"]["seen"] == seen["train"]["rows"] > 0
    assert seen["test"]["seen"] == 0 < seen["test"]["rows"]
    assert known.sets["tf_0"]["seen"]["train"] == {"rows": 24, "seen": 0}
    assert f"{seen['train']['rows']} of {seen['train']['rows']}" in text
    row = next(r for r in known.tables()["sets"].splitlines() if r.startswith("| tf_0"))
    assert [cell.strip() for cell in row.split("|")[2:7]] == ["0, 1", "20", "24", "10", "12"]
    value = json.loads((probed / "probes" / "promoters" / "result.json").read_text())["table"]
    mcc = next(r for r in value if (r["model"], r["metric"]) == ("tiny FRAC", "mcc"))
    assert f"{mcc['value']:.3f} [{mcc['low']:.3f}, {mcc['high']:.3f}]" in text
    assert "tiny FRAC - k-mers" in text
    assert str(probed) not in (results / "sets.json").read_text()
    assert "| abc |" in text
    assert {path.name for path in results.iterdir()} == {
        "table.csv", "differences.csv", "sets.json", "mcc.png", "auroc.png", "accuracy.png",
    }  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["add", "{folder}/nothing"],
        ["page", "--results", "{folder}/nothing"],
        ["seen", "--gue", "x", "--output", "{folder}/o"],
        ["run", "--gue", "x", "--output", "{folder}/o", "--network", "frac.ckpt"],
        ["intervals", "--fasta", "{folder}/nothing.fa", "--starts", "x", "--islands", "x",
         "--output", "{folder}/o"],
    ],
)  # fmt: skip
def test_what_is_refused(words, tmp_path, capsys):
    assert run_downstream.main([word.format(folder=tmp_path) for word in words]) == 2
    assert capsys.readouterr().err.startswith("run_downstream: ")
