"""The operators around RWKV-7's memory: equations, fused forms, gradients."""

import math

import pytest
import torch
from numerics import relative_error

from fracdna_kernels import dplr_gates, gated_head_norm, shifted_layer_norm, squared_relu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILED = DEVICE == "cuda"
FUSED = {"form": "triton"}
# outputs and gradients; bfloat16 needs compiled kernels
TOLERANCES = {
    torch.float32: (2e-6, 1e-5),
    torch.bfloat16: (5e-3, 1e-2),
    torch.float64: (1e-14, 1e-13),
}
SHIPPED = [torch.float32, torch.bfloat16] if COMPILED else [torch.float32]
DTYPES = pytest.mark.parametrize("dtype", SHIPPED, ids=str)
TILES = pytest.mark.parametrize("programs", [1024, 2], ids=["many programs", "two programs"])
BATCH, LENGTH = 3, 9
STREAMS = {"x", "addend", "k", "v", "rate_logits", "decay_logits", "first_values", "gate"}
LENGTHS = torch.tensor([0, 4, LENGTH])
# what stays in float32 beside tensors in bfloat16
EXACT = {
    "weight", "bias", "shares", "last", "decay_logits", "removal_scale", "rate_scale",
    "decay_bias", "bonus",
}  # fmt: skip


@pytest.fixture
def few_programs(programs, monkeypatch):
    """Two programs loop over all tiles, where 1024 would take one each."""
    from fracdna_kernels import triton_rows

    monkeypatch.setattr(triton_rows, "PROGRAMS", programs)


def random(*shape):
    return torch.randn(shape, dtype=torch.float64)


def norm_inputs(width, count, *, batch=BATCH, length=LENGTH, **others):
    tensors = {"x": random(batch, length, width), "shares": random(count, width)}
    return tensors | {"weight": random(width), "bias": random(width)} | others


def gate_inputs(width, *names, batch=BATCH, length=LENGTH):
    """Inputs of dplr_gates, of the optional ones those that are named."""
    wide = ("k", "v", "rate_logits", "decay_logits", "first_values", "share_logits")
    every = dict.fromkeys(wide, (batch, length, width))
    every |= dict.fromkeys(("removal_scale", "rate_scale", "decay_bias"), (width,))
    optional = {"first_values", "share_logits", "decay_bias"} - set(names)
    return {name: random(*shape) for name, shape in every.items() if name not in optional}


def head_inputs(heads, width, *, batch=BATCH, length=LENGTH):
    tensors = {name: random(batch, length, heads, width) for name in "xrkv"}
    tensors["gate"] = random(batch, length, heads * width)
    return tensors | {name: random(heads * width) for name in ("weight", "bias", "bonus")}


