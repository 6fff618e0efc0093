#!/usr/bin/env bash
# Style, then tests with coverage of the three packages: bash scripts/test.sh [pytest arguments]
# TEST_WORKERS=8 runs more tests at once than two. TEST_BROWSER=none never installs a browser, which
# is otherwise done for root on Debian; without one its tests are skipped.
# Paths among the arguments start at the repository. With arguments the share of lines reached is
# shown; without any it is demanded too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# the tensors of tests are too small to share: on 2 cores a second thread made them slower
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
source scripts/environment.sh
prepare_environment
prepare_browser

"$PYTHON" -m ruff check
"$PYTHON" -m ruff format --check
demand=()
if (($# == 0)); then demand=(--cov-fail-under=90); fi
# two at a time: Triton's interpreter is Python, and one core would take twice as long
exec "$PYTHON" -m pytest -n "${TEST_WORKERS:-2}" --cov --cov-report=term:skip-covered ${demand[@]+"${demand[@]}"} "$@"
