"""The check that users run once on a new card: it covers everything, and it can fail."""

import dataclasses
import importlib

import pytest
import torch

import fracdna_kernels

selfcheck = importlib.import_module("fracdna_kernels.selfcheck")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {"float32", "bfloat16"} if DEVICE == "cuda" else {"float32"}
PUBLIC = set(fracdna_kernels.__all__) - {"selfcheck"}


def forms(name):
    """The table of an operator; a package of two has one for the variant, named after it."""
    package = getattr(fracdna_kernels, name).__module__
    variant = name.removesuffix(package.rpartition(".")[2]).upper()
    return getattr(importlib.import_module(package), f"{variant}FORMS")


def with_triton():
    """Public operators that have a Triton form."""
    return {name for name in PUBLIC if "triton" in forms(name)}


@pytest.fixture(scope="module")
def report():
    return fracdna_kernels.selfcheck()


@pytest.fixture
def one_operator(monkeypatch):
    """Leaves the first cases of one operator, which are quick."""
    operators = selfcheck.OPERATORS
    norm = operators["add_rms_norm"]
    norm = dataclasses.replace(norm, cases=norm.cases[:2])
    monkeypatch.setattr(selfcheck, "OPERATORS", {"add_rms_norm": norm})
    return forms("add_rms_norm")


def test_every_operator_agrees_with_outputs_and_gradients(report):
    """Of all that have a Triton form: all outputs and the gradients of all inputs."""
    assert report.ok, f"\n{report}"
    assert {check.operator for check in report} == with_triton() == set(selfcheck.OPERATORS)
    assert {check.form for check in report} == {"triton"}
    assert {check.dtype for check in report} == DTYPES
    for name, operator in selfcheck.OPERATORS.items():
        inputs = set(operator.inputs).union(*(case.axes for case in operator.cases))
        expected = {*operator.outputs, *(f"d {key}" for key in inputs - {"log_tau"})}
        assert {check.quantity for check in report if check.operator == name} == expected
    assert str(report).endswith(f"all {len(report)} agree")


@pytest.mark.parametrize("name", sorted(PUBLIC - with_triton()))
def test_a_triton_form_without_cases_is_noticed(name, monkeypatch):
    """One more row in the table of an operator, and its cases are demanded."""
    assert name not in selfcheck.OPERATORS
    monkeypatch.setitem(forms(name), "triton", forms(name)["chunk"])
    assert with_triton() == {*selfcheck.OPERATORS, name}


def test_cases_have_awkward_sizes():
    """One position, lengths beside tiles, both paddings of modes, packed rows, cut rows, jumps."""
    for operator in selfcheck.OPERATORS.values():
        lengths = {case.sizes.get("T", 70) for case in operator.cases}
        assert {1, 70} < lengths
    scans = selfcheck.OPERATORS["frac_scan"].cases
    small = [case for case in scans if not case.compiled]
    assert {case.sizes.get("M", 8) for case in small} == {8, 16}
    assert any(case.jumps and case.options.get("segment_length") for case in small)
    for name in ("frac_scan", "short_convolution"):
        assert any(case.bounds and case.axes for case in selfcheck.OPERATORS[name].cases)
    jumping = next(case for case in small if case.jumps)
    assert selfcheck.make_inputs("frac_scan", jumping)["u"].max() == 1e4


@pytest.mark.parametrize("fault", ["output", "gradient", "nan"])
def test_wrong_numbers_are_reported(fault, one_operator, monkeypatch):
    """A kernel that raises nothing but is wrong somewhere fails, in the quantity that is wrong."""
    right = one_operator["triton"]

    def wrong(x, residual, weight, *options):
        if fault == "gradient":
            weight = weight.detach() + 1.001 * (weight - weight.detach())
        normed, stream = right(x, residual, weight, *options)
        return normed, stream * {"output": 1.001, "nan": torch.nan}.get(fault, 1)

    monkeypatch.setitem(one_operator, "triton", wrong)
    report = selfcheck.selfcheck()
    assert not report.ok
    found = {x.quantity for x in report if not x.ok and x.dtype == "float32"}
    assert found & {"stream", "d weight"} == {"d weight" if fault == "gradient" else "stream"}
    assert "DISAGREES (" in str(report)
    assert f"{sum(not x.ok for x in report)} of {len(report)} FAILED" in str(report)


def test_a_form_that_breaks_or_refuses_is_not_fine(one_operator, monkeypatch):
    """The reason is shown once, and only a form's own refusal counts as one."""

    def breaks(*_):
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setitem(one_operator, "triton", breaks)
    report = selfcheck.selfcheck()
    assert not report.ok
    assert [(x.reason, x.refused) for x in report] == [("no kernel image", False)] * len(DTYPES)

    def refuses(*_):
        raise ValueError("too old")

    monkeypatch.setitem(one_operator, "triton", refuses)
    report = selfcheck.selfcheck()
    assert not report.ok
    assert all(x.refused for x in report)
    assert "does not run: too old" in str(report)


def test_nothing_of_the_caller_is_in_the_way(one_operator):
    """Neither autocast, nor switched off gradients, nor the default dtype, nor the random state."""
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
            report = selfcheck.selfcheck(DEVICE)
    finally:
        torch.set_default_dtype(torch.float32)
    assert report.ok
    assert any(x.quantity == "d weight" for x in report)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("name", selfcheck.OPERATORS)
def test_the_automatic_form_is_the_one_that_runs(name, monkeypatch):
    """What is told about `auto` is what an operator does when no form is named."""
    taken = []
    table = forms(name)
    for form, function in list(table.items()):

        def noted(*arguments, _form=form, _function=function):
            taken.append(_form)
            return _function(*arguments)

        monkeypatch.setitem(table, form, noted)
    case = selfcheck.OPERATORS[name].cases[0]
    inputs = {
        key: x.to(DEVICE, torch.float32) for key, x in selfcheck.make_inputs(name, case).items()
    }
    getattr(fracdna_kernels, name)(**inputs)
    assert taken == [selfcheck.automatic_form(name, DEVICE)]


def test_the_quick_check_has_one_line_for_every_form():
    """Each form's worst output; the fused ones too where they run."""
    checks = list(selfcheck.check_forms(DEVICE))
    assert [(x.operator, x.form) for x in checks] == [
        (name, form) for name in selfcheck.OPERATORS for form in forms(name)
    ]
    assert all(x.ok or x.refused for x in checks)
