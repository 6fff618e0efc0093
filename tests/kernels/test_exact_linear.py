import pytest
import torch
from numerics import relative_error
from torch.nn.functional import linear

from fracdna_kernels import exact_linear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILED = DEVICE == "cuda"
FUSED = {"form": "triton"}
# the gradient of x, and those of the parameters
TOLERANCES = {torch.float32: (1e-5, 1e-5)}
if COMPILED:
    TOLERANCES[torch.bfloat16] = (5e-3, 1e-5)
OUTPUT_TOLERANCE = 2e-6


def leaf(*shape, dtype=torch.float32):
    return torch.randn(shape).to(DEVICE, dtype).requires_grad_()


def exact_copy(leaves):
    return [x.detach().cpu().double().requires_grad_() for x in leaves]


def check(leaves, call, limits):
    """Outputs and gradients of a fused call against the reference in float64."""
    exact = exact_copy(leaves)
    outputs, expected = call(leaves, "triton"), call(exact, "reference")
    for output, target in zip(outputs, expected, strict=True):
        assert relative_error(output.cpu(), target) < OUTPUT_TOLERANCE
    incoming = [torch.randn(x.shape).to(x.dtype) for x in outputs]
    targets = torch.autograd.grad(expected, exact, [g.double() for g in incoming])
    incoming = [g.to(DEVICE) for g in incoming]
    gradients = torch.autograd.grad(outputs, leaves, incoming)
    for number, (gradient, target) in enumerate(zip(gradients, targets, strict=True)):
        assert relative_error(gradient.cpu(), target) < limits[number > 0]


