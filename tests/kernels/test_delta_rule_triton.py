"""The Triton form of delta_rule: compiled on a CUDA device, else in Triton's interpreter."""

import pytest
import torch
from delta_cases import make, rounded, run
from numerics import relative_error
from scan_cases import BOUNDS, KINDS, LENGTHS, assert_same

from fracdna_kernels import delta_rule
from fracdna_kernels.delta_rule import launches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# bfloat16 is not multiplied in the interpreter as on a device
DTYPES = [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float32]
EXACT = torch.float64 if DEVICE == "cpu" else torch.float32
ON_GPU = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
NAME = "delta_rule"


def some(cases, quick):
    """All cases; in the interpreter those that are not quick run with the slow tests."""
    return [
        pytest.param(x, marks=() if DEVICE == "cuda" or x in quick else pytest.mark.slow)
        for x in cases
    ]


@pytest.fixture
def cut(monkeypatch):
    """Cut sequences into pieces of so many positions; 0: none is cut."""

    def into(segment):
        if segment is not None:
            monkeypatch.setattr(launches, "default_segment", lambda *_, **__: segment)

    return into


def small(length, **options):
    """Inputs that fill the smallest tile of keys and no tile of values."""
    return make(NAME, length, **{"batch": 1, "heads": 1, "key": 16, "width": 8} | options)


def check(inputs, dtype, slack=1.0, **options):
    """The fused form against the reference in float64 on the same inputs."""
    inputs = rounded(inputs, dtype)
    result = run(NAME, inputs, "triton", dtype, device=DEVICE, scale=0.5, **options)
    form = "reference" if inputs["v"].shape[1] < 1000 else "chunk"
    exact = run(NAME, inputs, form, torch.float64, scale=0.5, **options)
    assert_same(result, exact, dtype, slack)
    return result


