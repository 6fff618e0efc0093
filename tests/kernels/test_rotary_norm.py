import pytest
import torch
from numerics import relative_error

from fracdna_kernels import rotary_norm
from fracdna_kernels.rotary_norm.reference import turn_half

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILED = DEVICE == "cuda"
FUSED = {"form": "triton"}
# outputs and gradients; bfloat16 needs compiled kernels
TOLERANCES = {torch.float32: (2e-6, 1e-5)}
if COMPILED:
    TOLERANCES[torch.bfloat16] = (5e-3, 8e-3)


def rotary_inputs(
    rank=1, heads=2, width=8, batch=2, length=5, dtype=torch.float32, exact=torch.float32
):
    """Leaves: queries and keys as parts of one tensor, and the rest in order."""
    shapes = (width,), (width,), (heads, rank, width), (heads, rank, width)
    shapes += (batch, length, heads, width // 4), (batch, length, heads)
    rows = torch.randn(batch, length, 3 * rank * width).to(DEVICE, dtype).requires_grad_()
    rest = [3 * torch.randn(shape).to(DEVICE, exact) for shape in shapes]
    return [rows, *(x.detach().requires_grad_() for x in rest)]


def call(leaves, factor=True, **options):
    rows, *rest = leaves
    _, queries, keys = rows.chunk(3, -1)
    return rotary_norm(queries, keys, *rest[:5], rest[5] if factor else None, **options)


def exact_copy(leaves):
    return [x.detach().cpu().double().requires_grad_() for x in leaves]


@pytest.mark.parametrize(
    ("neighbours", "pairs"), [(True, [(0, 1), (2, 3)]), (False, [(0, 4), (1, 5)])]
)
def test_which_coordinates_turn(neighbours, pairs):
    x, angle = torch.randn(5, 8), torch.randn(5, 2)
    turned = turn_half(x, angle, neighbours=neighbours)
    for i, (one, two) in enumerate(pairs):
        point = torch.complex(x[:, one], x[:, two]) * torch.polar(torch.ones(5), angle[:, i])
        assert torch.allclose(turned[:, one], point.real, atol=1e-6)
        assert torch.allclose(turned[:, two], point.imag, atol=1e-6)
    still = [i for i in range(8) if i not in {n for pair in pairs for n in pair}]
    assert torch.equal(turned[:, still], x[:, still])


def test_ranks_and_heads_get_what_is_theirs():
    """Norms of ranks, biases of heads and ranks, turns and factors of heads, products."""
    leaves = exact_copy(rotary_inputs(rank=3))
    rows, query_weight, key_weight, query_bias, key_bias, angle, factor = leaves
    q, k, products = call(leaves, neighbours=False)
    _, *sides = rows.unflatten(-1, (3, 3, 8)).unbind(2)
    weights, biases = (query_weight, key_weight), (query_bias, key_bias)
    for h in range(2):
        placed = []
        for x, weight, bias in zip(sides, weights, biases, strict=True):
            y = weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) + bias[h]
            placed.append(turn_half(y, angle[:, :, h, None], neighbours=False))
        assert relative_error(q[:, :, :, h], placed[0]) < 1e-13
        assert relative_error(k[:, :, :, h], factor[:, :, h, None, None] * placed[1]) < 1e-13
        expected = torch.einsum("btrk,btsk->btrs", *placed)
        assert relative_error(products[:, :, h], expected) < 1e-13
    plain = call(leaves, factor=False, neighbours=False)
    assert relative_error(factor[:, :, None, :, None] * plain[1], k) < 1e-13
    assert torch.equal(plain[2], products)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({}, {}),
        ({"rank": 2, "heads": 3, "width": 24}, {"neighbours": False}),
        ({"heads": 5, "width": 12, "length": 41}, {"eps": 0.1}),
        ({"rank": 2, "heads": 1, "width": 16}, {"factor": False}),
        ({"heads": 9, "width": 128, "batch": 1}, {}),
    ],
    ids=str,
)
def test_fused_form_agrees_with_float64(sizes, options, dtype, monkeypatch):
    """Outputs and all gradients, where 4 programs loop over all tiles."""
    from fracdna_kernels import triton_rows

    monkeypatch.setattr(triton_rows, "PROGRAMS", 4)
    leaves = rotary_inputs(**sizes, dtype=dtype)
    exact = exact_copy(leaves)
    outputs, expected = call(leaves, **options, **FUSED), call(exact, **options)
    limit, gradient_limit = TOLERANCES[dtype]
    for output, target in zip(outputs, expected, strict=True):
        assert relative_error(output.cpu(), target) < limit
    incoming = [torch.randn_like(x) for x in expected]
    wanted = slice(None) if options.get("factor", True) else slice(-1)
    targets = torch.autograd.grad(expected, exact[wanted], incoming)
    incoming = [g.to(x) for g, x in zip(incoming, outputs, strict=True)]
    found = torch.autograd.grad(outputs, leaves[wanted], incoming)
    for gradient, target in zip(found, targets, strict=True):
        assert relative_error(gradient.cpu(), target) < gradient_limit


