"""The gradients of chunks in the Triton form of decay_attention, by themselves."""

from itertools import pairwise

import pytest
import torch
from decay_cases import SCALE, make, rounded
from numerics import GRADIENT, relative_error
from scan_cases import KINDS

from fracdna_kernels import decay_attention
from fracdna_kernels.decay_attention.triton_gradient import CHUNK, gradients
from fracdna_kernels.pieces import Rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# bfloat16 is not multiplied in the interpreter as on a device
DTYPES = [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float64, torch.float32]


def sweeps(inputs, rows, grad, grad_final, bounds):
    """The state before each chunk and the adjoint after it, position by position, in float64."""
    q, k, v, g, initial = inputs.values()
    B, T, H, V = v.shape
    K = k.shape[-1]
    shared = H // k.shape[2]
    q, k = (x.repeat_interleave(shared, dim=2) for x in (q, k))
    fade = g.exp().expand(B, T, H, K) if g.ndim == 4 else g.exp()[..., None].expand(B, T, H, K)
    states = torch.zeros(rows.slots, H, K, V, dtype=torch.float64)
    adjoints = torch.zeros_like(states)
    if bounds is None:
        sequences = [(b, 0, T, b * rows.chunks) for b in range(B)]
    else:
        sequences, slot = [], 0
        for begin, end in pairwise(bounds):
            sequences.append((0, begin, end, slot))
            slot += max(-(-(end - begin) // CHUNK), 1)
    for n, (b, begin, end, slot) in enumerate(sequences):
        state, adjoint = initial[n], grad_final[n]
        for t in range(begin, end):
            if (t - begin) % CHUNK == 0:
                states[slot + (t - begin) // CHUNK] = state
            state = fade[b, t, :, :, None] * state + k[b, t, :, :, None] * v[b, t, :, None, :]
        for t in reversed(range(begin, end)):
            if (t - begin) % CHUNK == CHUNK - 1 or t == end - 1:
                adjoints[slot + (t - begin) // CHUNK] = adjoint
            adjoint = adjoint + SCALE * q[b, t, :, :, None] * grad[b, t, :, None, :]
            adjoint = fade[b, t, :, :, None] * adjoint
    return states, adjoints


def found_and_expected(inputs, dtype, bounds=None):
    """Gradients of q, k, v and g by the kernel and by autograd through the reference."""
    inputs = rounded(inputs, dtype)
    B, T = inputs["v"].shape[:2]
    packed = None if bounds is None else torch.tensor(bounds)
    grad = torch.randn_like(inputs["v"]).to(dtype).double()
    grad_final = torch.randn_like(inputs["initial_state"])
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    output, final = decay_attention(**leaves, scale=SCALE, cu_seqlens=packed, form="reference")
    wanted = [leaves[name] for name in ("q", "k", "v", "g")]
    # an output that no sequence reaches depends on nothing
    loss = (output * grad).sum() + (final * grad_final).sum() + sum(x.sum() * 0 for x in wanted)
    expected = torch.autograd.grad(loss, wanted)
    rows = Rows(B, T, None if packed is None else packed.to(DEVICE), CHUNK)
    states, adjoints = sweeps(inputs, rows, grad, grad_final, bounds)
    exact = torch.promote_types(dtype, torch.float32)
    found = gradients(
        rows,
        *(inputs[name].to(DEVICE, dtype) for name in ("q", "k", "v")),
        inputs["g"].to(DEVICE, exact),
        SCALE,
        *(x.to(DEVICE, dtype) for x in (states, adjoints, grad)),
    )
    return found, expected


def check(inputs, dtype, bounds=None):
    """Every gradient within the tolerance of the dtype, and of the dtype of its input."""
    found, expected = found_and_expected(inputs, dtype, bounds)
    for name, value, right in zip("qkvg", found, expected, strict=True):
        error = relative_error(value.cpu(), right)
        assert error <= GRADIENT[dtype], f"d{name}: {error:.1e}"
    assert [x.dtype for x in found[:3]] == [dtype] * 3
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", ["heads", "keys"])
def test_gradients_of_every_kind_of_decay(variant, kind, dtype):
    check(make(70, variant, batch=1, heads=1, keys=16, width=16, kind=kind), dtype)


@pytest.mark.parametrize("dtype", DTYPES[-1:], ids=str)
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 70])
@pytest.mark.parametrize("variant", ["heads", "keys"])
def test_gradients_at_every_length(variant, length, dtype):
    check(make(length, variant, keys=8, width=8), dtype)


@pytest.mark.parametrize("dtype", DTYPES[:1], ids=str)
@pytest.mark.parametrize(
    ("keys", "width"), [(40, 16), (16, 40), (6, 5), (64, 64), (16, 300), (256, 24), (128, 128)]
)
@pytest.mark.parametrize("variant", ["heads", "keys"])
def test_gradients_of_every_shape(variant, keys, width, dtype):
    """Widths that fill no tile, several blocks of keys, and values of more than one program."""
    check(make(20, variant, batch=1, heads=1, keys=keys, width=width), dtype)


@pytest.mark.parametrize("dtype", DTYPES[:1], ids=str)
@pytest.mark.parametrize("width", [16, 40])
@pytest.mark.parametrize("variant", ["shared heads", "shared keys"])
def test_gradients_of_shared_keys_are_sums_over_heads(variant, width, dtype):
    check(make(20, variant, batch=1, heads=4, keys=16, width=width), dtype)


@pytest.mark.parametrize("dtype", DTYPES[:1], ids=str)
@pytest.mark.parametrize(
    "bounds", [[0, 15], [0, 0, 16], [0, 1, 100, 130], [0, 0, 0], [7, 7, 80, 100]], ids=str
)
@pytest.mark.parametrize("variant", ["heads", "keys"])
def test_gradients_of_packed_rows(variant, bounds, dtype):
    """Positions outside the bounds have gradient 0."""
    inputs = make(130, variant, batch=1, heads=1, keys=8, width=8, sequences=len(bounds) - 1)
    for x in check(inputs, dtype, bounds):
        assert (x[:, : bounds[0]] == 0).all()
        assert (x[:, bounds[-1] :] == 0).all()


@pytest.mark.parametrize("variant", ["heads", "keys"])
def test_gradients_of_strong_decays_keep_their_digits(variant):
    """dg is tiny beside q dq and k dk here, whose difference would have no digit left."""
    inputs = make(64, variant, batch=1, heads=1, keys=16, width=16, kind="fast")
    inputs["initial_state"].zero_()
    found, expected = found_and_expected(inputs, torch.float32)
    # all but the last positions, which pass the gradient of the final state
    value, right = found[3][:, :40].cpu().double(), expected[3][:, :40]
    unit = right.abs().max()
    assert 0 < unit < 1e-6
    assert relative_error(value / unit, right / unit) < 1e-5


@pytest.mark.parametrize("variant", ["heads", "keys"])
def test_a_jump_does_not_drown_what_decays_slowly_after_it(variant):
    inputs = make(64, variant, batch=1, heads=1, keys=16, width=16, kind="slow")
    inputs["g"][:, 0] = -1e4
    found, expected = found_and_expected(inputs, torch.float32)
    assert relative_error(found[3][:, 1:].cpu(), expected[3][:, 1:]) < 2e-6