def placed(inputs, dtype=torch.float32):
    """Inputs on the device of the fused form."""
    return {n: x.to(DEVICE, dtype) for n, x in inputs.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", some(LENGTHS, (1, 17, 32, 33)))
def test_agrees_with_the_reference_at_every_length(length, dtype):
    check(small(length, heads=2), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", some(KINDS, ("zero", "spread", "jump middle")))
def test_agrees_for_every_kind_of_decay(kind, dtype):
    """From no decay at all to jumps that erase the memory: finite and equal.

    In bfloat16 at a usual width. Of 32 positions of a chunk in 16 key channels many write what
    others correct, and without decay the rounding of all of them is kept: 0.6 to 0.9 %.
    """
    usual = {"key": 64, "width": 64} if dtype == torch.bfloat16 else {}
    check(small(70, kind=kind, **usual), dtype)


@pytest.mark.parametrize("dtype", DTYPES[-1:], ids=str)
@pytest.mark.parametrize(
    "shape",
    some(
        [(5, 3, 3), (16, 40, 1), (40, 16, 2), (64, 64, 4), (128, 96, 1), (100, 256, 1)],
        [(5, 3, 3), (40, 16, 2)],
    ),
)
def test_agrees_for_every_shape(shape, dtype):
    """Keys and values that fill no tile, one and several."""
    key, width, heads = shape
    check(small(33, key=key, width=width, heads=heads), dtype)


@pytest.mark.parametrize("beta", some([0.0, 1.0, 2.0], [2.0]))
def test_agrees_for_corrections_of_none_all_and_twice_the_error(beta):
    """Also where all keys are equal, so that every correction undoes the one before."""
    for equal_keys in (False, True):
        inputs = small(70, kind="slow")
        inputs["beta"].fill_(beta)
        if equal_keys:
            inputs["k"] = inputs["k"][:, :1].expand_as(inputs["k"]).clone()
        result = run(NAME, inputs, "triton", EXACT, device=DEVICE)
        # twice the error of equal keys grows with every position, and float32's rounding with it
        for name, expected in run(NAME, inputs, "reference", torch.float64).items():
            limit = 1e-10 if torch.float64 == EXACT else 5e-4
            assert relative_error(result[name].cpu(), expected) < limit, name


@pytest.mark.parametrize("segment", [0, 32])
@pytest.mark.parametrize("bounds", some(BOUNDS, (BOUNDS[3], BOUNDS[7])), ids=str)
def test_packed_rows_agree_with_the_reference(bounds, segment, cut):
    """Every sequence restarts from its own state; positions outside the bounds give 0."""
    cut(segment)
    inputs = small(130, sequences=len(bounds) - 1)
    result = check(inputs, EXACT, cu_seqlens=torch.tensor(bounds))
    for name in ("output", "dq", "dk", "dv", "dbeta", "dg"):
        assert (result[name][:, bounds[-1] :] == 0).all()
        assert (result[name][:, : bounds[0]] == 0).all()


@pytest.mark.parametrize("segment", some([32, 64, 96, 512], (32, 96)))
def test_pieces_in_parallel_change_nothing(segment, cut):
    """Pieces that end with the sequence, before it, or beyond it."""
    cut(segment)
    check(small(130, width=20), EXACT)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="float64 runs in the interpreter alone")
def test_gradients_pass_gradcheck():
    inputs = make(NAME, 3, batch=1, heads=1, key=2, width=2)
    names = list(inputs)

    def rule(*leaves):
        return delta_rule(**dict(zip(names, leaves, strict=True)), form="triton")

    assert torch.autograd.gradcheck(rule, tuple(x.requires_grad_() for x in inputs.values()))


@pytest.mark.parametrize("packed", some([False, True], ()))
def test_operators_are_registered_as_pytorch_expects(packed):
    """Schemas, shapes without data, autograd and compilation of the raw operators."""
    from fracdna_kernels.delta_rule.triton_chunk import backward, forward

    inputs = placed(small(40, sequences=2 if packed else 1))
    state = inputs.pop("initial_state")
    bounds = torch.tensor([0, 33, 40], device=DEVICE) if packed else None
    leaves = [x.clone().requires_grad_() for x in inputs.values()]
    torch.library.opcheck(forward.registered, (*leaves, 0.5, state, bounds, 32, True))
    torch.library.opcheck(forward.registered, (*inputs.values(), 0.5, state, bounds, 0, False))
    output, final, *kept = forward(*inputs.values(), 0.5, state, bounds, 32, True)
    given = output, final, *inputs.values(), bounds, *kept, 0.5, 32
    torch.library.opcheck(backward.registered, given)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_l2norm_and_other_dtypes_beside_the_values(dtype):
    """Queries and keys are divided in float32, and rounded once; gradients come in their dtype."""
    inputs = rounded(small(33), dtype)
    given = placed(inputs) | {"v": inputs["v"].to(DEVICE, dtype)}
    leaves = {n: x.requires_grad_() for n, x in given.items()}
    output, _ = delta_rule(**leaves, l2norm=True, form="triton")
    expected, _ = delta_rule(**inputs, l2norm=True, form="reference")
    assert relative_error(output.cpu(), expected) < (2e-5 if dtype == torch.float32 else 5e-3)
    output.float().square().sum().backward()
    assert all(x.grad.dtype == x.dtype and x.grad.isfinite().all() for x in leaves.values())


def test_what_the_fused_form_cannot_take_is_refused_with_the_reason(monkeypatch):
    """A form asked for by name is never replaced; auto takes another one without a word."""
    inputs = placed(small(4))
    with pytest.raises(ValueError, match=r"float16|no kernel for torch.float16"):
        delta_rule(**inputs | {"v": inputs["v"].half()}, form="triton")
    wide = placed(small(4, key=129))
    with pytest.raises(ValueError, match="at most 128 channels, got 129"):
        delta_rule(**wide, form="triton")
    assert delta_rule(**wide)[0].isfinite().all()
    wide = placed(small(4, width=257))
    with pytest.raises(ValueError, match="at most 256 columns, got 257; use form='chunk'"):
        delta_rule(**wide, form="triton")
    assert delta_rule(**wide)[0].isfinite().all()
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="needs a CUDA device, got cpu"):
        delta_rule(**{n: x.cpu() for n, x in inputs.items()}, form="triton")


def test_few_heads_are_cut_and_many_are_not():
    """Pieces are whole chunks; packed rows, whose lengths are not known, count as one sequence."""
    assert launches.default_segment(16, 4096, 16, 128, packed=False) == 0
    segment = launches.default_segment(1, 65536, 16, 128, packed=False)
    assert 0 < segment < 65536
    assert segment % launches.CHUNK == 0
    assert launches.default_segment(16, 65536, 16, 128, packed=True) == segment


@ON_GPU
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1000, 1024, 4101])
def test_long_sequences_agree(length, kind, dtype):
    # nothing is forgotten: what a rounded correction wrote is still there a thousand corrections on
    slack = 1.2 if (kind, dtype) == ("zero", torch.bfloat16) else 1.0
    check(make(NAME, length, batch=2, heads=2, key=64, width=64, kind=kind), dtype, slack)


@ON_GPU
@pytest.mark.parametrize("key", [64, 128])
def test_float32_and_bfloat16_agree_over_pieces(key, cut):
    """The same inputs cut and not, by way of transitions of pieces."""
    inputs = rounded(make(NAME, 2048, batch=1, heads=2, key=key, width=key), torch.bfloat16)
    results = []
    for segment in (0, 256):
        cut(segment)
        results.append(run(NAME, inputs, "triton", torch.bfloat16, device=DEVICE))
    assert_same(results[1], {n: x.cpu() for n, x in results[0].items()}, torch.bfloat16)
