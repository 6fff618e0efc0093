"""What holds for every operator that is registered: calls past the dispatcher change nothing."""

import dataclasses
import importlib
import pkgutil

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fracdna_kernels
from fracdna_kernels import registration
from fracdna_kernels.check_cases import OPERATORS as CHECKED
from fracdna_kernels.check_cases import make_inputs
from fracdna_kernels.registration import Operator

selfcheck = importlib.import_module("fracdna_kernels.selfcheck")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def registered_operators():
    """All of the package, by name."""
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.walk_packages(fracdna_kernels.__path__, "fracdna_kernels.")
        if ".triton_" in module.name
    ]
    found = [x for module in modules for x in vars(module).values() if isinstance(x, Operator)]
    return {operator.name.removeprefix("fracdna::"): operator for operator in found}


NAMES = registered_operators()
DIFFERENTIABLE = [name for name in NAMES if f"{name}_backward" in NAMES] + [
    "rms_norm",
    "frac_scan_forward",
]
FUNCTIONAL = [name for name in NAMES if not name.endswith("_")]
EVERY = pytest.mark.parametrize("name", NAMES)
EVERY_DIFFERENTIABLE = pytest.mark.parametrize("name", DIFFERENTIABLE)


@pytest.fixture(scope="module")
def calls():
    """Arguments of one call of every operator, taken from calls of the public functions."""
    noted = {}
    call = Operator.__call__

    def noting(self, *arguments):
        name = self.name.removeprefix("fracdna::")
        noted.setdefault(name, [x.detach() if is_tensor(x) else x for x in arguments])
        return call(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Operator, "__call__", noting)
        for name, checked in CHECKED.items():
            for case in checked.cases:
                if not case.compiled and case.bounds is None:
                    length = {"T": min(case.sizes.get("T", 5), 5)}
                    case = dataclasses.replace(case, sizes=case.sizes | length)
                    exact = make_inputs(name, case, torch.float32)
                    inputs = selfcheck._placed(name, exact, torch.float32, DEVICE)
                    selfcheck._run(name, "triton", case, inputs, case.gradients)
    return noted


@pytest.fixture
def direct(monkeypatch):
    """Calls through the dispatcher fail."""

    def refuse(operator):
        def fail(*_):
            raise AssertionError(f"{operator.name} went through the dispatcher")

        monkeypatch.setattr(operator, "registered", fail)

    for operator in NAMES.values():
        refuse(operator)


def is_tensor(x):
    return isinstance(x, torch.Tensor)


def fresh(arguments, *, gradients=False):
    """Copies of arguments, the floating ones as leaves if gradients are wanted."""
    return [
        x.clone().requires_grad_(gradients and x.is_floating_point()) if is_tensor(x) else x
        for x in arguments
    ]


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def differentiated(operator, arguments):
    """Outputs and gradients of all arguments; some get none."""
    leaves = fresh(arguments, gradients=True)
    outputs = as_tuple(operator(*leaves))
    wanted = [x for x in outputs if x.requires_grad]
    torch.manual_seed(1)
    seeds = [torch.randn_like(x) for x in wanted]
    inputs = [x for x in leaves if is_tensor(x) and x.requires_grad]
    return outputs, torch.autograd.grad(wanted, inputs, seeds, allow_unused=True)


def test_public_functions_call_every_operator(calls):
    assert calls.keys() == NAMES.keys()
    assert len(NAMES) >= 15


@EVERY
def test_direct_calls_give_what_registered_ones_give(name, calls):
    """Outputs, what was written to arguments and their versions, without gradients."""
    operator, results = NAMES[name], []
    for call in (operator, operator.registered):
        arguments = fresh(calls[name])
        outputs = as_tuple(call(*arguments))
        assert not any(x.requires_grad for x in outputs)
        tensors = [x for x in arguments if is_tensor(x)]
        results.append((*outputs, *tensors, *(torch.tensor(x._version) for x in tensors)))
    for mine, expected in zip(*results, strict=True):
        assert mine.dtype == expected.dtype
        assert torch.equal(mine, expected)


@EVERY_DIFFERENTIABLE
def test_direct_gradients_are_those_of_registered_calls(name, calls):
    """Bit by bit; the same outputs take part in differentiation, the same inputs get none."""
    operator = NAMES[name]
    results = [differentiated(call, calls[name]) for call in (operator, operator.registered)]
    (outputs, gradients), (expected_outputs, expected) = results
    assert [x.requires_grad for x in outputs] == [x.requires_grad for x in expected_outputs]
    assert all(map(torch.equal, outputs, expected_outputs))
    assert any(g is not None for g in gradients)
    for mine, target in zip(gradients, expected, strict=True):
        assert (mine is None) == (target is None)
        assert mine is None or torch.equal(mine, target)


