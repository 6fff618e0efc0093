"""`fracdna score` from its command line to table, VCF and picture."""

import copy
import gzip
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from matplotlib.image import imread

from fracdna import __version__, cli
from fracdna.model.checkpoint import model_hash
from fracdna.scoring import SiteScorer
from fracdna.scoring.output import COLUMNS, INFO_FIELDS
from fracdna_prep.compression import Compression, compression_of
from fracdna_prep.files import exclusive_lock

SCORES = ("score", "score_forward", "score_reverse", "embedding_l2", "embedding_cosine")


@pytest.fixture
def score(checkpoint, store, tmp_path):
    """Run the command with short windows and progress off; returns its exit code."""

    def run(*arguments, output="out.parquet", checkpoint=checkpoint, genome=store.directory):
        places = (f"checkpoint={checkpoint}", f"genome={genome}", f"output={tmp_path / output}")
        return cli.run(["score", *places, "left=15", "right=9", "progress=false", *arguments])

    return run


@pytest.fixture
def read(tmp_path):
    """The rows as dictionaries, and the metadata."""

    def rows(output="out.parquet"):
        table = pq.read_table(tmp_path / output)
        return table.to_pylist(), json.loads(table.schema.metadata[b"fracdna"])

    return rows


@pytest.fixture
def rows_of_vcf(letters):
    """Every kind of row there is: (contig, 1-based position, ref, alt)."""
    one, two = letters["chr1"], letters["chr2"]
    other = dict(zip("ACGT", "CGTA", strict=True))
    return [
        ("chr1", 101, one[100], f"{other[one[100]]},{one[100]}TT,<DEL>"),
        ("chr2", 90, two[89], other[two[89]]),
        ("chr1", 51, other[one[50]], one[50]),
        ("chr1", 61, one[60:63].lower(), one[60].lower()),
        ("chr1", 71, one[70], "."),
        ("chr1", 81, one[80], f"*,{one[80]},{one[80]}[chr2:4["),
        ("chr2", 89, two[88:90], two[88]),
        ("chr1", 605, "A", "C"),
    ]


STATUSES = [
    "ok", "ok", "symbolic", "clipped", "mismatch", "ok", "no_alt", "star", "same", "breakend",
    "cut_off", "outside",
]  # fmt: skip


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def info_of(line):
    return dict(part.partition("=")[::2] for part in line.split("\t")[7].split(";"))


def snvs(letters, count, start=20):
    text = letters["chr1"]
    other = dict(zip("ACGT", "CGTA", strict=True))
    return [("chr1", p + 1, text[p], other[text[p]]) for p in range(start, start + count)]


def test_rows_come_in_order_with_status_and_score(score, read, write_vcf, rows_of_vcf, letters,
                                                  tmp_path, capsys):  # fmt: skip
    """One for each ALT, exit 1 because some are not scored; what is not has no number."""
    assert score(f"variants={write_vcf(rows_of_vcf)}") == 1
    rows, _ = read()
    assert [row["row"] for row in rows] == list(range(12))
    assert [row["record"] for row in rows] == [0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 6, 7]
    assert [row["status"] for row in rows] == STATUSES
    assert [row["alt"] for row in rows][:3] == rows_of_vcf[0][3].split(",")
    assert [row["kind"] for row in rows][:6] == [
        "snv", "insertion", None, "snv", "snv", "deletion",
    ]  # fmt: skip
    for row in rows:
        scored = row["status"] in ("ok", "clipped", "same")
        for name in SCORES + tuple(c.name for c in COLUMNS if c.name.startswith(("logp", "bases"))):
            assert (row[name] is not None) == scored
    first, clipped, same = rows[0], rows[3], rows[8]
    assert (first["contig"], first["start"], first["end"]) == ("chr1", 100, 101)
    assert (first["window_start"], first["window_length"], first["id"]) == (85, 25, "rs0")
    assert first["score"] == pytest.approx((first["score_forward"] + first["score_reverse"]) / 2)
    assert first["score_forward"] == first["logp_alt_forward"] - first["logp_ref_forward"]
    assert (first["bases_ref_forward"], first["bases_alt_reverse"]) == (10, 16)
    assert (clipped["window_start"], clipped["window_length"]) == (74, 16)
    assert [same[name] for name in SCORES] == [0.0] * 5
    assert rows[4]["genome_ref"] == letters["chr1"][50]
    output = capsys.readouterr().out
    assert "8 records, 12 ALT alleles; 15 bases before and 9 behind each variant" in output
    assert "1 row symbolic: not scored: a symbolic allele such as <DEL>" in output
    assert f"(chr1:51): {rows_of_vcf[2][2]} > {letters['chr1'][50]}, and the genome has" in output
    assert "rows/s" in output
    assert files(tmp_path) == ["in.vcf", "out.parquet"]


