import math
from itertools import pairwise

import pytest
import torch
from delta_cases import OPERATORS, make, rounded, run
from numerics import relative_error
from scan_cases import BOUNDS, KINDS, LENGTHS, LONG_BOUNDS, assert_same
from torch.nn.functional import normalize

from fracdna_kernels.delta_rule import DPLR_FORMS, FORMS, chunk, delta_rule, dplr_delta_rule

TORCH_FORMS = ["reference", "chunk", "recurrent"]
each_operator = pytest.mark.parametrize("name", list(OPERATORS))


def by_matrices(name, inputs, scale):
    """The recurrences as S_t = transition_t S_{t-1} + gained_t, in float64."""
    state, outputs = inputs["initial_state"], []
    identity = torch.eye(state.shape[-2], dtype=torch.float64)
    for t in range(inputs["v"].shape[1]):
        now = {key: x[:, t] for key, x in inputs.items() if key != "initial_state"}
        decay = now["g"].exp()
        if name == "delta_rule":
            beta, k = now["beta"][..., None], now["k"]
            erased = identity - torch.einsum("bhi,bhj->bhij", beta * k, k)
            transition = decay[..., None, None] * erased
            gained = torch.einsum("bhi,bhj->bhij", beta * k, now["v"])
        else:
            replaced = torch.einsum("bhi,bhj->bhij", now["b"], now["a"])
            transition = torch.diag_embed(decay) + replaced
            gained = torch.einsum("bhi,bhj->bhij", now["k"], now["v"])
        state = transition @ state + gained
        outputs.append(scale * torch.einsum("bhk,bhkv->bhv", now["q"], state))
    return torch.stack(outputs, dim=1), state


