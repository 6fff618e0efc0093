import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STANDARD = frozenset(sys.stdlib_module_names)
KERNELS = {"fracdna_kernels", "torch", "triton"}
PREPARATION = {"fracdna_prep", "numpy", "pyfaidx", "Bio", "pyarrow", "tqdm"}
# each takes from half a second to eight: nothing that help needs
HEAVY = {"torch", "pytorch_lightning", "lightning", "torchmetrics", "transformers", "scipy"}
HEAVY |= {"pandas", "pyarrow", "matplotlib", "Bio", "pyfaidx", "tensorboard", "triton", "sklearn"}


def imported(path: Path) -> set[str]:
    """First parts of every module that a file imports, wherever the statement stands."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


def modules_after(code: str) -> set[str]:
    """First parts of the modules that a fresh interpreter holds after running the code."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    return {name.split(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [("kernels/fracdna_kernels", KERNELS), ("data_prep/fracdna_prep", PREPARATION)],
)
def test_the_lower_packages_import_only_what_they_stand_on(folder, allowed):
    """Kernels know tensors, preparation knows files; neither knows the other or what is above."""
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    foreign = {str(path): imported(path) - STANDARD - allowed for path in files}
    assert {path: names for path, names in foreign.items() if names} == {}


def test_one_lightning():
    """pytorch_lightning and lightning define different classes: only the first is used."""
    files = [*(ROOT / "fracdna").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    assert [str(path) for path in files if "lightning" in imported(path)] == []


def test_help_imports_nothing_heavy():
    """Help of the command and of every verb answers before anything slow is loaded."""
    code = (
        "import fracdna\nfrom fracdna.cli import VERBS, run\n"
        "assert [run([]), run(['--help'])] == [0, 0]\n"
        "assert [run([verb, '--help']) for verb in VERBS] == [0] * len(VERBS)"
    )
    assert modules_after(code) & HEAVY == set()


def test_preparation_loads_no_tensors():
    """Every module of the preparation works without PyTorch, also through what it imports."""
    folder = ROOT / "data_prep" / "fracdna_prep"
    names = [f"fracdna_prep.{path.stem}" for path in folder.glob("*.py") if path.stem[0] != "_"]
    code = "import importlib\n" + "\n".join(f"importlib.import_module('{name}')" for name in names)
    assert modules_after(code) & {"torch", "hydra", "pytorch_lightning", "fracdna"} == set()


def test_kernels_work_without_triton():
    """Triton is optional at run time: the operators import and run where it is absent."""
    code = (
        "import sys\nsys.modules['triton'] = None\nimport torch, fracdna_kernels as k\n"
        "x = torch.ones(1, 5, 2)\nk.short_convolution(x, torch.ones(2, 4))\n"
        "k.long_convolution(x, torch.ones(2, 9))\n"
        "q, g = torch.ones(1, 5, 1, 2), torch.zeros(1, 5, 1)\n"
        "k.decay_attention(q, q, q, g)\nk.delta_rule(q, q, q, g, g)\n"
        "k.dplr_delta_rule(q, q, q, q, q, torch.zeros_like(q))"
    )
    assert modules_after(code) & {"numpy", "pyfaidx", "fracdna"} <= {"numpy"}  # torch's own


@pytest.mark.parametrize("folder", ["kernels", "data_prep", "configs", "scripts", "tests"])
def test_top_level_folders_are_no_packages(folder):
    """The root is on the import path: an __init__.py in kernels/ would hide a package of PyPI."""
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()