def test_a_file_without_problems_ends_with_0(score, read, write_vcf, letters):
    assert score(f"variants={write_vcf(snvs(letters, 5))}") == 0
    assert {row["status"] for row in read()[0]} == {"ok"}


def test_metadata_tell_what_the_scores_are(score, read, write_vcf, letters, store, models,
                                           checkpoint):  # fmt: skip
    path = write_vcf(snvs(letters, 3))
    assert score(f"variants={path}", "max_n_fraction=0.5", "precision=bf16") == 0
    about = read()[1]
    model = models()
    expected = {
        "format": "fracdna scores 1", "version": __version__, "torch": torch.__version__,
        "checkpoint": str(checkpoint), "model_hash": model_hash(model),
        "model": json.loads(json.dumps(model.config)), "genome": ["genome.fa"],
        "genome_checksum": store.checksum, "variants": str(path), "saturation": False,
        "left": 15, "right": 9, "max_n_fraction": 0.5, "compute_dtype": "bf16", "device": "cpu",
        "kernel_form": {"Frac": "auto"}, "rename": "none",
    }  # fmt: skip
    assert expected.items() <= about.items()
    assert about["reference_check"]["checked"] == about["reference_check"]["matched_at_+0"] == 3
    assert len(about["variants_sha256"]) == 64


@pytest.mark.parametrize("name", ["scored.vcf", "scored.vcf.gz"])
def test_the_vcf_keeps_everything_and_gains_the_fields(name, score, read, write_vcf, rows_of_vcf,
                                                       tmp_path):  # fmt: skip
    """All headers and columns of the input; values by allele, as the header says; twice is once."""
    source = write_vcf(rows_of_vcf)
    assert score(f"variants={source}", f"vcf={tmp_path / name}") == 1
    packed = name.endswith(".gz")
    kind = compression_of(tmp_path / name)
    assert kind == (Compression.BGZIP if packed else Compression.PLAIN)
    opened = gzip.open if packed else open
    with opened(tmp_path / name, "rt") as file:
        found = file.read().splitlines()
    before = source.read_text().splitlines()
    added = [line for line in found if "FRACDNA_" in line and line.startswith("##INFO")]
    assert len(added) == len(INFO_FIELDS)
    assert all("Number=A,Type=" in line for line in added)
    assert [line for line in found if line.startswith("#") and "racdna" not in line.lower()] == [
        line for line in before if line.startswith("#")
    ]
    table, row = read()[0], 0
    for old, new in zip(before[3:], found[-len(rows_of_vcf) :], strict=True):
        assert new.split("\t")[:7] == old.split("\t")[:7]
        assert new.split("\t")[8:] == old.split("\t")[8:]
        assert new.split("\t")[7].startswith("AF=0.1;DB")
        info, alts = info_of(new), old.split("\t")[4].split(",")
        expected = table[row : row + len(alts)]
        row += len(alts)
        if alts == ["."]:
            assert info == {"AF": "0.1", "DB": ""}
            continue
        assert info["FRACDNA_STATUS"].split(",") == [one["status"] for one in expected]
        for value, one in zip(info["FRACDNA_LLR"].split(","), expected, strict=True):
            assert (value == ".") == (one["score"] is None)
            assert value == "." or float(value) == pytest.approx(one["score"], rel=1e-6, abs=1e-9)
    assert score(f"variants={tmp_path / name}", f"vcf={tmp_path / 'again.vcf'}") == 1
    about = (tmp_path / "again.vcf").read_text().splitlines()
    assert about == found


def test_a_vcf_that_is_not_strict_becomes_a_strict_one(score, letters, tmp_path):
    """Fields described once, ahead of the columns, by an ID; no part of INFO is empty (VCF 4.3)."""
    rows = [
        f"{contig}\t{position}\t.\t{ref}\t{alt}\t.\t.\t{info}"
        for (contig, position, ref, alt), info in zip(
            snvs(letters, 5), ("", ";", "AF=1;", ";;DB", "."), strict=True
        )
    ]
    head = ["##fileformat=VCFv4.3", "#a remark", "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO"]
    path = tmp_path / "in.vcf"
    path.write_text("\n".join([*head, *rows[:2], "#another remark", *rows[2:]]) + "\n")
    assert score(f"variants={path}", f"vcf={tmp_path / 'out.vcf'}") == 0
    lines = (tmp_path / "out.vcf").read_text().splitlines()
    columns = lines.index(head[-1])
    described = [i for i, line in enumerate(lines) if line.startswith("##INFO=<ID=FRACDNA_")]
    assert described == list(range(2, 2 + len(INFO_FIELDS)))
    assert [i for i, line in enumerate(lines) if line.startswith("##fracdna_score=<ID=")] == [
        columns - 1
    ]
    infos = [line.split("\t")[7] for line in lines[columns + 1 :] if not line.startswith("#")]
    assert [info.partition("FRACDNA")[0] for info in infos] == ["", "", "AF=1;", "DB;", ""]
    assert all(all(info.split(";")) for info in infos)