def test_bfloat16_rows_are_multiplied_in_float32_whatever_autocast_says():
    x, weight, bias = torch.randn(2, 5, 8).bfloat16(), torch.randn(3, 8), torch.randn(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same, y = exact_linear(x, weight, bias, tap=True)
    assert same.dtype == torch.bfloat16
    assert torch.equal(y, linear(x.float(), weight, bias))
    assert torch.equal(exact_linear(x, weight), linear(x.float(), weight))
    assert exact_linear(x.double(), weight.double()).dtype == torch.float64


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("tap", [False, True], ids=["plain", "tap"])
@pytest.mark.parametrize(
    ("rows", "channels", "outputs", "bias"),
    [(45, 64, 12, True), (130, 300, 3, True), (7, 8, 20, False), (1, 40, 64, True)],
)
def test_fused_map_agrees_with_float64(rows, channels, outputs, bias, tap, dtype):
    """Output and gradients, for rows that are half of wider ones."""
    leaves = [leaf(2, rows, 2 * channels, dtype=dtype), leaf(outputs, channels)]
    leaves += [leaf(outputs)] if bias else []

    def call(leaves, form):
        wide, *parameters = leaves
        result = exact_linear(wide.chunk(2, -1)[0], *parameters, tap=tap, form=form)
        return result if tap else (result,)

    check(leaves, call, TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_few_programs_loop_over_all_rows(dtype, monkeypatch):
    from fracdna_kernels.exact_linear import triton_form

    monkeypatch.setattr(triton_form, "PROGRAMS", 4)
    leaves = [leaf(3, 97, 200, dtype=dtype), leaf(12, 200), leaf(12)]
    call = lambda leaves, form: exact_linear(*leaves, tap=True, form=form)  # noqa: E731
    check(leaves, call, TOLERANCES[dtype])


@pytest.mark.skipif(COMPILED, reason="the pieces are multiplied as bfloat16 on a device")
def test_pieces_of_bfloat16_make_up_a_float32():
    """Cut factors, multiplied in float32: what matrix units do with them."""
    leaves = [leaf(1, 45, 64), leaf(12, 64), leaf(12)]
    low = [leaves[0].detach().bfloat16().requires_grad_(), *leaves[1:]]
    call = lambda leaves, form: (exact_linear(*leaves, form=form),)  # noqa: E731
    # the interpreter cuts bits off where a device rounds, so two pieces hold a bit less there
    check(low, call, (5e-3, 2e-5))


@pytest.mark.skipif(COMPILED, reason="float64 runs in the interpreter")
@pytest.mark.parametrize("tap", [False, True], ids=["plain", "tap"])
def test_fused_gradients_pass_gradcheck(tap):
    leaves = [leaf(*shape, dtype=torch.float64) for shape in ((1, 3, 6), (2, 6), (2,))]
    call = lambda *leaves: exact_linear(*leaves, tap=tap, **FUSED)  # noqa: E731
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


def test_a_tapped_input_hands_all_its_gradients_to_one_kernel():
    """Other consumers of the tapped tensor, none of them, or none of the map."""
    x, weight, bias = leaf(2, 5, 16), leaf(3, 16), leaf(3)
    exact = exact_copy((x, weight, bias))
    uses = (
        lambda same, y: (same.sin() * same).sum() + y.square().sum(),
        lambda same, y: y.square().sum(),
        lambda same, y: same.square().sum(),
    )
    for use in uses:
        loss = use(*exact_linear(x, weight, bias, tap=True, **FUSED))
        expected = use(*exact_linear(*exact, tap=True))
        gradients = torch.autograd.grad(loss, (x, weight, bias))
        targets = torch.autograd.grad(expected, exact, materialize_grads=True)
        for gradient, target in zip(gradients, targets, strict=True):
            assert torch.allclose(gradient.cpu().double(), target, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tap", [False, True], ids=["plain", "tap"])
def test_fused_map_compiles_without_a_break(tap):
    """Operators of PyTorch, and a function that it traces."""
    from fracdna_kernels.exact_linear import triton_form

    operator = triton_form._linear.registered
    torch.library.opcheck(operator, (leaf(1, 3, 8), leaf(2, 8), leaf(2)))
    torch.library.opcheck(operator, (leaf(1, 3, 8), leaf(2, 8), None))

    def call(wide, weight, bias):
        x = 2 * wide.chunk(2, -1)[0]
        same, y = exact_linear(x, weight, bias, tap=tap, **FUSED) if tap else (
            x, exact_linear(x, weight, bias, **FUSED)
        )  # fmt: skip
        return same.sin() * y.mean(-1, keepdim=True)

    leaves = [leaf(2, 5, 16), leaf(3, 8), leaf(3)]
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        output, expected = compiled(*leaves), call(*leaves)
    assert torch.equal(output, expected)
    gradients = torch.autograd.grad(output.sum(), leaves)
    assert all(map(torch.allclose, gradients, torch.autograd.grad(expected.sum(), leaves)))


def test_fused_map_takes_expanded_gradients_and_repeats_bit_by_bit():
    x, weight, bias = leaf(2, 70, 40), leaf(12, 40), leaf(12)
    results = []
    for _ in range(2):
        same, y = exact_linear(x, weight, bias, tap=True, **FUSED)
        results.append([y, *torch.autograd.grad(y.sum() + same.sum(), (x, weight, bias))])
    assert all(map(torch.equal, *results))
    exact = exact_copy((x, weight, bias))
    same, y = exact_linear(*exact, tap=True)
    targets = torch.autograd.grad(y.sum() + same.sum(), exact)
    for gradient, target in zip(results[0][1:], targets, strict=True):
        assert relative_error(gradient.cpu(), target) < 1e-5


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8)], ids=str)
def test_fused_map_of_nothing_is_empty(shape):
    x, weight, bias = leaf(*shape), leaf(3, 8), leaf(3)
    same, y = exact_linear(x, weight, bias, tap=True, **FUSED)
    assert same.shape == shape
    assert y.shape == (*shape[:2], 3)
    y.sum().backward()
    assert torch.equal(weight.grad, torch.zeros_like(weight))
    assert torch.equal(bias.grad, torch.zeros_like(bias))


@pytest.mark.parametrize("tap", [False, True], ids=["plain", "tap"])
def test_fused_map_gives_no_second_derivative(tap):
    x, weight = leaf(1, 4, 8), leaf(3, 8)
    result = exact_linear(x, weight, tap=tap, **FUSED)
    (first,) = torch.autograd.grad(
        (result[1] if tap else result).square().sum(), x, create_graph=True
    )
    with pytest.raises(RuntimeError):
        first.sum().backward()


def test_what_does_not_fit_is_refused():
    x = torch.randn(1, 2, 12, device=DEVICE)
    with pytest.raises(ValueError, match="axis D is 10"):
        exact_linear(x, x.new_ones(3, 10))
    with pytest.raises(ValueError, match="takes 1 to 64 outputs, got 65"):
        exact_linear(x, x.new_ones(65, 12), **FUSED)
    with pytest.raises(ValueError, match="form='chunk' does not exist"):
        exact_linear(x, x.new_ones(3, 12), form="chunk")


@pytest.mark.parametrize("form", ["reference", "triton"])
def test_a_tapped_input_without_gradient_stays_without(form):
    x = torch.randn(1, 2, 4, device=DEVICE)
    weight = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    same, y = exact_linear(x, weight, tap=True, form=form)
    assert not same.requires_grad
    y.sum().backward()
    assert torch.allclose(weight.grad, x.sum((0, 1)).expand(3, 4), atol=1e-6)
