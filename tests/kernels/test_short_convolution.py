import itertools

import pytest
import torch
from numerics import FORWARD, GRADIENT, relative_error

from fracdna_kernels import short_convolution

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# the interpreter has no bfloat16, compiled kernels have no float64
FUSED_DTYPES = [torch.float32, torch.bfloat16 if DEVICE == "cuda" else torch.float64]
BFLOAT16 = {"y": 5e-3, "final_state": 1e-6, "dx": 6e-3, "dinitial_state": 4e-3}


def make(length, *, batch=2, channels=5, taps=4, sequences=None):
    return {
        "x": torch.randn(batch, length, channels, dtype=torch.float64),
        "weight": torch.randn(channels, taps, dtype=torch.float64),
        "bias": torch.randn(channels, dtype=torch.float64),
        "initial_state": torch.randn(sequences or batch, channels, taps - 1, dtype=torch.float64),
    }


def run(inputs, form, dtype, **options):
    inputs = {name: x.to(dtype).requires_grad_() for name, x in inputs.items()}
    y, state = short_convolution(**inputs, form=form, **options)
    loss = (y * torch.arange(1, y.numel() + 1, dtype=dtype).view_as(y).cos()).sum()
    loss = loss + (state * state).sum()
    gradients = torch.autograd.grad(loss, list(inputs.values()), materialize_grads=True)
    result = {"y": y, "final_state": state}
    return result | {f"d{name}": g for name, g in zip(inputs, gradients, strict=True)}


def assert_same(result, reference, dtype):
    for name, expected in reference.items():
        table = GRADIENT if name.startswith("d") else FORWARD
        assert relative_error(result[name], expected) <= table[dtype], name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("form", ["chunk", "recurrent"])
@pytest.mark.parametrize("taps", [1, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 17, 70])
def test_forms_agree_with_the_reference(length, taps, form, dtype):
    """Also where the sequence is shorter than the window."""
    inputs = make(length, taps=taps)
    expected = run(inputs, "reference", torch.float64, activation="silu")
    assert_same(run(inputs, form, dtype, activation="silu"), expected, dtype)


@pytest.mark.parametrize(
    "bounds", [[0, 15], [0, 0, 16], [0, 1, 3, 20], [0, 0, 0], [0, 2, 2, 19], [3, 9, 18]], ids=str
)
def test_packed_windows_never_cross_a_border(bounds):
    inputs = make(20, batch=1, sequences=len(bounds) - 1)
    packed = {"cu_seqlens": torch.tensor(bounds)}
    result = run(inputs, "chunk", torch.float64, **packed)
    assert_same(result, run(inputs, "reference", torch.float64, **packed), torch.float64)
    assert (result["y"][:, bounds[-1] :] == 0).all()
    assert (result["y"][:, : bounds[0]] == 0).all()
    assert (result["dx"][:, bounds[-1] :] == 0).all()


def test_state_is_the_last_inputs_also_of_a_short_sequence():
    """Oldest first, taken from state and input together."""
    inputs = make(2, taps=4)
    _, state = short_convolution(**inputs)
    expected = torch.cat([inputs["initial_state"], inputs["x"].mT], dim=-1)[..., -3:]
    assert torch.equal(state, expected)


@pytest.mark.parametrize("split", [[30], [1] * 30, [1, 2, 27], [0, 30]])
def test_any_split_gives_one_pass(split):
    inputs = make(30)
    whole, final = short_convolution(**inputs, activation="silu")
    state, pieces = inputs["initial_state"], []
    for piece in inputs["x"].split(split, dim=1):
        y, state = short_convolution(
            piece, inputs["weight"], inputs["bias"], activation="silu", initial_state=state
        )
        pieces.append(y)
    assert relative_error(torch.cat(pieces, dim=1), whole) < 1e-12
    assert torch.equal(state, final)