@pytest.mark.parametrize("gone", [False, True])
def test_a_vcf_that_changes_meanwhile_is_not_written(gone, score, write_vcf, letters, monkeypatch,
                                                     tmp_path, capsys):  # fmt: skip
    """Its records would get the scores of others: exit 2, and nothing is written."""
    path, plain = write_vcf(snvs(letters, 4)), SiteScorer.values

    def changed(self, sites):
        path.unlink()
        if not gone:
            write_vcf(snvs(letters, 4, start=30))
        return plain(self, sites)

    monkeypatch.setattr(SiteScorer, "values", changed)
    assert score(f"variants={path}", f"vcf={tmp_path / 'out.vcf'}") == 2
    assert ("no such file" if gone else "was changed while it was scored") in (
        capsys.readouterr().err
    )
    assert not {"out.vcf", "out.parquet"} & set(files(tmp_path))


def test_what_a_killed_writer_left_is_removed(score, write_vcf, letters, tmp_path):
    """Temporary files of this output and VCF go, those of another name stay."""
    left = [".01234567.out.parquet", ".89abcdef.out.vcf", ".01234567.other.parquet"]
    for name in left:
        (tmp_path / name).touch()
    path = write_vcf(snvs(letters, 1))
    assert score(f"variants={path}", f"vcf={tmp_path / 'out.vcf'}") == 0
    assert files(tmp_path) == [left[2], "in.vcf", "out.parquet", "out.vcf"]


def test_one_run_at_a_time_writes_a_vcf(score, write_vcf, letters, tmp_path, capsys):
    """Also where their tables have two names."""
    path = write_vcf(snvs(letters, 1))
    with exclusive_lock(tmp_path / ".out.vcf.lock"):
        assert score(f"variants={path}", f"vcf={tmp_path / 'out.vcf'}") == 2
    assert "another process works on" in capsys.readouterr().err


def test_a_shifted_vcf_is_refused_with_statistics(score, read, write_vcf, letters, capsys,
                                                  tmp_path):  # fmt: skip
    """Exit 2 before any pass, unless it is allowed: then it is reported row by row, exit 1."""
    rows = [(contig, position - 1, *alleles) for contig, position, *alleles in snvs(letters, 40)]
    path = write_vcf(rows)
    assert score(f"variants={path}") == 2
    message = capsys.readouterr().err
    assert "looks shifted by one: every POS is one too small" in message
    assert "40 (100.0%) at POS + 1" in message
    assert "allow_mismatches=true" in message
    assert files(tmp_path) == ["in.vcf"]
    assert score(f"variants={path}", "allow_mismatches=true") == 1
    table = read()[0]
    wrong = [a[2] != letters["chr1"][a[1] - 1] for a in rows]
    assert [row["status"] == "mismatch" for row in table] == wrong
    assert all(row["score"] is None for row in table if row["status"] == "mismatch")


def test_a_wrong_row_is_listed_with_both_bases(score, read, write_vcf, letters, capsys):
    """Case 41: REF is the base at index 5 instead of 4."""
    text = letters["chr1"]
    place = next(p for p in range(4, 99) if text[p] != text[p + 1])
    path = write_vcf([("chr1", place + 1, text[place + 1], text[place])])
    assert score(f"variants={path}") == 1
    (row,) = read()[0]
    assert (row["status"], row["score"], row["genome_ref"]) == ("mismatch", None, text[place])
    assert f"{text[place + 1]} > {text[place]}, and the genome has {text[place]}" in (
        capsys.readouterr().out
    )


