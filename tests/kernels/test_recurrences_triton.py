"""What the Triton forms of decay_attention and of the delta rules promise alike."""

import importlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import decay_cases
import delta_cases
import pytest
import torch
from numerics import relative_error

from fracdna_kernels import decay_attention, delta_rule, dplr_delta_rule

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXACT = torch.float64 if DEVICE == "cpu" else torch.float32
ON_GPU = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")


class Recurrence(NamedTuple):
    """An operator, how its inputs are made, and the module that plans its pieces."""

    operator: Callable
    make: Callable
    planner: str


RECURRENCES = {
    **{
        variant: Recurrence(
            decay_attention,
            partial(decay_cases.make, variant=variant, keys=16, width=8),
            "fracdna_kernels.decay_attention.triton_chunk",
        )
        for variant in ("heads", "keys")
    },
    "delta_rule": Recurrence(
        delta_rule,
        partial(delta_cases.make, "delta_rule", key=16, width=8),
        "fracdna_kernels.delta_rule.launches",
    ),
    "dplr_delta_rule": Recurrence(
        dplr_delta_rule,
        partial(delta_cases.make, "dplr_delta_rule", key=16, width=8),
        "fracdna_kernels.delta_rule.triton_dplr",
    ),
}


@pytest.fixture(params=RECURRENCES)
def recurrence(request):
    pytest.importorskip("triton")
    return RECURRENCES[request.param]


@pytest.fixture
def cut(recurrence, monkeypatch):
    """Sets the positions of a piece, which otherwise follow from sizes; 0: whole sequences."""

    def choose(length):
        planner = importlib.import_module(recurrence.planner)
        monkeypatch.setattr(planner, "default_segment", lambda *sizes, **options: length)

    return choose


def small(recurrence, length, **sizes):
    """Inputs of one row and one head, if not said otherwise."""
    return recurrence.make(length, **{"batch": 1, "heads": 1} | sizes)


def placed(inputs, dtype=torch.float32):
    """Inputs on the device of the fused form."""
    return {n: x.to(DEVICE, dtype) for n, x in inputs.items()}


def trained(inputs):
    """Copies that require gradients."""
    return {n: x.detach().clone().requires_grad_() for n, x in inputs.items()}


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (False, False)])
def test_gradients_by_both_roads(recurrence, wanted, cut):
    """With a loss on the output or on the final state alone, and with gradients of zero."""
    cut(32)
    inputs, results = small(recurrence, 40), []
    for form, device, dtype in (("reference", "cpu", torch.float64), ("triton", DEVICE, EXACT)):
        leaves = trained({n: x.to(device, dtype) for n, x in inputs.items()})
        output, state = recurrence.operator(**leaves, form=form)
        loss = output.sin().sum() * wanted[0] + state.cos().sum() * wanted[1]
        results.append([g.cpu() for g in torch.autograd.grad(loss, list(leaves.values()))])
    for expected, gradient in zip(*results, strict=True):
        assert relative_error(gradient, expected) < 1e-5


@pytest.mark.parametrize("pick", [0, 1])
def test_a_result_without_a_loss_has_no_gradient(recurrence, pick):
    """Autograd then hands in None, not zeros; and there is no initial state."""
    inputs, results = small(recurrence, 40), []
    inputs.pop("initial_state")
    for form, device, dtype in (("reference", "cpu", torch.float64), ("triton", DEVICE, EXACT)):
        leaves = trained({n: x.to(device, dtype) for n, x in inputs.items()})
        loss = recurrence.operator(**leaves, form=form)[pick].square().sum()
        found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        results.append([g.cpu() for g in found])
    for expected, gradient in zip(*results, strict=True):
        assert relative_error(gradient, expected) < 1e-5


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiles_into_one_graph(recurrence, packed):
    inputs = placed(small(recurrence, 40, sequences=2 if packed else 1))
    bounds = torch.tensor([0, 33, 40], device=DEVICE) if packed else None

    def loss(**tensors):
        output, state = recurrence.operator(**tensors, cu_seqlens=bounds, form="triton")
        return output.square().sum() + state.sum()

    backend = "inductor" if DEVICE == "cuda" else "aot_eager"
    gradients = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend=backend)):
        leaves = trained(inputs)
        gradients.append(torch.autograd.grad(function(**leaves), list(leaves.values())))
    for plain, compiled in zip(*gradients, strict=True):
        assert torch.equal(plain, compiled)


