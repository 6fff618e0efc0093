"""Whether the operators are right on this very device, driver and compiler.

    import fracdna_kernels
    print(fracdna_kernels.selfcheck())

A kernel that was compiled wrongly raises nothing: it gives other numbers. So every quantity is
compared with the operator's reference form in float64 on the CPU.
"""

import importlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fracdna_kernels.check_cases import OPERATORS, Case, make_inputs
from fracdna_kernels.forms import choose_form
from fracdna_kernels.fused import fused_refusal, interpreted

# relative root mean square against float64, of outputs and of gradients
TOLERANCES = {torch.float32: (2e-5, 1e-4), torch.bfloat16: (5e-3, 1e-2)}
FLOOR = 1e-6  # of a reference's root mean square
# operators that share a package with another one: where their tables of forms are
_TABLES = {"dplr_delta_rule": ("delta_rule", "DPLR_FORMS")}


class Check(NamedTuple):
    """The greatest error of one quantity.

    Attributes:
        operator: its name in this package.
        form: name of the form.
        device: as torch names it.
        dtype: of the inputs, without "torch.".
        quantity: an output, or "d " and the name of an input; "" where nothing came out.
        case: the inputs that gave this error, in words.
        error: relative root mean square against the reference; None: it did not run.
        tolerance: greatest error allowed.
        reason: why it did not run, else "".
        refused: the form itself says that it is not for this device.
    """

    operator: str
    form: str
    device: str
    dtype: str
    quantity: str
    case: str
    error: float | None
    tolerance: float
    reason: str = ""
    refused: bool = False

    @property
    def ok(self) -> bool:
        """Whether it ran and gave the right numbers; NaN is none."""
        return self.error is not None and self.error <= self.tolerance

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.error is None:
            return f"does not run: {self.reason}"
        if self.ok:
            return f"agrees, error {self.error:.0e}"
        return f"DISAGREES ({self.case}), error {self.error:.0e}"

    def __str__(self) -> str:
        allowed = "" if self.error is None else f" of at most {self.tolerance:.0e}"
        named = f"{self.operator:<18} {self.form:<7} {self.dtype:<9} {self.quantity:<15}"
        return f"{named} {self.verdict}{allowed}"


class Report(list[Check]):
    """Checks, printed one a line with a last line that counts."""

    @property
    def ok(self) -> bool:
        """Whether something was checked and nothing is wrong."""
        return bool(self) and all(check.ok for check in self)

    def __str__(self) -> str:
        wrong = sum(not check.ok for check in self)
        if all(check.refused for check in self):
            return "\n".join([*map(str, self), "nothing can be checked on this device"])
        closing = f"{wrong} of {len(self)} FAILED" if wrong else f"all {len(self)} agree"
        return "\n".join([*map(str, self), closing])


def selfcheck(device: torch.device | str | None = None) -> Report:
    """Run the Triton form of every operator on small inputs, forward and backward.

    To be run once on a new card, driver or version of Triton; takes a minute or two, for every
    kernel is compiled. In Triton's interpreter, on the CPU, only float32 and the smallest sizes.

    Args:
        device: None: the current CUDA device, without one the CPU.

    Returns:
        A list with one check per operator, dtype and quantity, the worst of all cases; a form that
        cannot run has one with the reason. Its `ok` says whether all is right; print it to see.
    """
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if _has_cuda() else "cpu"
    device = torch.device(device)
    small = device.type == "cpu"
    dtypes = [dtype for dtype in TOLERANCES if dtype == torch.float32 or not small]
    report = Report()
    for name in OPERATORS:
        for dtype in dtypes:
            cases = [x for x in OPERATORS[name].cases if not (small and x.compiled)]
            found = [x for case in cases for x in _checks(name, "triton", case, dtype, device)]
            report += _worst(found)
    return report


def check_forms(device: torch.device | str) -> Iterator[Check]:
    """Run every form of every operator on a few positions in float32, outputs alone: in seconds.

    Args:
        device: where the forms run.

    Yields:
        One check per form, its worst output.
    """
    for name, operator in OPERATORS.items():
        case = operator.cases[0]
        for form in _forms(name):
            checks = _checks(name, form, case, torch.float32, torch.device(device), gradients=False)
            yield max(checks, key=_badness)


def automatic_form(
    name: str, device: torch.device | str, dtype: torch.dtype = torch.float32
) -> str:
    """The form that "auto" takes for sequences.

    Args:
        name: of the operator.
        device: where its inputs are.
        dtype: of its inputs.
    """
    x = torch.empty(0, device=device, dtype=dtype)
    return choose_form("auto", tuple(_forms(name)), 2, (x,), refusal=fused_refusal(x))