def test_contigs_by_another_name(score, read, write_vcf, letters, capsys):
    """Refused with both sets of names; rename= reads them; skipping reports and scores the rest."""
    one = [("1", *row[1:]) for row in snvs(letters, 3)]
    rows = [one[0], ("chr7", 3, "A", "C"), *one[1:]]
    assert score(f"variants={write_vcf(rows[:1])}") == 2
    message = capsys.readouterr().err
    assert "in.vcf:4: contig '1' is not in the genome" in message
    assert "rename=chr_prefix would read 1 -> chr1" in message
    assert "missing_contigs=skip" in message
    assert score(f"variants={write_vcf(rows[:1])}", "rename=chr_prefix") == 0
    assert read()[0][0]["contig"] == "chr1"
    mixed = write_vcf(rows)
    assert score(f"variants={mixed}", "rename=chr_prefix") == 2
    assert score(f"variants={mixed}", "rename=chr_prefix", "missing_contigs=skip") == 1
    assert [row["status"] for row in read()[0]] == ["ok", "no_contig", "ok", "ok"]
    assert "in the intervals only: chr7" in capsys.readouterr().out


@pytest.mark.parametrize("damaged", [False, True])
def test_an_interrupted_run_goes_on(damaged, score, read, write_vcf, letters, monkeypatch, tmp_path,
                                    capsys):  # fmt: skip
    """Exit 130; finished blocks are not computed again, a damaged one is; equal tables."""
    path = write_vcf(snvs(letters, 7))
    limits = ("batch_bases=10", f"variants={path}")
    assert score(*limits, output="whole.parquet") == 0
    plain, blocks = SiteScorer.values, []

    def interrupted(self, sites):
        if len(blocks) == 3:
            raise KeyboardInterrupt
        blocks.append(len(sites))
        return plain(self, sites)

    monkeypatch.setattr(SiteScorer, "values", interrupted)
    assert score(*limits) == 130
    unfinished = tmp_path / ".out.parquet.unfinished"
    assert files(tmp_path) == [unfinished.name, "in.vcf", "whole.parquet"]
    assert "give the same command again" in capsys.readouterr().err
    if damaged:
        listed = unfinished / "finished"
        listed.write_text(listed.read_text()[:-2])
    again = []
    monkeypatch.setattr(SiteScorer, "values", lambda s, x: again.append(len(x)) or plain(s, x))
    assert score(*limits) == 0
    kept = blocks[:-1] if damaged else blocks
    assert sum(kept) + sum(again) == 7
    assert f"{sum(kept)} rows of an interrupted run" in capsys.readouterr().out
    assert pq.read_table(tmp_path / "out.parquet").equals(pq.read_table(tmp_path / "whole.parquet"))
    assert files(tmp_path) == ["in.vcf", "out.parquet", "whole.parquet"]


def test_another_run_does_not_go_on_with_it(score, read, write_vcf, letters, monkeypatch):
    """Other windows, another model or VCF: everything is computed again."""
    path, plain, blocks = write_vcf(snvs(letters, 4)), SiteScorer.values, []

    def interrupted(self, sites):
        blocks.append(len(sites))
        if len(blocks) == 2:
            raise KeyboardInterrupt
        return plain(self, sites)

    monkeypatch.setattr(SiteScorer, "values", interrupted)
    assert score(f"variants={path}", "batch_bases=10") == 130
    assert score(f"variants={path}", "batch_bases=10", "left=14") == 0
    assert sum(blocks[2:]) == 4
    assert read()[1]["left"] == 14


def test_other_names_are_another_run(score, read, write_vcf, letters, build_store, monkeypatch,
                                     tmp_path):  # fmt: skip
    """The file of rename= says something else by now: what was computed is of other bases."""
    other = dict(zip("ACGT", "CGTA", strict=True))
    rows = [("x", *row[1:]) for row in snvs(letters, 40)[::6]]
    # the same around the variants, so that REF matches alike, and another genome farther out
    text = list(letters["chr1"][:90])
    for _, position, *_ in rows:
        text[position + 2] = other[text[position + 2]]
    genome = build_store({"a": letters["chr1"][:90], "b": "".join(text)}).directory
    path = write_vcf(rows)
    names, plain, blocks = tmp_path / "names.txt", SiteScorer.values, []
    arguments = (f"variants={path}", f"rename={names}", "batch_bases=10")

    def interrupted(self, sites):
        blocks.append(len(sites))
        if len(blocks) == 2:
            raise KeyboardInterrupt
        return plain(self, sites)

    monkeypatch.setattr(SiteScorer, "values", interrupted)
    names.write_text("x a\n")
    assert score(*arguments, genome=genome) == 130
    names.write_text("x b\n")
    assert score(*arguments, genome=genome) == 0
    assert sum(blocks[2:]) == 7
    rows = read()[0]
    assert score(*arguments, genome=genome, output="whole.parquet") == 0
    assert rows == read("whole.parquet")[0]


