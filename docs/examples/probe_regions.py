r"""Probes what a network's vectors know of windows of human DNA, beside counts of k-mers.

    python docs/examples/probe_regions.py OUTPUT

Windows and classes are those of embed_regions.py; `fracdna probe` trains on those in the first 1.6
million bases and tests on the others. The classes are made from composition, so counts of letters
tell nearly all of them: this shows the way and the files, no merit of a network. OUTPUT gets
probe/ as the command writes it, windows.csv (what each model makes of each test window) and
windows.png.

On sets that say more it is one command: enhancers of GenomicBenchmarks, which are intervals of
GRCh38 (UCSC's FASTA; for Ensembl's, whose contigs lack "chr", add rename=chr_prefix), and GUE's:

    fracdna probe checkpoint=docs/results/pretrained/frac_7m.safetensors output=enhancers \
      dataset=datasets/human_enhancers_cohn genome=hg38.fa.gz store=hg38_store
    fracdna probe checkpoint=docs/results/pretrained/frac_7m.safetensors output=tf_0 \
      dataset=GUE/tf/0 max_train=500
"""

import argparse
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from embed_regions import WEIGHTS, WIDTH, choose_windows

from fracdna import cli, pictures
from fracdna_prep.example import example_files

CONTIG = "chr20_1M_3M"


def main() -> None:
    """A labelled BED, its probe, and how sure two models are of every test window."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", default=WEIGHTS, help="weights or a checkpoint")
    parser.add_argument("--count", type=int, default=60, help="windows of each class")
    given = parser.parse_args()
    output, probe = given.output, given.output / "probe"
    output.mkdir(parents=True, exist_ok=True)
    with (output / "labelled.bed").open("w") as bed:
        for name, start, _ in choose_windows(given.count):
            bed.write(f"{CONTIG}\t{start}\t{start + WIDTH}\t{name}\n")
    code = cli.run(
        [
            "probe", f"checkpoint={given.model}", "names=network", f"output={probe}",
            f"dataset={output / 'labelled.bed'}", f"test_regions=[{CONTIG}:1600001-2000000]",
            f"genome={example_files().fasta}", f"store={output / 'genome'}",
        ]
    )  # fmt: skip
    if code:
        raise SystemExit(code)
    samples = pq.read_table(probe / "samples.parquet")  # rows: model, seed, test window
    classes = json.loads(samples.schema.metadata[b"classes"])
    pairs = zip(samples["label"].to_pylist(), samples["probabilities"].to_pylist(), strict=True)
    sure = pa.array([shares[classes.index(label)] for label, shares in pairs])
    rows = samples.append_column("right", sure).group_by(["model", "region", "label"])
    means = rows.aggregate([("right", "mean")]).sort_by("region")
    pa.csv.write_csv(means, output / "windows.csv")
    figure, axes = pictures.new_axes("by k-mers", "by network", "Probability of the right class")
    found = means.to_pylist()
    for name in classes:
        k_mers, network = (
            [row["right_mean"] for row in found if (row["model"], row["label"]) == (model, name)]
            for model in ("k-mers", "network")
        )
        axes.scatter(k_mers, network, s=18, alpha=0.8, label=f"{len(k_mers)} windows, {name}")
    axes.legend(frameon=False)
    pictures.save(figure, output / "windows.png")


if __name__ == "__main__":
    main()
