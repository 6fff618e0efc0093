"""Inputs of decay_attention over the whole test matrix, and comparison with its reference."""

import torch
from numerics import FORWARD, GRADIENT, relative_error
from scan_cases import clocks

from fracdna_kernels import decay_attention

# groups of q and k to a head of v, rank, whether every key decays alone
VARIANTS = {
    "heads": (1, None, False),
    "keys": (1, None, True),
    "shared heads": (2, None, False),
    "shared keys": (2, None, True),
    "rank": (1, 3, False),
    "shared rank": (2, 2, False),
}
SCALE = 0.4


def make(
    length, variant="heads", *, batch=2, heads=2, keys=6, width=5, kind="uniform", sequences=None
):
    """Inputs of decay_attention in float64, a non-empty initial state with them."""
    shared, rank, per_key = VARIANTS[variant]
    rows = () if rank is None else (rank,)
    read = (batch, length, heads // shared, *rows, keys)
    return {
        "q": torch.randn(read, dtype=torch.float64),
        "k": torch.randn(read, dtype=torch.float64),
        "v": torch.randn(batch, length, heads, *rows, width, dtype=torch.float64),
        "g": -clocks(kind, (batch, length, heads, *((keys,) if per_key else ()))),
        "initial_state": torch.randn(sequences or batch, heads, keys, width, dtype=torch.float64),
    }


def run(inputs, form, dtype, device="cpu", **options):
    """Outputs and gradients of a loss on output and final state, by name.

    The decay and the state stay in float32 where dtype is bfloat16.
    """
    kept = torch.promote_types(dtype, torch.float32)
    exact = {"g": kept, "initial_state": kept}
    inputs = {
        name: x.to(device, exact.get(name, dtype)).requires_grad_() for name, x in inputs.items()
    }
    if options.get("cu_seqlens") is not None:
        options["cu_seqlens"] = options["cu_seqlens"].to(device)
    output, state = decay_attention(**inputs, scale=SCALE, form=form, **options)
    weight = torch.arange(1, output.numel() + 1, dtype=torch.float64).view_as(output).cos()
    pairs = [(output, weight.to(output)), (state, (2 * state).detach())]
    # an output that no sequence reaches depends on nothing
    outputs, incoming = zip(*[pair for pair in pairs if pair[0].requires_grad], strict=True)
    gradients = torch.autograd.grad(
        outputs, list(inputs.values()), incoming, materialize_grads=True
    )
    result = {"output": output, "final_state": state}
    return result | {f"d{name}": g for name, g in zip(inputs, gradients, strict=True)}


def rounded(inputs, dtype):
    """Inputs that bfloat16 holds exactly where a form will see bfloat16."""
    kept = ("g", "initial_state")
    return {
        name: x.float().double() if name in kept else x.to(dtype).double()
        for name, x in inputs.items()
    }


def assert_same(result, reference, dtype):
    for name, expected in reference.items():
        table = GRADIENT if name.startswith("d") else FORWARD
        error = relative_error(result[name].cpu(), expected)
        assert error <= table[dtype], f"{name}: {error:.1e}"