def differentiated(call, inputs, **options):
    """Outputs and gradients of a call, for gradients of its outputs that are always the same."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    outputs = call(**leaves, **options)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.manual_seed(1)
    incoming = [torch.randn(y.shape, dtype=torch.float64).bfloat16().to(y) for y in outputs]
    return outputs, torch.autograd.grad(outputs, list(leaves.values()), incoming)


def of_wider(call):
    """The call on tensors that are parts of wider ones, as a projection of several has them."""
    part = lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]] if x.ndim == 3 else x  # noqa: E731
    return lambda **given: call(**{n: part(x) if n in STREAMS else x for n, x in given.items()})


def check(call, inputs, dtype, **options):
    """A fused call and its gradients against the reference in float64."""
    kept = torch.promote_types(dtype, torch.float32)
    given = {n: x.to(kept if n in EXACT else dtype) for n, x in inputs.items()}
    exact = {name: x.double() for name, x in given.items()}
    expected, targets = differentiated(call, exact, form="reference", **options)
    given = {name: x.to(DEVICE) for name, x in given.items()}
    options = {n: x.to(DEVICE) if torch.is_tensor(x) else x for n, x in options.items()}
    outputs, gradients = differentiated(of_wider(call), given, **FUSED, **options)
    limit, gradient_limit = TOLERANCES[dtype]
    for output, target in zip(outputs, expected, strict=True):
        assert relative_error(output.cpu(), target) < limit
    for (name, x), gradient, target in zip(given.items(), gradients, targets, strict=True):
        assert gradient.dtype == x.dtype
        assert relative_error(gradient.cpu(), target) < gradient_limit, name


def test_every_position_is_normalised_and_mixed_with_the_one_before():
    """Position by position, from what stood before; the last valid one is handed on."""
    inputs = norm_inputs(6, 2, addend=random(BATCH, LENGTH, 6), last=random(BATCH, 6))
    one, two, token = shifted_layer_norm(**inputs, lengths=LENGTHS, eps=0.1)
    stream = inputs["x"] + inputs["addend"]
    for row, end in enumerate(LENGTHS.tolist()):
        before = inputs["last"][row]
        if end == 0:
            assert torch.equal(token[row], before)
        for t in range(LENGTH):
            s = stream[row, t] - stream[row, t].mean()
            n = inputs["weight"] * s / torch.sqrt(s.square().mean() + 0.1) + inputs["bias"]
            for output, share in zip((one, two), inputs["shares"], strict=True):
                assert relative_error(output[row, t], n * (1 - share) + before * share) < 1e-14
            before = n
            if t == end - 1:
                assert relative_error(token[row], n) < 1e-14


def test_packed_sequences_are_shifted_alone():
    """As if each were a row of its own, an empty one among them; before them stand zeros."""
    inputs = norm_inputs(6, 3, batch=1)
    packed = shifted_layer_norm(**inputs, cu_seqlens=torch.tensor([0, 1, 1, 5, 9]))
    for start, end in ((0, 1), (1, 5), (5, 9)):
        alone = shifted_layer_norm(**inputs | {"x": inputs["x"][:, start:end]})
        for part, whole in zip(alone[:3], packed[:3], strict=True):
            assert relative_error(whole[:, start:end], part) < 1e-14


def test_a_cut_sequence_goes_on_from_the_token():
    inputs = norm_inputs(6, 2)
    whole = shifted_layer_norm(**inputs)
    head = shifted_layer_norm(**inputs | {"x": inputs["x"][:, :4]})
    tail = shifted_layer_norm(**inputs | {"x": inputs["x"][:, 4:]}, last=head[-1])
    for one, two, both in zip(head[:2], tail[:2], whole[:2], strict=True):
        assert relative_error(torch.cat([one, two], 1), both) < 1e-14
    assert relative_error(tail[-1], whole[-1]) < 1e-14


def test_gates_follow_the_published_equations():
    """Each equation written again, scalar by scalar, with Python's own functions."""
    inputs = gate_inputs(6, "first_values", "share_logits", "decay_bias")
    keys, values, a, b, g = dplr_gates(**inputs, head_width=3)
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    for row, t, head, p in [(0, 0, 0, 0), (2, 8, 1, 2), (1, 3, 0, 1)]:
        channel = 3 * head + p
        at = {n: (x[row, t] if x.ndim == 3 else x).tolist() for n, x in inputs.items()}
        rate = sigmoid(at["rate_logits"][channel])
        removal = [k * s for k, s in zip(at["k"], at["removal_scale"], strict=True)]
        kappa = removal[channel] / math.hypot(*removal[3 * head : 3 * head + 3])
        share = sigmoid(at["share_logits"][channel])
        logit = at["decay_logits"][channel] + at["decay_bias"][channel]
        expected = {
            "keys": at["k"][channel] * (1 + (rate - 1) * at["rate_scale"][channel]),
            "values": at["v"][channel] * (1 - share) + at["first_values"][channel] * share,
            "a": -kappa,
            "b": kappa * rate,
            "g": -math.exp(-0.5) * sigmoid(logit),
        }
        found = dict(zip(expected, (keys, values, a, b, g), strict=True))
        for name, target in expected.items():
            assert found[name][row, t, head, p].item() == pytest.approx(target, rel=1e-12), name