def test_fused_turns_are_right_all_around_and_beyond():
    """Sine and cosine of every quarter, of its borders, and of a few turns more."""
    leaves = rotary_inputs(length=200, heads=1, batch=1)
    with torch.no_grad():
        borders = torch.arange(-50, 50) * torch.pi / 4
        around = torch.linspace(-12, 12, 300)
        leaves[5].copy_(torch.cat([borders, around]).view(1, 200, 1, 2))
    for output, target in zip(call(leaves, **FUSED), call(exact_copy(leaves)), strict=True):
        assert relative_error(output.cpu(), target) < 2e-6


@pytest.mark.skipif(COMPILED, reason="float64 runs in the interpreter")
@pytest.mark.parametrize("rank", [1, 2])
def test_fused_gradients_pass_gradcheck(rank):
    leaves = rotary_inputs(
        rank, batch=1, length=2, width=4, heads=3 - rank, dtype=torch.float64, exact=torch.float64
    )
    fused = lambda *x: call(x, neighbours=rank == 1, **FUSED)  # noqa: E731
    assert torch.autograd.gradcheck(fused, leaves, fast_mode=True)


def test_fused_form_takes_missing_and_expanded_gradients():
    """A loss on one output, whose gradient is one expanded number."""
    for number in range(3):
        leaves = rotary_inputs()
        exact = exact_copy(leaves)
        call(leaves, **FUSED)[number].sum().backward()
        call(exact)[number].sum().backward()
        for fused, reference in zip(leaves, exact, strict=True):
            target = torch.zeros(()) if reference.grad is None else reference.grad
            assert torch.allclose(fused.grad.cpu().double(), target.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)], ids=str)
def test_fused_form_of_nothing_is_empty(shape):
    leaves = rotary_inputs(batch=shape[0], length=shape[1])
    outputs = call(leaves, **FUSED)
    assert [tuple(x.shape) for x in outputs] == [
        (*shape, 1, 2, 8),
        (*shape, 1, 2, 8),
        (*shape, 2, 1, 1),
    ]
    sum(x.sum() for x in outputs).backward()
    assert not any(x.grad.any() for x in leaves)


def test_fused_form_is_an_operator_of_pytorch():
    """Schema, fake kernels and autograd registration hold; compilation needs no break."""
    from fracdna_kernels.rotary_norm import triton_form

    leaves = rotary_inputs(batch=1, length=3)
    _, queries, keys = leaves[0].detach().chunk(3, -1)
    inputs = (queries.requires_grad_(), keys.requires_grad_(), *leaves[1:], True, 1e-5)
    torch.library.opcheck(triton_form._norm.registered, inputs)
    fused = lambda *x: call(x, **FUSED)  # noqa: E731
    outputs = torch.compile(fused, fullgraph=True, backend="aot_eager")(*leaves)
    assert all(map(torch.equal, outputs, fused(*leaves)))
    sum(x.square().sum() for x in outputs).backward()
    assert all(x.grad.any() for x in leaves)


def test_fused_form_repeats_bit_by_bit_and_gives_no_second_derivative():
    leaves = rotary_inputs(length=40)
    results = []
    for _ in range(2):
        outputs = call(leaves, **FUSED)
        results.append([*outputs, *torch.autograd.grad(sum(x.sum() for x in outputs), leaves)])
    assert all(map(torch.equal, *results))
    (first,) = torch.autograd.grad(
        call(leaves, **FUSED)[0].square().sum(), leaves[0], create_graph=True
    )
    with pytest.raises(RuntimeError):
        first.sum().backward()


def test_what_does_not_fit_is_refused():
    def check(message, options=None, **shapes):
        sizes = {
            "queries": (1, 2, 8), "keys": (1, 2, 8), "query_weight": (8,), "key_weight": (8,),
            "query_bias": (3, 1, 8), "key_bias": (3, 1, 8), "angle": (1, 2, 3, 2),
        } | shapes  # fmt: skip
        tensors = {name: torch.ones(shape, device=DEVICE) for name, shape in sizes.items()}
        with pytest.raises(ValueError, match=message):
            rotary_norm(**tensors, **options or {})

    check("axis K is 4 in key_weight", key_weight=(4,))
    check("need 16 channels of queries", query_bias=(3, 2, 8), key_bias=(3, 2, 8))
    check("angles of a quarter of the width, got 8 and 3", angle=(1, 2, 3, 3))
    check("form='chunk' does not exist", {"form": "chunk"})
    check(
        "takes up to 8192 elements of all heads, got 8200", FUSED,
        query_bias=(1025, 1, 8), key_bias=(1025, 1, 8), angle=(1, 2, 1025, 2),
    )  # fmt: skip


def test_half_precision_of_angles_is_refused():
    rows, *rest = rotary_inputs()
    rest[4] = rest[4].bfloat16()
    with pytest.raises(ValueError, match="angle needs float32 or float64"):
        call([rows, *rest])
