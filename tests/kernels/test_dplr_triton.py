"""The Triton form of dplr_delta_rule: compiled on a CUDA device, else in Triton's interpreter."""

import importlib

import pytest
import torch
from delta_cases import make, rounded, run
from numerics import relative_error
from scan_cases import BOUNDS, KINDS, assert_same

from fracdna_kernels.delta_rule import dplr_delta_rule

NAME = "dplr_delta_rule"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# bfloat16 is not multiplied in the interpreter as on a device
DTYPES = [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float32]
EXACT = torch.float64 if DEVICE == "cpu" else torch.float32
ON_GPU = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
SLOW_KINDS = ("zero", "fast", "jump first", "jump last")
SLOW_BOUNDS = ([0, 15], [0, 64, 64, 128], [0, 1, 100, 130], [0, 65])


@pytest.fixture
def form():
    """The module of the form, imported as late as the operator does it."""
    pytest.importorskip("triton")
    return importlib.import_module("fracdna_kernels.delta_rule.triton_dplr")


@pytest.fixture
def pieces(form, monkeypatch):
    """Sets the length of pieces, which is chosen from the sizes."""

    def fix(length):
        monkeypatch.setattr(form, "default_segment", lambda *sizes, **options: length)

    return fix


def small(length, **sizes):
    """Inputs of one head that fill the smallest tiles."""
    return make(NAME, length, **({"batch": 1, "heads": 1, "key": 16, "width": 16} | sizes))


def check(inputs, dtype, **options):
    """The fused form against the reference in float64 on the same inputs."""
    inputs = rounded(inputs, dtype)
    result = run(NAME, inputs, "triton", dtype, device=DEVICE, **options)
    expected = "reference" if inputs["v"].shape[1] < 1000 else "chunk"
    assert_same(result, run(NAME, inputs, expected, torch.float64, **options), dtype)
    return result


def placed(inputs, dtype=torch.float32):
    """Inputs on the device of the fused form."""
    return {n: x.to(DEVICE, dtype) for n, x in inputs.items()}


def some_slow(values, slow):
    """All values of a parameter, most of them in the long run alone."""
    return [pytest.param(x, marks=pytest.mark.slow if x in slow else ()) for x in values]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", some_slow([1, 2, 16, 31, 32, 33, 70], (16, 31, 70)))
def test_agrees_with_the_reference_at_every_length(length, dtype):
    check(small(length), dtype, scale=0.3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", some_slow(KINDS, SLOW_KINDS))
def test_agrees_for_every_kind_of_decay(kind, dtype):
    """From no decay at all to jumps that erase the memory: finite and equal."""
    check(small(40, kind=kind), dtype)


@pytest.mark.parametrize("kind", some_slow(["uniform", "spread", "jump middle"], ("uniform",)))
def test_is_exact_up_to_rounding(kind):
    """In float64 where that runs: every exponent and sum is right, not nearly right."""
    check(small(40, kind=kind), EXACT, scale=0.5)


@pytest.mark.parametrize("dtype", DTYPES[-1:], ids=str)
@pytest.mark.parametrize(
    ("heads", "key", "width"), [(2, 5, 1), (1, 40, 24), pytest.param(1, 24, 40, marks=ON_GPU)]
)
def test_agrees_for_every_shape(heads, key, width, dtype):
    """Widths that fill no tile, and several blocks of keys and of columns."""
    check(small(33, heads=heads, key=key, width=width), dtype)


@ON_GPU
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("key", "width"), [(64, 64), (64, 128), (128, 128), (100, 300)])
def test_agrees_for_large_shapes(key, width, dtype):
    check(make(NAME, 133, key=key, width=width), dtype)


@pytest.mark.parametrize("length", some_slow([None, 32], (None,)))
@pytest.mark.parametrize("bounds", some_slow(BOUNDS, SLOW_BOUNDS), ids=str)
def test_packed_rows_agree_with_the_reference(bounds, length, pieces):
    """Every sequence restarts from its own state; positions outside the bounds give 0."""
    if length is not None:
        pieces(length)
    inputs = small(bounds[-1] + 3, kind="spread", sequences=len(bounds) - 1)
    result = check(inputs, EXACT, cu_seqlens=torch.tensor(bounds))
    for name in ("output", "dq", "dk", "dv", "da", "db", "dg"):
        assert (result[name][:, bounds[-1] :] == 0).all()
        assert (result[name][:, : bounds[0]] == 0).all()


