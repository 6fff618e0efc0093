import pytest
import torch
from numerics import relative_error
from torch.nn.functional import silu

from fracdna_kernels import add_rms_norm, gated_rms_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILED = DEVICE == "cuda"
FUSED = {"form": "triton"}
# outputs and gradients; bfloat16 needs compiled kernels
TOLERANCES = {torch.float32: (2e-6, 1e-5)}
if COMPILED:
    TOLERANCES[torch.bfloat16] = (5e-3, 8e-3)
TILES = pytest.mark.parametrize("programs", [1024, 2], ids=["many programs", "two programs"])


@pytest.fixture
def few_programs(programs, monkeypatch):
    """Two programs loop over all tiles, where 1024 would take one each."""
    from fracdna_kernels import triton_rows

    monkeypatch.setattr(triton_rows, "PROGRAMS", programs)


def leaf(*shape, dtype=torch.float32):
    return torch.randn(shape).to(DEVICE, dtype).requires_grad_()


def exact_copy(leaves):
    return [x.detach().cpu().double().requires_grad_() for x in leaves]


def check(call, leaves, dtype, **fused):
    """A fused call and its gradients against the reference in float64."""
    exact = exact_copy(leaves)
    limit, gradient_limit = TOLERANCES[dtype]
    outputs, expected = call(leaves, **FUSED, **fused), call(exact, form="reference")
    incoming = [torch.randn_like(x) for x in expected]
    for output, target in zip(outputs, expected, strict=True):
        assert relative_error(output.cpu(), target) < limit
    targets = torch.autograd.grad(expected, exact, incoming)
    incoming = [g.to(x) for g, x in zip(incoming, outputs, strict=True)]
    for gradient, target in zip(
        torch.autograd.grad(outputs, leaves, incoming), targets, strict=True
    ):
        assert relative_error(gradient.cpu(), target) < gradient_limit


def test_gated_norm_gates_before_it_normalises():
    """out = weight * t / rms(t), t = (x + D values) silu(gate + bias)."""
    x, gate, values = (torch.randn(2, 5, 8, dtype=torch.float64) for _ in range(3))
    weight, factor = (torch.randn(8, dtype=torch.float64) for _ in range(2))
    out = gated_rms_norm(x, gate, weight, gate_bias=0.3, skip=(values, factor), eps=1e-6)
    t = (x + factor * values) * silu(gate + 0.3)
    expected = weight * t / torch.sqrt((t * t).mean(-1, keepdim=True) + 1e-6)
    assert relative_error(out, expected) < 1e-14
    plain = gated_rms_norm(x, gate, weight)
    assert relative_error(plain, gated_rms_norm(x, gate, weight, skip=(values, 0 * factor))) == 0
    low = gated_rms_norm(x.bfloat16(), gate.bfloat16(), weight.float())
    assert low.dtype == torch.bfloat16
    assert relative_error(low, plain) < 1e-2


