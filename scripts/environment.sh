# Sourced by the scripts beside it, from the repository's root:
#
#   source scripts/environment.sh
#   prepare_environment        # sets PYTHON, puts its folder first in PATH
#   prepare_browser            # optional: the browser of the report's tests, which are skipped without one
#
# An active environment (VIRTUAL_ENV or CONDA_PREFIX) is used; without one .venv is made here.
# PYTHON=/path/to/python3 names the interpreter that .venv is made with.

prepare_environment() {
  _choose_environment
  _is_recent "$PYTHON" || _fail "$PYTHON is older than Python 3.11." \
    "Activate an environment with Python 3.11 or newer, or leave the active one (deactivate) and move .venv away."
  export PATH="${PYTHON%/*}:$PATH"
  local folder="${PYTHON%/bin/python}" fingerprint
  local stamp="$folder/.fracdna-installed"
  fingerprint="$(_fingerprint)"
  if [[ -f "$stamp" && "$(<"$stamp")" == "$fingerprint" ]]; then
    echo "Environment $folder is complete."
  else
    rm -f "$stamp"
    _install
    echo "$fingerprint" >"$stamp" || true
  fi
  # more threads than cores, or a pool for every process, slow small models down
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(_cores)}"
  # threads that spin while they wait starve each other when another program uses a core
  export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"
}

prepare_browser() { # where nobody has to be asked: root of a Debian; TEST_BROWSER=none leaves it out
  if command -v chromedriver >/dev/null || [[ "${TEST_BROWSER:-}" == none ]]; then return; fi
  if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null; then return; fi
  echo "+ apt-get install chromium chromium-driver     (for the tests of the report's page)"
  if ! { timeout 120 apt-get update && DEBIAN_FRONTEND=noninteractive \
    timeout 300 apt-get install -y --no-install-recommends chromium chromium-driver; } >/dev/null 2>&1; then
    echo "  It did not come: the tests that need a browser are skipped."
  fi
}

_fail() { # message, remedy
  printf '\n%s\n%s\n' "$1" "$2" >&2
  exit 1
}

_is_recent() { # interpreter
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

_cores() {
  "$PYTHON" -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())'
}

_choose_environment() {
  # conda's base is often active without anybody's wish, and holds conda itself
  local conda="${CONDA_PREFIX:-}"
  if [[ "${CONDA_DEFAULT_ENV:-}" == base ]]; then conda=""; fi
  local active="${VIRTUAL_ENV:-$conda}"
  if [[ -n "$active" ]]; then
    PYTHON="$active/bin/python"
    [[ -x "$PYTHON" ]] || _fail "The active environment $active has no bin/python." \
      "Leave it (deactivate, or unset VIRTUAL_ENV and CONDA_PREFIX) and start again."
    return
  fi
  local base=""
  if ! .venv/bin/python -c '' >/dev/null 2>&1; then
    base="$(_find_python)" || _fail "No Python 3.11 or newer was found." \
      "Install one, or name it: PYTHON=/path/to/python3 bash $0"
    _make_venv "$base"
  fi
  PYTHON="$PWD/.venv/bin/python"
}

_find_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11 python; do
    if _is_recent "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

_make_venv() { # interpreter
  local options=()
  if _usable_torch "$1"; then
    options=(--system-site-packages)
    echo "Making .venv with $1, which brings torch: that torch is used."
  else
    echo "Making .venv with $1."
  fi
  "$1" -m venv --clear ${options[@]+"${options[@]}"} .venv || _fail "$1 could not make .venv." \
    "Debian and Ubuntu keep this part in the package python3-venv; else name another interpreter: PYTHON=/path/to/python3 bash $0"
}

_usable_torch() { # interpreter; the least version stands in pyproject.toml
  "$1" - <<'PYTHON' 2>/dev/null
import re
import sys
from importlib.metadata import version
from pathlib import Path

def numbers(text):
    return [int(part) for part in re.findall(r"\d+", text)[:2]]

least = re.search(r'"torch>=([\d.]+)"', Path("pyproject.toml").read_text())[1]
sys.exit(numbers(version("torch")) < numbers(least))
PYTHON
}

_fingerprint() { # of what is to be installed, and of the checkout that it points to
  "$PYTHON" - <<'PYTHON'
import hashlib
from pathlib import Path

files = (Path("pyproject.toml"), Path("constraints.txt"))
content = str(Path.cwd()).encode() + b"".join(path.read_bytes() for path in files)
print(hashlib.sha256(content).hexdigest())
PYTHON
}

_constraints() { # constraints.txt, with the torch that is there and what it was built with
  "$PYTHON" - "$1" <<'PYTHON'
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

lines = Path("constraints.txt").read_text().splitlines()
pins = dict(line.split("==") for line in lines if "==" in line)

def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None

def kept(line):
    name = line.split("==")[0]
    if sys.argv[1] != "keep" or name not in ("torch", "triton", "numpy"):
        return line
    found = installed(name)
    if found is None and name == "triton" and installed("torch").split("+")[0] != pins["torch"]:
        return ""  # the pinned triton belongs to the pinned torch
    return f"{name}=={found or pins[name]}"

print("\n".join(map(kept, lines)))
PYTHON
}

_install() {
  local torch=new constraints began=$SECONDS
  if _usable_torch "$PYTHON"; then torch=keep; fi
  _announce "$torch"
  if ! "$PYTHON" -m pip --version >/dev/null 2>&1; then
    "$PYTHON" -m ensurepip >/dev/null || _fail "The environment of $PYTHON has no pip." \
      "Add pip to it, or leave it (deactivate) so that .venv is made here."
  fi
  constraints="$(mktemp)"
  _constraints "$torch" >"$constraints"
  echo "+ $PYTHON -m pip install -c constraints.txt -e .[dev] --quiet     (some minutes)"
  if ! "$PYTHON" -m pip install -c "$constraints" -e '.[dev]' --quiet; then
    rm -f "$constraints"
    df -h . >&2 || true
    _fail "The installation did not finish; pip's reason stands above." \
      "Without network: set pip's own index options (pip config list shows them). Without space: see the table above. Then start again: what was downloaded is kept."
  fi
  rm -f "$constraints"
  echo "Installed in $((SECONDS - began)) s."
}

_announce() { # new|keep
  echo "Installing from your package index into ${PYTHON%/bin/python}:"
  if [[ "$1" == keep ]]; then
    echo "  torch $("$PYTHON" -c 'from importlib.metadata import version; print(version("torch"))') is there and stays; the rest is about 150 MB, on Linux 200 MB more where triton is missing."
  elif [[ "$(uname -s)" == Linux ]]; then
    echo "  torch, whose default build for Linux carries CUDA: 3 GB or more to download, 8 GB on disk;"
    echo "  a CPU build (200 MB) is used instead when it was installed before, as PyTorch's own"
    echo "  instructions show, into an environment that is active now; triton 200 MB, the rest 150 MB."
  else
    echo "  torch 100 MB or more, the rest about 150 MB."
  fi
}