@EVERY
@pytest.mark.usefixtures("direct")
def test_eager_calls_pass_the_dispatcher_by(name, calls):
    """With gradients and without; where none is needed no node is made."""
    operator = NAMES[name]
    if name in DIFFERENTIABLE:
        outputs, _ = differentiated(operator, calls[name])
        node = next(x.grad_fn for x in outputs if x.requires_grad)
        assert type(node).__name__ == f"fracdna_{name}Backward"
    with torch.no_grad():
        for output in as_tuple(operator(*fresh(calls[name], gradients=True))):
            assert output.grad_fn is None
            assert not output.requires_grad
    with torch.inference_mode():
        operator(*fresh(calls[name]))


class Seen(TorchDispatchMode):
    """Notes the operators that are dispatched."""

    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, function, kinds, arguments=(), options=None):
        self.operators.append(function)
        return function(*arguments, **(options or {}))


class SeenFunctions(TorchFunctionMode):
    """As Seen, of functions."""

    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_function__(self, function, kinds, arguments=(), options=None):
        self.operators.append(function)
        return function(*arguments, **(options or {}))


class Marked(torch.Tensor):
    """A tensor of another class, which operators hand on."""


@EVERY
def test_modes_see_the_operator(name, calls):
    operator = NAMES[name]
    with Seen() as seen:
        operator(*fresh(calls[name]))
    assert operator.registered in seen.operators
    with SeenFunctions() as seen:
        operator(*fresh(calls[name]))
    assert operator.registered in seen.operators


@EVERY_DIFFERENTIABLE
def test_modes_see_the_backward(name, calls):
    operator = NAMES[name]
    leaves = fresh(calls[name], gradients=True)
    outputs = [x for x in as_tuple(operator(*leaves)) if x.requires_grad]
    with Seen() as seen:
        torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])
    assert any(str(x).startswith("fracdna.") for x in seen.operators)


def changed(name, calls, change):
    """Outputs for arguments of which the floating tensors are changed."""
    arguments = (
        change(x) if is_tensor(x) and x.is_floating_point() else x for x in fresh(calls[name])
    )
    return as_tuple(NAMES[name](*arguments))


@EVERY
def test_other_classes_of_tensors_are_handed_on(name, calls):
    outputs = changed(name, calls, lambda x: x.as_subclass(Marked))
    assert all(type(x) is Marked for x in outputs)


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_tensors_that_only_the_dispatcher_understands_are_left_to_it(name, calls):
    """Those whose sign is still to be changed, and those without data."""
    expected = as_tuple(NAMES[name](*fresh(calls[name])))
    negated = changed(name, calls, lambda x: torch._neg_view(-x))
    assert all(map(torch.equal, negated, expected))
    meta = changed(name, calls, lambda x: x.to("meta"))
    assert all(x.is_meta for x in meta)
    assert [(x.shape, x.dtype) for x in meta] == [(x.shape, x.dtype) for x in expected]


def test_without_the_internals_of_pytorch_every_call_is_registered(calls, monkeypatch):
    """A release that hides the dispatch keys costs time, nothing else."""
    monkeypatch.delattr(torch._C, "_dispatch_keys")
    found = registration._plain_keys()
    assert found == (frozenset(), frozenset())
    monkeypatch.setattr(registration, "_PLAIN_THREAD", found[0])
    operator = NAMES["rms_norm"]
    with monkeypatch.context() as patch:
        patch.setattr(operator, "registered", lambda *_: "registered")
        assert operator(*fresh(calls["rms_norm"])) == "registered"


@EVERY
def test_fake_tensors_come_out_as_real_ones_would(name, calls):
    """Inside their mode and outside it."""
    arguments = fresh(calls[name])
    mode = FakeTensorMode()
    faked = [mode.from_tensor(x) if is_tensor(x) else x for x in arguments]
    outside = NAMES[name](*faked)
    with mode:
        inside = NAMES[name](*faked)
    look = lambda outputs: [(x.shape, x.dtype, x.device) for x in as_tuple(outputs)]  # noqa: E731
    assert look(outside) == look(inside) == look(NAMES[name](*arguments))
    assert all(isinstance(x, FakeTensor) for x in as_tuple(outside))


