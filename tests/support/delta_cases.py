"""Inputs of the delta rules over the whole test matrix, and what the forms give for them."""

import torch
from scan_cases import clocks
from torch.nn.functional import normalize

from fracdna_kernels.delta_rule import delta_rule, dplr_delta_rule

OPERATORS = {"delta_rule": delta_rule, "dplr_delta_rule": dplr_delta_rule}
EXACT = ("g", "initial_state")  # float32 beside inputs in bfloat16


def make(name, length, *, batch=2, heads=2, key=8, width=6, kind="uniform", sequences=None):
    """Inputs of an operator in float64, a non-empty initial state with them."""
    shape = (batch, length, heads)

    def normal(*axes):
        return torch.randn(*axes, dtype=torch.float64)

    def share(*axes):
        return torch.rand(*axes, dtype=torch.float64)

    inputs = {"q": normal(*shape, key), "k": normal(*shape, key), "v": normal(*shape, width)}
    if name == "delta_rule":
        inputs["k"] = normalize(inputs["k"], dim=-1)
        inputs |= {"beta": 2 * share(*shape), "g": -clocks(kind, shape)}
    else:
        kappa = normalize(normal(*shape, key), dim=-1)
        inputs |= {"a": -kappa, "b": kappa * share(*shape, key)}
        inputs["g"] = -clocks(kind, (*shape, key))
    inputs["initial_state"] = normal(sequences or batch, heads, key, width)
    return inputs


def run(name, inputs, form, dtype, device="cpu", **options):
    """Outputs and gradients of a loss on output and final state, by name.

    Log decays and the state stay in float32 where dtype is bfloat16.
    """
    kept = torch.promote_types(dtype, torch.float32)
    inputs = {
        key: x.to(device, kept if key in EXACT else dtype).requires_grad_()
        for key, x in inputs.items()
    }
    if options.get("cu_seqlens") is not None:
        options["cu_seqlens"] = options["cu_seqlens"].to(device)
    output, state = OPERATORS[name](**inputs, form=form, **options)
    weight = torch.arange(1, output.numel() + 1, dtype=torch.float64).view_as(output).cos()
    pairs = [(output, weight.to(output)), (state, (2 * state).detach())]
    # an output that no sequence reaches depends on nothing
    outputs, incoming = zip(*[pair for pair in pairs if pair[0].requires_grad], strict=True)
    gradients = torch.autograd.grad(
        outputs, list(inputs.values()), incoming, materialize_grads=True
    )
    result = {"output": output, "final_state": state}
    return result | {f"d{key}": x for key, x in zip(inputs, gradients, strict=True)}


def rounded(inputs, dtype):
    """Inputs that bfloat16 holds exactly where a form will see bfloat16."""
    return {
        key: x.float().double() if key in EXACT else x.to(dtype).double()
        for key, x in inputs.items()
    }
