"""What this machine has and what works on it: the doctor verb.

Every form of every operator runs on a few positions and is compared with the operator's reference
form in float64 on the CPU; the cases and the comparison are those of fracdna_kernels.
"""

import importlib
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, version

from omegaconf import DictConfig
from packaging.requirements import Requirement

from fracdna import __version__
from fracdna.configuration import configs_folder

# shown where fracdna is on the path without installation, so that its own list is unknown
MAIN_PACKAGES = ("torch", "triton", "pytorch-lightning", "numpy")


def run(config: DictConfig) -> int:
    """Print the report.

    Args:
        config: configs/doctor.yaml.

    Returns:
        0; 1 if PyTorch cannot be imported or a form disagrees with its reference.
    """
    _print_section("Versions", _versions())
    _print_section("Missing packages", _missing() or ["none"])
    _print_section("Configuration files", [str(configs_folder())])
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a build for other libraries than are here
        _print_section("Devices", [f"torch cannot be imported: {error}", "install it again"])
        return 1
    _print_section("Devices", _devices())
    if not config.forms:
        return 0
    return _operators(torch.cuda.device_count())


def _operators(count: int) -> int:
    """Check every form on the processor and `count` CUDA devices and print the outcome.

    Returns:
        1 if a form disagrees with its reference or breaks, else 0.
    """
    # the package gives the function of this name
    kernels = importlib.import_module("fracdna_kernels.selfcheck")
    devices = ["cpu", *(f"cuda:{index}" for index in range(count))]
    checks = [check for device in devices for check in kernels.check_forms(device)]
    lines = [f"{x.operator:<20}{x.form:<11}{x.device:<8}{x.verdict}" for x in checks]
    _print_section("Every form of every operator on a few positions in float32", lines)
    taken = [
        f"{name:<20}" + "".join(f"{d}: {kernels.automatic_form(name, d):<12}" for d in devices)
        for name in kernels.OPERATORS
    ]
    _print_section("Form that is taken unless one is named", [line.rstrip() for line in taken])
    if count:
        command = 'python -c "import fracdna_kernels; print(fracdna_kernels.selfcheck())"'
        _print_section("Gradients and bfloat16 of the Triton forms are checked by", [command])
    # a fused form says itself why it is not for a device; the others run everywhere
    return int(any(not (check.ok or check.refused) for check in checks))


def _versions() -> list[str]:
    """Python, this package and what it stands on."""
    here = [("python", platform.python_version()), ("fracdna", __version__)]
    named = [requirement.name for requirement, extra in _requirements() if not extra]
    core = [(name, _version(name) or "missing") for name in named or MAIN_PACKAGES]
    return [f"{name:<20}{number}" for name, number in [*here, *core]]


def _missing() -> list[str]:
    """What to install, for packages that are absent or too old."""
    requirements = _requirements()
    if not requirements:
        return ["fracdna is on the path but not installed: pip install -e . in the checkout"]
    lacking: dict[str, list[str]] = {}
    for requirement, extra in requirements:
        found = _version(requirement.name)
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            lacking.setdefault(extra, []).append(f"{requirement.name}{requirement.specifier}")
    return [_remedy(extra, sorted(names)) for extra, names in sorted(lacking.items())]


def _remedy(extra: str, names: list[str]) -> str:
    """The command that brings what is missing."""
    if not extra:
        return f"needed: pip install {' '.join(repr(name) for name in names)}"
    listed = ", ".join(names)
    return f"for {extra}: pip install 'fracdna[{extra}]', in a checkout '.[{extra}]' ({listed})"


def _requirements() -> list[tuple[Requirement, str]]:
    """What the installed package asks for on this machine, each with its extra or ""."""
    try:
        own = distribution("fracdna")
    except PackageNotFoundError:  # run from a folder on the path, without installation
        return []
    extras = ["", *(own.metadata.get_all("Provides-Extra") or [])]
    asked = []
    for requirement in map(Requirement, own.requires or []):
        marker = requirement.marker
        owners = [x for x in extras if marker is None or marker.evaluate({"extra": x})]
        if owners:
            asked.append((requirement, owners[0]))
    return asked


def _version(name: str) -> str | None:
    """The installed version of a distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _devices() -> list[str]:
    """The processor and each CUDA device."""
    import torch

    threads = torch.get_num_threads()
    lines = [f"cpu: {platform.machine()}, {_cores()} cores, {threads} threads{_memory()}"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        with torch.cuda.device(index):
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        lines.append(
            f"cuda:{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB, "
            f"capability {properties.major}.{properties.minor}, bf16 {'yes' if bf16 else 'no'}"
        )
    if len(lines) == 1:
        build = torch.version.cuda
        lines.append(f"no CUDA device ({f'CUDA {build}' if build else 'CPU'} build of torch)")
    return lines


def _cores() -> int:
    """Cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> str:
    """Main memory, where the system tells."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return ""
    gibibytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f", {gibibytes:.0f} GiB"


def _print_section(title: str, lines: Sequence[object]) -> None:
    """A heading and its lines, indented."""
    print(f"{title}:", *(f"  {line}" for line in lines), "", sep="\n")
