import pytest
import torch
from numerics import relative_error

from fracdna_kernels import gated_skip

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILED = DEVICE == "cuda"
FUSED = {"form": "triton"}
# output and gradients; bfloat16 needs compiled kernels
TOLERANCES = {torch.float32: (2e-6, 1e-5)}
if COMPILED:
    TOLERANCES[torch.bfloat16] = (5e-3, 8e-3)


def skip_inputs(rank=1, heads=2, width=4, batch=1, length=3, mixed=False, dtype=torch.float32):
    """Leaves x, values, factor, gate (a part of a wider tensor) and, if asked for, both mixes."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    place = batch, length
    shapes = [
        ((*place, rank, heads, width), dtype),
        ((*place, rank, heads, width), dtype),
        ((*place, heads, rank, rank), exact),
        ((*place, 2 * heads * width), dtype),
        *[((heads, rank, width), exact)] * (2 * mixed),
    ]
    return [torch.randn(shape).to(DEVICE, kind).requires_grad_() for shape, kind in shapes]


def call(leaves, **options):
    x, values, factor, gate, *mixes = leaves
    return gated_skip(x, values, factor, gate.chunk(2, -1)[1], *mixes, **options)


def exact_copy(leaves):
    return [x.detach().cpu().double().requires_grad_() for x in leaves]


def test_every_head_sums_its_ranks():
    """Scalar by scalar: skip by all ranks' values, gate, mixes, sum."""
    x, values, factor, gate, gate_mix, output_mix = leaves = exact_copy(
        skip_inputs(rank=2, heads=3, mixed=True)
    )
    out = call(leaves)
    for t, h, n in [(0, 0, 0), (2, 2, 3), (1, 0, 2)]:
        expected = 0.0
        for r in range(2):
            y = x[0, t, r, h, n]
            for s in range(2):
                y = y + factor[0, t, h, r, s] * values[0, t, s, h, n]
            z = gate[0, t, 12 + 4 * h + n] * gate_mix[h, r, n]
            expected = expected + output_mix[h, r, n] * y * z / (1 + torch.exp(-z))
        assert out[0, t, 4 * h + n].item() == pytest.approx(expected.item(), rel=1e-12)


def test_mixes_of_one_and_a_lower_precision_change_little():
    leaves = skip_inputs(rank=2)
    ones = torch.ones(2, 2, 4, device=DEVICE)
    out = call(leaves)
    assert torch.allclose(call([*leaves, ones, ones]), out, atol=1e-6)
    low = call([x if x is leaves[2] else x.bfloat16() for x in leaves])
    assert low.dtype == torch.bfloat16
    assert relative_error(low, out) < 1e-2


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    "sizes",
    [
        {"heads": 3, "width": 23, "length": 45},
        {"heads": 4, "width": 64, "batch": 2, "length": 20},
        {"heads": 1, "width": 600, "length": 9},
        {"rank": 3, "heads": 3, "width": 12, "batch": 2, "length": 70, "mixed": True},
        {"rank": 2, "heads": 1, "width": 16, "length": 5},
    ],
    ids=str,
)
def test_fused_skip_agrees_with_float64(sizes, dtype):
    """Output and all gradients."""
    leaves = skip_inputs(**sizes, dtype=dtype)
    exact = exact_copy(leaves)
    limit, gradient_limit = TOLERANCES[dtype]
    output, expected = call(leaves, **FUSED), call(exact)
    assert relative_error(output.cpu(), expected) < limit
    incoming = torch.randn_like(expected)
    targets = torch.autograd.grad(expected, exact, incoming)
    found = torch.autograd.grad(output, leaves, incoming.to(output))
    for gradient, target in zip(found, targets, strict=True):
        assert relative_error(gradient.cpu(), target) < gradient_limit


@pytest.mark.skipif(COMPILED, reason="float64 runs in the interpreter")
@pytest.mark.parametrize("rank", [1, 2])
def test_fused_skip_gradients_pass_gradcheck(rank):
    leaves = skip_inputs(rank, length=2, mixed=rank > 1, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *x: call(x, **FUSED), leaves, fast_mode=True)


@pytest.mark.parametrize("mixed", [False, True])
def test_fused_skip_is_an_operator_of_pytorch(mixed):
    """Schema, fake kernels and autograd registration hold; compilation needs no break."""
    from fracdna_kernels.gated_skip import triton_form

    leaves = skip_inputs(mixed=mixed)
    gate = leaves[3].detach().chunk(2, -1)[1].requires_grad_()
    mixes = leaves[4:] if mixed else [None, None]
    torch.library.opcheck(triton_form._skip.registered, (*leaves[:3], gate, *mixes))
    fused = lambda *x: call(x, **FUSED)  # noqa: E731
    output = torch.compile(fused, fullgraph=True, backend="aot_eager")(*leaves)
    assert torch.equal(output, fused(*leaves))
    output.sum().backward()
    assert all(x.grad.any() for x in leaves)


def test_fused_skip_takes_expanded_gradients_repeats_and_gives_no_second_derivative():
    leaves = skip_inputs(rank=2, length=40, mixed=True)
    exact = exact_copy(leaves)
    first, second = (
        torch.autograd.grad(call(leaves, **FUSED).sum(), leaves, create_graph=True)
        for _ in range(2)
    )
    assert all(map(torch.equal, first, second))
    for one, two in zip(first, torch.autograd.grad(call(exact).sum(), exact), strict=True):
        assert relative_error(one.detach().cpu(), two) < 1e-5
    with pytest.raises(RuntimeError):
        first[0].sum().backward()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)], ids=str)
def test_fused_skip_of_nothing_is_empty(shape):
    leaves = skip_inputs(batch=shape[0], length=shape[1], mixed=True)
    output = call(leaves, **FUSED)
    assert output.shape == (*shape, 8)
    output.sum().backward()
    assert not any(x.grad.any() for x in leaves)


def test_what_does_not_fit_is_refused():
    def check(message, options=None, **shapes):
        sizes = {
            "x": (1, 2, 1, 3, 4), "values": (1, 2, 1, 3, 4), "factor": (1, 2, 3, 1, 1),
            "gate": (1, 2, 12),
        } | shapes  # fmt: skip
        tensors = {name: torch.ones(shape, device=DEVICE) for name, shape in sizes.items()}
        with pytest.raises(ValueError, match=message):
            gated_skip(**tensors, **options or {})

    check(r"needs a factor \(1, 2, 3, 1, 1\)", factor=(1, 2, 3, 2, 2))
    check("a gate of 12 channels, got .* and 13", gate=(1, 2, 13))
    check("axis R is 2 in values", values=(1, 2, 2, 3, 4))
    check("give both or neither", gate_mix=(3, 1, 4))
    check("form='chunk' does not exist", {"form": "chunk"})
    wide = (1, 0, 1, 1, 4097)
    check(
        "takes at most 4096 channels, got 4097", FUSED,
        x=wide, values=wide, factor=(1, 0, 1, 1, 1), gate=(1, 0, 4097),
    )  # fmt: skip


def test_factors_in_half_precision_are_refused():
    leaves = skip_inputs()
    leaves[2] = leaves[2].bfloat16()
    with pytest.raises(ValueError, match="factor needs float32 or float64"):
        call(leaves)