@each_operator
def test_the_reference_is_the_equation(name):
    """One transition matrix and one gain per position, written from the papers."""
    inputs = make(name, 40, kind="spread")
    output, state = OPERATORS[name](**inputs, scale=0.3, form="reference")
    expected, final = by_matrices(name, inputs, 0.3)
    assert relative_error(output, expected) < 1e-13
    assert relative_error(state, final) < 1e-13


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("form", ["chunk", "recurrent"])
@pytest.mark.parametrize("length", [*LENGTHS, 130])
@each_operator
def test_forms_agree_with_the_reference_at_every_length(name, length, form, dtype):
    """Output, final state and all gradients, also at lengths that fill no chunk."""
    inputs = make(name, length)
    expected = run(name, inputs, "reference", torch.float64, scale=0.5)
    assert_same(run(name, inputs, form, dtype, scale=0.5), expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@each_operator
def test_chunk_agrees_for_every_kind_of_decay(name, kind, dtype):
    """From no decay at all to jumps that erase the memory: finite and equal."""
    inputs = make(name, 140, batch=1, kind=kind)
    assert_same(
        run(name, inputs, "chunk", dtype), run(name, inputs, "reference", torch.float64), dtype
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_chunk_agrees_for_corrections_of_none_all_and_twice_the_error(beta, dtype):
    inputs = make("delta_rule", 100, batch=1, kind="slow")
    inputs["beta"].fill_(beta)
    expected = run("delta_rule", inputs, "reference", torch.float64)
    assert_same(run("delta_rule", inputs, "chunk", dtype), expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_chunk_agrees_where_every_correction_undoes_the_one_before(beta, dtype):
    """All keys are equal. At beta 2 the chunk's inverse has entries of 2 with changing signs.

    So sums over its 64 positions cancel, in gradients twice over: rounding may count 64 * 64 * 2
    times, on some processors more than on others. Powers of what is inverted would count 2^64.
    """
    inputs = make("delta_rule", 100, batch=1, kind="slow")
    inputs["beta"].fill_(beta)
    inputs["k"] = inputs["k"][:, :1].expand_as(inputs["k"]).clone()
    expected = run("delta_rule", inputs, "reference", torch.float64)
    for name, value in run("delta_rule", inputs, "chunk", dtype).items():
        assert relative_error(value, expected[name]) < 64 * 64 * 2 * torch.finfo(dtype).eps, name


@pytest.mark.parametrize("zero", ["q", "k", "v", "beta", "a", "b", "initial_state"])
@each_operator
def test_chunk_agrees_where_one_input_is_zero(name, zero):
    inputs = make(name, 70, batch=1)
    if zero not in inputs:
        pytest.skip(f"{name} has no {zero}")
    inputs[zero].zero_()
    expected = run(name, inputs, "reference", torch.float64)
    assert_same(run(name, inputs, "chunk", torch.float64), expected, torch.float64)


@pytest.mark.parametrize(("heads", "key", "width"), [(1, 16, 40), (4, 64, 16), (3, 5, 1)])
@each_operator
def test_chunk_agrees_for_every_shape(name, heads, key, width):
    inputs = make(name, 67, batch=1, heads=heads, key=key, width=width)
    expected = run(name, inputs, "reference", torch.float64)
    assert_same(run(name, inputs, "chunk", torch.float64), expected, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("length", [1000, 1029])
@each_operator
def test_chunk_agrees_over_many_chunks(name, length, dtype):
    inputs = make(name, length, batch=1, heads=1, key=4, width=4, kind="slow")
    expected = run(name, inputs, "recurrent", torch.float64)
    assert_same(run(name, inputs, "chunk", dtype), expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_both_ways_to_decay_by_key_agree(monkeypatch, dtype):
    """Decays just above and just below what one product takes give the same."""
    inputs = make("dplr_delta_rule", 70, batch=1)
    taken = []

    def watch(way):
        original = getattr(chunk, way)

        def spy(*args):
            taken.append(way)
            return original(*args)

        monkeypatch.setattr(chunk, way, spy)

    watch("_mild_pair_sums")
    watch("_any_pair_sums")
    for total, way in ((0.999, "_mild_pair_sums"), (1.001, "_any_pair_sums")):
        inputs["g"] = torch.full_like(inputs["g"], -chunk.MOST_DECAY / chunk.DPLR_CHUNK * total)
        taken.clear()
        result = run("dplr_delta_rule", inputs, "chunk", dtype)
        assert set(taken) == {way}
        expected = run("dplr_delta_rule", inputs, "reference", torch.float64)
        assert_same(result, expected, dtype)


def test_the_decay_of_rwkv7_is_always_mild():
    """Its bound, exp(-1/2) a position, over a whole chunk."""
    assert chunk.DPLR_CHUNK * math.exp(-0.5) < chunk.MOST_DECAY


@each_operator
def test_bfloat16_inputs_and_autocast_keep_the_state_in_float32(name):
    """Autocast must not round what the forms compute; gradients come back in bfloat16."""
    inputs = rounded(make(name, 70, batch=1), torch.bfloat16)
    expected = run(name, inputs, "reference", torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = run(name, inputs, "chunk", torch.bfloat16)
    assert (result["output"].dtype, result["final_state"].dtype) == (torch.bfloat16, torch.float32)
    assert_same(result, expected, torch.bfloat16)
    assert relative_error(result["final_state"], expected["final_state"]) < 2e-5


@pytest.mark.parametrize("form", ["chunk", "recurrent"])
@each_operator
def test_a_slow_decay_keeps_its_rate_in_float32(name, form):
    """4096 factors of exp(-1e-4), each rounded to float32, would be wrong by 9e-5."""
    inputs = {key: x.float() for key, x in make(name, 4096, batch=1, heads=1).items()}
    for key in ("k", "a", "b", "beta"):
        if key in inputs:
            inputs[key].zero_()
    inputs["g"].fill_(-1e-4)
    _, state = OPERATORS[name](**inputs, form=form)
    kept = torch.exp(inputs["g"].double()[0, 0, 0] * 4096)
    assert relative_error(state, inputs["initial_state"] * kept[..., None]) < 1e-5


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@each_operator
def test_packed_rows_agree_with_the_reference(name, bounds):
    """Every sequence restarts from its own state; positions past the last bound give 0."""
    inputs = make(name, 130, batch=1, kind="spread", sequences=len(bounds) - 1)
    packed = {"cu_seqlens": torch.tensor(bounds)}
    result = run(name, inputs, "chunk", torch.float64, **packed)
    assert_same(result, run(name, inputs, "reference", torch.float64, **packed), torch.float64)
    for x in ("output", "dv", "dg", "dk"):
        assert (result[x][:, bounds[-1] :] == 0).all()
        assert (result[x][:, : bounds[0]] == 0).all()


@each_operator
def test_long_packed_rows_agree_sequence_by_sequence(name):
    """Against the update form run on every sequence alone, with rows past the last bound."""
    inputs = make(name, 2060, batch=1, heads=1, key=4, width=4, sequences=5)
    state = inputs.pop("initial_state")
    packed = {"initial_state": state, "cu_seqlens": torch.tensor(LONG_BOUNDS)}
    output, final = OPERATORS[name](**inputs, **packed)
    for n, (start, end) in enumerate(pairwise(LONG_BOUNDS)):
        alone = {key: x[:, start:end] for key, x in inputs.items()}
        expected, last = OPERATORS[name](**alone, initial_state=state[n : n + 1], form="recurrent")
        assert relative_error(output[:, start:end], expected) < 1e-11
        assert relative_error(final[n : n + 1], last) < 1e-11
    assert (output[:, LONG_BOUNDS[-1] :] == 0).all()


@pytest.mark.parametrize("form", ["reference", "chunk"])
@each_operator
def test_packed_rows_without_a_state_start_empty(name, form):
    inputs = make(name, 50, batch=1)
    inputs.pop("initial_state")
    bounds = torch.tensor([0, 20, 20, 50])
    output, final = OPERATORS[name](**inputs, cu_seqlens=bounds, form=form)
    alone, last = OPERATORS[name](**{key: x[:, 20:] for key, x in inputs.items()}, form=form)
    assert relative_error(output[:, 20:], alone) < 1e-12
    assert relative_error(final[2:], last) < 1e-12
    assert (final[1] == 0).all()


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
@each_operator
def test_gradients_of_states_by_both_roads(name, wanted):
    """With a loss on output, on the final state, on both, and with gradients that are all zero."""
    inputs = make(name, 70, batch=1)
    results = []
    for form in ("reference", "chunk"):
        leaves = {key: x.clone().requires_grad_() for key, x in inputs.items()}
        output, state = OPERATORS[name](**leaves, form=form)
        loss = output.sin().sum() * wanted[0] + state.cos().sum() * wanted[1]
        results.append(torch.autograd.grad(loss, list(leaves.values())))
    for expected, gradient in zip(*results, strict=True):
        assert relative_error(gradient, expected) < 1e-10


@pytest.mark.parametrize("split", [[100], [1] * 100, [1, 62, 37], [64, 36], [0, 99, 1]])
@each_operator
def test_any_split_with_carried_state_gives_one_pass(name, split):
    inputs = make(name, sum(split))
    state = inputs.pop("initial_state")
    whole, final = OPERATORS[name](**inputs, initial_state=state)
    pieces, start = [], 0
    for size in split:
        part = {key: x[:, start : start + size] for key, x in inputs.items()}
        output, state = OPERATORS[name](**part, initial_state=state)
        pieces.append(output)
        start += size
    assert relative_error(torch.cat(pieces, dim=1), whole) < 1e-11
    assert relative_error(state, final) < 1e-11


@pytest.mark.parametrize("form", TORCH_FORMS)
@each_operator
def test_right_padding_leaves_the_state(name, form):
    """A pad neither decays nor writes, whatever its query and value are."""
    inputs = make(name, 70)
    _, expected = OPERATORS[name](
        **{key: x if key == "initial_state" else x[:, :45] for key, x in inputs.items()}, form=form
    )
    for key in ("g", "beta") if name == "delta_rule" else ("g", "k", "b"):
        inputs[key][:, 45:] = 0
    _, state = OPERATORS[name](**inputs, form=form)
    assert relative_error(state, expected) < 1e-12


@pytest.mark.parametrize("kind", ["uniform", "fast"])
@each_operator
def test_gradients_pass_gradcheck(name, kind):
    """By both ways to decay; where the decay is fast a small step still sees what is left."""
    inputs = make(name, 9, batch=1, heads=1, key=3, width=2, kind=kind)
    inputs["g"] = inputs["g"] / (4 if kind == "fast" else 1)
    names = list(inputs)

    def rule(*leaves):
        return OPERATORS[name](**dict(zip(names, leaves, strict=True)), form="chunk")

    assert torch.autograd.gradcheck(rule, tuple(x.requires_grad_() for x in inputs.values()))


@pytest.mark.parametrize("form", TORCH_FORMS)
@each_operator
def test_strided_inputs_and_expanded_gradients(name, form):
    """Views are accepted, and a plain .sum().backward() hands in an expanded gradient."""
    inputs = make(name, 20)
    state = inputs.pop("initial_state")
    strided = {key: x.transpose(0, 1).contiguous().transpose(0, 1) for key, x in inputs.items()}
    strided["v"] = torch.stack([inputs["v"]] * 2, dim=-1)[..., 1].requires_grad_()
    plain, _ = OPERATORS[name](**inputs, initial_state=state, form="reference")
    output, _ = OPERATORS[name](**strided, initial_state=state, form=form)
    assert relative_error(output, plain) < 1e-11
    output.sum().backward()
    assert torch.isfinite(strided["v"].grad).all()


@pytest.mark.parametrize("form", TORCH_FORMS)
@each_operator
def test_no_position_returns_the_initial_state_and_passes_its_gradient(name, form):
    inputs = make(name, 0)
    inputs["initial_state"].requires_grad_()
    output, state = OPERATORS[name](**inputs, form=form)
    assert output.shape == (2, 0, 2, 6)
    assert torch.equal(state, inputs["initial_state"])
    (gradient,) = torch.autograd.grad(state.sum(), inputs["initial_state"])
    assert (gradient == 1).all()


@pytest.mark.parametrize("form", TORCH_FORMS)
@each_operator
def test_an_empty_batch_is_legal(name, form):
    output, state = OPERATORS[name](**make(name, 3, batch=0), form=form)
    assert output.shape == (0, 3, 2, 6)
    assert state.shape == (0, 2, 8, 6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@each_operator
def test_what_is_not_finite_stays_in_its_sequence(name, bad):
    """Sequences of a packed row do not touch each other, forward and backward."""
    bounds = torch.tensor([0, 65, 130])
    inputs = make(name, 130, batch=1, sequences=2)
    results = []
    for spoiled in (False, True):
        leaves = {key: x.clone() for key, x in inputs.items()}
        if spoiled:
            leaves["v"][:, 10] = bad
            leaves["initial_state"][0] = bad
        leaves["v"].requires_grad_()
        output, state = OPERATORS[name](**leaves, cu_seqlens=bounds)
        loss = output[:, 65:].sum() + state[1].sum()
        results.append((output[:, 65:], state[1], *torch.autograd.grad(loss, leaves["v"])))
    (output, state, gradient), (after, last, spoiled) = results
    assert torch.equal(output, after)
    assert torch.equal(state, last)
    assert torch.equal(gradient[:, 65:], spoiled[:, 65:])


@each_operator
def test_equal_calls_give_equal_bits_and_rows_do_not_touch(name):
    """The same call twice is equal to the bit; a row alone equals itself in a batch to rounding."""
    inputs = {key: x.float() for key, x in make(name, 300, batch=3).items()}
    first, state = OPERATORS[name](**inputs)
    again, _ = OPERATORS[name](**inputs)
    assert torch.equal(first, again)
    output, final = OPERATORS[name](**{key: x[1:2] for key, x in inputs.items()})
    assert relative_error(output, first[1:2]) < 1e-6
    assert relative_error(final, state[1:2]) < 1e-6


@pytest.mark.parametrize("form", TORCH_FORMS)
def test_the_delta_rule_is_a_case_of_diagonal_plus_low_rank(form):
    """a = -exp(g) k, b = beta k, and beta k in the place of the key."""
    inputs = make("delta_rule", 70)
    output, state = delta_rule(**inputs, form=form)
    k, beta, g = inputs["k"], inputs.pop("beta")[..., None], inputs["g"][..., None]
    mapped = {"k": beta * k, "a": -g.exp() * k, "b": beta * k, "g": g.expand_as(k)}
    same, final = dplr_delta_rule(**inputs | mapped, form=form)
    assert relative_error(same, output) < 1e-12
    assert relative_error(final, state) < 1e-12


@pytest.mark.parametrize("form", TORCH_FORMS)
def test_a_full_correction_stores_the_value_under_its_key(form):
    """With beta 1 and no decay, the key of this position reads what was just written."""
    inputs = make("delta_rule", 70, kind="zero")
    inputs["beta"].fill_(1)
    output, _ = delta_rule(**inputs | {"q": inputs["k"]}, form=form)
    assert relative_error(output, inputs["v"]) < 1e-12


def test_a_double_correction_reflects_the_state():
    """With beta 2, no decay and values of zero, no position changes the length of a column."""
    inputs = make("delta_rule", 200, kind="zero")
    inputs["beta"].fill_(2)
    inputs["v"].zero_()
    _, state = delta_rule(**inputs)
    assert relative_error(state.norm(dim=-2), inputs["initial_state"].norm(dim=-2)) < 1e-12


@pytest.mark.parametrize("form", TORCH_FORMS)
def test_l2norm_takes_the_direction_of_queries_and_keys(form):
    """Their lengths do not matter, and keys of zero write nothing and have finite gradients."""
    inputs = make("delta_rule", 70)
    inputs["k"] = 3 * inputs["k"]
    output, state = delta_rule(**inputs, l2norm=True, form=form)
    directions = {key: normalize(inputs[key], dim=-1) for key in "qk"}
    expected, final = delta_rule(**inputs | directions, form=form)
    assert relative_error(output, expected) < 1e-5  # what NORM_EPS makes of short queries
    assert relative_error(state, final) < 1e-5
    inputs["k"][:, 10:20] = 0
    leaves = {key: x.clone().requires_grad_() for key, x in inputs.items()}
    output, state = delta_rule(**leaves, l2norm=True, form=form)
    (output.sum() + state.sum()).backward()
    assert all(torch.isfinite(x.grad).all() for x in leaves.values())


def test_l2norm_of_bfloat16_keys_is_not_rounded():
    inputs = rounded(make("delta_rule", 70, batch=1), torch.bfloat16)
    expected, final = delta_rule(**inputs, l2norm=True, form="reference")
    low = {key: x.to(torch.float32 if key in ("g", "initial_state") else torch.bfloat16)
           for key, x in inputs.items()}  # fmt: skip
    output, state = delta_rule(**low, l2norm=True)
    assert relative_error(output, expected) < 5e-3
    assert relative_error(state, final) < 2e-5


@pytest.mark.parametrize("kind", ["uniform", "fast"])
@each_operator
def test_memory_does_not_grow_with_keys_times_chunk(name, kind):
    """No (C, C, K) tensor: the backward pass keeps less than 40 arrays as large as the keys."""
    inputs = make(name, 1024, batch=1, heads=1, key=64, width=64, kind=kind)
    inputs = {key: x.float().requires_grad_() for key, x in inputs.items()}
    kept = {}

    def remember(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda x: x):
        output, _ = OPERATORS[name](**inputs, form="chunk")
    assert output.requires_grad
    assert sum(kept.values()) < 40 * 1024 * 64 * 4


@pytest.mark.no_cover  # the compiler is Python too, which the tracer would slow down
@each_operator
def test_chunk_is_one_graph_for_the_compiler(name):
    """No break on bounds or decays, gradients included."""
    inputs = make(name, 40, batch=1, sequences=2)
    bounds = torch.tensor([0, 7, 33])
    results = []
    for call in (
        OPERATORS[name],
        torch.compile(OPERATORS[name], fullgraph=True, backend="aot_eager"),
    ):
        leaves = {key: x.clone().requires_grad_() for key, x in inputs.items()}
        output, state = call(**leaves, cu_seqlens=bounds, form="chunk")
        loss = output.sin().sum() + state.cos().sum()
        results.append((output, state, *torch.autograd.grad(loss, list(leaves.values()))))
    for compiled, expected in zip(*results, strict=True):
        assert relative_error(compiled, expected) < 1e-10


def test_auto_takes_the_update_form_for_one_position_without_gradients(monkeypatch):
    """Otherwise chunk; never the reference."""
    for name, table in (("delta_rule", FORMS), ("dplr_delta_rule", DPLR_FORMS)):
        for form in TORCH_FORMS:
            monkeypatch.setitem(table, form, lambda *_, _form=form: (_form,))
        assert OPERATORS[name](**make(name, 1))[0] == "recurrent"
        assert OPERATORS[name](**make(name, 2))[0] == "chunk"
        learned = make(name, 1)
        learned["g"].requires_grad_()
        assert OPERATORS[name](**learned)[0] == "chunk"


@each_operator
def test_axes_that_do_not_fit_are_named(name):
    rule, inputs = OPERATORS[name], make(name, 5)
    with pytest.raises(ValueError, match=r"axis K is 7 in k .*8 in q"):
        rule(**inputs | {"k": inputs["k"][..., :7]})
    with pytest.raises(ValueError, match="g needs axes"):
        rule(**inputs | {"g": inputs["g"][0]})
    with pytest.raises(ValueError, match="v needs a floating-point dtype"):
        rule(**inputs | {"v": inputs["v"].long()})
    with pytest.raises(ValueError, match="needs batch 1"):
        rule(**inputs, cu_seqlens=torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="is for 3 sequences, the input has 2"):
        rule(**make(name, 5, sequences=3))
    with pytest.raises(ValueError, match="does not exist here"):
        rule(**inputs, form="fast")
    one = make(name, 5, batch=1)
    with pytest.raises(ValueError, match="one sequence per row"):
        rule(**one, cu_seqlens=torch.tensor([0, 5]), form="recurrent")
    for key in ("g", "initial_state"):
        with pytest.raises(ValueError, match=f"{key} needs float32 or float64"):
            rule(**inputs | {key: inputs[key].bfloat16()})


def test_chunk_agrees_with_the_public_gated_delta_rule():
    naive = pytest.importorskip("fla.ops.gated_delta_rule.naive")
    inputs = {key: x.float() for key, x in make("delta_rule", 100).items()}
    output, state = delta_rule(**inputs, scale=0.5)
    expected, final = naive.naive_recurrent_gated_delta_rule(
        **inputs, scale=0.5, output_final_state=True
    )
    assert relative_error(output, expected) < 2e-5
    assert relative_error(state, final) < 2e-5


def test_chunk_agrees_with_the_public_diagonal_plus_low_rank_rule():
    """There the scale is K^-1/2 and heads come before positions."""
    naive = pytest.importorskip("fla.ops.generalized_delta_rule.dplr.naive")
    inputs = {key: x.float() for key, x in make("dplr_delta_rule", 100).items()}
    output, state = dplr_delta_rule(**inputs, scale=8**-0.5)
    swapped = [inputs[key].transpose(1, 2) for key in ("q", "k", "v", "a", "b", "g")]
    expected, final = naive.dplr_recurrence(*swapped, initial_state=inputs["initial_state"])
    assert relative_error(output, expected.transpose(1, 2)) < 2e-5
    assert relative_error(state, final) < 2e-5