def test_norm_first_normalises_each_group_and_then_gates():
    """out = weight * y / rms(y of the group) * silu(gate), as a gated delta network does a head."""
    x, gate = (torch.randn(2, 5, 12, dtype=torch.float64) for _ in range(2))
    weight = torch.randn(4, dtype=torch.float64)
    out = gated_rms_norm(x, gate, weight, order="norm_first", group_size=4)
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        y = x[..., part]
        expected = weight * y / torch.sqrt((y * y).mean(-1, keepdim=True) + 1e-6)
        assert relative_error(out[..., part], expected * silu(gate[..., part])) < 1e-14
    repeated = gated_rms_norm(x, gate, weight.repeat(3), order="norm_first", group_size=4)
    assert torch.equal(repeated, out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 5}, "group_size=5 does not divide 12"),
        ({"group_size": 0}, "group_size=0"),
        ({"group_size": 6}, r"weight needs shape \(12,\) or \(6,\)"),
        ({"order": "both"}, "order='both'"),
        ({"form": "chunk"}, "form='chunk' does not exist"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(options, message):
    x = torch.randn(1, 2, 12)
    with pytest.raises(ValueError, match=message):
        gated_rms_norm(x, x, torch.ones(4 if "group_size" in options else 12), **options)


def test_rows_too_wide_for_a_kernel_are_refused():
    x = torch.empty(1, 0, 8193, device=DEVICE)
    with pytest.raises(ValueError, match="normalises up to 8192 channels, got 8193"):
        add_rms_norm(x, x, x.new_ones(8193), **FUSED)


@TILES
@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("order", ["gate_first", "norm_first"])
@pytest.mark.parametrize(
    ("channels", "group_size", "shared", "skip"),
    [
        (64, None, False, True),
        (24, 8, True, False),
        (36, 12, False, True),
        (300, None, True, False),
    ],
)
def test_fused_gated_norm_agrees_with_float64(channels, group_size, shared, skip, order, dtype):
    """Outputs and all gradients, of inputs that are parts of wider tensors."""
    size = group_size if shared and group_size else channels
    leaves = [leaf(2, 45, 2 * channels, dtype=dtype), leaf(2, 45, 2 * channels, dtype=dtype)]
    leaves += [leaf(size), *([leaf(channels)] if skip else [])]

    def call(leaves, form):
        pair, other, weight, *factor = leaves
        x, gate = pair.chunk(2, -1)
        values = other[..., :channels]
        # without a skip, the other tensor still has its gradient
        out = gated_rms_norm(
            x if skip else x + values, gate, weight, gate_bias=0.3, order=order,
            group_size=group_size, skip=(values, *factor) if skip else None, form=form,
        )  # fmt: skip
        return (out,)

    check(call, leaves, dtype)


@TILES
@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("channels", [32, 24, 300])
@pytest.mark.parametrize("parts", ["both", "no residual", "normed", "stream"])
def test_fused_add_norm_agrees_with_float64(parts, channels, dtype):
    """The float32 stream of a bfloat16 model; either output may go unused."""
    leaves = [leaf(2, 45, 2 * channels, dtype=dtype), leaf(channels)]
    leaves += [leaf(2, 45, channels)] if parts != "no residual" else []

    def call(leaves, form):
        x, weight, *residual = leaves
        x = x[..., channels:]
        normed, stream = add_rms_norm(x, residual[0] if residual else None, weight, form=form)
        if parts == "normed":
            return (normed,)
        return (stream + 0 * weight,) if parts == "stream" else (normed, stream)

    check(call, leaves, dtype)


def test_the_stream_keeps_the_wider_dtype_and_the_norm_suits_the_next_map():
    """float32 stream, bfloat16 branch: normed in the dtype of autocast, else that of x."""
    branch, stream, weight = leaf(1, 3, 8, dtype=torch.bfloat16), leaf(1, 3, 8), leaf(8)
    for form in ("reference", "triton"):
        dtypes = [t.dtype for t in add_rms_norm(branch, stream, weight, form=form)]
        assert dtypes == [torch.bfloat16, torch.float32]
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            normed, same = add_rms_norm(stream, None, weight, form=form)
            assert normed.dtype == torch.bfloat16
            assert same is stream
        normed, total = add_rms_norm(branch, stream, weight, out_dtype=torch.float32, form=form)
        assert normed.dtype == total.dtype == torch.float32
        gradients = torch.autograd.grad(normed.sum() + total.sum(), (branch, stream, weight))
        assert [g.dtype for g in gradients] == [torch.bfloat16, torch.float32, torch.float32]
        exact = exact_copy((branch, stream, weight))
        expected = sum(t.sum() for t in add_rms_norm(*exact))
        for gradient, target in zip(gradients, torch.autograd.grad(expected, exact), strict=True):
            assert relative_error(gradient.cpu(), target) < 8e-3


@pytest.mark.skipif(COMPILED, reason="float64 runs in the interpreter")
def test_fused_norm_gradients_pass_gradcheck():
    double = lambda *shape: leaf(*shape, dtype=torch.float64)  # noqa: E731
    x, gate, values = double(1, 3, 6), double(1, 3, 6), double(1, 3, 6)
    for order in ("gate_first", "norm_first"):
        call = lambda x, gate, weight, values, factor, o=order: gated_rms_norm(  # noqa: E731
            x, gate, weight, skip=(values, factor), order=o, group_size=3, **FUSED
        )
        leaves = [x, gate, double(3), values, double(6)]
        assert torch.autograd.gradcheck(call, leaves, fast_mode=True)
    for leaves in ([x, values, double(6)], [x, None, double(6)]):
        call = lambda *leaves: add_rms_norm(*leaves, **FUSED)  # noqa: E731
        assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


def test_fused_norms_are_operators_of_pytorch():
    """Schemas, fake kernels and autograd registrations hold; compilation needs no break."""
    from fracdna_kernels.add_rms_norm import triton_form as add
    from fracdna_kernels.gated_rms_norm import triton_form as gated

    x, y, z, weight = (*(leaf(1, 3, 8) for _ in range(3)), leaf(8))
    options = 0.0, z, weight, "gate_first", 8, 1e-6
    torch.library.opcheck(add._add_norm.registered, (x, y, weight, 1e-6, torch.float32))
    torch.library.opcheck(add._norm.registered, (x, weight, 1e-6, torch.float32))
    torch.library.opcheck(gated._norm.registered, (x, y, weight, *options))

    def call(x, y, z, weight):
        normed, stream = add_rms_norm(x, y, weight, **FUSED)
        return gated_rms_norm(normed, stream, weight, skip=(z, weight), **FUSED)

    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        output = compiled(x, y, z, weight)
        assert torch.equal(output, call(x, y, z, weight))
    output.sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (x, y, z, weight))


def test_fused_norms_take_expanded_gradients_and_repeat_bit_by_bit():
    x, residual, weight = leaf(2, 70, 40), leaf(2, 70, 40), leaf(40)
    results = []
    for _ in range(2):
        normed, stream = add_rms_norm(x, residual, weight, **FUSED)
        out = gated_rms_norm(normed, stream, weight, **FUSED)
        results.append([out, *torch.autograd.grad(out.sum(), (x, residual, weight))])
    assert all(map(torch.equal, *results))
    exact = exact_copy((x, residual, weight))
    normed, stream = add_rms_norm(*exact)
    expected = gated_rms_norm(normed, stream, exact[2])
    targets = torch.autograd.grad(expected.sum(), exact)
    for gradient, target in zip(results[0][1:], targets, strict=True):
        assert relative_error(gradient.cpu(), target) < 1e-5


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8)], ids=str)
def test_fused_norms_of_nothing_are_empty(shape):
    x, residual, weight = leaf(*shape), leaf(*shape), leaf(8)
    normed, stream = add_rms_norm(x, residual, weight, **FUSED)
    out = gated_rms_norm(normed, stream, weight, skip=(x, weight), **FUSED)
    assert normed.shape == stream.shape == out.shape == shape
    out.sum().backward()
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_fused_norms_give_no_second_derivative():
    x, residual, weight = leaf(1, 4, 8), leaf(1, 4, 8), leaf(8)
    for output in (
        add_rms_norm(x, residual, weight, **FUSED)[0],
        gated_rms_norm(x, residual, weight, **FUSED),
    ):
        (first,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError):
            first.sum().backward()