def test_wrong_use_is_named():
    inputs = make(5)
    with pytest.raises(ValueError, match="activation='relu'"):
        short_convolution(**inputs, activation="relu")
    for readers in (0, 4):
        with pytest.raises(ValueError, match=f"readers={readers} must be 1 to 3"):
            short_convolution(**inputs, readers=readers)
    with pytest.raises(ValueError, match="axis D"):
        short_convolution(**inputs | {"bias": torch.zeros(4)})
    with pytest.raises(ValueError, match="axis S"):
        short_convolution(**inputs | {"initial_state": torch.zeros(2, 5, 4)})
    with pytest.raises(ValueError, match="one sequence per row"):
        short_convolution(**make(5, batch=1), cu_seqlens=torch.tensor([0, 5]), form="recurrent")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Interpreted programs take as long as the rows that they might hold."""
    from fracdna_kernels.short_convolution import triton_form

    if DEVICE == "cpu":
        monkeypatch.setattr(triton_form, "_FORWARD_ROWS", 3)


@pytest.fixture(params=["one tile", "many tiles"])
def tiles(request, monkeypatch):
    """Backward programs of a few positions, or of whole sequences."""
    from fracdna_kernels.short_convolution import triton_form

    if request.param == "many tiles":
        monkeypatch.setattr(triton_form, "_SLOTS", 1)


def outcome(form, inputs, incoming, **options):
    """Results, and gradients where `incoming` is the gradient of y and of the final state."""
    device = DEVICE if form == "triton" else "cpu"
    leaves = {name: x.detach().to(device).requires_grad_() for name, x in inputs.items()}
    options = {k: v.to(device) if torch.is_tensor(v) else v for k, v in options.items()}
    results = short_convolution(**leaves, **options, form=form)
    pairs = zip(results, incoming, strict=True)
    used = [(x, g.to(x)) for x, g in pairs if x.requires_grad and g is not None]
    outputs, incoming = zip(*used, strict=True)
    leaf_list = list(leaves.values())
    gradients = torch.autograd.grad(outputs, leaf_list, incoming, materialize_grads=True)
    names = ["y", "final_state", *(f"d{name}" for name in leaves)]
    return {n: x.detach().cpu() for n, x in zip(names, (*results, *gradients), strict=True)}


def assert_fused_is_right(inputs, dtype, incoming, **options):
    """The form "triton" against the reference in float64 on the same numbers."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    inputs = {name: x.to(dtype if name == "x" else exact) for name, x in inputs.items()}
    doubles = {name: x.double() for name, x in inputs.items()}
    expected = outcome("reference", doubles, incoming, **options)
    result = outcome("triton", inputs, incoming, **options)
    assert result["y"].dtype == dtype
    assert result["final_state"].dtype == exact
    for name, value in expected.items():
        table = GRADIENT if name.startswith("d") else FORWARD
        limit = BFLOAT16.get(name, 8e-3) if dtype == torch.bfloat16 else table[dtype]
        if value.numel() == 1:
            limit *= 5  # one sum whose terms cancel: there is no mean to relate it to
        assert relative_error(result[name], value) <= limit, name
    return result


def gradients_of(inputs, sequences):
    taps = inputs["weight"].shape[1]
    shape = (sequences, inputs["x"].shape[2], taps - 1)
    return torch.randn_like(inputs["x"]), torch.randn(shape, dtype=torch.float64)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("dtype", FUSED_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("length", "taps", "channels"),
    [(1, 4, 5), (2, 4, 5), (3, 3, 8), (5, 1, 3), (9, 2, 1), (14, 4, 5), (6, 7, 5), (7, 4, 300)],
)
def test_fused_form_agrees_with_the_reference(length, taps, channels, dtype):
    """Also where the sequence is shorter than the window, or the window longer than a tile."""
    inputs = make(length, taps=taps, channels=channels)
    incoming = gradients_of(inputs, 2)
    activation = None if length == 3 else "silu"
    assert_fused_is_right(inputs, dtype, incoming, activation=activation)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(
    "bounds", [[0, 9], [0, 0, 10], [0, 1, 3, 13], [0, 0, 0], [2, 7, 7, 11]], ids=str
)
def test_fused_windows_never_cross_a_border(bounds):
    """Positions outside the bounds may hold anything and give 0, and so do their gradients."""
    inputs = make(13, batch=1, channels=3, sequences=len(bounds) - 1)
    outside = torch.ones(13, dtype=torch.bool)
    outside[bounds[0] : bounds[-1]] = False
    inputs["x"][:, outside] = torch.nan
    incoming = gradients_of(inputs, len(bounds) - 1)
    packed = {"cu_seqlens": torch.tensor(bounds), "activation": "silu"}
    result = assert_fused_is_right(inputs, FUSED_DTYPES[1], incoming, **packed)
    assert (result["y"][:, outside] == 0).all()
    assert (result["dx"][:, outside] == 0).all()


