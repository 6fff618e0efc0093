"""The Triton form of decay_attention: compiled on a CUDA device, else in Triton's interpreter."""

import math

import pytest
import torch
from decay_cases import SCALE, assert_same, make, rounded, run
from numerics import relative_error
from scan_cases import BOUNDS, KINDS, LENGTHS

from fracdna_kernels import decay_attention
from fracdna_kernels.decay_attention import triton_chunk

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# bfloat16 is not multiplied in the interpreter as on a device
DTYPES = [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float32]
EXACT = torch.float64 if DEVICE == "cpu" else torch.float32
ON_GPU = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")


def slow(*values):
    """For the long run alone, where the interpreter is slow; on a device nothing is."""
    return pytest.param(*values, marks=() if DEVICE == "cuda" else pytest.mark.slow)


BOTH = pytest.mark.parametrize("variant", ["heads", "keys"])


@pytest.fixture
def pieces(monkeypatch):
    """Sets the positions of a piece; 0: whole sequences."""

    def choose(length):
        monkeypatch.setattr(triton_chunk, "default_segment", lambda *_, packed: length)

    return choose


def check(inputs, dtype, **options):
    """The fused form against the reference in float64 on the same inputs."""
    inputs = rounded(inputs, dtype)
    result = run(inputs, "triton", dtype, device=DEVICE, **options)
    form = "reference" if inputs["v"].shape[1] < 1000 else "chunk"
    assert_same(result, run(inputs, form, torch.float64, **options), dtype)
    return result


def placed(inputs, dtype=torch.float32):
    """Inputs on the device of the fused form."""
    return {n: x.to(DEVICE, dtype) for n, x in inputs.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [slow(n) if n in (2, 15, 16, 31, 63) else n for n in LENGTHS])
@BOTH
def test_agrees_with_the_reference_at_every_length(variant, length, dtype):
    check(make(length, variant, batch=1, heads=1), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@BOTH
def test_agrees_for_every_kind_of_decay(variant, kind, dtype):
    """From no decay to jumps that erase the memory: finite and equal."""
    check(make(33, variant, batch=1, heads=1, kind=kind), dtype)


@pytest.mark.parametrize("dtype", DTYPES[-1:], ids=str)
@pytest.mark.parametrize(
    ("keys", "width", "heads"),
    [(16, 40, 2), (40, 16, 1), slow(64, 64, 1), slow(128, 64, 1), (32, 300, 1), (256, 16, 1)],
)
@BOTH
def test_agrees_for_every_shape(variant, keys, width, heads, dtype):
    """Keys and widths that fill no tile, and a width of several tiles."""
    check(make(20, variant, batch=1, keys=keys, width=width, heads=heads), dtype)


@pytest.mark.parametrize("variant", ["shared heads", "shared keys"])
def test_heads_share_rows_of_q_and_k(variant):
    check(make(33, variant, batch=2), EXACT)


@pytest.mark.parametrize("length", [0, 32], ids=["whole", "pieces of 32"])
@pytest.mark.parametrize("variant", ["heads", slow("keys")])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_packed_rows_agree_with_the_reference(bounds, variant, length, pieces):
    """Every sequence restarts from its own state; positions outside the bounds give 0."""
    pieces(length)
    inputs = make(130, variant, batch=1, heads=1, kind="spread", sequences=len(bounds) - 1)
    result = check(inputs, EXACT, cu_seqlens=torch.tensor(bounds))
    for name in ("output", "dq", "dk", "dv", "dg"):
        assert (result[name][:, bounds[-1] :] == 0).all()
        assert (result[name][:, : bounds[0]] == 0).all()


def test_packed_rows_with_keys_that_decay_alone(pieces):
    """One of the slow ones above."""
    pieces(32)
    inputs = make(130, "keys", batch=1, heads=1, kind="spread", sequences=3)
    check(inputs, EXACT, cu_seqlens=torch.tensor([7, 7, 80, 100]))


@pytest.mark.parametrize("kind", ["uniform", slow("jump middle")])
@pytest.mark.parametrize("length", [32, 96, slow(512)])
@BOTH
def test_pieces_in_parallel_change_nothing(variant, length, kind, pieces):
    """Pieces that end with the sequence, before it, or beyond it."""
    pieces(length)
    check(make(130, variant, batch=1, heads=1, kind=kind), EXACT)


@BOTH
def test_a_jump_does_not_drown_what_decays_slowly_after_it(variant):
    """After a log decay of -1e4, differences of float32 prefix sums would be off by 1e-3."""
    inputs = make(64, variant, batch=1, heads=1, kind="slow")
    inputs["g"][:, 0] = -1e4
    inputs = rounded(inputs, torch.float32)
    expected = run(inputs, "reference", torch.float64)
    result = run(inputs, "triton", torch.float32, device=DEVICE)
    assert relative_error(result["output"].cpu(), expected["output"]) < 2e-6
    assert relative_error(result["final_state"].cpu(), expected["final_state"]) < 2e-6
    assert relative_error(result["dg"][:, 1:].cpu(), expected["dg"][:, 1:]) < 4e-6


@BOTH
def test_gradients_of_strong_decays_keep_their_digits(variant):
    """dg is tiny beside q dq and k dk here, whose difference would have no digit left."""
    inputs = rounded(make(64, variant, batch=1, heads=1, kind="fast"), torch.float32)
    inputs["initial_state"].zero_()
    expected = run(inputs, "reference", torch.float64)["dg"]
    result = run(inputs, "triton", torch.float32, device=DEVICE)["dg"].cpu()
    assert 0 < expected.abs().max() < 1e-6
    unit = expected.abs().max()
    assert relative_error(result / unit, expected / unit) < 1e-5


@pytest.mark.parametrize("per_key", [False, True])
def test_a_slow_decay_keeps_an_impulse_for_many_positions(per_key):
    """One write, read when the log decays have added up to -1/2."""
    steps = 256
    v = torch.zeros(1, steps + 1, 1, 1)
    v[:, 0] = 1
    ones = torch.ones(1, steps + 1, 1, 1)
    g = torch.full((1, steps + 1, 1), -0.5 / steps)
    tensors = [x.to(DEVICE) for x in (ones, ones, v, g[..., None] if per_key else g)]
    output, _ = decay_attention(*tensors, form="triton")
    assert output[0, -1, 0, 0].item() == pytest.approx(math.exp(-0.5), rel=2e-5)


@BOTH
def test_an_infinite_decay_forgets_all_before(variant):
    inputs = make(40, variant, batch=1, heads=1)
    inputs["g"][:, 20] = -math.inf
    output, state = decay_attention(**placed(inputs), form="triton")
    expected, final = decay_attention(**inputs, form="reference")
    assert relative_error(output.cpu(), expected) < 2e-5
    assert relative_error(state.cpu(), final) < 2e-5


@pytest.mark.skipif(DEVICE == "cuda", reason="float64 runs in the interpreter alone")
@BOTH
def test_gradients_pass_gradcheck(variant):
    inputs = make(3, variant, batch=1, heads=1, keys=2, width=2)
    leaves = [x.requires_grad_() for x in inputs.values()]

    def call(*leaves):
        named = dict(zip(inputs, leaves, strict=True))
        return decay_attention(**named, scale=SCALE, form="triton")

    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


@pytest.mark.parametrize(
    ("variant", "packed"),
    [("shared keys", False), pytest.param("heads", True, marks=pytest.mark.slow)],
)
def test_operators_are_registered_as_pytorch_expects(variant, packed):
    """Schemas, shapes without data, autograd and compilation of the raw operators."""
    from fracdna_kernels.decay_attention.triton_chunk import backward, forward

    inputs = placed(make(5, variant, batch=1, sequences=2 if packed else 1))
    state = inputs.pop("initial_state")
    bounds = torch.tensor([0, 3, 5], device=DEVICE) if packed else None
    leaves = [x.clone().requires_grad_() for x in inputs.values()]
    rest = (SCALE, state, bounds)
    torch.library.opcheck(forward.registered, (*leaves, *rest, 32, True))
    output, final, states = forward(*inputs.values(), *rest, 32, True)
    given = output, final, *inputs.values(), *rest, states, 32
    torch.library.opcheck(backward.registered, given)


def test_what_the_fused_form_cannot_take_is_refused_with_the_reason(monkeypatch):
    """A form asked for by name is never replaced; auto takes another one without a word."""
    inputs = placed(make(4, batch=1, heads=1))
    half = {n: x.half() if n in ("q", "k", "v") else x for n, x in inputs.items()}
    with pytest.raises(ValueError, match=r"float16|no kernel for torch.float16"):
        decay_attention(**half, form="triton")
    many = placed(make(4, batch=1, heads=1, keys=257))
    with pytest.raises(ValueError, match="at most 256 keys, got 257"):
        decay_attention(**many, form="triton")
    assert decay_attention(**many)[0].isfinite().all()
    with pytest.raises(ValueError, match="takes no rank axis"):
        decay_attention(**placed(make(4, "rank")), form="triton")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="needs a CUDA device, got cpu"):
        decay_attention(**{n: x.cpu() for n, x in inputs.items()}, form="triton")