def test_nan_weights_end_with_the_first_row(score, write_vcf, letters, models, save_checkpoint,
                                            tmp_path, capsys):  # fmt: skip
    """Case 38: exit 1, the variant and the remedy, and no table."""
    model = copy.deepcopy(models())
    with torch.no_grad():
        model.backbone.embedding.weight[0, 0] = torch.nan
    broken = save_checkpoint(model, tmp_path / "broken.ckpt")
    contig, position, *_ = snvs(letters, 1)[0]
    assert score(f"variants={write_vcf(snvs(letters, 4))}", checkpoint=broken) == 1
    message = capsys.readouterr().err
    assert f"row 0: its likelihood or distance is NaN or infinite ({contig}:{position}" in message
    assert "precision=float32" in message
    assert "out.parquet" not in files(tmp_path)


def test_every_substitution_of_a_region(score, read, write_vcf, letters, tmp_path):
    """Three rows a base with the scores of a VCF; N is reported; a picture beside the table."""
    assert score("saturation=true", "region=chr1:296-302") == 1
    rows, about = read()
    bases = letters["chr1"][295:302]
    assert [(row["start"], row["ref"], row["alt"]) for row in rows] == [
        (295 + place, ref, alt) for place, ref in enumerate(bases) for alt in "ACGT" if alt != ref
    ]
    assert [row["status"] for row in rows] == ["ok"] * 15 + ["ambiguous"] * 8
    assert about["saturation"] is True
    asked = [("chr1", row["start"] + 1, row["ref"], row["alt"]) for row in rows[:15]]
    assert score(f"variants={write_vcf(asked)}", output="vcf.parquet") == 0
    for one, other in zip(rows[:15], read("vcf.parquet")[0], strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)
    picture = imread(tmp_path / "out.png")
    assert picture.shape[1] > 1000
    assert np.ptp(picture[..., :3]) > 0.5
    assert files(tmp_path) == ["in.vcf", "out.parquet", "out.png", "vcf.parquet"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["variants={vcf}", "output=x.csv"], "output=x.csv: name it x.parquet"),
        (["variants={vcf}", "vcf=x.txt"], "vcf=x.txt: name it x.vcf (a VCF) or x.vcf.gz"),
        (["variants={vcf}", "vcf={vcf}"], "is the input"),
        ([], "variants= is missing"),
        (["variants=[a,b]"], "variants=['a', 'b']: name a VCF"),
        (["variants={vcf}", "region=chr1:1-5"], "region=chr1:1-5 goes with saturation=true"),
        (["variants={vcf}", "saturation=true", "region=chr1:1-5"], "does not go with saturation"),
        (["saturation=true"], "region= is missing"),
        (["saturation=true", "region=chr1:1-5:-"], "leave out the strand"),
        (["saturation=true", "region=chr1:599-601"], "chr1 has 600 bases"),
        (["saturation=true", "region=chr1"], "'chr1' is not a region"),
        (["saturation=true", "region=chr8:1-5"], "contig 'chr8' is not in the genome"),
        (["saturation=true", "region=chr1:1-5", "vcf=x.vcf"], "vcf=x.vcf does not go with"),
        (["variants={vcf}", "missing_contigs=drop"], "missing_contigs=drop: choose one of refuse"),
        (["variants={vcf}", "left=-1"], "left=-1"),
        (["variants=none.vcf"], "none.vcf: no such file"),
        (["variants={vcf}", "genome=null"], "genome= is missing"),
        (["variants={vcf}", "checkpoint=null"], "checkpoint= is missing"),
    ],
)
def test_unusable_inputs_are_refused_before_work(arguments, message, score, write_vcf, letters,
                                                 tmp_path, capsys):  # fmt: skip
    """Exit 2, the value and the remedy, nothing written."""
    path = write_vcf(snvs(letters, 2))
    assert score(*(text.format(vcf=path) for text in arguments)) == 2
    assert message in capsys.readouterr().err
    assert files(tmp_path) == ["in.vcf"]


def test_a_fasta_becomes_a_store(score, write_vcf, letters, store, tmp_path, capsys):
    fasta = store.directory.parent / "genome.fa"
    path = write_vcf(snvs(letters, 2))
    assert score(f"variants={path}", genome=fasta) == 2
    assert "add store=FOLDER" in capsys.readouterr().err
    assert score(f"variants={path}", f"store={tmp_path / 'kept'}", genome=fasta) == 0
    assert score(f"variants={path}", genome=tmp_path / "kept") == 0