@pytest.mark.parametrize("used", ["y", "final_state"])
@pytest.mark.parametrize("present", list(itertools.product([True, False], repeat=2)), ids=str)
def test_fused_gradients_of_what_is_there(used, present):
    """Either result alone may be used, and bias and state may be missing."""
    inputs = make(5, channels=3)
    for name, there in zip(("bias", "initial_state"), present, strict=True):
        if not there:
            del inputs[name]
    dy, dfinal = gradients_of(inputs, 2)
    incoming = (dy, None) if used == "y" else (None, dfinal)
    assert_fused_is_right(inputs, torch.float32, incoming, activation="silu")


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 5, 0)], ids=str)
def test_fused_form_takes_empty_inputs(shape):
    """No row, no position or no channel; a state passes through, and so does its gradient."""
    batch, length, channels = shape
    inputs = make(length, batch=batch, channels=channels)
    inputs["initial_state"] = torch.randn(batch, channels, 3, dtype=torch.float64)
    inputs = {name: x.float() for name, x in inputs.items()}
    incoming = [g.float() for g in gradients_of(inputs, batch)]
    result = outcome("triton", inputs, incoming)
    if length == 0:
        assert torch.equal(result["final_state"], inputs["initial_state"])
        assert torch.equal(result["dinitial_state"], incoming[1])
    assert result["dx"].shape == shape
    assert (result["dweight"] == 0).all()
    assert (result["dbias"] == 0).all()
    none = torch.zeros(1, dtype=torch.int32, device=DEVICE)  # bounds of no sequence
    x, weight = torch.randn(1, 5, 3, device=DEVICE), torch.randn(3, 4, device=DEVICE)
    y, final = short_convolution(x, weight, cu_seqlens=none, form="triton")
    assert (y == 0).all()
    assert final.shape == (0, 3, 3)


def test_fused_form_takes_any_strides():
    """Half of a projection, transposed axes, an expanded gradient: the numbers of copies."""
    weight, bias = torch.randn(6, 4, device=DEVICE), torch.randn(6, device=DEVICE)
    views = [
        torch.randn(2, 5, 12, device=DEVICE).chunk(2, dim=-1)[0],
        torch.randn(2, 6, 5, device=DEVICE).mT,
        torch.randn(5, 2, 6, device=DEVICE).transpose(0, 1),
        torch.randn(1, 5, 6, device=DEVICE).expand(2, 5, 6),
    ]
    for view in views:
        results = []
        for x in (view, view.clone(memory_format=torch.contiguous_format)):
            x = x.detach().requires_grad_()
            y, state = short_convolution(x, weight, bias, activation="silu", form="triton")
            (gradient,) = torch.autograd.grad(y.sum() + state.mT.sum(), x)
            results.append((y, state, gradient))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_fused_form_repeats_to_the_last_bit():
    inputs = {name: x.float() for name, x in make(20).items()}
    incoming = gradients_of(inputs, 2)
    once, again = (outcome("triton", inputs, incoming, activation="silu") for _ in range(2))
    assert all(torch.equal(once[name], again[name]) for name in once)


def test_fused_prefill_and_single_steps_give_one_pass():
    inputs = {name: x.float().to(DEVICE) for name, x in make(12).items()}
    weights = inputs["weight"], inputs["bias"]
    options = {"activation": "silu", "form": "triton"}
    whole, final = short_convolution(**inputs, **options)
    state, pieces = inputs["initial_state"], []
    for piece in inputs["x"].split([7, 1, 1, 3], dim=1):
        y, state = short_convolution(piece, *weights, initial_state=state, **options)
        pieces.append(y)
    assert relative_error(torch.cat(pieces, dim=1), whole) < 1e-6
    assert torch.equal(state, final)


