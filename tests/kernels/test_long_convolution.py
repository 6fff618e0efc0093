from itertools import pairwise

import pytest
import torch
from numerics import FORWARD, GRADIENT, relative_error

from fracdna_kernels import long_convolution
from fracdna_kernels.long_convolution import chunk

ALL_FORMS = ["reference", "chunk", "recurrent"]
BOUNDS = [
    [0, 15],
    [0, 0, 16],
    [0, 1, 100, 130],
    [0, 0, 0],
    [0, 64, 64, 128],
    [0, 65],
    [7, 7, 80, 100],
    [3, 40, 130, 130],
]


def make(length, taps, *, batch=2, channels=3, sequences=None):
    return {
        "x": torch.randn(batch, length, channels, dtype=torch.float64),
        "filter": torch.randn(channels, taps, dtype=torch.float64),
        "skip": torch.randn(channels, dtype=torch.float64),
        "initial_state": torch.randn(sequences or batch, channels, taps - 1, dtype=torch.float64),
    }


def run(inputs, form, dtype, **options):
    """Outputs and gradients by name; everything but x stays in float32 beside bfloat16."""
    kept = torch.promote_types(dtype, torch.float32)
    inputs = {n: x.to(dtype if n == "x" else kept).requires_grad_() for n, x in inputs.items()}
    y, state = long_convolution(**inputs, form=form, **options)
    weight = torch.arange(1, y.numel() + 1, dtype=torch.float64).view_as(y).cos()
    loss = (y * weight.to(y)).sum() + (state * state).sum()
    gradients = torch.autograd.grad(loss, list(inputs.values()), materialize_grads=True)
    result = {"y": y, "final_state": state}
    return result | {f"d{name}": g for name, g in zip(inputs, gradients, strict=True)}


def assert_same(result, reference, dtype):
    for name, expected in reference.items():
        table = GRADIENT if name.startswith("d") else FORWARD
        assert relative_error(result[name], expected) <= table[dtype], name


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request, monkeypatch):
    """Whole sequences at once, or a few positions or three filters at a time."""
    if request.param == "many blocks":
        monkeypatch.setattr(chunk, "BLOCK", 5)
        monkeypatch.setattr(chunk, "LEAST_BLOCK", 1)


@pytest.mark.parametrize("form", ALL_FORMS)
@pytest.mark.parametrize("taps", [1, 4, 9, 14])
def test_forms_are_the_sum_over_the_past(taps, form):
    """y_t = skip x_t + sum_l filter_l x_{t-l}, written out, with the state as the earlier past."""
    inputs = make(9, taps)
    y, final = long_convolution(**inputs, form=form)
    x, state = inputs["x"], inputs["initial_state"]
    for b in range(2):
        for c in range(3):
            past = [*state[b, c].tolist(), *x[b, :, c].tolist()]
            for t in range(9):
                expected = inputs["skip"][c].item() * x[b, t, c].item()
                for lag in range(taps):
                    expected += inputs["filter"][c, lag].item() * past[taps - 1 + t - lag]
                assert y[b, t, c].item() == pytest.approx(expected, abs=1e-12)
            assert final[b, c].tolist() == past[9:]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("form", ["chunk", "recurrent"])
@pytest.mark.parametrize("taps", [1, 2, 17, 63, 200])
@pytest.mark.parametrize("length", [1, 2, 15, 63, 100])
def test_forms_agree_with_the_reference(length, taps, form, dtype):
    """Output, state and all gradients, with filters shorter and longer than the sequence."""
    inputs = make(length, taps)
    assert_same(run(inputs, form, dtype), run(inputs, "reference", torch.float64), dtype)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("taps", [30, 1000])
def test_chunk_agrees_over_a_long_sequence(taps):
    inputs = make(1000, taps, batch=1, channels=2)
    expected = run(inputs, "recurrent", torch.float64)
    assert_same(run(inputs, "chunk", torch.float64), expected, torch.float64)
    assert_same(run(inputs, "chunk", torch.float32), expected, torch.float32)


