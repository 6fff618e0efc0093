import math

import pytest
import torch
from numerics import relative_error

from fracdna_kernels import selective_angles
from fracdna_kernels.selective_angles.reference import STRETCH, running_sum

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILED = DEVICE == "cuda"
FUSED = {"form": "triton"}


def leaf(*shape, dtype=torch.float32):
    return torch.randn(shape).to(DEVICE, dtype).requires_grad_()


def between(one, other):
    """The greatest angle between two."""
    apart = one.detach().cpu().double() - other.detach().cpu().double()
    return (apart - 2 * math.pi * torch.round(apart / (2 * math.pi))).abs().max().item()


@pytest.mark.parametrize("form", ["reference", "triton"])
def test_angles_add_up_from_a_start_and_stay_within_half_a_turn(form):
    delta, speed, start = leaf(2, 9, 2), leaf(2, 9, 3), leaf(2, 2, 3)
    angle = selective_angles(delta, speed, start=start, form=form)
    expected = start.double()
    for t in range(9):
        step = delta[:, t, :, None].double() * math.pi * torch.tanh(speed[:, t, None].double())
        expected = expected + step
        assert between(angle[:, t], expected) < 1e-6
    assert angle.dtype == torch.float32
    assert angle.abs().max() <= math.pi * (1 + 1e-7)


@pytest.mark.parametrize("length", [0, 1, STRETCH, STRETCH + 1, 3 * STRETCH - 5])
def test_sums_in_stretches_are_the_running_sum(length):
    """Values and gradients, whatever is left over at the end."""
    x = torch.randn(2, length, 3, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, length, 3, 2, dtype=torch.float64)
    results = []
    for total in (running_sum(x), x.cumsum(1)):
        results.append((total, *torch.autograd.grad((total * weight).sum(), x)))
    for one, two in zip(*results, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-11)


def test_angles_keep_their_digits_over_a_million_positions():
    """A sum in float32 would drift; the last step's turn must come out whole."""
    length = 2**20
    delta, speed = torch.full((1, length, 1), 0.1), torch.full((1, length, 1), 0.3)
    angle = selective_angles(delta, speed)[0, :, 0, 0]
    step = delta[0, 0, 0].double() * math.pi * torch.tanh(speed[0, 0, 0].double())
    assert between(angle[-1].double() - angle[-2].double(), step) < 1e-6
    assert between(angle[-1], length * step) < 1e-6


def test_fused_angles_keep_their_digits():
    """100 turns in one direction, over more chunks than are carried at a time."""
    delta = 0.1 * torch.rand(1, 4200, 1, device=DEVICE) + 0.1
    speed = torch.rand(1, 4200, 2, device=DEVICE) + 0.3
    angle = selective_angles(delta, speed, **FUSED)[:, :, 0]
    steps = delta.double() * math.pi * torch.tanh(speed.double())
    assert between(angle[:, 1:].double() - angle[:, :-1].double(), steps[:, 1:]) < 1e-6
    # each step has the relative error of float32, of which a sum keeps some
    assert between(angle, steps.cumsum(1)) < 5e-8 * steps.sum(1).max()


@pytest.mark.parametrize(
    ("length", "heads", "pairs", "started"),
    [(1, 2, 4, True), (64, 3, 6, False), (65, 2, 8, True), (70, 1, 1, True), (150, 5, 33, False)],
)
def test_fused_angles_agree_with_float64(length, heads, pairs, started):
    """Angles and all gradients, of inputs that are parts of a wider tensor."""
    leaves = [leaf(2, length, heads + pairs)] + ([leaf(2, heads, pairs)] if started else [])
    exact = [x.detach().cpu().double().requires_grad_() for x in leaves]

    def call(leaves, form):
        delta, speed = leaves[0].split([heads, pairs], dim=-1)
        return selective_angles(delta, speed, start=leaves[1] if started else None, form=form)

    angle, expected = call(leaves, "triton"), call(exact, "reference")
    assert between(angle, expected) < 1e-5
    incoming = torch.randn_like(expected)
    targets = torch.autograd.grad(expected, exact, incoming)
    found = torch.autograd.grad(angle, leaves, incoming.to(angle))
    for gradient, target in zip(found, targets, strict=True):
        assert relative_error(gradient.cpu(), target) < 1e-5


@pytest.mark.parametrize(
    "form",
    [
        "reference",
        pytest.param("triton", marks=pytest.mark.skipif(COMPILED, reason="needs float64")),
    ],
)
def test_gradients_pass_gradcheck(form):
    leaves = [torch.randn(s, dtype=torch.float64).requires_grad_() for s in ((1, 3, 2), (1, 3, 3))]
    start = torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True)
    call = lambda delta, speed, start: torch.stack(  # noqa: E731
        [f(selective_angles(delta, speed, start=start, form=form)) for f in (torch.sin, torch.cos)]
    )
    assert torch.autograd.gradcheck(call, [*leaves, start], fast_mode=True)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)], ids=str)
def test_fused_angles_of_nothing_are_empty(shape):
    delta, speed, start = leaf(*shape, 2), leaf(*shape, 3), leaf(shape[0], 2, 3)
    angle = selective_angles(delta, speed, start=start, **FUSED)
    assert angle.shape == (*shape, 2, 3)
    angle.sum().backward()
    assert not start.grad.any()


def test_fused_angles_are_operators_of_pytorch():
    """Schema, fake kernels and autograd registration hold; compilation needs no break."""
    from fracdna_kernels.selective_angles import triton_form

    inputs = leaf(1, 3, 2), leaf(1, 3, 4), leaf(1, 2, 4)
    torch.library.opcheck(triton_form._angles.registered, inputs)
    call = lambda d, s, start: selective_angles(d, s, start=start, **FUSED)  # noqa: E731
    output = torch.compile(call, fullgraph=True, backend="aot_eager")(*inputs)
    assert torch.equal(output, call(*inputs))
    output.sum().backward()
    assert all(x.grad.any() for x in inputs)


def test_fused_angles_repeat_bit_by_bit_and_give_no_second_derivative():
    delta, speed = leaf(2, 70, 3), leaf(2, 70, 4)
    results = []
    for _ in range(2):
        angle = selective_angles(delta, speed, **FUSED)
        results.append([angle, *torch.autograd.grad(angle.sum(), (delta, speed))])
    assert all(map(torch.equal, *results))
    angle = selective_angles(delta, speed, **FUSED)
    (first,) = torch.autograd.grad(angle.sum(), delta, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"speed": (1, 3, 4)}, {}, "axis T is 3 in speed"),
        ({"start": (1, 3, 4)}, {}, "axis H is 3 in start"),
        ({"speed": (1, 2, 257)}, FUSED, "takes at most 256 pairs, got 257"),
        ({}, {"form": "chunk"}, "form='chunk' does not exist"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(change, options, message):
    shapes = {"delta": (1, 2, 2), "speed": (1, 2, 4)} | change
    tensors = {name: torch.ones(shape, device=DEVICE) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=message):
        selective_angles(**tensors, **options)


def test_half_precision_is_refused():
    with pytest.raises(ValueError, match="delta needs float32 or float64"):
        selective_angles(torch.ones(1, 2, 2).bfloat16(), torch.ones(1, 2, 4))
