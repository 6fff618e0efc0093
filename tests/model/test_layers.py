"""Linear maps that share an input."""

import pytest
import torch

from fracdna.model.layers import paired_linear


def inputs(dtype=torch.float64):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, dtype=dtype, requires_grad=True)
    weight = torch.randn(8, 3, dtype=dtype, requires_grad=True)
    return x, weight


def test_halves_are_those_of_one_map():
    """Outputs and gradients are those of the whole map, cut afterwards."""
    x, weight = inputs()
    outputs = paired_linear(x, weight)
    expected = (x @ weight.T).chunk(2, dim=-1)
    assert all(y.is_contiguous() for y in outputs)
    grads = [torch.randn_like(y) for y in outputs]
    found = torch.autograd.grad(outputs, (x, weight), grads)
    wanted = torch.autograd.grad(expected, (x, weight), grads)
    torch.testing.assert_close((*outputs, *found), (*expected, *wanted))


def test_one_output_alone_has_a_gradient():
    """What is not used counts as zero."""
    x, weight = inputs()
    found = torch.autograd.grad(paired_linear(x, weight)[1].sum(), (x, weight))
    wanted = torch.autograd.grad((x @ weight[4:].T).sum(), (x, weight))
    torch.testing.assert_close(found, wanted)


def test_second_derivatives():
    """Differentiable twice, as products of tensors are."""
    x, weight = inputs()
    assert torch.autograd.gradgradcheck(paired_linear, (x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_chooses_the_dtype(dtype):
    """Maps are made in the dtype of autocast and gradients in that of the parameters."""
    x, weight = inputs(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        first, second = paired_linear(x, weight)
    assert first.dtype == (torch.bfloat16 if dtype == torch.float32 else dtype)
    (first.sum() + second.sum()).backward()
    assert x.grad.dtype == weight.grad.dtype == dtype
    torch.testing.assert_close(weight.grad[0], x.detach().sum((0, 1)), atol=0.1, rtol=0.02)