def test_bfloat16_inputs_lose_no_more_than_their_results_round():
    """Sums are float32 whatever the input; the state holds inputs, which are exact."""
    inputs = make(300, 300)
    inputs["x"] = inputs["x"].bfloat16().double()
    result = run(inputs, "chunk", torch.bfloat16)
    assert (result["y"].dtype, result["final_state"].dtype) == (torch.bfloat16, torch.float32)
    assert result["dfilter"].dtype == torch.float32
    expected = run(inputs, "recurrent", torch.float64)
    assert_same(result, expected, torch.bfloat16)
    assert relative_error(result["final_state"], expected["final_state"]) < 1e-6


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("taps", [1, 5, 130])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_packed_rows_agree_with_the_reference(bounds, taps, dtype):
    """Every sequence restarts from its own state; positions outside the bounds give 0."""
    inputs = make(130, taps, batch=1, channels=2, sequences=len(bounds) - 1)
    packed = {"cu_seqlens": torch.tensor(bounds)}
    result = run(inputs, "chunk", dtype, **packed)
    assert_same(result, run(inputs, "reference", torch.float64, **packed), dtype)
    for name in ("y", "dx"):
        assert (result[name][:, bounds[-1] :] == 0).all()
        assert (result[name][:, : bounds[0]] == 0).all()


def test_packed_equals_separate():
    """Packing changes nothing for any of the sequences."""
    bounds = [0, 1, 64, 90]
    inputs = make(90, 50, batch=1, sequences=3)
    x, state = inputs.pop("x"), inputs.pop("initial_state")
    packed, final = long_convolution(
        x, **inputs, initial_state=state, cu_seqlens=torch.tensor(bounds)
    )
    for n, (start, end) in enumerate(pairwise(bounds)):
        alone, last = long_convolution(
            x[:, start:end], **inputs, initial_state=state[n : n + 1], form="chunk"
        )
        assert relative_error(packed[:, start:end], alone) < 1e-12
        assert torch.equal(final[n : n + 1], last)


@pytest.mark.parametrize("taps", [1, 10, 100, 150])
@pytest.mark.parametrize("split", [[100], [1] * 100, [1, 62, 37], [64, 36], [0, 99, 1]], ids=str)
def test_any_split_with_carried_state_gives_one_pass(split, taps):
    """Prefill and single steps, each by the form that "auto" takes for it."""
    inputs = make(100, taps)
    x, state = inputs.pop("x"), inputs.pop("initial_state")
    whole, final = long_convolution(x, **inputs, initial_state=state)
    pieces = []
    for piece in x.split(split, dim=1):
        y, state = long_convolution(piece, **inputs, initial_state=state)
        pieces.append(y)
    assert relative_error(torch.cat(pieces, dim=1), whole) < 1e-11
    assert torch.equal(state, final)


@pytest.mark.parametrize("form", ALL_FORMS)
def test_state_is_the_last_inputs_also_of_a_short_sequence(form):
    """Oldest first, taken from state and input together."""
    inputs = make(2, 6)
    _, state = long_convolution(**inputs, form=form)
    expected = torch.cat([inputs["initial_state"], inputs["x"].mT], dim=-1)[..., -5:]
    assert torch.equal(state, expected)


@pytest.mark.parametrize("form", ALL_FORMS)
def test_neither_state_nor_skip_are_zeros(form):
    inputs = make(20, 20)
    inputs["initial_state"].zero_()
    inputs["skip"].zero_()
    expected = long_convolution(**inputs, form=form)
    result = long_convolution(inputs["x"], inputs["filter"], form=form)
    assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


def test_transforms_are_not_too_short():
    """A unit impulse at the end is not seen at the start: nothing wraps around."""
    x = torch.zeros(1, 64, 1, dtype=torch.float64)
    x[0, -1] = 1.0
    taps = torch.ones(1, 64, dtype=torch.float64)
    y, _ = long_convolution(x, taps, form="chunk")
    assert y[0, :-1].abs().max() < 1e-14
    assert y[0, -1].item() == pytest.approx(1.0)


@pytest.mark.parametrize("least", [*range(1, 50), 131071, 131073])
def test_lengths_of_transforms_are_even_and_smooth(least):
    size = chunk._fast_length(least)
    assert least <= size <= max(2 * least, 2)
    assert size % 2 == 0
    assert pow(30, 64, size) == 0  # no prime factor above 5


