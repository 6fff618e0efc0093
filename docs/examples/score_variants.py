"""Scores variants of human DNA, lists the strongest and draws how the scores are distributed.

    python docs/examples/score_variants.py OUTPUT

The bundled VCF holds 300 variants that were made from the sequence by chance, nobody's genotype.
The score is log p(ALT window) - log p(REF window), mean of both strands: below 0 the model finds
ALT less probable than REF. Windows are short here (docs/scoring.md says what the defaults are), so
that the pretrained FRAC scores every fifth variant in about a minute of one CPU core. OUTPUT gets
scored.vcf and scores.parquet as `fracdna score` writes them, strongest.csv and scores.png. The
windows of an indel end at different places, so that SNVs and indels are ranked apart.
"""

import argparse
import csv
from pathlib import Path

import pyarrow.parquet as pq

from fracdna import cli, pictures
from fracdna_prep.example import example_files

WEIGHTS = Path(__file__).parents[1] / "results" / "pretrained" / "frac_7m.safetensors"
STRONGEST = 5


def main() -> None:
    """Some variants, their scores, the strongest of them and a picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", default=WEIGHTS, help="weights or a checkpoint")
    parser.add_argument("--count", type=int, default=60, help="variants")
    given = parser.parse_args()
    files, output = example_files(), given.output
    output.mkdir(parents=True, exist_ok=True)
    lines = files.variants_vcf.read_text().splitlines(keepends=True)
    header = [line for line in lines if line.startswith("#")]
    records = lines[len(header) :]
    some = records[:: max(1, len(records) // given.count)][: given.count]
    (output / "some.vcf").write_text("".join(header + some))
    code = cli.run(
        [
            "score", f"checkpoint={given.model}", f"genome={files.fasta}",
            f"store={output / 'genome'}", f"variants={output / 'some.vcf'}",
            f"output={output / 'scores.parquet'}", f"vcf={output / 'scored.vcf'}",
            "left=256", "right=128",
        ]
    )  # fmt: skip
    if code:
        raise SystemExit(code)
    columns = ["kind", "contig", "start", "id", "ref", "alt", "score"]
    kinds: dict[str, list[dict]] = {}
    for row in pq.read_table(output / "scores.parquet", columns=columns).to_pylist():
        kinds.setdefault(row["kind"], []).append(row)
    with (output / "strongest.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        for rows in kinds.values():
            table.writerows(sorted(rows, key=lambda row: -abs(row["score"]))[:STRONGEST])
    print((output / "strongest.csv").read_text())
    figure, axes = pictures.new_axes(
        "score in nats, below 0: ALT is less probable", "ALT alleles", f"{len(some)} made variants"
    )
    scores = [[row["score"] for row in rows] for rows in kinds.values()]
    axes.hist(scores, bins=20, stacked=True, label=list(kinds))
    axes.legend(frameon=False)
    pictures.save(figure, output / "scores.png")


if __name__ == "__main__":
    main()