@EVERY
def test_compiled_code_has_the_registered_operator(name, calls):
    torch._dynamo.reset()
    operator, targets = NAMES[name], []

    def backend(module, _):
        targets.extend(node.target for node in module.graph.nodes)
        return module

    arguments = fresh(calls[name])
    places = [place for place, x in enumerate(arguments) if is_tensor(x)]

    def call(*tensors):
        mixed = list(arguments)
        for place, tensor in zip(places, tensors, strict=True):
            mixed[place] = tensor
        return operator(*mixed)

    compiled = torch.compile(call, fullgraph=True, backend=backend)
    outputs = compiled(*(arguments[place].clone() for place in places))
    assert operator.registered in targets
    expected = operator(*fresh(calls[name]))
    assert all(map(torch.equal, as_tuple(outputs), as_tuple(expected)))


@EVERY
def test_traces_hold_the_registered_operator(name, calls):
    operator = NAMES[name]
    arguments = fresh(calls[name])
    traced = torch.fx.experimental.proxy_tensor.make_fx(operator)(*arguments)
    assert operator.registered in [node.target for node in traced.graph.nodes]


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_a_script_holds_the_registered_operator(calls):
    """What is traced into TorchScript runs the operator again, with other tensors."""
    x, weight, bias = fresh(calls["exact_linear"])
    operator = NAMES["exact_linear"]
    traced = torch.jit.trace(lambda *tensors: operator(*tensors), (x, weight, bias))
    assert "fracdna::exact_linear" in str(traced.graph)
    assert torch.equal(traced(2 * x, weight, bias), operator(2 * x, weight, bias))


def test_wrappers_that_outlived_a_transform_go_to_the_dispatcher(calls, monkeypatch):
    """torch.func leaves them around what is carried out of it; they have no memory."""
    x, weight, bias = fresh(calls["exact_linear"])
    operator, kept, dispatched = NAMES["exact_linear"], [], []
    expected = operator(x, weight, bias)

    def carry_out(x):
        kept.append(x.clone())
        return x.sum()

    def noting(*arguments, registered=operator.registered):
        dispatched.append(arguments)
        return registered(*arguments)

    torch.func.grad(carry_out)(x)
    monkeypatch.setattr(operator, "registered", noting)
    assert torch.equal(operator(kept[0], weight, bias), expected)
    assert dispatched


def test_exported_programs_hold_the_registered_operator(calls):
    """Traced by Dynamo or by running."""

    class Norm(torch.nn.Module):
        def forward(self, x, weight):
            return fracdna_kernels.add_rms_norm(x, None, weight, form="triton")[0]

    x, weight = fresh(calls["rms_norm"])[:2]
    for strict in (False, True):
        program = torch.export.export(Norm(), (x, weight), strict=strict)
        assert NAMES["rms_norm"].registered in [node.target for node in program.graph.nodes]
        assert torch.equal(program.module()(x, weight), Norm()(x, weight))


def outcome(call):
    """Result of a call, or what it raises."""
    try:
        return call()
    except RuntimeError as error:
        return type(error), str(error).splitlines()[0]


@EVERY_DIFFERENTIABLE
def test_transforms_end_as_they_do_with_the_registered_operator(name, calls):
    """torch.func knows operators: either path gives the same result or the same error."""
    operator = NAMES[name]
    first, *others = fresh(calls[name])
    batch = first.expand(2, *first.shape)

    def ends(function):
        call = lambda x: as_tuple(function(x, *others))[0]  # noqa: E731
        return [
            outcome(lambda: torch.func.grad(lambda x: call(x).sum())(first)),
            outcome(lambda: torch.func.vmap(call)(batch)),
        ]

    for mine, expected in zip(ends(operator), ends(operator.registered), strict=True):
        assert torch.equal(mine, expected) if is_tensor(mine) else mine == expected


@EVERY_DIFFERENTIABLE
def test_second_derivatives_are_refused_by_name(name, calls):
    leaves = fresh(calls[name], gradients=True)
    output = next(x for x in as_tuple(NAMES[name](*leaves)) if x.requires_grad)
    (first,) = torch.autograd.grad(output.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match=r"fracdna.\w+_backward.* no autograd formula"):
        first.sum().backward()


@EVERY_DIFFERENTIABLE
def test_profiles_name_direct_calls_as_registered_ones(name, calls):
    """Kernels of forward and backward are found under the operator's name; nothing else is new."""
    operator, names = NAMES[name], []
    for call in (operator, operator.registered):
        with torch.profiler.profile() as profile:
            differentiated(call, calls[name])
        names.append({x.name for x in profile.events() if x.name.startswith("fracdna::")})
    assert names[0] == names[1]
    assert {operator.name} < names[0]