def test_spectra_of_long_sequences_are_bounded(monkeypatch):
    """No transform is longer than a block and its past, whatever the length."""
    monkeypatch.setattr(chunk, "BLOCK", 100)
    sizes = []
    original = torch.fft.rfft

    def watched(x, n):
        sizes.append((n, x.shape[-1]))
        return original(x, n)

    monkeypatch.setattr(chunk, "rfft", watched)
    x = torch.randn(1, 1000, 2, requires_grad=True)
    y, _ = long_convolution(x, torch.randn(2, 11))
    y.sum().backward()
    assert {n for n, _ in sizes} == {120}
    assert max(width for _, width in sizes) == 110


@pytest.mark.parametrize("form", ALL_FORMS)
def test_right_padding_and_the_future_change_nothing(form):
    inputs = make(70, 70, batch=1)
    before, _ = long_convolution(**inputs, form=form)
    longer = torch.cat([inputs["x"], torch.full((1, 9, 3), 9.0, dtype=torch.float64)], dim=1)
    after, _ = long_convolution(**inputs | {"x": longer}, form=form)
    assert relative_error(after[:, :70], before) < 1e-13


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("taps", [1, 3, 9])
@pytest.mark.parametrize("bounds", [None, [1, 4, 6]])
def test_gradients_pass_gradcheck(bounds, taps):
    inputs = make(7, taps, batch=1, channels=2, sequences=2 if bounds else 1)
    options = {"cu_seqlens": torch.tensor(bounds)} if bounds else {}
    leaves = [x.requires_grad_() for x in inputs.values()]

    def call(*leaves):
        named = dict(zip(inputs, leaves, strict=True))
        return long_convolution(**named, **options, form="chunk")

    assert torch.autograd.gradcheck(call, leaves)


@pytest.mark.parametrize("wanted", ["y", "final_state"])
def test_gradients_of_each_result_alone(wanted):
    inputs = make(40, 25)
    results = []
    for form in ALL_FORMS:
        leaves = [x.clone().requires_grad_() for x in inputs.values()]
        y, state = long_convolution(*leaves[:3], initial_state=leaves[3], form=form)
        loss = y.sin().sum() if wanted == "y" else state.sin().sum()
        results.append(torch.autograd.grad(loss, leaves, materialize_grads=True))
    for expected, *gradients in zip(*results, strict=True):
        assert all(relative_error(gradient, expected) < 1e-10 for gradient in gradients)
    assert results[0][0].abs().sum() > 0


def test_second_derivatives_are_refused():
    inputs = {n: x.requires_grad_() for n, x in make(9, 5).items()}
    y, _ = long_convolution(**inputs)
    (dx,) = torch.autograd.grad(y.square().sum(), inputs["x"], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


@pytest.mark.parametrize("form", ALL_FORMS)
def test_strided_inputs_and_expanded_gradients(form):
    """Views are accepted, and a plain .sum().backward() hands in an expanded gradient."""
    inputs = make(20, 12)
    plain, _ = long_convolution(**inputs, form="reference")
    inputs["x"] = torch.stack([inputs["x"]] * 2, dim=-1)[..., 1].requires_grad_()
    inputs["filter"] = inputs["filter"].mT.contiguous().mT
    y, _ = long_convolution(**inputs, form=form)
    assert relative_error(y, plain) < 1e-12
    y.sum().backward()
    assert torch.isfinite(inputs["x"].grad).all()


@pytest.mark.parametrize("form", ALL_FORMS)
@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 5, 0), (0, 0, 3)], ids=str)
def test_empty_inputs_are_legal(shape, form):
    """No row, no position or no channel; a state passes through, and so does its gradient."""
    batch, length, channels = shape
    inputs = make(length, 4, batch=batch, channels=channels)
    inputs["initial_state"] = torch.randn(batch, channels, 3, dtype=torch.float64)
    inputs = {n: x.requires_grad_() for n, x in inputs.items()}
    y, final = long_convolution(**inputs, form=form)
    assert y.shape == shape
    assert final.shape == (batch, channels, 3)
    if batch and not length:
        assert torch.equal(final, inputs["initial_state"])
        (gradient,) = torch.autograd.grad(final.sum(), inputs["initial_state"])
        assert (gradient == 1).all()


@pytest.mark.parametrize("form", ["reference", "chunk"])
def test_bounds_of_no_sequence_give_zeros(form):
    none = torch.zeros(1, dtype=torch.int32)
    y, final = long_convolution(torch.randn(1, 5, 3), torch.randn(3, 4), cu_seqlens=none, form=form)
    assert (y == 0).all()
    assert final.shape == (0, 3, 3)


