"""The Triton form of frac_scan: compiled on a CUDA device, else in Triton's interpreter."""

import math

import pytest
import torch
from numerics import relative_error
from scan_cases import BOUNDS, KINDS, LENGTHS, assert_same, log_tau, make, rounded, run

from fracdna_kernels import frac_scan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# bfloat16 is not multiplied in the interpreter as on a device
DTYPES = [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float32]
EXACT = torch.float64 if DEVICE == "cpu" else torch.float32
ON_GPU = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")


def check(inputs, dtype, **options):
    """The fused form against the reference in float64 on the same inputs."""
    inputs = rounded(inputs, dtype)
    plain = {n: x for n, x in options.items() if n != "segment_length"}
    result = run(inputs, "triton", dtype, device=DEVICE, **options)
    form = "reference" if inputs["u"].shape[1] < 1000 else "chunk"
    assert_same(result, run(inputs, form, torch.float64, **plain), dtype)
    return result


def placed(inputs, dtype=torch.float32):
    """Inputs on the device of the fused form."""
    return {n: x.to(DEVICE, dtype) for n, x in inputs.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_agrees_with_the_reference_at_every_length(length, dtype):
    check(make(length, batch=1, heads=2), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_for_every_kind_of_clock(kind, dtype):
    """From a clock that stands still to jumps that erase the fast modes: finite and equal."""
    check(make(70, batch=1, heads=1, kind=kind), dtype)


@pytest.mark.parametrize("dtype", DTYPES[-1:], ids=str)
@pytest.mark.parametrize(
    ("modes", "width", "heads"),
    [(8, 16, 1), (16, 40, 4), (32, 64, 3), (16, 96, 1), (8, 128, 2), (16, 256, 1), (12, 300, 1)],
)
def test_agrees_for_every_shape(modes, width, heads, dtype):
    """Modes and widths that fill no tile, and a width of several tiles."""
    check(make(33, batch=1, modes=modes, width=width, heads=heads), dtype)


@pytest.mark.parametrize("segment", [None, 32], ids=["auto", "pieces of 32"])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_packed_rows_agree_with_the_reference(bounds, segment):
    """Every sequence restarts from its own state; positions outside the bounds give 0."""
    inputs = make(130, batch=1, heads=1, kind="spread", sequences=len(bounds) - 1)
    result = check(inputs, EXACT, cu_seqlens=torch.tensor(bounds), segment_length=segment)
    for name in ("output", "dvalues", "dwrite", "dread", "du"):
        assert (result[name][:, bounds[-1] :] == 0).all()
        assert (result[name][:, : bounds[0]] == 0).all()


@pytest.mark.parametrize("kind", ["uniform", "jump middle"])
@pytest.mark.parametrize("segment", [32, 96, 512])
def test_pieces_in_parallel_change_nothing(segment, kind):
    """Pieces that end with the sequence, before it, or beyond it."""
    check(make(130, batch=1, heads=1, kind=kind), EXACT, segment_length=segment)


def test_many_pieces_are_joined_by_a_kernel_of_its_own(monkeypatch):
    """Of few, each adds up those before it; the results are the same."""
    from fracdna_kernels.frac_scan import triton_chunk

    monkeypatch.setattr(triton_chunk, "FEW", 1)
    check(make(130, batch=2, heads=1), EXACT, segment_length=32)


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
def test_gradients_by_both_roads(wanted):
    """With a loss on output, on the final state, on both, and with gradients that are all zero."""
    inputs = make(40, batch=1, heads=1)
    results = []
    for form, device, dtype in (("reference", "cpu", torch.float64), ("triton", DEVICE, EXACT)):
        leaves = {n: x.to(device, dtype, copy=True).requires_grad_() for n, x in inputs.items()}
        output, state = frac_scan(**leaves, log_tau=log_tau().to(device, dtype), form=form)
        loss = output.sin().sum() * wanted[0] + state.cos().sum() * wanted[1]
        results.append([g.cpu() for g in torch.autograd.grad(loss, list(leaves.values()))])
    for expected, gradient in zip(*results, strict=True):
        assert relative_error(gradient, expected) < 1e-5


def test_loss_on_one_result_leaves_the_other_without_gradient():
    """Autograd then hands in None, not zeros."""
    inputs = make(40, batch=1, heads=1)
    for pick in (0, 1):
        gradients = []
        for form, device, dtype in (("chunk", "cpu", torch.float64), ("triton", DEVICE, EXACT)):
            leaves = {n: x.to(device, dtype, copy=True).requires_grad_() for n, x in inputs.items()}
            result = frac_scan(**leaves, log_tau=log_tau().to(device, dtype), form=form)[pick]
            found = torch.autograd.grad(
                result.square().sum(), list(leaves.values()), materialize_grads=True
            )
            gradients.append([g.cpu() for g in found])
        for expected, gradient in zip(*gradients, strict=True):
            assert relative_error(gradient, expected) < 1e-5


@pytest.mark.skipif(DEVICE == "cuda", reason="float64 runs in the interpreter alone")
def test_gradients_pass_gradcheck():
    inputs = make(3, batch=1, heads=1, modes=2, width=2)
    leaves = [x.requires_grad_() for x in inputs.values()]

    def scan(values, write, read, u, state):
        tau = log_tau(2, 50.0)
        return frac_scan(values, write, read, u, tau, initial_state=state, form="triton")

    assert torch.autograd.gradcheck(scan, leaves)


@pytest.mark.no_cover  # PyTorch's checks are Python too, which the tracer would slow down
@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_operators_are_registered_as_pytorch_expects(packed):
    """Schemas, shapes without data, autograd and compilation of the raw operators."""
    from fracdna_kernels.frac_scan.triton_chunk import backward, forward
    from fracdna_kernels.frac_scan.triton_step import step, step_

    inputs = placed(make(40, batch=1, heads=1, sequences=2 if packed else 1))
    state, tau = inputs.pop("initial_state"), log_tau().float().to(DEVICE)
    bounds = torch.tensor([0, 33, 40], device=DEVICE) if packed else None
    tensors = (*inputs.values(), tau)
    leaves = [x.clone().requires_grad_() for x in inputs.values()]
    torch.library.opcheck(forward.registered, (*leaves, tau, state, bounds, 32, True))
    output, final, states = forward(*tensors, state, bounds, 32, True)
    given = output, final, *tensors, state, bounds, states, 32
    torch.library.opcheck(backward.registered, given)
    one = [x[:, :1].contiguous() for x in inputs.values()]
    torch.library.opcheck(step.registered, (*one, tau, state[:1]))
    torch.library.opcheck(step_.registered, (*one, tau, state[:1].clone()))


@pytest.mark.parametrize("packed", [False, True])
def test_compiles_into_one_graph(packed):
    inputs = placed(make(40, batch=1, heads=1, sequences=2 if packed else 1))
    bounds = torch.tensor([0, 33, 40], device=DEVICE) if packed else None
    tau = log_tau().float().to(DEVICE)

    def scan(**tensors):
        output, state = frac_scan(**tensors, log_tau=tau, cu_seqlens=bounds, form="triton")
        return output.square().sum() + state.sum()

    backend = "inductor" if DEVICE == "cuda" else "aot_eager"
    gradients = []
    for function in (scan, torch.compile(scan, fullgraph=True, backend=backend)):
        leaves = {n: x.clone().requires_grad_() for n, x in inputs.items()}
        gradients.append(torch.autograd.grad(function(**leaves), list(leaves.values())))
    for plain, compiled in zip(*gradients, strict=True):
        assert torch.equal(plain, compiled)


def test_equal_calls_give_equal_bits_in_any_batch():
    """Nothing depends on the order in which programs run; with given pieces, not on the batch."""
    inputs = make(70, batch=2, heads=1, kind="spread")
    first, again = (
        run(inputs, "triton", torch.float32, device=DEVICE, segment_length=32) for _ in range(2)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    for b in range(2):
        row = placed({n: x[b : b + 1] for n, x in inputs.items()})
        output, state = frac_scan(
            **row, log_tau=log_tau().float().to(DEVICE), segment_length=32, form="triton"
        )
        assert torch.equal(output, first["output"][b : b + 1])
        assert torch.equal(state, first["final_state"][b : b + 1])


def test_strided_inputs_and_expanded_gradients():
    """Views are accepted, and a plain .sum().backward() hands in an expanded gradient."""
    inputs = make(20)
    expected = run(inputs, "reference", torch.float64)["output"]
    strided = {n: x.transpose(0, 1).contiguous().transpose(0, 1) for n, x in inputs.items()}
    strided["values"] = torch.stack([inputs["values"]] * 2, dim=-1)[..., 1]
    leaves = {n: x.detach() for n, x in placed(strided).items()}
    leaves["values"].requires_grad_()
    output, _ = frac_scan(**leaves, log_tau=log_tau().float().to(DEVICE), form="triton")
    assert relative_error(output.cpu(), expected) < 2e-5
    output.sum().backward()
    plain = inputs["values"].detach().clone().requires_grad_()
    frac_scan(**inputs | {"values": plain}, log_tau=log_tau(), form="reference")[0].sum().backward()
    assert relative_error(leaves["values"].grad.cpu(), plain.grad) < 1e-4


@pytest.mark.parametrize("inplace", [False, True])
def test_prefill_and_steps_give_one_pass(inplace):
    """One position at a time from the state of a prefill, also where it lies."""
    inputs = placed(make(37, kind="spread"))
    state, tau = inputs.pop("initial_state"), log_tau().float().to(DEVICE)
    with torch.no_grad():
        whole, final = frac_scan(**inputs, log_tau=tau, initial_state=state, form="triton")
        parts = {n: x.split([34, 1, 1, 1], dim=1) for n, x in inputs.items()}
        outputs, carried = [], state.clone()
        for pieces in zip(*parts.values(), strict=True):
            part = dict(zip(parts, pieces, strict=True))
            before = carried
            output, carried = frac_scan(
                **part, log_tau=tau, initial_state=before, inplace_state=inplace, form="triton"
            )
            assert (carried.data_ptr() == before.data_ptr()) == inplace
            outputs.append(output)
    assert relative_error(torch.cat(outputs, dim=1), whole) < 2e-5
    assert relative_error(carried, final) < 2e-5


def test_one_step_is_exact_for_the_slowest_mode():
    """A step of tau = 131072 moves the state by exp(-u/tau) - 1 formed by itself."""
    tau = torch.tensor([math.log(131072.0)], device=DEVICE)
    ones, zero = torch.ones(1, 1, 1, 1, device=DEVICE), torch.zeros(1, 1, 1, 1, device=DEVICE)
    for clock in (0.1, 1.0, 30.0):
        u = torch.full((1, 1, 1), clock, device=DEVICE)
        # the step is added to the state before it is rounded: nothing is left but the step
        lost = math.expm1(-clock / 131072)
        _, after = frac_scan(
            ones, -lost * ones, ones, u, tau, initial_state=ones.clone(), form="triton"
        )
        assert abs(after.item() - 1) <= 2**-23
        _, after = frac_scan(ones, zero, ones, u, tau, initial_state=ones, form="triton")
        assert after.item() == pytest.approx(1 + lost, abs=2**-24)


def test_one_step_keeps_what_is_written_beside_a_state_that_fades():
    """The state is large and the clock jumps: what is left of it does not round the write away."""
    ones, tau = torch.ones(1, 1, 1, 1, device=DEVICE), torch.zeros(1, device=DEVICE)
    for clock, state, write in ((1e4, 1e4, 1e-4), (20.0, 1.0, 1e-6), (1.0, 5.0, 1e-3)):
        expected = state * math.exp(-clock) + write
        _, after = frac_scan(
            ones, write * ones, ones, torch.full((1, 1, 1), clock, device=DEVICE), tau,
            initial_state=state * ones, form="triton",
        )  # fmt: skip
        assert after.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("modes", [8, 16])
def test_an_infinite_advance_forgets_all_before(modes):
    """Padded modes must not make NaN of it."""
    inputs = make(40, batch=1, heads=1, modes=modes)
    inputs["u"][:, 20] = math.inf
    tau = log_tau(modes).float().to(DEVICE)
    output, state = frac_scan(**placed(inputs), log_tau=tau, form="triton")
    expected, final = frac_scan(**inputs, log_tau=log_tau(modes), form="reference")
    assert relative_error(output.cpu(), expected) < 2e-5
    assert relative_error(state.cpu(), final) < 2e-5


def test_slowest_mode_keeps_an_impulse_for_65535_positions():
    """One write, read when the clock has advanced by 65,535: exp(-65535 / 131072) is left."""
    steps, each = 256, 65535 / 256
    values = torch.zeros(1, steps + 1, 1, 1)
    values[:, 0] = 1
    ones, u = torch.ones(1, steps + 1, 1, 1), torch.full((1, steps + 1, 1), each)
    tensors = [x.to(DEVICE) for x in (values, ones, ones, u, torch.tensor([math.log(131072.0)]))]
    output, _ = frac_scan(*tensors, form="triton", segment_length=64)
    assert output[0, -1, 0, 0].item() == pytest.approx(math.exp(-65535 / 131072), rel=2e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_sequence(bad):
    """Sequences of a packed row do not touch each other, whatever one of them holds."""
    bounds, tau = torch.tensor([0, 33, 70], device=DEVICE), log_tau().float().to(DEVICE)
    inputs = placed(make(70, batch=1, heads=1, sequences=2))
    options = {"log_tau": tau, "cu_seqlens": bounds, "segment_length": 32, "form": "triton"}
    clean, state = frac_scan(**inputs, **options)
    inputs["values"][:, 10] = bad
    inputs["initial_state"][0] = bad
    spoiled, after = frac_scan(**inputs, **options)
    assert torch.equal(spoiled[:, 33:], clean[:, 33:])
    assert torch.equal(after[1], state[1])


@pytest.mark.parametrize("size", [{"batch": 0}, {"length": 0}], ids=str)
def test_nothing_to_do_returns_the_initial_state(size):
    inputs = placed(make(**{"length": 3, "batch": 2} | size))
    tau = log_tau().float().to(DEVICE)
    output, state = frac_scan(**inputs, log_tau=tau, form="triton")
    assert output.shape == inputs["values"].shape
    assert torch.equal(state, inputs["initial_state"])


def test_second_derivatives_are_refused():
    inputs = placed(make(5, batch=1, heads=1))
    values = inputs.pop("values").requires_grad_()
    output, _ = frac_scan(values, **inputs, log_tau=log_tau().float().to(DEVICE), form="triton")
    (first,) = torch.autograd.grad(output.square().sum(), values, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


def test_what_the_fused_form_cannot_take_is_refused_with_the_reason(monkeypatch):
    """A form asked for by name is never replaced; auto takes another one without a word."""
    inputs = placed(make(4, batch=1, heads=1))
    tau = log_tau().float().to(DEVICE)
    half = {n: x.half() if n in ("values", "write", "read") else x for n, x in inputs.items()}
    with pytest.raises(ValueError, match=r"float16|no kernel for torch.float16"):
        frac_scan(**half, log_tau=tau, form="triton")
    with pytest.raises(ValueError, match="no gradient for log_tau"):
        frac_scan(**inputs, log_tau=tau.clone().requires_grad_(), form="triton")
    many = placed(make(4, batch=1, heads=1, modes=33))
    with pytest.raises(ValueError, match="at most 32 modes, got 33"):
        frac_scan(**many, log_tau=log_tau(33).float().to(DEVICE), form="triton")
    assert frac_scan(**many, log_tau=log_tau(33).float().to(DEVICE))[0].isfinite().all()
    for segment in (0, -32, 40):
        with pytest.raises(ValueError, match=f"multiple of 32, got {segment}"):
            frac_scan(**inputs, log_tau=tau, segment_length=segment)
    with pytest.raises(ValueError, match="needs an initial_state"):
        frac_scan(**inputs | {"initial_state": None}, log_tau=tau, inplace_state=True)
    with pytest.raises(ValueError, match=r"under torch\.no_grad"):
        frac_scan(**inputs, log_tau=tau, inplace_state=True)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="needs a CUDA device, got cpu"):
        frac_scan(**{n: x.cpu() for n, x in inputs.items()}, log_tau=tau.cpu(), form="triton")


def test_inplace_state_works_in_every_form():
    inputs = placed(make(3, batch=1))
    tau = log_tau().float().to(DEVICE)
    for form in ("reference", "chunk", "recurrent", "triton"):
        mine = inputs | {"initial_state": inputs["initial_state"].clone()}
        with torch.no_grad():
            _, expected = frac_scan(**mine, log_tau=tau, form=form)
            _, state = frac_scan(**mine, log_tau=tau, form=form, inplace_state=True)
        assert state is mine["initial_state"]
        assert torch.equal(state, expected)


@ON_GPU
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1000, 1024, 4101])
def test_long_sequences_agree(length, kind, dtype):
    check(make(length, batch=2, heads=2, width=64, kind=kind), dtype)


@ON_GPU
def test_more_heads_and_sequences_than_a_grid_axis():
    """65,535 is the most programs of a second grid axis."""
    check(make(2, batch=40, heads=1700, width=16), torch.float32)


@ON_GPU
def test_more_than_two_to_the_31_elements():
    """Offsets past 2^31 reach the right memory: the end equals a call on the end alone."""
    length, heads, width = 2**20 + 64, 16, 128
    tau = log_tau().float().cuda()
    values = torch.randn(1, length, heads, width, device="cuda", dtype=torch.bfloat16)
    write, read = (torch.rand(1, length, heads, 16, device="cuda").bfloat16() for _ in range(2))
    u = 3 * torch.rand(1, length, heads, device="cuda")
    u[:, -64] = 1e9  # forgets all before, so that the end stands alone
    leaves = [x.requires_grad_() for x in (values, write, read, u)]
    whole, state = frac_scan(*leaves, tau, form="triton")
    grad = torch.randn_like(values)
    gradients = torch.autograd.grad(whole, leaves, grad)
    end = [x.detach()[:, -64:].clone().requires_grad_() for x in leaves]
    output, final = frac_scan(*end, tau, form="triton")
    expected = torch.autograd.grad(output, end, grad[:, -64:])
    assert relative_error(whole[:, -64:], output) < 2e-3
    assert relative_error(state, final) < 1e-5
    for gradient, target in zip(gradients, expected, strict=True):
        # the first of the end passes what lay before it
        assert relative_error(gradient[:, -63:], target[:, 1:]) < 5e-3


@ON_GPU
def test_runs_in_a_cuda_graph_with_changed_inputs():
    """Nothing waits for the device, and a replay sees new values, bounds included."""
    inputs = placed(make(200, batch=1, sequences=2))
    bounds, tau = torch.tensor([0, 130, 200], device="cuda"), log_tau().float().cuda()
    leaves = {n: x.requires_grad_() for n, x in inputs.items()}

    def work():
        output, state = frac_scan(**leaves, log_tau=tau, cu_seqlens=bounds, form="triton")
        return output, *torch.autograd.grad(output.sum() + state.sum(), list(leaves.values()))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()
    with torch.no_grad():
        leaves["values"].mul_(2)
        bounds[1] = 77
    graph.replay()
    for result, expected in zip(results, work(), strict=True):
        assert torch.equal(result, expected)


@ON_GPU
def test_auto_takes_the_fused_form_on_a_device():
    inputs = placed(make(40, batch=1))
    tau = log_tau().float().cuda()
    fused, automatic = (frac_scan(**inputs, log_tau=tau, form=f)[0] for f in ("triton", "auto"))
    assert torch.equal(fused, automatic)


def test_views_of_time_scales_and_sizes_of_nothing():
    """A strided log_tau is read as it is; no head or no width gives what the other forms give."""
    inputs = make(33, batch=1, heads=1, modes=4)
    strided = log_tau(8)[::2]
    expected, final = frac_scan(**inputs, log_tau=strided, form="reference")
    tau = log_tau(8).to(DEVICE, EXACT)[::2]
    output, state = frac_scan(**placed(inputs, EXACT), log_tau=tau, form="triton")
    assert relative_error(output.cpu(), expected) < 2e-5
    assert relative_error(state.cpu(), final) < 2e-5
    one = {n: x if n == "initial_state" else x[:, :1] for n, x in inputs.items()}
    expected, _ = frac_scan(**one, log_tau=strided, form="reference")
    output, _ = frac_scan(**placed(one, EXACT), log_tau=tau, form="triton")
    assert relative_error(output.cpu(), expected) < 2e-5
    for size in ({"heads": 0}, {"width": 0}):
        empty = placed(make(3, batch=1, modes=4, **size))
        output, state = frac_scan(**empty, log_tau=tau.float(), form="triton")
        assert output.numel() == state.numel() == 0
    nothing = placed(make(0, batch=1, modes=4)) | {"initial_state": None}
    assert frac_scan(**nothing, log_tau=tau.float(), form="triton")[1].dtype == torch.float32