def _has_cuda() -> bool:
    """Whether kernels are compiled and run on a CUDA device."""
    return torch.cuda.is_available() and not interpreted()


def _forms(name: str) -> dict[str, Any]:
    """The forms of an operator, most of which have a package of the same name."""
    package, table = _TABLES.get(name, (name, "FORMS"))
    return getattr(importlib.import_module(f"fracdna_kernels.{package}"), table)


def _checks(
    name: str,
    form: str,
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    gradients: bool = True,
) -> list[Check]:
    """Every quantity of one case, or one check with the reason why it did not run."""
    exact = make_inputs(name, case, dtype)
    gradients = gradients and case.gradients
    what = (name, form, str(device), str(dtype).removeprefix("torch."))
    limits = TOLERANCES[dtype]
    try:
        values = _run(name, form, case, _placed(name, exact, dtype, device), gradients)
    # anything may happen in a fused form on a device that nobody has tried, also to later ones
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        reason = reason.removeprefix(f"form={form!r} cannot run: ")
        refused = form == "triton" and isinstance(error, ValueError)
        return [Check(*what, "", case.name, None, limits[0], reason, refused)]
    truth = _run(name, "reference", case, exact, gradients)
    return [
        Check(*what, key, case.name, _error(values[key], target), _allowed(key, target, limits))
        for key, target in truth.items()
    ]


def _allowed(key: str, target: Tensor, limits: tuple[float, float]) -> float:
    """Tolerance of a quantity.

    One number, such as a gain's gradient, is a sum whose terms cancel: it has no mean to relate
    the error to.
    """
    return limits[key.startswith("d ")] * (10 if target.numel() == 1 else 1)


def _placed(
    name: str, inputs: dict[str, Tensor], dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """The inputs on a device, those that stay in float32 in float32, the rest in the dtype."""
    kept = OPERATORS[name].exact
    return {key: x.to(device, torch.float32 if key in kept else dtype) for key, x in inputs.items()}


def _run(
    name: str, form: str, case: Case, inputs: dict[str, Tensor], gradients: bool
) -> dict[str, Tensor]:
    """Outputs and, if asked for, gradients of the inputs for random gradients of the outputs."""
    operator = getattr(importlib.import_module("fracdna_kernels"), name)
    device = next(iter(inputs.values())).device
    variables = [key for key in inputs if gradients and key != "log_tau"]
    tensors = {
        key: x.detach().clone().requires_grad_(key in variables) for key, x in inputs.items()
    }
    arguments: dict[str, Any] = tensors | case.options
    if "skip_values" in arguments:
        arguments["skip"] = arguments.pop("skip_values"), arguments.pop("skip_factor")
    if case.bounds is not None:
        arguments["cu_seqlens"] = torch.tensor(case.bounds, device=device)
    with torch.autocast(device.type, enabled=False), torch.set_grad_enabled(gradients):
        result = operator(**arguments, form=form)
        outputs = result if isinstance(result, tuple) else (result,)
        found = dict(zip(OPERATORS[name].outputs, outputs, strict=True))
        if variables:
            wanted = [tensors[key] for key in variables]
            grads = torch.autograd.grad(outputs, wanted, _seeds(outputs))
            found |= {f"d {key}": x for key, x in zip(variables, grads, strict=True)}
    return {key: x.detach().cpu().double() for key, x in found.items()}


def _seeds(outputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Gradients of outputs, the same for every form: numbers that bfloat16 holds."""
    generator = torch.Generator().manual_seed(1)
    drawn = [
        torch.randn(x.shape, generator=generator, dtype=torch.float32, device="cpu")
        for x in outputs
    ]
    return [seed.bfloat16().to(x) for seed, x in zip(drawn, outputs, strict=True)]


def _error(value: Tensor, target: Tensor) -> float:
    """Root mean square of the difference over that of the target; infinite for NaN."""
    error = (value - target).square().mean().sqrt() / target.square().mean().sqrt().clamp(min=FLOOR)
    return float(error.nan_to_num(nan=math.inf, posinf=math.inf))


def _badness(check: Check) -> float:
    """Error in units of what is allowed."""
    return math.inf if check.error is None else check.error / check.tolerance


def _worst(checks: list[Check]) -> list[Check]:
    """The worst check of each quantity; of those that did not run, one for each reason."""
    found: dict[tuple[str, str], Check] = {}
    for check in checks:
        key = (check.quantity, check.reason)
        if key not in found or _badness(check) > _badness(found[key]):
            found[key] = check
    return list(found.values())