def test_equal_calls_give_equal_bits_in_any_batch(recurrence, cut):
    """Nothing depends on the order in which programs run; with given pieces, not on the batch."""
    cut(32)
    inputs = placed(small(recurrence, 40, batch=2, kind="spread"))
    results = []
    for _ in range(2):
        leaves = trained(inputs)
        output, state = recurrence.operator(**leaves, form="triton")
        loss = output.sin().sum() + state.sum()
        results.append((output, state, *torch.autograd.grad(loss, list(leaves.values()))))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    for b in range(2):
        row = {n: x[b : b + 1] for n, x in inputs.items()}
        alone = recurrence.operator(**row, form="triton")
        for one, all_rows in zip(alone, results[0][:2], strict=True):
            assert torch.equal(one, all_rows[b : b + 1])


def test_strided_inputs_and_expanded_gradients(recurrence):
    """Views are accepted, and a plain .sum().backward() hands in an expanded gradient."""
    inputs = small(recurrence, 20, batch=2)
    plain = trained(inputs)
    expected, _ = recurrence.operator(**plain, form="reference")
    expected.sum().backward()
    strided = {n: x.transpose(0, 1).contiguous().transpose(0, 1) for n, x in inputs.items()}
    strided["v"] = torch.stack([inputs["v"]] * 2, dim=-1)[..., 1]
    leaves = {n: x.detach().requires_grad_() for n, x in placed(strided).items()}
    output, _ = recurrence.operator(**leaves, form="triton")
    assert relative_error(output.cpu(), expected) < 2e-5
    output.sum().backward()
    for name, leaf in leaves.items():
        assert relative_error(leaf.grad.cpu(), plain[name].grad) < 1e-4, name


def test_prefill_and_steps_give_one_pass(recurrence):
    """A sequence in parts, single positions among them, each from the state of the one before."""
    inputs = placed(small(recurrence, 37, kind="spread"))
    state = inputs.pop("initial_state")
    with torch.no_grad():
        whole, final = recurrence.operator(**inputs, initial_state=state, form="triton")
        parts = {n: x.split([33, 2, 1, 1], dim=1) for n, x in inputs.items()}
        outputs = []
        for pieces in zip(*parts.values(), strict=True):
            part = dict(zip(parts, pieces, strict=True))
            output, state = recurrence.operator(**part, initial_state=state, form="triton")
            outputs.append(output)
    assert relative_error(torch.cat(outputs, dim=1), whole) < 2e-5
    assert relative_error(state, final) < 2e-5


@pytest.mark.parametrize("length", [1, 33])
def test_autocast_rounds_nothing_that_the_form_keeps_exact(recurrence, length):
    """Also of a single position, for which a fused form may hand over to PyTorch."""
    inputs = placed(small(recurrence, length))
    with torch.no_grad():
        expected = recurrence.operator(**inputs, form="triton")
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            result = recurrence.operator(**inputs, form="triton")
    assert all(torch.equal(one, other) for one, other in zip(result, expected, strict=True))


