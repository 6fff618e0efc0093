"""What this machine has and what works on it: the doctor verb.

Every form of every operator runs on a few positions and is compared with the operator's reference
form in float64 on the CPU.
"""

import importlib
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig
from packaging.requirements import Requirement

from fracdna import __version__
from fracdna.configuration import configs_folder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TOLERANCE = 1e-4  # relative root mean square of float32 against float64
# shown where fracdna is on the path without installation, so that its own list is unknown
MAIN_PACKAGES = ("torch", "triton", "pytorch-lightning", "numpy")
# B batch, T length, H heads, V value width, M modes, D channels, W filter width
AXES = {"B": 2, "T": 70, "H": 3, "V": 16, "M": 8, "D": 24, "W": 4}
# the tensors that an operator cannot do without, with their axes
INPUTS = {
    "add_rms_norm": {"x": "BTD", "residual": "BTD", "weight": "D"},
    "frac_gates": {
        "delta": "BTH",
        "alpha": "BTH",
        "lam": "BTH",
        "read_logits": "BTHM",
        "write_logits": "BTHM",
        "log_tau": "M",
        "dt_bias": "H",
        "read_gain": "",
        "write_gain": "",
    },
    "frac_scan": {"values": "BTHV", "write": "BTHM", "read": "BTHM", "u": "BTH", "log_tau": "M"},
    "gated_rms_norm": {"x": "BTD", "gate": "BTD", "weight": "D"},
    "short_convolution": {"x": "BTD", "weight": "DW", "bias": "D"},
}


class FormCheck(NamedTuple):
    """One form of one operator on one device.

    Attributes:
        operator: name in fracdna_kernels.
        form: name of the form.
        device: as torch names it.
        error: relative root-mean-square error against the reference; None: it did not run.
        reason: why it did not run, else empty.
    """

    operator: str
    form: str
    device: str
    error: float | None
    reason: str = ""

    @property
    def failed(self) -> bool:
        """Whether the form gives other numbers than the reference, or breaks where it must run."""
        if self.error is None:
            # a fused form says itself why it cannot run here; the others run on every device
            return self.form != "triton"
        return not self.error <= TOLERANCE  # NaN too

    def __str__(self) -> str:
        """One line of the report."""
        if self.error is None:
            result = f"does not run: {self.reason}"
        else:
            result = f"{'DISAGREES' if self.failed else 'agrees'}, error {self.error:.0e}"
        return f"{self.operator:<20}{self.form:<11}{self.device:<8}{result}"


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
    cuda = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    checks = [check for device in (torch.device("cpu"), *cuda) for check in check_forms(device)]
    _print_section(f"Operators on {AXES['T']} positions in float32", checks)
    return int(any(check.failed for check in checks))


def check_forms(device: "torch.device") -> Iterator[FormCheck]:
    """Run every form of every operator on a device.

    Args:
        device: where the forms run; the reference that they are held against runs on the CPU.

    Yields:
        The checks in the order of fracdna_kernels.__all__ and of each operator's FORMS table. An
        operator without a table has one form, its reference.
    """
    for name in importlib.import_module("fracdna_kernels").__all__:
        # the package gives the function of this name; the table is beside it, in the module
        module = importlib.import_module(f"fracdna_kernels.{name}")
        operator = getattr(module, name)
        forms = [{"form": form} for form in getattr(module, "FORMS", ())] or [{}]
        inputs = _inputs(name)
        exact = {key: x.double() for key, x in inputs.items()}
        expected = operator(**exact, **(forms[0] and {"form": "reference"}))
        for options in forms:
            placed = {key: x.to(device) for key, x in inputs.items()}
            error, reason = _error(operator, placed | options, expected)
            yield FormCheck(name, options.get("form", "reference"), str(device), error, reason)


def _inputs(name: str) -> dict[str, "Tensor"]:
    """Random float32 tensors for an operator, the same at every call."""
    import torch

    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for key, axes in INPUTS[name].items():
        x = torch.randn([AXES[axis] for axis in axes], generator=generator)
        tensors[key] = x.abs() if key == "u" else x
        if key == "log_tau":
            tensors[key] = torch.linspace(0, math.log(2**17), len(x))
    return tensors


def _error(
    operator: Callable[..., Any], arguments: dict[str, Any], expected: Any
) -> tuple[float | None, str]:
    """Greatest relative error over an operator's outputs, or None and why it did not run."""
    import torch

    try:
        with torch.no_grad():
            outputs = _outputs(operator(**arguments))
    # anything may happen in a fused form on a device that nobody has tried
    except Exception as error:
        return None, (str(error) or type(error).__name__).splitlines()[0]
    pairs = zip(outputs, _outputs(expected), strict=True)
    errors = [_relative(output.cpu().double(), target) for output, target in pairs]
    return float(torch.stack(errors).max()), ""  # torch's max keeps a NaN


def _outputs(result: Any) -> tuple["Tensor", ...]:
    """What an operator returned, as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def _relative(value: "Tensor", target: "Tensor") -> "Tensor":
    """Root mean square of the difference over that of the target."""
    return (value - target).square().mean().sqrt() / target.square().mean().sqrt()


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
