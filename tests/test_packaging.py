import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "fracdna": ROOT / "fracdna",
    "fracdna_kernels": ROOT / "kernels" / "fracdna_kernels",
    "fracdna_prep": ROOT / "data_prep" / "fracdna_prep",
}


def call(*command: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess:
    """Run a command with the interpreter of the tests and only the given Python variables."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "FRACDNA_CONFIGS")}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd, env=kept | variables, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The wheel built from the source archive, where importing PyTorch fails (case 28)."""
    folder = tmp_path_factory.mktemp("dist")
    (folder / "torch.py").write_text("raise ImportError('the build asks for torch')\n")
    done = call("-m", "build", "--no-isolation", "-o", folder, ROOT, cwd=folder,
                PYTHONPATH=str(folder))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with the unpacked wheel, to be put before the checkout on the import path."""
    folder = tmp_path_factory.mktemp("site")
    done = call("-m", "pip", "install", "--no-deps", "--no-index", "--target", folder, wheel,
                cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def sources() -> set[str]:
    """Names in the wheel of everything that belongs there."""
    names = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in [
            *folder.rglob("*.py"),
            folder / "py.typed",
            *folder.glob("example_data/*"),
            *folder.glob("report/page.*"),
        ]
    }
    configs = ROOT / "configs"
    return names | {f"fracdna/configs/{x.relative_to(configs).as_posix()}"
                    for x in configs.rglob("*.yaml")}  # fmt: skip


def test_the_wheel_holds_the_packages_the_choices_and_the_example(wheel):
    """Three packages, their type markers, the YAML and the bundled genome; nothing else."""
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {n for n in names if ".dist-info/" not in n} == sources()
    assert "fracdna_prep/example_data/chr20_1M_3M.fa.gz" in names


def test_the_build_needs_only_its_backend():
    """Neither PyTorch nor a compiler is asked for before installation (case 28)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert [name.split(">")[0] for name in project["build-system"]["requires"]] == ["hatchling"]
    assert project["project"]["scripts"] == {"fracdna": "fracdna.cli:main"}


def test_the_installed_wheel_uses_its_own_configuration(installed, tmp_path):
    """From another directory the command finds the wheel's YAML, not the checkout's."""
    code = (
        "import fracdna\nfrom fracdna.configuration import compose_configuration, configs_folder\n"
        "from fracdna_prep.example import example_files\nfrom fracdna.cli import VERBS\n"
        "print(fracdna.__file__, configs_folder(), example_files().fasta.is_file(), sep='\\n')\n"
        "[compose_configuration(verb) for verb in VERBS]\n"
        "compose_configuration('train', ['experiment=dna_7m', 'mixer=attention'])"
    )
    done = call("-c", code, cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    package = installed / "fracdna"
    assert done.stdout.split() == [str(package / "__init__.py"), str(package / "configs"), "True"]


@pytest.mark.parametrize("command", [("-m", "fracdna"), ("bin/fracdna",)])
def test_the_installed_command_answers(installed, tmp_path, command):
    """Both doors of the wheel, the module and the script, show the help."""
    first = installed / command[0] if len(command) == 1 else command[0]
    done = call(first, *command[1:], "train", "--help", cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    assert "fracdna train:" in done.stdout


def test_every_direct_requirement_is_pinned():
    """constraints.txt names one exact version for all that pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = chain(project["dependencies"], *project["optional-dependencies"].values())
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].replace("_", "-").lower() for line in lines if "==" in line}
    names = {name.split(">")[0].split("[")[0].split(";")[0].strip().lower() for name in asked}
    assert names - {"fracdna"} <= pinned


class Checkout:
    """The files of an installation, and an active environment whose pip only takes notes."""

    def __init__(self, folder: Path) -> None:
        self.root, self.environment = folder / "checkout", folder / "environment"
        self.notes = folder / "constraints of each installation"
        (self.root / "scripts").mkdir(parents=True)
        for name in ("pyproject.toml", "constraints.txt", "scripts/environment.sh"):
            shutil.copy(ROOT / name, self.root / name)
        python = self.environment / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(
            f"""#!/bin/sh
            if [ "$1 $2 $3" != "-m pip install" ]; then exec '{sys.executable}' "$@"; fi
            cat "$5" >> '{self.notes}'
            exit ${{PIP_RESULT:-0}}
            """
        )
        python.chmod(0o755)
        self.variables = {"VIRTUAL_ENV": str(self.environment), "PATH": os.environ["PATH"]}

    def prepare(self, **variables: str) -> subprocess.CompletedProcess:
        """Source the script and prepare the environment, as the other scripts do."""
        script = "set -euo pipefail; source scripts/environment.sh; prepare_environment"
        return subprocess.run(
            [shutil.which("bash"), "-c", f"{script}; echo ready $PYTHON $OMP_NUM_THREADS"],
            cwd=self.root, env=self.variables | variables, capture_output=True, text=True,
        )  # fmt: skip

    def installed(self) -> list[str]:
        """Lines of the constraints of all installations."""
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    return Checkout(tmp_path)


def test_an_installation_is_made_once_for_each_set_of_requirements(checkout):
    """A second start installs nothing; a changed requirement is installed."""
    for _ in range(2):
        done = checkout.prepare()
        assert done.returncode == 0, done.stderr
        ready = done.stdout.splitlines()[-1].split()
        assert ready[:2] == ["ready", str(checkout.environment / "bin" / "python")]
        assert int(ready[2]) >= 1
    length = len(checkout.installed())
    with (checkout.root / "constraints.txt").open("a") as file:
        file.write("another==1.0\n")
    checkout.prepare()
    assert checkout.installed()[length:].count("another==1.0") == 1


def test_an_installed_torch_stays(checkout):
    """The constraints hold the builds of this environment in place of the pinned ones."""
    done = checkout.prepare()
    assert f"torch {version('torch')} is there and stays" in done.stdout
    lines = checkout.installed()
    assert {f"torch=={version('torch')}", f"numpy=={version('numpy')}"} <= set(lines)
    assert sum(line.startswith("torch==") for line in lines) == 1


def test_a_failed_installation_names_the_remedy_and_is_tried_again(checkout):
    """pip's failure ends the script; the next start does not take the rest for complete."""
    done = checkout.prepare(PIP_RESULT="1")
    assert done.returncode == 1
    assert "ready" not in done.stdout
    assert "Without network" in done.stderr
    length = len(checkout.installed())
    assert checkout.prepare().returncode == 0
    assert len(checkout.installed()) == 2 * length > 0


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "PATH"])
def test_a_missing_python_is_refused_with_the_remedy(checkout, tmp_path, name):
    """An environment without an interpreter, or a machine without a recent one."""
    checkout.variables = {"PATH": os.environ["PATH"]} | {name: str(tmp_path)}
    done = checkout.prepare()
    assert done.returncode == 1
    remedy = "unset VIRTUAL_ENV" if name == "VIRTUAL_ENV" else "PYTHON=/path/to/python3"
    assert remedy in done.stderr
    assert not (checkout.root / ".venv").exists()