def test_few_sequences_are_cut_and_very_many_are_not():
    """Pieces are whole chunks. Packed sequences, of unknown lengths, may all be one but few."""
    from fracdna_kernels.pieces import MANY, piece_length

    def length(programs, N, T, *, packed):
        sizes = {"enough": 256, "wanted": 512, "shortest": 256, "chunk": 32}
        return piece_length(programs, N, T, packed=packed, **sizes)

    assert length(16, 16, 4096, packed=False) == 0
    assert length(16, 1, 65536, packed=False) == length(16, 16, 65536, packed=True) == 2048
    assert length(16, 1, 65536 + 1, packed=False) % 32 == 0
    assert length(16, 1, 256, packed=False) == 0
    assert length(16, MANY * 512 // 16, 65536, packed=True) == 0


@pytest.mark.parametrize("bounds", [[0, 64, 0, 64], [0, 60, 20, 64], [40, 0, 90, 64]], ids=str)
def test_bounds_that_descend_reach_no_foreign_memory(bounds):
    """A device cannot refuse them: places for pieces and chunks suffice all the same."""
    from fracdna_kernels.pieces import Rows

    rows = Rows(1, 64, torch.tensor(bounds), 32)
    for length in (0, 32):
        pieces = rows.cut(length)
        begin, end, sequence, slot, _ = pieces.table
        chunks = (end - begin + 31).div(32, rounding_mode="floor")
        assert (begin >= 0).all()
        assert (end <= 64).all()
        assert (slot + chunks)[sequence >= 0].max() <= rows.slots
        assert pieces.first.max() <= pieces.count


@pytest.mark.parametrize("bad", [torch.nan, pytest.param(torch.inf, marks=pytest.mark.slow)])
def test_what_is_not_finite_stays_in_its_sequence(recurrence, bad, cut):
    """Sequences of a packed row do not touch each other, whatever one of them holds."""
    cut(32)
    bounds = torch.tensor([0, 33, 66], device=DEVICE)
    inputs = placed(small(recurrence, 66, sequences=2))
    clean, state = recurrence.operator(**inputs, cu_seqlens=bounds, form="triton")
    for name in ("q", "k", "v"):
        inputs[name][:, 10] = bad
    inputs["initial_state"][0] = bad
    spoiled, after = recurrence.operator(**inputs, cu_seqlens=bounds, form="triton")
    assert torch.equal(spoiled[:, 33:], clean[:, 33:])
    assert torch.equal(after[1], state[1])


@pytest.mark.parametrize("size", [{"batch": 0}, {"length": 0}, {"width": 0}], ids=str)
def test_nothing_to_do_returns_the_initial_state(recurrence, size):
    inputs = placed(small(recurrence, **{"length": 3, "batch": 2} | size))
    output, state = recurrence.operator(**inputs, form="triton")
    assert output.shape == inputs["v"].shape
    assert (output == 0).all()
    assert torch.equal(state, inputs["initial_state"])
    inputs.pop("initial_state")
    _, state = recurrence.operator(**inputs, form="triton")
    assert state.dtype == torch.float32
    assert (state == 0).all()


def test_second_derivatives_are_refused(recurrence):
    inputs = placed(small(recurrence, 5))
    v = inputs.pop("v").requires_grad_()
    output, _ = recurrence.operator(v=v, **inputs, form="triton")
    (first,) = torch.autograd.grad(output.square().sum(), v, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


@ON_GPU
def test_runs_in_a_cuda_graph_with_changed_inputs(recurrence):
    """Nothing waits for the device, and a replay sees new values, bounds included."""
    inputs = placed(small(recurrence, 200, heads=2, sequences=2))
    bounds = torch.tensor([0, 130, 200], device="cuda")
    leaves = trained(inputs)

    def work():
        output, state = recurrence.operator(**leaves, cu_seqlens=bounds, form="triton")
        return output, *torch.autograd.grad(output.sum() + state.sum(), list(leaves.values()))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()
    with torch.no_grad():
        leaves["v"].mul_(2)
        bounds[1] = 77
    graph.replay()
    for result, expected in zip(results, work(), strict=True):
        assert torch.equal(result, expected)


@ON_GPU
def test_auto_takes_the_fused_form_on_a_device(recurrence):
    inputs = placed(small(recurrence, 40))
    fused, automatic = (recurrence.operator(**inputs, form=f)[0] for f in ("triton", "auto"))
    assert torch.equal(fused, automatic)