@pytest.mark.parametrize("form", ["reference", "chunk"])
def test_what_is_not_finite_outside_the_bounds_reaches_no_gradient(form):
    x = torch.randn(1, 5, 4, dtype=torch.float64)
    x[:, 0], x[:, 3:] = torch.nan, torch.inf
    taps = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    skip = torch.randn(4, dtype=torch.float64, requires_grad=True)
    y, _ = long_convolution(x, taps, skip, cu_seqlens=torch.tensor([1, 3]), form=form)
    y.sum().backward()
    assert taps.grad.isfinite().all()
    assert skip.grad.isfinite().all()


@pytest.mark.parametrize("taps", [5, 130])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_sequence(bad, taps):
    bounds = torch.tensor([0, 65, 130])
    inputs = make(130, taps, batch=1, sequences=2)
    clean, state = long_convolution(**inputs, cu_seqlens=bounds)
    inputs["x"][:, 10] = bad
    inputs["initial_state"][0] = bad
    spoiled, after = long_convolution(**inputs, cu_seqlens=bounds)
    assert torch.equal(spoiled[:, 65:], clean[:, 65:])
    assert torch.equal(after[1], state[1])


def test_equal_calls_give_equal_bits():
    inputs = {name: x.float() for name, x in make(300, 300).items()}
    once, again = (run(inputs, "chunk", torch.float32) for _ in range(2))
    assert all(torch.equal(once[name], again[name]) for name in once)


def test_autocast_does_not_round():
    inputs = {name: x.float() for name, x in make(70, 40).items()}
    expected = long_convolution(**inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = long_convolution(**inputs)
    assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


@pytest.mark.no_cover  # the compiler is Python too, which the tracer would slow down
@pytest.mark.parametrize("bounds", [None, [0, 3, 16]])
def test_chunk_compiles_without_a_break(bounds):
    inputs = make(20, 12, batch=1, sequences=2 if bounds else 1)
    inputs = {n: x.requires_grad_() for n, x in inputs.items()}
    packed = None if bounds is None else torch.tensor(bounds)

    def call(**inputs):
        return long_convolution(**inputs, cu_seqlens=packed, form="chunk")

    results = []
    for function in (torch.compile(call, fullgraph=True, backend="aot_eager"), call):
        y, state = function(**inputs)
        loss = y.square().sum() + state.sum()
        results.append((y, state, *torch.autograd.grad(loss, list(inputs.values()))))
    for value, right in zip(*results, strict=True):
        assert relative_error(value, right) < 1e-13


def test_auto_takes_the_sum_for_one_position_without_gradients(monkeypatch):
    """A transform of the whole past for one output would cost more; there is no fused form."""
    from fracdna_kernels.long_convolution import FORMS

    taken = []
    for form in ALL_FORMS:
        monkeypatch.setitem(FORMS, form, lambda x, *_, form=form: (taken.append(form), (x, x))[1])
    one = make(1, 5)
    long_convolution(**one)
    long_convolution(**make(2, 5))
    long_convolution(**one | {"filter": one["filter"].requires_grad_()})
    assert taken == ["recurrent", "chunk", "chunk"]
    with pytest.raises(ValueError, match="form='triton' does not exist here"):
        long_convolution(**one, form="triton")


def test_wrong_use_is_named():
    inputs = make(5, 4)
    with pytest.raises(ValueError, match="axis D is 4 in skip"):
        long_convolution(**inputs | {"skip": torch.zeros(4)})
    with pytest.raises(ValueError, match="axis S is 4 in initial_state"):
        long_convolution(**inputs | {"initial_state": torch.zeros(2, 3, 4)})
    with pytest.raises(ValueError, match="at least one tap"):
        long_convolution(inputs["x"], inputs["filter"][:, :0])
    with pytest.raises(ValueError, match="x needs a floating-point dtype"):
        long_convolution(inputs["x"].long(), inputs["filter"])
    with pytest.raises(ValueError, match="initial_state needs float32 or float64"):
        long_convolution(**inputs | {"initial_state": inputs["initial_state"].bfloat16()})
    with pytest.raises(ValueError, match="needs batch 1"):
        long_convolution(**inputs, cu_seqlens=torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="one sequence per row"):
        long_convolution(**make(5, 4, batch=1), cu_seqlens=torch.tensor([0, 5]), form="recurrent")