@pytest.mark.parametrize("form", ["reference", "triton"])
def test_pads_have_no_key_no_replacer_and_no_decay(form):
    """Whatever they hold; real positions are as without them."""
    inputs = {name: x.float().to(DEVICE) for name, x in gate_inputs(6).items()}
    padded = dplr_gates(**inputs, head_width=3, lengths=LENGTHS.to(DEVICE), form=form)
    whole = dplr_gates(**inputs, head_width=3, form=form)
    valid = (torch.arange(LENGTH) < LENGTHS[:, None]).to(DEVICE)
    for name, one, other in zip("kvabg", padded, whole, strict=True):
        assert torch.equal(one[valid], other[valid])
        assert name in "va" or not one[~valid].any()


@pytest.mark.parametrize("form", ["reference", "triton"])
def test_a_key_of_zeros_stays_zero(form):
    inputs = {name: x.float().to(DEVICE) for name, x in gate_inputs(6).items()}
    inputs["k"][:, 2] = 0
    outputs, gradients = differentiated(dplr_gates, inputs, head_width=3, form=form)
    assert not any(x[:, 2].any() for x in (outputs[0], outputs[2], outputs[3]))
    assert all(torch.isfinite(x).all() for x in (*outputs, *gradients))


def test_heads_are_normalised_given_their_bonus_and_gated():
    inputs = head_inputs(2, 5)
    output = gated_head_norm(**inputs, eps=0.1)
    for row, t, head in [(0, 0, 0), (2, 8, 1)]:
        part = slice(5 * head, 5 * head + 5)
        x, r, k, v = (inputs[name][row, t, head] for name in "xrkv")
        centred = x - x.mean()
        normed = centred / torch.sqrt(centred.square().mean() + 0.1)
        read = inputs["weight"][part] * normed + inputs["bias"][part]
        read = read + (r * k * inputs["bonus"][part]).sum() * v
        expected = read * inputs["gate"][row, t, part]
        assert relative_error(output[row, t, part], expected) < 1e-14


