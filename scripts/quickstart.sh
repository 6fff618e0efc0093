#!/usr/bin/env bash
# The whole way on two megabases of human chromosome 20, in minutes on two CPU cores:
#
#   bash scripts/quickstart.sh [RESULTS_FOLDER]      default: results/quickstart
#
# prepares windows, pretrains a small FRAC and a Transformer, compares their perplexity at 1K to 16K
# with count models, embeds 200 regions, writes a page of it all. Started again it goes on where it was
# interrupted.
set -euo pipefail
start_folder="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
prepare_environment

results="${1:-results/quickstart}"
if (($# > 0)) && [[ "$results" != /* ]]; then results="$start_folder/$results"; fi
example="$("$PYTHON" -c 'from fracdna_prep.example import example_files; print(example_files().fasta.parent)')"
began=$SECONDS

step() { # what is done, then the command: shown, so that it can be repeated by hand
  printf '\n== %s\n' "$1"
  shift
  local word line="$ fracdna"
  for word in "$@"; do
    if [[ "$word" == *[][\ \(\)\$\*]* ]]; then word="'$word'"; fi
    line+=" $word"
  done
  printf '%s\n' "$line"
  "$PYTHON" -m fracdna "$@"
}

step "human DNA to windows" prepare \
  "fasta=$example/chr20_1M_3M.fa.gz" "intervals=$example/splits.bed" split=bed \
  "length=[1024,16384]" "output=$results/prepared"
step "pretrain FRAC" train \
  experiment=dna_tiny mixer=frac "data.prepared=$results/prepared" \
  "output=$results/frac" resume=true
step "pretrain a Transformer" train \
  experiment=dna_tiny mixer=attention "data.prepared=$results/prepared" \
  "output=$results/transformer" resume=true
step "perplexity by length on the same bases" evaluate \
  "checkpoint=[$results/frac/checkpoints/best.ckpt,$results/transformer/checkpoints/best.ckpt]" \
  "prepared=$results/prepared" "lengths=[1024,2048,4096,8192,16384]" "output=$results/perplexity"
step "embed 200 regions" embed \
  "checkpoint=$results/frac/checkpoints/best.ckpt" "genome=$results/prepared" \
  "regions=$example/regions.bed" "output=$results/embeddings.parquet"
step "all of it on one page" report \
  "$results/frac" "$results/transformer" "$results/perplexity" "output=$results/report"

printf '\nDone in %s s. Look at:\n' "$((SECONDS - began))"
for file in report/index.html perplexity/perplexity.png perplexity/positions.png perplexity/table.csv perplexity/result.json frac/metrics.png \
  transformer/metrics.png embeddings.parquet; do
  printf '  %s\n' "$results/$file"
done
printf '\nThe commands above work by hand after: source %s/activate\n' "${PYTHON%/*}"
