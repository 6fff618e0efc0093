"""Gradients of the chunks of the gated delta rule, against autograd of the reference."""

from itertools import pairwise

import pytest
import torch
from delta_cases import EXACT, make, rounded
from numerics import GRADIENT, relative_error
from scan_cases import KINDS

from fracdna_kernels.delta_rule.launches import CHUNK
from fracdna_kernels.delta_rule.reference import delta_rule_reference
from fracdna_kernels.delta_rule.triton_gradient import gradients
from fracdna_kernels.pieces import Rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# float64 runs in the interpreter alone, bfloat16 is not multiplied there as on a device
DTYPES = [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float64]
SCALE = 0.4
NAMES = ("q", "k", "v", "beta", "g")


def inverse(k, beta, g):
    """Rows of (I + L)^-1 of one chunk (B, T, H, *), as (B, T, H, CHUNK)."""
    k, beta, g = (x.transpose(1, 2) for x in (k, beta, g))
    size = g.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool).tril(-1)
    between = torch.where(later, g[..., None], 0.0).cumsum(-2).exp()
    lower = torch.where(later, beta[..., None] * (k @ k.mT) * between, 0.0)
    result = torch.linalg.inv(torch.eye(size, dtype=g.dtype) + lower)
    return torch.nn.functional.pad(result, (0, CHUNK - size)).transpose(1, 2)


def by_reference(inputs, dtype, bounds):
    """What the gradients of chunks are made of, and what they must be, by the reference."""
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    B, T, H = leaves["beta"].shape
    rows = Rows(B, T, None if bounds is None else torch.tensor(bounds), CHUNK)
    sequences = [(slice(b, b + 1), 0, T) for b in range(B)]
    if bounds is not None:
        sequences = [(slice(1), begin, end) for begin, end in pairwise(bounds)]
    empty = torch.zeros(rows.slots, *inputs["initial_state"].shape[1:], dtype=torch.float64)
    states, adjoints = empty, torch.full_like(empty, torch.nan)  # not to be read where unused
    inverses = torch.zeros(B, T, H, CHUNK, dtype=torch.float64)
    grad = torch.randn_like(inputs["v"]).to(dtype).double()
    places, ends, losses, slot = [], [], [], 0
    for number, (b, begin, end) in enumerate(sequences):
        state = leaves["initial_state"][number : number + 1]
        for start in range(begin, end, CHUNK):
            part = b, slice(start, min(start + CHUNK, end))
            chunk = [leaves[name][part] for name in NAMES]
            states[slot] = state[0].detach()
            inverses[part] = inverse(*(chunk[n].detach() for n in (1, 3, 4)))
            output, state = delta_rule_reference(*chunk, SCALE, state)
            state = state.clone()  # read by what comes after the chunk alone
            losses.append((output, grad[part]))
            places.append(slot)
            ends.append(state)
            slot += 1
        slot += begin == end
        losses.append((state, (2 * state).detach()))
    outputs, incoming = zip(*losses, strict=True)
    wanted = [*(leaves[name] for name in NAMES), *ends]
    found = torch.autograd.grad(outputs, wanted, incoming, materialize_grads=True)
    adjoints[places] = torch.cat(found[len(NAMES) :])
    return (inverses, states, adjoints, grad), found[: len(NAMES)]


def check(inputs, dtype, bounds=None):
    """The kernel against the reference in float64 on the same inputs."""
    inputs = rounded(inputs, dtype)
    given, expected = by_reference(inputs, dtype, bounds)
    packed = None if bounds is None else torch.tensor(bounds, device=DEVICE)
    rows = Rows(*inputs["g"].shape[:2], packed, CHUNK)
    exact = torch.promote_types(dtype, torch.float32)
    tensors = [inputs[n].to(DEVICE, exact if n in EXACT else dtype) for n in NAMES]
    result = gradients(rows, *tensors, SCALE, *(x.to(DEVICE, dtype) for x in given))
    for name, tensor, gradient, target in zip(NAMES, tensors, result, expected, strict=True):
        assert gradient.dtype == tensor.dtype
        error = relative_error(gradient.cpu(), target)
        # corrections are fed by corrections, which rounds beta and g once more
        most = 2e-2 if dtype == torch.bfloat16 and name in ("beta", "g") else GRADIENT[dtype]
        assert error <= most, f"d{name}: {error:.1e}"
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_agree_for_every_kind_of_decay(kind, dtype):
    check(make("delta_rule", 70, batch=1, heads=1, key=16, width=16, kind=kind), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 33, 64])
@pytest.mark.parametrize(("key", "width"), [(16, 40), (40, 16)])
def test_agree_at_lengths_and_widths_that_fill_no_tile(key, width, length, dtype):
    check(make("delta_rule", length, batch=2, heads=1, key=key, width=width), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bounds", [[0, 33, 70], [7, 7, 80, 100]], ids=str)
def test_agree_for_packed_rows(bounds, dtype):
    """Every sequence opens a chunk; positions outside the bounds have no gradient."""
    inputs = make("delta_rule", 110, batch=1, key=16, width=16, sequences=len(bounds) - 1)
    for gradient in check(inputs, dtype, bounds):
        assert (gradient[:, : bounds[0]] == 0).all()
        assert (gradient[:, bounds[-1] :] == 0).all()


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_agree_for_equal_keys(beta):
    """Every correction undoes the one before; in bfloat16 their roundings do not cancel."""
    inputs = make("delta_rule", 70, batch=1, heads=1, key=16, width=16, kind="slow")
    inputs["beta"].fill_(beta)
    inputs["k"] = inputs["k"][:, :1].expand_as(inputs["k"]).clone()
    check(inputs, DTYPES[0])


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["uniform", "slow", "jump middle"])
@pytest.mark.parametrize(
    ("key", "width"), [(32, 32), (64, 64), (128, 128), (128, 64), (64, 128), (100, 200), (256, 256)]
)
def test_agree_at_common_sizes(key, width, kind, dtype):
    """Every launch that there is."""
    check(make("delta_rule", 129, batch=2, key=key, width=width, kind=kind), dtype)