@pytest.mark.parametrize("form", ["reference", "triton"])
def test_the_square_stays_in_its_dtype_under_autocast(form):
    """Where PyTorch's own gives float32."""
    x = torch.tensor([[[-2.0, 0.0, 0.5, 3.0]]], device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert squared_relu(x, form=form).tolist() == [[[0.0, 0.0, 0.25, 9.0]]]
        if form == "reference" or COMPILED:
            assert squared_relu(x.bfloat16(), form=form).dtype == torch.bfloat16


@TILES
@pytest.mark.usefixtures("few_programs")
@DTYPES
@pytest.mark.parametrize("width", [16, 20, 300])
@pytest.mark.parametrize("how", ["six", "continued", "padded", "packed"])
def test_fused_shifts_agree_with_float64(how, width, dtype):
    """Outputs and all gradients; rows of the batch and sequences meet inside a tile."""
    if how == "six":
        check(shifted_layer_norm, norm_inputs(width, 6), dtype)
    elif how == "packed":
        bounds = torch.tensor([0, 1, 1, 5, 8])
        check(shifted_layer_norm, norm_inputs(width, 2, batch=1), dtype, cu_seqlens=bounds)
    else:
        carried = {"addend": random(BATCH, LENGTH, width), "last": random(BATCH, width)}
        options = {"lengths": LENGTHS} if how == "padded" else {}
        check(shifted_layer_norm, norm_inputs(width, 1, **carried), dtype, **options)


@TILES
@pytest.mark.usefixtures("few_programs")
@DTYPES
@pytest.mark.parametrize("head_width", [8, 5])
@pytest.mark.parametrize("names", [(), ("first_values", "share_logits", "decay_bias")], ids=len)
def test_fused_gates_agree_with_float64(names, head_width, dtype):
    inputs = gate_inputs(3 * head_width, *names, length=70)
    lengths = {"lengths": 7 * LENGTHS} if names else {}
    check(dplr_gates, inputs, dtype, head_width=head_width, **lengths)


@TILES
@pytest.mark.usefixtures("few_programs")
@DTYPES
@pytest.mark.parametrize("head_width", [8, 5])
def test_fused_head_norms_agree_with_float64(head_width, dtype):
    check(gated_head_norm, head_inputs(3, head_width, length=70), dtype, eps=64e-5)


@DTYPES
@pytest.mark.parametrize("length", [1, 64, 90])
def test_fused_squares_agree_with_float64(length, dtype):
    """Less than a block, whole blocks, and more."""
    check(squared_relu, {"x": random(2, length, 64)}, dtype)


@pytest.mark.skipif(COMPILED, reason="float64 runs in the interpreter")
def test_fused_gradients_are_exact_in_float64():
    """To rounding those that autograd finds for the reference."""
    carried = {"addend": random(BATCH, LENGTH, 6), "last": random(BATCH, 6)}
    gates = gate_inputs(6, "first_values", "share_logits", "decay_bias")
    check(shifted_layer_norm, norm_inputs(6, 2, **carried), torch.float64, lengths=LENGTHS)
    check(dplr_gates, gates, torch.float64, lengths=LENGTHS, head_width=3)
    check(gated_head_norm, head_inputs(2, 3), torch.float64)
    check(squared_relu, {"x": random(2, 3, 4)}, torch.float64)


def test_any_output_may_go_unused():
    """A mixture, all mixtures, and the token."""
    inputs = norm_inputs(8, 3, last=random(BATCH, 8))
    for kept in ([1], [3], [0, 3]):
        results = []
        for form, dtype, device in (("reference", None, "cpu"), ("triton", torch.float32, DEVICE)):
            leaves = {n: x.to(device, dtype, copy=True).requires_grad_() for n, x in inputs.items()}
            outputs = shifted_layer_norm(**leaves, form=form)
            total = sum(outputs[n].square().sum() for n in kept)
            wanted = [x for name, x in leaves.items() if name != "last" or 0 in kept or 1 in kept]
            results.append(
                torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
            )
        for mine, target in zip(*reversed(results), strict=True):
            assert relative_error(mine.cpu(), target) < 1e-5


def every_call():
    """Each operator as a function of no arguments but the leaves that it has."""
    with torch.device(DEVICE):
        inputs = [norm_inputs(8, 2), gate_inputs(8), head_inputs(2, 4), {"x": random(1, 3, 8)}]
    calls = (
        lambda **x: shifted_layer_norm(**x, **FUSED),
        lambda **x: dplr_gates(**x, head_width=4, **FUSED),
        lambda **x: gated_head_norm(**x, **FUSED),
        lambda **x: squared_relu(**x, **FUSED),
    )
    leaves = [{n: x.float().requires_grad_() for n, x in given.items()} for given in inputs]
    return list(zip(calls, leaves, strict=True))


def test_fused_forms_are_operators_of_pytorch():
    """Schemas, fake kernels and autograd registrations hold; compilation needs no break."""
    from fracdna_kernels.dplr_gates import triton_form as gates
    from fracdna_kernels.gated_head_norm import triton_form as heads
    from fracdna_kernels.shifted_layer_norm import triton_form as shifted
    from fracdna_kernels.squared_relu import triton_form as squared

    (_, norm), (_, gate), (_, head), (_, relu) = every_call()
    flat = [x.flatten(2).detach() if x.ndim == 4 else x.detach() for x in head.values()]
    checked = {
        shifted._norm: (
            *(norm[name] for name in ("x", "weight", "bias", "shares")),
            None, None, None, None, 1e-5, torch.float32,
        ),
        gates._gates: (*gate.values(), None, None, None, None, 4),
        heads._norm: (*(x.requires_grad_() for x in flat), 4, 1e-5),
        squared._squared: tuple(relu.values()),
    }  # fmt: skip
    for operator, arguments in checked.items():
        # the fourth, of compiled code, takes seconds; the next test compiles
        parts = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(operator.registered, arguments, test_utils=parts)


def test_compiled_code_gives_the_same():
    for call, leaves in every_call():
        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        results = [call(**leaves), compiled(**leaves)]
        for mine, target in zip(*results, strict=True):
            assert torch.equal(mine, target)


def test_gradients_may_be_expanded_and_repeat_bit_by_bit():
    for call, leaves in every_call():
        found = []
        for _ in range(2):
            outputs = call(**leaves)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            total = sum(y.sum() for y in outputs)
            found.append(torch.autograd.grad(total, list(leaves.values())))
        assert all(map(torch.equal, *found))
        assert all(torch.isfinite(x).all() for x in found[0])


@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0)])
def test_fused_forms_of_nothing_are_empty(batch, length):
    """Without positions the token stays what it was, and its gradient too."""
    sizes = {"batch": batch, "length": length}
    carried = {"last": random(batch, 8)}
    cases = (
        (shifted_layer_norm, norm_inputs(8, 2, **sizes, **carried), {}),
        (dplr_gates, gate_inputs(8, **sizes), {"head_width": 4}),
        (gated_head_norm, head_inputs(2, 4, **sizes), {}),
        (squared_relu, {"x": random(batch, length, 8)}, {}),
    )
    for call, inputs, options in cases:
        check(call, inputs, torch.float32, **options)


