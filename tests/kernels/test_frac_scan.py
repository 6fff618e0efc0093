import math
from itertools import pairwise

import pytest
import torch
from numerics import relative_error
from scan_cases import BOUNDS, KINDS, LENGTHS, LONG_BOUNDS, assert_same, log_tau, make, run

from fracdna_kernels import frac_scan
from fracdna_kernels.forms import choose_form


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("form", ["chunk", "recurrent"])
@pytest.mark.parametrize("length", LENGTHS)
def test_forms_agree_with_the_reference_at_every_length(length, form, dtype):
    """Output, final state and all gradients, also at lengths that fill no chunk."""
    inputs = make(length)
    assert_same(run(inputs, form, dtype), run(inputs, "reference", torch.float64), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_chunk_agrees_for_every_kind_of_clock(kind, dtype):
    """From a clock that stands still to jumps that erase the fast modes: finite and equal."""
    inputs = make(70, batch=1, heads=2, kind=kind)
    assert_same(run(inputs, "chunk", dtype), run(inputs, "reference", torch.float64), dtype)


@pytest.mark.parametrize(
    ("modes", "width", "heads"),
    [(8, 16, 1), (16, 40, 4), (32, 64, 3), (16, 96, 1), (8, 128, 16), (16, 256, 4)],
)
def test_chunk_agrees_for_every_shape(modes, width, heads):
    inputs = make(33, batch=1, modes=modes, width=width, heads=heads)
    assert_same(
        run(inputs, "chunk", torch.float64), run(inputs, "reference", torch.float64), torch.float64
    )


@pytest.mark.parametrize("length", [1000, 1024, 4101])
def test_chunk_agrees_over_many_chunks(length):
    """The tree over chunks, with odd numbers of them."""
    inputs = make(length, batch=1, heads=1, width=4, kind="spread")
    assert_same(
        run(inputs, "chunk", torch.float64), run(inputs, "recurrent", torch.float64), torch.float64
    )


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_packed_rows_agree_with_the_reference(bounds):
    """Every sequence restarts from its own state; positions past the last bound give 0."""
    inputs = make(130, batch=1, heads=2, kind="spread", sequences=len(bounds) - 1)
    packed = {"cu_seqlens": torch.tensor(bounds)}
    result = run(inputs, "chunk", torch.float64, **packed)
    assert_same(result, run(inputs, "reference", torch.float64, **packed), torch.float64)
    assert (result["output"][:, bounds[-1] :] == 0).all()
    assert (result["dvalues"][:, bounds[-1] :] == 0).all()
    assert (result["output"][:, : bounds[0]] == 0).all()


def test_long_packed_rows_agree_position_by_position():
    """Against the update form run on every sequence alone, with rows past the last bound."""
    inputs = make(2060, batch=1, heads=1, width=4, kind="spread", sequences=5)
    state = inputs.pop("initial_state")
    packed = {"initial_state": state, "cu_seqlens": torch.tensor(LONG_BOUNDS)}
    output, final = frac_scan(**inputs, log_tau=log_tau(), **packed)
    for n, (start, end) in enumerate(pairwise(LONG_BOUNDS)):
        alone = {name: x[:, start:end] for name, x in inputs.items()}
        expected, last = frac_scan(
            **alone, log_tau=log_tau(), initial_state=state[n : n + 1], form="recurrent"
        )
        assert relative_error(output[:, start:end], expected) < 1e-11
        assert relative_error(final[n : n + 1], last) < 1e-11
    assert (output[:, 2048:] == 0).all()


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
def test_gradients_of_states_by_both_roads(wanted):
    """With a loss on output, on the final state, on both, and with gradients that are all zero."""
    inputs = make(70, batch=1)
    results = []
    for form in ("reference", "chunk"):
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        output, state = frac_scan(**leaves, log_tau=log_tau(), form=form)
        loss = output.sin().sum() * wanted[0] + state.cos().sum() * wanted[1]
        results.append(torch.autograd.grad(loss, list(leaves.values())))
    for expected, gradient in zip(*results, strict=True):
        assert relative_error(gradient, expected) < 1e-10


def test_equal_calls_give_equal_bits_and_rows_do_not_touch():
    """The same call twice is equal to the bit; a row alone equals itself in a batch to rounding."""
    inputs = {name: x.float() for name, x in make(300, batch=3).items()}
    first, state = frac_scan(**inputs, log_tau=log_tau().float())
    again, _ = frac_scan(**inputs, log_tau=log_tau().float())
    assert torch.equal(first, again)
    alone = {name: x[1:2] for name, x in inputs.items()}
    output, final = frac_scan(**alone, log_tau=log_tau().float())
    assert relative_error(output, first[1:2]) < 1e-6
    assert relative_error(final, state[1:2]) < 1e-6


def test_packed_equals_separate():
    """Packing changes nothing for any of the sequences."""
    bounds = [0, 1, 64, 90]
    inputs = make(90, batch=1, sequences=3)
    state = inputs.pop("initial_state")
    packed, final = frac_scan(
        **inputs, log_tau=log_tau(), initial_state=state, cu_seqlens=torch.tensor(bounds)
    )
    for n, (start, end) in enumerate(pairwise(bounds)):
        alone, last = frac_scan(
            **{name: x[:, start:end] for name, x in inputs.items()},
            log_tau=log_tau(),
            initial_state=state[n : n + 1],
        )
        assert relative_error(packed[:, start:end], alone) < 1e-12
        assert relative_error(final[n : n + 1], last) < 1e-12


@pytest.mark.parametrize("split", [[100], [1] * 100, [1, 62, 37], [64, 36], [0, 99, 1]])
def test_any_split_with_carried_state_gives_one_pass(split):
    inputs = make(sum(split), kind="spread")
    state = inputs.pop("initial_state")
    whole, final = frac_scan(**inputs, log_tau=log_tau(), initial_state=state)
    pieces, start = [], 0
    for size in split:
        part = {name: x[:, start : start + size] for name, x in inputs.items()}
        output, state = frac_scan(**part, log_tau=log_tau(), initial_state=state)
        pieces.append(output)
        start += size
    assert relative_error(torch.cat(pieces, dim=1), whole) < 1e-11
    assert relative_error(state, final) < 1e-11


@pytest.mark.parametrize("form", ["chunk", "recurrent"])
def test_slowest_mode_keeps_an_impulse_for_65535_positions(form):
    """One write, read when the clock has advanced by 65,535: exp(-65535 / 131072) is left."""
    steps, each = 4096, 65535 / 4096
    values = torch.zeros(1, steps + 1, 1, 1)
    values[:, 0] = 1
    ones = torch.ones(1, steps + 1, 1, 1)
    u = torch.full((1, steps + 1, 1), each)
    output, _ = frac_scan(values, ones, ones, u, torch.tensor([math.log(131072.0)]), form=form)
    assert output[0, -1, 0, 0].item() == pytest.approx(math.exp(-65535 / 131072), rel=2e-5)


def test_gradients_pass_gradcheck():
    inputs = make(9, batch=1, heads=1, modes=3, width=2)
    tau = log_tau(3, 50.0).requires_grad_()
    leaves = [x.requires_grad_() for x in inputs.values()]

    def scan(values, write, read, u, state, tau):
        return frac_scan(values, write, read, u, tau, initial_state=state, form="chunk")

    assert torch.autograd.gradcheck(scan, (*leaves, tau))


@pytest.mark.parametrize("form", ["reference", "chunk", "recurrent"])
def test_strided_inputs_and_expanded_gradients(form):
    """Views are accepted, and a plain .sum().backward() hands in an expanded gradient."""
    inputs = make(20)
    state = inputs.pop("initial_state")
    strided = {n: x.transpose(0, 1).contiguous().transpose(0, 1) for n, x in inputs.items()}
    strided["values"] = torch.stack([inputs["values"]] * 2, dim=-1)[..., 1].requires_grad_()
    plain, _ = frac_scan(**inputs, log_tau=log_tau(), initial_state=state, form="reference")
    output, _ = frac_scan(**strided, log_tau=log_tau(), initial_state=state, form=form)
    assert relative_error(output, plain) < 1e-11
    output.sum().backward()
    assert torch.isfinite(strided["values"].grad).all()


@pytest.mark.parametrize("form", ["reference", "chunk", "recurrent"])
def test_no_position_returns_the_initial_state(form):
    inputs = make(0)
    output, state = frac_scan(**inputs, log_tau=log_tau(), form=form)
    assert output.shape == (2, 0, 3, 8)
    assert torch.equal(state, inputs["initial_state"])


def test_loss_on_the_final_state_alone_reaches_the_inputs():
    inputs = make(30)
    inputs["values"].requires_grad_()
    _, state = frac_scan(**inputs, log_tau=log_tau(), form="chunk")
    state.sum().backward()
    assert inputs["values"].grad.abs().min() > 0


def test_state_stays_float32_under_autocast_and_bf16_values():
    """Slow modes move by less than bf16 resolves: autocast must not round them."""
    inputs = make(70, batch=1)
    exact, final = frac_scan(**inputs, log_tau=log_tau(), form="reference")
    low = {n: x.float() for n, x in inputs.items()}
    low["values"] = low["values"].bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = frac_scan(**low, log_tau=log_tau(), form="chunk")
    assert (output.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    assert relative_error(output, exact) < 5e-3
    assert relative_error(state, final) < 4e-3


def test_auto_takes_the_update_form_for_one_position_without_gradients():
    """auto never means reference, and a form asked for by name is never replaced."""
    forms = ("reference", "chunk", "recurrent")
    plain, learned = torch.zeros(1), torch.zeros(1, requires_grad=True)
    assert choose_form("auto", forms, 1, (plain,)) == "recurrent"
    assert choose_form("auto", forms, 2, (plain,)) == "chunk"
    assert choose_form("auto", forms, 1, (plain, learned)) == "chunk"
    with torch.no_grad():
        assert choose_form("auto", forms, 1, (learned,)) == "recurrent"
    for name in forms:
        assert choose_form(name, forms, 1, (plain,)) == name
    assert choose_form("auto", forms, 1, (plain,), packed=True) == "chunk"


def test_axes_that_do_not_fit_are_named():
    inputs = make(5)
    with pytest.raises(ValueError, match=r"axis M is 15 in read .*16 in write"):
        frac_scan(**inputs | {"read": inputs["read"][..., :15]}, log_tau=log_tau())
    with pytest.raises(ValueError, match="values needs axes"):
        frac_scan(**inputs | {"values": inputs["values"][0]}, log_tau=log_tau())
    with pytest.raises(ValueError, match="needs batch 1"):
        frac_scan(**inputs, log_tau=log_tau(), cu_seqlens=torch.tensor([0, 5]))
    one = make(5, batch=1)
    for bounds in ([0, 3, 2, 5], [-1, 5], [0, 6]):
        with pytest.raises(ValueError, match=r"ascending bounds in 0\.\.5"):
            frac_scan(**one, log_tau=log_tau(), cu_seqlens=torch.tensor(bounds))
    with pytest.raises(ValueError, match="vector of N"):
        frac_scan(**one, log_tau=log_tau(), cu_seqlens=torch.zeros(0, dtype=torch.int32))
    with pytest.raises(ValueError, match="got list"):
        frac_scan(**one, log_tau=log_tau(), cu_seqlens=[0, 5])
    with pytest.raises(ValueError, match="int32 or int64"):
        frac_scan(**one, log_tau=log_tau(), cu_seqlens=torch.tensor([0.0, 5.0]))
    three, two = torch.tensor([0, 1, 2, 5]), make(5, batch=1, sequences=2)
    with pytest.raises(ValueError, match="is for 2 sequences, the input has 3"):
        frac_scan(**two, log_tau=log_tau(), cu_seqlens=three)
    with pytest.raises(ValueError, match="does not exist here"):
        frac_scan(**inputs, log_tau=log_tau(), form="fast")
    two.pop("initial_state")
    with pytest.raises(ValueError, match="one sequence per row"):
        frac_scan(**two, log_tau=log_tau(), cu_seqlens=three, form="recurrent")


def test_half_precision_clocks_and_states_are_refused():
    """A bf16 clock has two digits, and a bf16 state loses the slow modes' steps."""
    inputs = {name: x.float() for name, x in make(5).items()}
    for name in ("u", "initial_state"):
        with pytest.raises(ValueError, match=f"{name} needs float32 or float64"):
            frac_scan(**inputs | {name: inputs[name].bfloat16()}, log_tau=log_tau().float())


def test_one_packed_position_works():
    inputs = make(1, batch=1)
    packed, _ = frac_scan(**inputs, log_tau=log_tau(), cu_seqlens=torch.tensor([0, 1]))
    alone, _ = frac_scan(**inputs, log_tau=log_tau(), form="reference")
    assert relative_error(packed, alone) < 1e-12


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_sequence(bad):
    """Sequences of a packed row do not touch each other, whatever one of them holds."""
    bounds = torch.tensor([0, 65, 130])
    inputs = make(130, batch=1, sequences=2)
    clean, state = frac_scan(**inputs, log_tau=log_tau(), cu_seqlens=bounds)
    inputs["values"][:, 10] = bad
    inputs["initial_state"][0] = bad
    spoiled, after = frac_scan(**inputs, log_tau=log_tau(), cu_seqlens=bounds)
    assert torch.equal(spoiled[:, 65:], clean[:, 65:])
    assert torch.equal(after[1], state[1])


def test_sequences_stay_apart_for_any_time_scale():
    """A memory that never fades ends at the border all the same."""
    bounds = torch.tensor([0, 65, 130])
    inputs = make(130, batch=1, sequences=2)
    endless = torch.full((16,), 80.0, dtype=torch.float64)
    packed, _ = frac_scan(**inputs, log_tau=endless, cu_seqlens=bounds)
    expected, _ = frac_scan(**inputs, log_tau=endless, cu_seqlens=bounds, form="reference")
    assert relative_error(packed, expected) < 1e-11


@pytest.mark.parametrize("form", ["reference", "chunk", "recurrent"])
def test_an_empty_batch_is_legal(form):
    output, state = frac_scan(**make(3, batch=0), log_tau=log_tau(), form=form)
    assert output.shape == (0, 3, 3, 8)
    assert state.shape == (0, 3, 16, 8)


def test_zoh_state_is_tau_times_the_dc_state():
    """S_zoh = tau * S_dc mode by mode, for writes that differ by the gain alone."""
    inputs = make(50)
    inputs.pop("initial_state")
    tau = log_tau().exp()
    _, dc = frac_scan(**inputs, log_tau=log_tau())
    _, zoh = frac_scan(**inputs | {"write": inputs["write"] * tau}, log_tau=log_tau())
    assert relative_error(zoh, dc * tau[:, None]) < 1e-12


def test_a_still_clock_changes_nothing_and_advances_add_up():
    """u = 0 without writes leaves the state; two silent steps equal one of their sum."""
    inputs = make(2)
    inputs["write"].zero_()
    still = inputs | {"u": torch.zeros_like(inputs["u"])}
    assert torch.equal(frac_scan(**still, log_tau=log_tau())[1], inputs["initial_state"])
    _, two = frac_scan(**inputs, log_tau=log_tau())
    one = {n: x[:, :1] for n, x in inputs.items() if n != "initial_state"}
    one["u"] = inputs["u"].sum(1, keepdim=True)
    _, together = frac_scan(**one, log_tau=log_tau(), initial_state=inputs["initial_state"])
    assert relative_error(two, together) < 1e-13


def test_only_the_ratio_of_clock_and_time_scale_matters():
    """(u, tau) to (s u, s tau) leaves the decay as it is."""
    inputs = make(40)
    _, state = frac_scan(**inputs, log_tau=log_tau())
    scaled = inputs | {"u": 7 * inputs["u"]}
    _, same = frac_scan(**scaled, log_tau=log_tau() + math.log(7))
    assert relative_error(same, state) < 1e-12


def test_memory_does_not_grow_with_modes_times_chunk():
    """No (C, C, M) tensor: what the backward pass keeps is less than C * M scalars a position."""
    inputs = make(4096, batch=1, heads=1, width=16)
    inputs = {n: x.float().requires_grad_() for n, x in inputs.items()}
    kept = {}

    def remember(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda x: x):
        output, _ = frac_scan(**inputs, log_tau=log_tau().float(), form="chunk")
    assert output.requires_grad
    assert sum(kept.values()) < 4096 * 64 * 16 * 4