@pytest.mark.parametrize(
    ("sequences", "length", "heads"), [(1, 65536, 4), (1, 300, 2), (64, 4096, 8)]
)
def test_few_heads_are_cut_into_pieces(sequences, length, heads):
    """Pieces are whole chunks, none where sequences fill the device or are short."""
    from fracdna_kernels.decay_attention.launches import CHUNK, SHORTEST_PIECE, default_segment

    for packed in (False, True):
        piece = default_segment(sequences, length, heads, 64, 64, packed=packed)
        assert piece % CHUNK == 0
        assert piece == 0 or SHORTEST_PIECE <= piece < length
        if not packed:
            assert (piece > 0) == (length > SHORTEST_PIECE and sequences == 1)


@ON_GPU
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1000, 1024, 4101])
@BOTH
def test_long_sequences_agree(variant, length, kind, dtype):
    check(make(length, variant, batch=2, heads=2, keys=64, width=64, kind=kind), dtype)


@ON_GPU
@BOTH
def test_more_heads_and_sequences_than_a_grid_axis(variant):
    """65,535 is the most programs of a second grid axis."""
    check(make(2, variant, batch=40, heads=1700, keys=16, width=16), torch.float32)


@ON_GPU
def test_more_than_two_to_the_31_elements():
    """Offsets past 2^31 reach the right memory: the end equals a call on the end alone."""
    length, heads, width = 2**20 + 64, 32, 64
    q, k, v = (
        torch.randn(1, length, heads, width, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )
    g = -3 * torch.rand(1, length, heads, device="cuda")
    g[:, -64] = -1e9  # forgets all before, so that the end stands alone
    with torch.no_grad():
        whole, state = decay_attention(q, k, v, g, form="triton")
        end = [x[:, -64:].clone() for x in (q, k, v, g)]
        output, final = decay_attention(*end, form="triton")
    assert relative_error(whole[:, -64:], output) < 2e-3
    assert relative_error(state, final) < 1e-5