def test_mixtures_are_in_the_dtype_of_the_next_layer_and_tokens_are_exact():
    inputs = {name: x.float().to(DEVICE) for name, x in norm_inputs(8, 2).items()}
    for form in ("reference", "triton"):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            outputs = shifted_layer_norm(**inputs, form=form)
        assert [y.dtype for y in outputs] == [torch.bfloat16, torch.bfloat16, torch.float32]
        exact = shifted_layer_norm(**inputs, form=form)
        # tokens keep their precision; a compiler may join other products to other sums
        assert relative_error(outputs[-1], exact[-1]) < 1e-6
        for rounded, target in zip(outputs[:2], exact[:2], strict=True):
            assert relative_error(rounded, target) < 5e-3


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (shifted_layer_norm, {"last": random(1, 4), "cu_seqlens": [0, 2]}, "start afresh"),
        (shifted_layer_norm, {"cu_seqlens": [0, 3]}, "ascending bounds in 0..2"),
        (shifted_layer_norm, {"shares": random(7, 4), **FUSED}, "mixes in 1 to 6 ways, got 7"),
        (shifted_layer_norm, {"bias": random(5)}, "axis D is 5 in bias"),
        (dplr_gates, {"head_width": 3}, "head_width=3 does not divide 4"),
        (dplr_gates, {"head_width": 2, "first_values": random(1, 2, 4)}, "given together"),
        (dplr_gates, {"head_width": 2, "decay_logits": random(1, 2, 4).half()}, "float32 or float"),
        (gated_head_norm, {"gate": random(1, 2, 5)}, "axis D is 5 in gate"),
        (squared_relu, {"form": "chunk"}, "form='chunk' does not exist"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(call, options, message):
    given = {
        shifted_layer_norm: norm_inputs(4, 1, batch=1, length=2),
        dplr_gates: gate_inputs(4, batch=1, length=2),
        gated_head_norm: head_inputs(2, 2, batch=1, length=2),
        squared_relu: {"x": random(1, 2, 4)},
    }[call]
    if "cu_seqlens" in options:
        options = options | {"cu_seqlens": torch.tensor(options["cu_seqlens"])}
    given = given | options
    there = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    with pytest.raises(ValueError, match=message):
        call(**there)
