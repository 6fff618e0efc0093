"""The operators under test: how each is called, what may differ, and how much it shall take."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from kernel_benchmark import inputs
from kernel_benchmark.inputs import Shape
from torch import Tensor

Arguments = dict[str, Tensor]


@dataclass(frozen=True)
class Operator:
    """One operator of fracdna_kernels.

    Attributes:
        name: of its function.
        make: (B, T, H, V, generator, dtype) to its arguments; layers have D = H V channels.
        exact: arguments that stay in float32.
        fixed: arguments without a gradient.
        outputs: its outputs, with the greatest relative error in float32 and in bfloat16.
        gradients: the same for gradients of arguments; the rest takes the entry "".
        options: keyword arguments of every call.
    """

    name: str
    make: Callable[..., Arguments]
    exact: frozenset[str]
    fixed: frozenset[str]
    outputs: dict[str, tuple[float, float]]
    gradients: dict[str, tuple[float, float]]
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, arguments: Arguments, form: str) -> tuple[Tensor, ...]:
        """All outputs of one form.

        Raises:
            ValueError: a form that the operator lacks, or that cannot run here.
        """
        function = getattr(importlib.import_module("fracdna_kernels"), self.name)
        given = dict(arguments)
        if "skip_values" in given:
            given["skip"] = (given.pop("skip_values"), given.pop("skip_factor"))
        if "form" not in inspect.signature(function).parameters:
            raise ValueError(f"{self.name} has no forms to choose from")
        result = function(**given, **dict(self.options), form=form)
        return result if isinstance(result, tuple) else (result,)

    def exact_form(self) -> str:
        """The form that is compared with: chunk where it exists, it agrees with the reference."""
        module = importlib.import_module(f"fracdna_kernels.{self.name}")
        return "chunk" if "chunk" in getattr(module, "FORMS", ()) else "reference"

    def exists(self) -> bool:
        """Whether this version of the package has it."""
        return hasattr(importlib.import_module("fracdna_kernels"), self.name)

    def differentiable(self, arguments: Arguments) -> list[str]:
        """Names of the arguments that have gradients."""
        return [name for name in arguments if name not in self.fixed]


def _layer(make: Callable[..., Arguments]) -> Callable[..., Arguments]:
    """Inputs of an operator on channels, from sizes by head."""

    def made(B: int, T: int, H: int, V: int, *rest: Any) -> Arguments:
        return make(B, T, H * V, *rest)

    return made


def _scan(B: int, T: int, H: int, V: int, generator: torch.Generator, dtype: Any) -> Arguments:
    """The heads take turns with the kinds of clocks: calm, widely spread, and jumping."""
    given = inputs.scan_inputs(Shape(B, T, H, V), inputs.KINDS[0], generator, dtype)
    kinds = len(inputs.KINDS)
    for first, kind in enumerate(inputs.KINDS[1:], start=1):
        heads = len(range(first, H, kinds))
        given["u"][..., first::kinds] = inputs.clock(kind, B, T, heads, generator)
    return given


def _gates(B: int, T: int, H: int, V: int, generator: torch.Generator, dtype: Any) -> Arguments:
    return inputs.gates_inputs(B, T, H, generator, dtype)


CHANNELS = frozenset({"weight", "bias", "skip_factor"})
NORM = {"normed": (2e-5, 5e-3)}
NORM_GRADIENTS = {"": (5e-5, 6e-3)}
# relative root mean square against float64, (float32, bfloat16)
OPERATORS = {
    operator.name: operator
    for operator in (
        Operator(
            "frac_scan",
            _scan,
            exact=frozenset({"u", "log_tau"}),
            fixed=frozenset({"log_tau"}),
            outputs={"output": (2e-5, 5e-3), "final state": (2e-5, 4e-3)},
            gradients={"values": (5e-5, 6e-3), "u": (1e-4, 1e-2), "": (5e-5, 8e-3)},
        ),
        Operator(
            "frac_gates",
            _gates,
            exact=frozenset(
                {"delta", "alpha", "lam", "log_tau", "dt_bias", "read_gain", "write_gain"}
            ),
            fixed=frozenset({"log_tau"}),
            outputs={"u": (2e-6, 2e-6), "read": (2e-6, 3e-3), "write": (2e-6, 3e-3)},
            # a gain's gradient is one number, a sum over all rows whose terms cancel
            gradients={"read_gain": (1e-4, 5e-2), "write_gain": (1e-4, 5e-2), "": (1e-5, 5e-3)},
        ),
        Operator(
            "gated_rms_norm",
            _layer(inputs.gated_norm_inputs),
            exact=CHANNELS,
            fixed=frozenset(),
            outputs=NORM,
            gradients=NORM_GRADIENTS,
        ),
        Operator(
            "add_rms_norm",
            _layer(inputs.add_norm_inputs),
            exact=CHANNELS,
            fixed=frozenset(),
            outputs={**NORM, "residual": (2e-5, 5e-3)},
            gradients=NORM_GRADIENTS,
        ),
        Operator(
            "short_convolution",
            _layer(inputs.convolution_inputs),
            exact=CHANNELS,
            fixed=frozenset(),
            outputs={"y": (2e-5, 5e-3), "final state": (2e-5, 4e-3)},
            gradients=NORM_GRADIENTS,
            options=(("activation", "silu"),),
        ),
    )
}


def leaves(arguments: Arguments, names: list[str]) -> Arguments:
    """The same tensors with the same strides, those named as leaves that want gradients."""
    return {
        name: x.detach().requires_grad_() if name in names else x.detach()
        for name, x in arguments.items()
    }


def random_like(outputs: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Standard normal gradients of outputs, contiguous."""
    return tuple(
        torch.randn(x.shape, generator=generator, device=x.device).to(x.dtype) for x in outputs
    )
