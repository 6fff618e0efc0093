"""Variants of people on the chromosome that they were called on."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from fracdna import cli
from fracdna.scoring import check_reference, judge_alleles, read_vcf
from fracdna_prep.genome import GenomeStore

FILES = {
    "NA12878.WGS.b37.chr20.firstMB.vcf.gz": 901,
    "pysam_7_chr20.vcf.gz": 300,
    "Complex_1ormoreindels_NIST2.19.vcf.gz": 4591,
}


@pytest.fixture(scope="module")
def chr20(shared_data, tmp_path_factory):
    path = shared_data / "human_large" / "GRCh37_chr20.fa.gz"
    return GenomeStore.build(path, tmp_path_factory.mktemp("chr20") / "store")


@pytest.fixture(scope="module")
def records(shared_data):
    found = {name: read_vcf(shared_data / "vcf" / name) for name in FILES}
    return {name: [r for r in rows if r.contig == "20"] for name, rows in found.items()}


def test_all_reference_alleles_of_contig_20_match(records, chr20):
    """5,792 records, 0 mismatches; each allele can be scored."""
    assert {name: len(rows) for name, rows in records.items()} == FILES
    together = [record for rows in records.values() for record in rows]
    assert len(together) == 5792
    check = check_reference(together, {"20": "20"}, chr20)
    assert (check.checked, check.mismatches) == (5792, 0)
    assert not check.is_another_genome
    statuses = set(judge_alleles(together, {"20": "20"}, check).statuses)
    assert statuses == {"ok"}


@pytest.mark.parametrize("by", [-1, 1])
def test_each_file_shifted_by_one_is_caught(by, records, chr20):
    """Also where most variants are indels in repeats, whose REF often matches beside its place."""
    for rows in records.values():
        moved = [replace(record, position=record.position + by) for record in rows]
        check = check_reference(moved, {"20": "20"}, chr20)
        assert check.is_another_genome
        assert check.shift == -by


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_all_variants_of_contig_20_are_scored(name, shared_data, chr20, checkpoint, tmp_path):
    """By the command, contigs that are not in the genome reported and skipped."""
    places = (
        f"checkpoint={checkpoint}", f"genome={chr20.directory}",
        f"variants={shared_data / 'vcf' / name}", f"output={tmp_path / 'out.parquet'}",
    )  # fmt: skip
    options = ("left=16", "right=16", "missing_contigs=skip", "progress=false")
    code = cli.run(["score", *places, *options])
    table = pq.read_table(tmp_path / "out.parquet")
    there = table.filter(np.array(table["contig"]) == "20")
    assert len(set(there["record"].to_pylist())) == FILES[name]
    # an indel in a repeat that is longer than the window shows nothing inside it
    repeats = np.array(there["status"]) == "cut_off"
    assert repeats.mean() < 0.03
    assert set(np.array(there["kind"])[repeats]) <= {"insertion", "deletion"}
    assert set(np.array(there["status"])[~repeats]) == {"ok"}
    assert np.isfinite(np.array(there["score"], dtype=float)[~repeats]).all()
    rest = set(table["status"].to_pylist()) - {"ok"}
    assert rest <= {"no_contig", "cut_off"}
    assert code == (1 if rest else 0)
