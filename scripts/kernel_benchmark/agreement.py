"""Whether the fused forms are right on this device, asked before anything is timed."""

from collections.abc import Iterator

import torch
from kernel_benchmark.operators import OPERATORS, Arguments, Operator, leaves, random_like
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)
# (B, T, H, V): a length that no tile divides, one position past a tile, a single position
SHAPES = ((2, 1100, 3, 64), (1, 97, 4, 128), (5, 1, 4, 128))
FLOOR = 1e-6  # of the reference's root mean square


class Disagreement(Exception):
    """A fused form gives other numbers than the operator's exact form."""


def relative_error(value: Tensor, reference: Tensor) -> float:
    """Root mean square of the difference over that of the reference; infinite for NaN."""
    value, reference = value.double(), reference.double()
    if not bool(torch.isfinite(value).all()):
        return float("inf")
    error = (value - reference).square().mean().sqrt()
    return float(error / reference.square().mean().sqrt().clamp(min=FLOOR))


def check_all(names: tuple[str, ...], device: torch.device) -> list[dict[str, object]]:
    """One row per operator, dtype and quantity: its greatest error over all shapes.

    Raises:
        Disagreement: an error above its tolerance; the message lists all of them.
    """
    rows = []
    for name in filter(lambda name: OPERATORS[name].exists(), names):
        for index, dtype in enumerate(DTYPES):
            worst: dict[str, float] = {}
            for shape in SHAPES:
                for quantity, error in _errors(OPERATORS[name], shape, dtype, device):
                    worst[quantity] = max(error, worst.get(quantity, 0.0))
            for quantity, error in worst.items():
                allowed = tolerance(OPERATORS[name], quantity)[index]
                rows.append(
                    {
                        "operator": name,
                        "dtype": str(dtype).removeprefix("torch."),
                        "quantity": quantity,
                        "error": f"{error:.1e}",
                        "allowed": f"{allowed:.0e}",
                        "agrees": error <= allowed,
                    }
                )
    wrong = [row for row in rows if not row["agrees"]]
    if wrong:
        lines = [" ".join(str(value) for value in row.values()) for row in wrong]
        raise Disagreement("the fused form disagrees with float64:\n" + "\n".join(lines))
    return rows


def tolerance(operator: Operator, quantity: str) -> tuple[float, float]:
    """Greatest error of an output or of "d" + the name of an argument."""
    if quantity in operator.outputs:
        return operator.outputs[quantity]
    name = quantity.removeprefix("d ")
    return operator.gradients.get(name, operator.gradients[""])


def _errors(
    operator: Operator, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[str, float]]:
    """Errors of all outputs and gradients on inputs that were rounded to the dtype first."""
    generator = torch.Generator(device).manual_seed(sum(shape))
    arguments = operator.make(*shape, generator, dtype)
    exact = {name: x.double() for name, x in arguments.items()}
    seeds = None
    results = []
    for given, form in ((arguments, "triton"), (exact, operator.exact_form())):
        outputs, gradients, seeds = _run(operator, given, form, seeds, generator)
        results.append((outputs, gradients))
    (outputs, gradients), (true_outputs, true_gradients) = results
    for name, value, truth in zip(operator.outputs, outputs, true_outputs, strict=True):
        yield name, relative_error(value, truth)
    names = operator.differentiable(arguments)
    for name, value, truth in zip(names, gradients, true_gradients, strict=True):
        yield f"d {name}", relative_error(value, truth)


def _run(
    operator: Operator,
    arguments: Arguments,
    form: str,
    seeds: tuple[Tensor, ...] | None,
    generator: torch.Generator,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Outputs, gradients of the inputs, and the outputs' gradients, drawn if not given."""
    names = operator.differentiable(arguments)
    given = leaves(arguments, names)
    outputs = operator(given, form)
    if seeds is None:
        seeds = random_like(outputs, generator)
    placed = tuple(seed.to(x.dtype) for seed, x in zip(seeds, outputs, strict=True))
    gradients = torch.autograd.grad(outputs, [given[name] for name in names], placed)
    return tuple(x.detach() for x in outputs), gradients, seeds
