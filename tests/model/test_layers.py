"""Linear maps that share an input, and the layers of models with biases."""

import math

import pytest
import torch

from fracdna.model.layers import MLP, LayerNorm, fused_paired_linear, paired_linear

BOTH = pytest.mark.parametrize("maps", [paired_linear, fused_paired_linear])


def inputs(dtype=torch.float64):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, dtype=dtype, requires_grad=True)
    weight = torch.randn(8, 3, dtype=dtype, requires_grad=True)
    return x, weight


@BOTH
def test_halves_are_those_of_one_map(maps):
    """Outputs and gradients are those of the whole map, cut afterwards."""
    x, weight = inputs()
    outputs = maps(x, weight)
    expected = (x @ weight.T).chunk(2, dim=-1)
    assert all(y.is_contiguous() for y in outputs)
    grads = [torch.randn_like(y) for y in outputs]
    found = torch.autograd.grad(outputs, (x, weight), grads)
    wanted = torch.autograd.grad(expected, (x, weight), grads)
    torch.testing.assert_close((*outputs, *found), (*expected, *wanted))


@BOTH
def test_one_output_alone_has_a_gradient(maps):
    """What is not used counts as zero."""
    x, weight = inputs()
    found = torch.autograd.grad(maps(x, weight)[1].sum(), (x, weight))
    wanted = torch.autograd.grad((x @ weight[4:].T).sum(), (x, weight))
    torch.testing.assert_close(found, wanted)


@BOTH
def test_second_derivatives(maps):
    """Differentiable twice, as products of tensors are."""
    x, weight = inputs()
    assert torch.autograd.gradgradcheck(maps, (x, weight))


@BOTH
def test_autocast_around_the_backward_pass_alone_changes_nothing(maps):
    """The dtype of the products is that of the forward pass."""
    x, weight = inputs(torch.float32)
    outputs = maps(x, weight)
    gradients = [torch.ones_like(y) for y in outputs]
    wanted = torch.autograd.grad(outputs, (x, weight), gradients, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(outputs, (x, weight), gradients)
    tolerance = {} if maps is fused_paired_linear else {"rtol": 0.02, "atol": 0.02}
    torch.testing.assert_close(found, wanted, **tolerance)


def test_transforms_of_functions_pass_through():
    """Off the GPU, gradients of a function and of many samples at once."""
    x, weight = inputs()

    def loss(weight, x):
        first, second = paired_linear(x, weight)
        return (first * second).sum()

    whole = torch.func.grad(loss)(weight, x)
    single = torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x)
    torch.testing.assert_close(single.sum(0), whole)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_chooses_the_dtype(dtype, maps):
    """Maps are made in the dtype of autocast and gradients in that of the parameters."""
    x, weight = inputs(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        first, second = maps(x, weight)
    assert first.dtype == (torch.bfloat16 if dtype == torch.float32 else dtype)
    (first.sum() + second.sum()).backward()
    assert x.grad.dtype == weight.grad.dtype == dtype
    torch.testing.assert_close(weight.grad[0], x.detach().sum((0, 1)), atol=0.1, rtol=0.02)


def test_mlp_is_gelu_in_its_tanh_form():
    """W_down gelu(W_up x + b_up) + b_down; smaller into the stream, biases 0 at first."""
    torch.manual_seed(0)
    layer = MLP(32, width=48, num_layers=8)
    assert not layer.up_projection.bias.any()
    assert not layer.down_projection.bias.any()
    assert layer.down_projection.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)
    layer = layer.double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 3, 32, dtype=torch.float64)
    y = x @ layer.up_projection.weight.T + layer.up_projection.bias
    y = y / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
    expected = y @ layer.down_projection.weight.T + layer.down_projection.bias
    torch.testing.assert_close(layer(x), expected)


def test_layer_norm_is_built_from_a_width():
    layer = LayerNorm(6)
    assert layer.eps == 1e-5
    x = torch.randn(2, 6)
    expected = (x - x.mean(-1, keepdim=True)) / (
        x.var(-1, keepdim=True, correction=0) + 1e-5
    ).sqrt()
    torch.testing.assert_close(layer(x), expected)
