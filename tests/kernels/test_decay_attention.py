import math
from itertools import pairwise

import pytest
import torch
from decay_cases import SCALE, VARIANTS, assert_same, make, rounded, run
from numerics import relative_error
from scan_cases import BOUNDS, KINDS, LENGTHS, LONG_BOUNDS

from fracdna_kernels import decay_attention, frac_scan
from fracdna_kernels.decay_attention import FORMS

ALL_FORMS = ["reference", "chunk", "recurrent"]


def pairwise_sum(q, k, v, g, initial_state):
    """The sum over all pairs of positions, written from the equations; axes as in the reference."""
    B, T, H = v.shape[:3]
    if v.ndim == 4:
        q, k, v = q.unsqueeze(3), k.unsqueeze(3), v.unsqueeze(3)
    g = g.reshape(B, T, H, -1)
    share = H // k.shape[2]
    output = torch.zeros_like(v)
    final = torch.zeros_like(initial_state)
    for b in range(B):
        for h in range(H):
            for i in range(T):
                state = torch.exp(g[b, : i + 1, h].sum(0))[:, None] * initial_state[b, h]
                for j in range(i + 1):
                    left = torch.exp(g[b, j + 1 : i + 1, h].sum(0))[:, None]
                    for r in range(v.shape[3]):
                        written = torch.outer(k[b, j, h // share, r], v[b, j, h, r])
                        state = state + left * written
                for r in range(v.shape[3]):
                    output[b, i, h, r] = SCALE * q[b, i, h // share, r] @ state
            final[b, h] = state
    return output.squeeze(3) if v.shape[3] == 1 else output, final


@pytest.mark.parametrize("form", ALL_FORMS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_forms_are_the_sum_over_all_pairs(variant, form):
    """Every earlier position, itself included, faded by the decays between it and the reader."""
    inputs = make(11, variant, keys=3, width=2)
    expected = pairwise_sum(**inputs)
    result = decay_attention(**inputs, scale=SCALE, form=form)
    for value, right in zip(result, expected, strict=True):
        assert relative_error(value, right) < 1e-13


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("form", ["chunk", "recurrent"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("length", LENGTHS)
def test_forms_agree_with_the_reference_at_every_length(length, variant, form, dtype):
    """Output, final state and all gradients, also at lengths that fill no chunk."""
    inputs = make(length, variant)
    assert_same(run(inputs, form, dtype), run(inputs, "reference", torch.float64), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("variant", ["heads", "keys", "shared rank"])
@pytest.mark.parametrize("kind", KINDS)
def test_chunk_agrees_for_every_kind_of_decay(kind, variant, dtype):
    """From no decay to jumps that erase the memory: finite and equal, gradients too."""
    inputs = make(130, variant, batch=1, kind=kind)
    assert_same(run(inputs, "chunk", dtype), run(inputs, "reference", torch.float64), dtype)


@pytest.mark.parametrize("kind", ["uniform", "fast", "slow", "jump middle"])
@pytest.mark.parametrize("variant", ["heads", "keys", "rank"])
def test_bfloat16_inputs_lose_no_more_than_their_results_round(variant, kind):
    """Against float64 on the same numbers; decay and state are float32 beside bfloat16."""
    inputs = rounded(make(70, variant, batch=1, kind=kind), torch.bfloat16)
    result = run(inputs, "chunk", torch.bfloat16)
    assert (result["output"].dtype, result["final_state"].dtype) == (torch.bfloat16, torch.float32)
    assert_same(result, run(inputs, "reference", torch.float64), torch.bfloat16)


@pytest.mark.parametrize("variant", ["heads", "keys"])
@pytest.mark.parametrize(("keys", "width"), [(16, 40), (40, 16), (64, 64), (128, 64), (32, 128)])
def test_chunk_agrees_for_every_shape(keys, width, variant):
    inputs = make(33, variant, batch=1, keys=keys, width=width)
    assert_same(
        run(inputs, "chunk", torch.float64), run(inputs, "reference", torch.float64), torch.float64
    )


@pytest.mark.parametrize("variant", ["heads", "keys", "rank"])
@pytest.mark.parametrize("length", [1000, 1024, 4101])
def test_chunk_agrees_over_many_chunks(length, variant):
    """The tree over chunks, with odd numbers of them."""
    inputs = make(length, variant, batch=1, heads=1, keys=4, width=3, kind="spread")
    assert_same(
        run(inputs, "chunk", torch.float64), run(inputs, "recurrent", torch.float64), torch.float64
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_packed_rows_agree_with_the_reference(bounds, variant):
    """Every sequence restarts from its own state; positions outside the bounds give 0."""
    inputs = make(130, variant, batch=1, kind="spread", sequences=len(bounds) - 1)
    packed = {"cu_seqlens": torch.tensor(bounds)}
    result = run(inputs, "chunk", torch.float64, **packed)
    assert_same(result, run(inputs, "reference", torch.float64, **packed), torch.float64)
    for name in ("output", "dq", "dk", "dv", "dg"):
        assert (result[name][:, bounds[-1] :] == 0).all()
        assert (result[name][:, : bounds[0]] == 0).all()


@pytest.mark.parametrize("variant", ["heads", "keys"])
def test_long_packed_rows_agree_sequence_by_sequence(variant):
    """Against the update form run on every sequence alone, with rows past the last bound."""
    inputs = make(2060, variant, batch=1, heads=1, keys=4, width=3, kind="spread", sequences=5)
    state = inputs.pop("initial_state")
    output, final = decay_attention(
        **inputs, initial_state=state, cu_seqlens=torch.tensor(LONG_BOUNDS)
    )
    for n, (start, end) in enumerate(pairwise(LONG_BOUNDS)):
        alone = {name: x[:, start:end] for name, x in inputs.items()}
        expected, last = decay_attention(**alone, initial_state=state[n : n + 1], form="recurrent")
        assert relative_error(output[:, start:end], expected) < 1e-11
        assert relative_error(final[n : n + 1], last) < 1e-11
    assert (output[:, 2048:] == 0).all()


@pytest.mark.parametrize("variant", ["heads", "keys", "rank"])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
def test_gradients_of_states_by_every_road(wanted, variant):
    """With a loss on output, on the final state, on both, and with gradients that are all zero."""
    inputs = make(70, variant, batch=1)
    results = []
    for form in ALL_FORMS:
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        output, state = decay_attention(**leaves, form=form)
        loss = output.sin().sum() * wanted[0] + state.cos().sum() * wanted[1]
        results.append(torch.autograd.grad(loss, list(leaves.values())))
    for name, expected, *gradients in zip(inputs, *results, strict=True):
        reached = wanted[0] or (wanted[1] and name != "q")  # no state depends on what is read
        assert (expected.abs().sum() > 0) == reached
        assert all(relative_error(gradient, expected) < 1e-10 for gradient in gradients)


@pytest.mark.parametrize("variant", ["heads", "keys", "shared rank"])
@pytest.mark.parametrize("split", [[100], [1] * 100, [1, 62, 37], [64, 36], [0, 99, 1]], ids=str)
def test_any_split_with_carried_state_gives_one_pass(split, variant):
    """Prefill and single steps, each by the form that "auto" takes for it."""
    inputs = make(sum(split), variant, kind="spread")
    state = inputs.pop("initial_state")
    whole, final = decay_attention(**inputs, initial_state=state)
    pieces, start = [], 0
    for size in split:
        part = {name: x[:, start : start + size] for name, x in inputs.items()}
        output, state = decay_attention(**part, initial_state=state)
        pieces.append(output)
        start += size
    assert relative_error(torch.cat(pieces, dim=1), whole) < 1e-11
    assert relative_error(state, final) < 1e-11


@pytest.mark.parametrize("variant", ["heads", "keys"])
def test_a_sequence_may_be_cut_at_any_point(variant):
    """T = k, then T - k, for every k around the borders of chunks."""
    inputs = make(67, variant, batch=1)
    state = inputs.pop("initial_state")
    whole, final = decay_attention(**inputs, initial_state=state, form="reference")
    for cut in range(68):
        parts = [{n: x[:, s] for n, x in inputs.items()} for s in (slice(cut), slice(cut, None))]
        first, middle = decay_attention(**parts[0], initial_state=state, form="chunk")
        second, last = decay_attention(**parts[1], initial_state=middle, form="chunk")
        assert relative_error(torch.cat([first, second], dim=1), whole) < 1e-11
        assert relative_error(last, final) < 1e-11


@pytest.mark.parametrize("form", ALL_FORMS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_right_padding_of_zeros_changes_nothing(variant, form):
    """k = 0 and g = 0 is a pad: the memory neither gains nor fades."""
    inputs = make(30, variant)
    state = inputs.pop("initial_state")
    output, final = decay_attention(**inputs, initial_state=state, form=form)
    padded = {n: torch.cat([x, torch.zeros_like(x[:, :9])], dim=1) for n, x in inputs.items()}
    padded["v"][:, 30:] = 7.0
    longer, same = decay_attention(**padded, initial_state=state, form=form)
    assert relative_error(longer[:, :30], output) < 1e-13
    assert relative_error(same, final) < 1e-13


@pytest.mark.parametrize("form", ALL_FORMS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_future_never_changes_the_past(variant, form):
    inputs = make(70, variant, batch=1)
    before, _ = decay_attention(**inputs, form=form)
    for name in ("q", "k", "v", "g"):
        inputs[name][:, 41:] *= 3.0
    after, _ = decay_attention(**inputs, form=form)
    assert torch.equal(after[:, :41], before[:, :41])


@pytest.mark.parametrize("form", ["chunk", "recurrent"])
@pytest.mark.parametrize("per_key", [False, True])
def test_a_slow_decay_keeps_an_impulse_for_65535_positions(form, per_key):
    """One write, read when the log decays have added up to -1/2, by 4096 steps in float32."""
    steps = 4096
    v = torch.zeros(1, steps + 1, 1, 1)
    v[:, 0] = 1
    ones = torch.ones(1, steps + 1, 1, 1)
    g = torch.full((1, steps + 1, 1), -0.5 / steps)
    output, _ = decay_attention(ones, ones, v, g[..., None] if per_key else g, form=form)
    assert output[0, -1, 0, 0].item() == pytest.approx(math.exp(-0.5), rel=2e-5)


@pytest.mark.parametrize("variant", ["heads", "keys"])
def test_a_jump_does_not_drown_what_decays_slowly_after_it(variant):
    """After a log decay of -1e4, differences of float32 prefix sums would be off by 1e-3."""
    inputs = make(64, variant, batch=1, kind="slow")
    inputs["g"][:, 0] = -1e4
    inputs = rounded(inputs, torch.float32)
    expected = run(inputs, "reference", torch.float64)
    result = run(inputs, "chunk", torch.float32)
    assert relative_error(result["output"], expected["output"]) < 2e-6
    assert relative_error(result["final_state"], expected["final_state"]) < 2e-6
    assert relative_error(result["dg"][:, 1:], expected["dg"][:, 1:]) < 2e-6


@pytest.mark.parametrize("variant", ["heads", "keys"])
def test_gradients_of_strong_decays_keep_their_digits(variant):
    """dg is tiny beside q dq and k dk here, whose difference would have no digit left."""
    inputs = rounded(make(64, variant, batch=1, kind="fast"), torch.float32)
    inputs["initial_state"].zero_()
    expected = run(inputs, "reference", torch.float64)["dg"]
    result = run(inputs, "chunk", torch.float32)["dg"]
    assert 0 < expected.abs().max() < 1e-6
    unit = expected.abs().max()
    assert relative_error(result / unit, expected / unit) < 1e-5


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_pass_gradcheck(variant, packed):
    inputs = make(7, variant, batch=1, keys=2, width=2, sequences=2 if packed else 1)
    bounds = torch.tensor([1, 4, 6]) if packed else None
    leaves = [x.requires_grad_() for x in inputs.values()]

    def call(*leaves):
        named = dict(zip(inputs, leaves, strict=True))
        return decay_attention(**named, scale=SCALE, cu_seqlens=bounds, form="chunk")

    assert torch.autograd.gradcheck(call, leaves)


@pytest.mark.parametrize("form", ALL_FORMS)
@pytest.mark.parametrize("variant", ["heads", "keys", "rank"])
def test_strided_inputs_and_expanded_gradients(variant, form):
    """Views are accepted, and a plain .sum().backward() hands in an expanded gradient."""
    inputs = make(20, variant)
    plain, _ = decay_attention(**inputs, form="reference")
    strided = {n: x.transpose(0, 1).contiguous().transpose(0, 1) for n, x in inputs.items()}
    strided["v"] = torch.stack([inputs["v"]] * 2, dim=-1)[..., 1].requires_grad_()
    output, _ = decay_attention(**strided, form=form)
    assert relative_error(output, plain) < 1e-11
    output.sum().backward()
    assert torch.isfinite(strided["v"].grad).all()


@pytest.mark.parametrize("form", ALL_FORMS)
@pytest.mark.parametrize("variant", ["keys", "rank"])
def test_no_position_and_no_row_are_legal(variant, form):
    """The state passes through, and so does its gradient."""
    inputs = make(0, variant)
    state = inputs["initial_state"].requires_grad_()
    output, final = decay_attention(**inputs, form=form)
    assert output.shape == inputs["v"].shape
    assert torch.equal(final, state)
    final.sum().backward()
    assert (state.grad == 1).all()
    for inputs in (make(3, variant, batch=0), make(0, variant, batch=0)):
        output, final = decay_attention(**inputs, form=form)
        assert output.shape == inputs["v"].shape
        assert final.shape == (0, 2, 6, 5)


@pytest.mark.parametrize("form", ["reference", "chunk"])
def test_bounds_of_no_sequence_give_zeros(form):
    inputs = make(4, batch=1)
    inputs.pop("initial_state")
    none = torch.zeros(1, dtype=torch.int32)
    output, final = decay_attention(**inputs, cu_seqlens=none, form=form)
    assert (output == 0).all()
    assert final.shape == (0, 2, 6, 5)


@pytest.mark.parametrize("form", ALL_FORMS)
def test_no_state_is_a_state_of_zeros(form):
    inputs = make(20)
    inputs["initial_state"].zero_()
    expected = decay_attention(**inputs, form=form)
    inputs.pop("initial_state")
    result = decay_attention(**inputs, form=form)
    assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("form", ALL_FORMS)
def test_zeros_give_zeros(form):
    """Nothing written, nothing remembered: no 0 / 0, no gradient that is not finite."""
    inputs = {n: torch.zeros_like(x).requires_grad_() for n, x in make(70).items()}
    output, state = decay_attention(**inputs, form=form)
    assert (output == 0).all()
    assert (state == 0).all()
    (output.sum() + state.sum()).backward()
    assert all(torch.isfinite(x.grad).all() for x in inputs.values())


def test_equal_calls_give_equal_bits_and_rows_do_not_touch():
    """The same call twice is equal to the bit; a row alone equals itself in a batch to rounding."""
    inputs = {name: x.float() for name, x in make(300, "keys", batch=3).items()}
    first, state = decay_attention(**inputs)
    again, _ = decay_attention(**inputs)
    assert torch.equal(first, again)
    output, final = decay_attention(**{name: x[1:2] for name, x in inputs.items()})
    assert relative_error(output, first[1:2]) < 1e-6
    assert relative_error(final, state[1:2]) < 1e-6


def test_autocast_rounds_neither_the_state_nor_what_leads_to_it():
    inputs = {name: x.float() for name, x in make(70).items()}
    expected = decay_attention(**inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = decay_attention(**inputs)
    assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("variant", ["heads", "keys"])
def test_what_is_not_finite_stays_in_its_sequence(variant, bad):
    """Sequences of a packed row do not touch each other, whatever one of them holds."""
    bounds = torch.tensor([0, 65, 130])
    inputs = make(130, variant, batch=1, sequences=2)
    clean, state = decay_attention(**inputs, cu_seqlens=bounds)
    inputs["v"][:, 10] = bad
    inputs["initial_state"][0] = bad
    spoiled, after = decay_attention(**inputs, cu_seqlens=bounds)
    assert torch.equal(spoiled[:, 65:], clean[:, 65:])
    assert torch.equal(after[1], state[1])


@pytest.mark.parametrize("form", ["reference", "chunk"])
def test_what_is_not_finite_outside_the_bounds_reaches_no_gradient(form):
    inputs = make(7, batch=1)
    for name in ("q", "k", "v", "g"):
        inputs[name][:, 0], inputs[name][:, 5:] = torch.nan, torch.inf
    leaves = {n: x.requires_grad_() for n, x in inputs.items()}
    output, state = decay_attention(**leaves, cu_seqlens=torch.tensor([1, 5]), form=form)
    (output.sum() + state.sum()).backward()
    assert all(x.grad.isfinite().all() for x in leaves.values())


@pytest.mark.parametrize("form", ALL_FORMS)
def test_equal_keys_decay_like_their_head(form):
    """The per-key operator with equal columns is the scalar one."""
    inputs = make(70)
    expected = decay_attention(**inputs, form=form)
    inputs["g"] = inputs["g"][..., None].expand(-1, -1, -1, 6)
    for value, right in zip(decay_attention(**inputs, form=form), expected, strict=True):
        assert relative_error(value, right) < 1e-12


@pytest.mark.parametrize("form", ALL_FORMS)
@pytest.mark.parametrize("per_key", [False, True])
def test_shared_keys_equal_their_copies(per_key, form):
    """Heads 0 and 1 read row 0 of q and k, heads 2 and 3 row 1."""
    inputs = make(70, "shared keys" if per_key else "shared heads", heads=4)
    expected = decay_attention(**inputs, form=form)
    for name in ("q", "k"):
        inputs[name] = inputs[name][:, :, [0, 0, 1, 1]]
    for value, right in zip(decay_attention(**inputs, form=form), expected, strict=True):
        assert relative_error(value, right) < 1e-13


def test_it_is_frac_scan_with_a_decay_per_mode():
    """q = read, k = write and g = -u / tau: two operators, two pieces of code, one memory."""
    modes = torch.linspace(0, 6, 6, dtype=torch.float64)
    inputs = make(150, "keys", kind="spread")
    u = inputs["g"][..., 0].neg()
    inputs["g"] = -u[..., None] * torch.exp(-modes)
    result = decay_attention(**inputs, form="chunk")
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    expected = frac_scan(v, k, q, u, modes, initial_state=inputs["initial_state"], form="reference")
    for value, right in zip(result, expected, strict=True):
        assert relative_error(value, right) < 1e-11


def test_two_silent_steps_equal_one_of_their_sum():
    inputs = make(2, "keys")
    inputs["k"].zero_()
    _, two = decay_attention(**inputs)
    one = {n: x[:, :1] for n, x in inputs.items() if n != "initial_state"}
    one["g"] = inputs["g"].sum(1, keepdim=True)
    _, together = decay_attention(**one, initial_state=inputs["initial_state"])
    assert relative_error(two, together) < 1e-13


@pytest.mark.parametrize("variant", ["heads", "keys"])
def test_memory_does_not_grow_with_keys_times_chunk(variant):
    """No (C, C, K) tensor: what the backward pass keeps is less than C * K scalars a position."""
    inputs = make(4096, variant, batch=1, heads=1, keys=16, width=16)
    inputs = {n: x.float().requires_grad_() for n, x in inputs.items()}
    kept = {}

    def remember(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda x: x):
        output, _ = decay_attention(**inputs, form="chunk")
    assert output.requires_grad
    assert sum(kept.values()) < 4096 * 64 * 16 * 4


@pytest.mark.no_cover  # the compiler is Python too, which the tracer would slow down
@pytest.mark.parametrize(
    ("variant", "packed"),
    [
        ("keys", False),
        pytest.param("shared heads", True, marks=pytest.mark.slow),
        pytest.param("rank", False, marks=pytest.mark.slow),
    ],
)
def test_chunk_compiles_without_a_break(variant, packed):
    inputs = {n: x.requires_grad_() for n, x in make(70, variant, batch=1).items()}
    bounds = torch.tensor([0, 66]) if packed else None

    def call(**inputs):
        return decay_attention(**inputs, cu_seqlens=bounds, form="chunk")

    results = []
    for function in (torch.compile(call, fullgraph=True, backend="aot_eager"), call):
        output, state = function(**inputs)
        loss = output.square().sum() + state.sum()
        results.append((output, state, *torch.autograd.grad(loss, list(inputs.values()))))
    for value, right in zip(*results, strict=True):
        assert relative_error(value, right) < 1e-12


def test_auto_takes_the_update_for_one_position_and_a_fused_form_where_it_can(monkeypatch):
    """A fused form is one more row of FORMS; it is refused a rank axis, with the remedy."""
    taken = []

    def fake(form):
        def call(q, k, v, g, scale, initial_state, cu_seqlens):
            taken.append(form)
            return v, initial_state

        return call

    for form in ALL_FORMS:
        monkeypatch.setitem(FORMS, form, fake(form))
    one, rows = make(1), make(2)
    decay_attention(**one)
    decay_attention(**rows)
    decay_attention(**one | {"initial_state": one["initial_state"].requires_grad_()})
    assert taken == ["recurrent", "chunk", "chunk"]
    monkeypatch.setitem(FORMS, "triton", fake("triton"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for machines without a GPU")
    decay_attention(**rows, form="triton")
    assert taken[-1] == "triton"
    with pytest.raises(ValueError, match="takes no rank axis; use form='chunk'"):
        decay_attention(**make(2, "rank"), form="triton")


def test_wrong_use_is_named():
    inputs = make(5, heads=4)
    with pytest.raises(ValueError, match=r"axis K is 7 in q .*6 in k"):
        decay_attention(**inputs | {"q": torch.zeros(2, 5, 4, 7, dtype=torch.float64)})
    with pytest.raises(ValueError, match=r"multiple of those of q and k, got 4 .* and 3 in k"):
        decay_attention(**inputs | {n: inputs[n][:, :, :3] for n in ("q", "k")})
    with pytest.raises(ValueError, match=r"k needs axes \('B', 'T', 'G', 'R', 'K'\)"):
        decay_attention(**inputs | {"v": make(5, "rank")["v"]})
    rank = make(5, "rank")
    with pytest.raises(ValueError, match=r"g needs axes \('B', 'T', 'H'\)"):
        decay_attention(**rank | {"g": make(5, "keys")["g"]})
    with pytest.raises(ValueError, match="v needs a floating-point dtype"):
        decay_attention(**inputs | {"v": inputs["v"].long()})
    with pytest.raises(ValueError, match="needs batch 1"):
        decay_attention(**inputs, cu_seqlens=torch.tensor([0, 5]))
    one = make(5, batch=1)
    with pytest.raises(ValueError, match="is for 1 sequences, the input has 2"):
        decay_attention(**one, cu_seqlens=torch.tensor([0, 2, 5]))
    with pytest.raises(ValueError, match="one sequence per row"):
        decay_attention(**one, cu_seqlens=torch.tensor([0, 5]), form="recurrent")


@pytest.mark.parametrize("name", ["g", "initial_state"])
def test_half_precision_decays_and_states_are_refused(name):
    """A bf16 decay has two digits, and a bf16 state loses what slow decays change."""
    inputs = {n: x.float() for n, x in make(5).items()}
    with pytest.raises(ValueError, match=f"{name} needs float32 or float64"):
        decay_attention(**inputs | {name: inputs[name].bfloat16()})


@pytest.mark.parametrize("form", ALL_FORMS)
def test_it_agrees_with_flash_linear_attention(form):
    """Another project's recurrences, in float32."""
    simple = pytest.importorskip("fla.ops.simple_gla.naive").naive_recurrent_simple_gla
    gated = pytest.importorskip("fla.ops.gla.naive").naive_recurrent_gla
    for naive, variant in ((simple, "heads"), (gated, "keys")):
        inputs = {n: x.float() for n, x in make(70, variant).items()}
        q, k, v, g, state = inputs.values()
        expected = naive(q, k, v, g, initial_state=state, output_final_state=True)
        result = decay_attention(**inputs, scale=6**-0.5, form=form)
        for value, right in zip(result, expected, strict=True):
            assert relative_error(value, right) < 2e-6