@pytest.mark.parametrize("kind", some_slow(["slow", "jump middle"], ("jump middle",)))
@pytest.mark.parametrize("length", some_slow([32, 64, 512], (512,)))
def test_pieces_in_parallel_change_nothing(length, kind, pieces):
    """Pieces that end with the sequence, before it, or beyond it."""
    pieces(length)
    check(small(100, key=20, kind=kind), EXACT)


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_corrections_of_none_all_and_twice_the_error_of_equal_keys(beta):
    """Every correction undoes the one before: powers of what is inverted would cancel."""
    inputs = small(64, kind="slow")
    kappa = inputs["a"][:, :1].expand_as(inputs["a"]).clone()
    check(inputs | {"a": kappa, "b": -beta * kappa}, torch.float32)


@pytest.mark.parametrize("zero", some_slow(["v", "a", "initial_state"], ("v", "initial_state")))
def test_agrees_where_one_input_is_zero(zero):
    inputs = small(33)
    inputs[zero].zero_()
    check(inputs, EXACT)


def test_gradients_of_strong_decays_keep_their_digits():
    """dg of each key channel is far below the other gradients, and right by itself."""
    inputs = small(33, kind="fast")
    leaves = [{n: x.clone().requires_grad_() for n, x in inputs.items()} for _ in range(2)]
    gradients = []
    for form, device, tensors in zip(("reference", "triton"), ("cpu", DEVICE), leaves, strict=True):
        tensors = {
            n: x.to(device, EXACT if device == "cuda" else x.dtype) for n, x in tensors.items()
        }
        output, state = dplr_delta_rule(**tensors, form=form)
        (found,) = torch.autograd.grad(output.square().sum() + state.sum(), tensors["g"])
        gradients.append(found.cpu().double())
    ratio = gradients[1] / gradients[0]
    assert (ratio - 1).abs().max() < (1e-9 if DEVICE == "cpu" else 1e-3)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="float64 runs in the interpreter alone")
def test_gradients_pass_gradcheck():
    inputs = small(3, key=2, width=2)
    leaves = [x.requires_grad_() for x in inputs.values()]

    def rule(*tensors):
        return dplr_delta_rule(*tensors[:-1], initial_state=tensors[-1], form="triton")

    assert torch.autograd.gradcheck(rule, leaves)


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_operators_are_registered_as_pytorch_expects(packed, form):
    """Schemas, shapes without data, autograd and compilation of the raw operators."""
    inputs = placed(small(33, sequences=2 if packed else 1))
    state = inputs.pop("initial_state")
    bounds = torch.tensor([0, 20, 33], device=DEVICE) if packed else None
    leaves = [x.clone().requires_grad_() for x in inputs.values()]
    torch.library.opcheck(form.forward.registered, (*leaves, 0.5, state, bounds, 32, True))
    output, final, states = form.forward(*inputs.values(), 0.5, state, bounds, 32, True)
    given = output, final, *inputs.values(), 0.5, bounds, states, 32
    torch.library.opcheck(form.backward.registered, given)


def test_what_the_fused_form_cannot_take_is_refused_with_the_reason(monkeypatch):
    """A form asked for by name is never replaced; auto takes another one without a word."""
    wide = placed(small(4, key=129))
    with pytest.raises(ValueError, match="at most 128 channels, got 129"):
        dplr_delta_rule(**wide, form="triton")
    assert dplr_delta_rule(**wide)[0].isfinite().all()
    inputs = placed(small(4))
    half = {n: x if n in ("g", "initial_state") else x.half() for n, x in inputs.items()}
    with pytest.raises(ValueError, match="float16"):
        dplr_delta_rule(**half, form="triton")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="needs a CUDA device, got cpu"):
        dplr_delta_rule(**{n: x.cpu() for n, x in inputs.items()}, form="triton")


@ON_GPU
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["uniform", "slow", "spread", "jump middle"])
@pytest.mark.parametrize("length", [1024, 4101])
def test_long_sequences_agree(length, kind, dtype):
    check(make(NAME, length, key=64, width=64, kind=kind), dtype)


@ON_GPU
def test_more_than_two_to_the_31_elements():
    """Offsets past 2^31 reach the right memory: the end equals a call on the end alone."""
    length, heads, width = 2**19 + 64, 64, 64
    shape = (1, length, heads, width)
    tensors = {n: torch.randn(shape, device="cuda", dtype=torch.bfloat16) / 8 for n in "qkvab"} | {
        "g": -torch.rand(shape, device="cuda")
    }
    tensors["g"][:, -64] = -1e4  # forgets all before, so that the end nearly stands alone
    tensors["a"][:, -64] = 0
    with torch.no_grad():
        whole, state = dplr_delta_rule(**tensors, form="triton")
        end, final = dplr_delta_rule(**{n: x[:, -64:] for n, x in tensors.items()}, form="triton")
    assert relative_error(whole[:, -64:], end) < 2e-3
    assert relative_error(state, final) < 1e-5