@pytest.mark.skipif(DEVICE == "cuda", reason="compiled kernels have no float64")
@pytest.mark.parametrize("packed", [False, True])
def test_fused_gradients_are_those_of_the_numbers(packed):
    inputs = make(3, batch=1, channels=2, taps=3, sequences=2 if packed else 1)
    bounds = torch.tensor([0, 1, 3]) if packed else None

    def call(*leaves):
        named = dict(zip(inputs, leaves, strict=True))
        return short_convolution(**named, cu_seqlens=bounds, activation="silu", form="triton")

    leaves = [x.requires_grad_() for x in inputs.values()]
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_fused_operators_are_registered_well(packed):
    """Shapes, strides and gradients under tracing; a second derivative is refused."""
    inputs = {name: x.float().to(DEVICE) for name, x in make(5, batch=1, channels=2).items()}
    bounds = torch.tensor([0, 4], device=DEVICE) if packed else None
    y, final = short_convolution(**inputs, cu_seqlens=bounds, form="triton")
    operators = torch.ops.fracdna
    torch.library.opcheck(
        operators.short_convolution_backward,
        (y, None, y.clone(), final, *inputs.values(), bounds, True),
    )
    leaves = [x.requires_grad_() for x in inputs.values()]
    torch.library.opcheck(operators.short_convolution, (*leaves, bounds, True))
    y, _ = short_convolution(**inputs, form="triton", activation="silu")
    (dx,) = torch.autograd.grad(y.square().sum(), inputs["x"], create_graph=True)
    with pytest.raises(RuntimeError, match="short_convolution_backward"):
        dx.sum().backward()


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("form", ["chunk", "triton"])
@pytest.mark.parametrize("used", [(0,), (1, 2), (0, 1, 2), ()], ids=str)
@pytest.mark.parametrize("strides", ["alike", "different"])
def test_each_reader_has_its_output(form, used, strides):
    """All are y, and x receives the sum of what those that are used send back."""
    device = DEVICE if form == "triton" else "cpu"
    inputs = {name: x.float().to(device).requires_grad_() for name, x in make(6).items()}
    options = {"activation": "silu", "form": form}
    ys, final = short_convolution(**inputs, readers=3, **options)
    y, expected_final = short_convolution(**inputs, **options)
    assert len(ys) == 3
    assert all(torch.equal(other, y) for other in ys)
    assert torch.equal(final, expected_final)
    sent = [torch.randn_like(y) for _ in used]
    if strides == "different":
        sent = [g.mT.contiguous().mT if i else g for i, g in enumerate(sent)]
    of_final = torch.randn_like(final)
    leaves = tuple(inputs.values())
    options = {"materialize_grads": True}
    outputs = *(ys[i] for i in used), final
    found = torch.autograd.grad(outputs, leaves, (*sent, of_final), **options)
    total = sum(sent, torch.zeros_like(y))
    wanted = torch.autograd.grad((y, expected_final), leaves, (total, of_final), **options)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_readers_compile_without_a_break():
    """As one output does."""
    inputs = {name: x.float().to(DEVICE) for name, x in make(6).items()}

    def call(x):
        (a, b), _ = short_convolution(**inputs | {"x": x}, readers=2, form="triton")
        return a * 2 + b.square()

    x = inputs["x"].clone().requires_grad_()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    found, wanted = (torch.autograd.grad(f(x).sum(), x)[0] for f in (compiled, call))
    torch.testing.assert_close(found, wanted)


def test_fused_form_compiles_without_a_break():
    inputs = {name: x.float().to(DEVICE) for name, x in make(6).items()}

    def call(x):
        half = torch.cat([x, x], dim=-1).chunk(2, dim=-1)[0]
        return short_convolution(**inputs | {"x": half}, activation="silu", form="triton")

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    x = inputs["x"].clone().requires_grad_()
    outputs = [function(x) for function in (compiled, call)]
    gradients = [torch.autograd.grad(y.square().sum() + s.sum(), x)[0] for y, s in outputs]
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert torch.equal(*gradients)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
def test_fused_step_runs_in_a_graph():
    """A captured decoding step gives, with changed inputs, what it gives outside."""
    inputs = {name: x.float().to(DEVICE) for name, x in make(1).items()}
    options = {"activation": "silu", "form": "triton"}
    short_convolution(**inputs, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = short_convolution(**inputs, **options)
    for x in inputs.values():
        x.normal_()
    graph.replay()
    expected = short_convolution(**inputs, **options)
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
def test_fused_offsets_pass_two_to_the_31():
    """The last rows of a tensor of more than 2^31 elements equal those rows alone."""
    x = torch.zeros(1, (1 << 22) + 5, 513, dtype=torch.bfloat16, device=DEVICE)
    x[:, -40:] = torch.randn(1, 40, 513, device=DEVICE)
    weight = torch.randn(513, 4, device=DEVICE)
    y, state = short_convolution(x, weight, form="triton")
    last, expected = short_convolution(x[:, -40:], weight, form="triton")
    assert torch.equal(y[:, -40:], last)
    assert torch.equal(state, expected)


def test_fused_form_says_why_it_cannot_run(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="needs a CUDA device, got cpu"):
        short_convolution(**make(5), form="triton")


@pytest.mark.parametrize("form", ["reference", "chunk"])
def test_what_is_not_finite_outside_the_bounds_reaches_no_gradient(form):
    x = torch.randn(1, 5, 4, dtype=torch.float64)
    x[:, 0], x[:, 3:] = torch.nan, torch.inf
    weight = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    y, _ = short_convolution(x, weight, cu_seqlens=torch.tensor([1, 3]), form=form)
    y.sum().backward()
    assert weight.grad.isfinite().all()
