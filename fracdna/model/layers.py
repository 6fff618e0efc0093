"""Small layers shared by all models: norms, MLPs, rotary angles, linear maps."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu
from torch.nn.functional import linear as linear_map

from fracdna_kernels import add_rms_norm


class RMSNorm(nn.RMSNorm):
    """weight * x / rms(x) over the last axis, without bias."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__(width, eps=eps)


class LayerNorm(nn.LayerNorm):
    """weight * (x - mean) / standard deviation + bias over the last axis."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__(width, eps=eps)


def add_norm(
    norm: nn.Module, x: Tensor, residual: Tensor | None, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Add to the residual stream and normalise it for the next layer, in one pass where possible.

    Args:
        norm: an RMSNorm takes the fused operator, any other module is called.
        x: (batch, length, width), what the last layer adds; the stream itself if there is none.
        residual: (batch, length, width), the stream before that; None at the first layer.
        out_dtype: of an RMSNorm's output; None: that of autocast, else of x.

    Returns:
        norm(stream), from an RMSNorm in the dtype of autocast where that is on, and the stream.
    """
    if isinstance(norm, RMSNorm):
        return add_rms_norm(x, residual, norm.weight, eps=norm.eps, out_dtype=out_dtype)
    stream = x if residual is None else residual + x
    return norm(stream), stream


def linear(inputs: int, outputs: int, *, bias: bool = False, std: float = 0.02) -> nn.Linear:
    """A linear map with weights N(0, std) and biases 0."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def paired_linear(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both halves of a linear map as tensors of their own, so that neither is cut out of the other.

    The gradient of one output cut in half would have to be put together again, and that of an input
    of two maps be added up; here the second product is added to the first as it is computed.

    Args:
        x: (..., inputs).
        weight: (2 * outputs, inputs), without bias.

    Returns:
        Two tensors (..., outputs), in the dtype of autocast where that is on.
    """
    if not x.is_cuda:  # nothing to gain, and functions of its own bar transforms of functions
        first, second = weight.chunk(2)
        return linear_map(x, first), linear_map(x, second)
    return fused_paired_linear(x, weight)


def fused_paired_linear(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """As paired_linear, on any device with the backward pass that adds in place."""
    device = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x, weight = x.to(dtype), weight.to(dtype)
    return _PairedLinear.apply(x, weight)


class _PairedLinear(torch.autograd.Function):
    """See paired_linear."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        first, second = weight.chunk(2)
        return x @ first.T, x @ second.T

    @staticmethod
    def backward(ctx: Any, of_first: Tensor, of_second: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        # the products are in the dtype of the forward pass, whatever holds around the backward one
        with torch.autocast(x.device.type, enabled=False):
            return _PairedLinear._gradients(x, weight, of_first, of_second)

    @staticmethod
    def _gradients(
        x: Tensor, weight: Tensor, of_first: Tensor, of_second: Tensor
    ) -> tuple[Tensor, Tensor]:
        first, second = weight.chunk(2)
        if torch.is_grad_enabled():  # second derivatives: nothing may be written in place
            of_both = torch.cat([of_first, of_second], dim=-1)
            rows = of_both.flatten(0, -2)
            return of_both @ weight, rows.T @ x.flatten(0, -2)
        of_first, of_second, rows = (y.flatten(0, -2) for y in (of_first, of_second, x))
        of_x = (of_first @ first).addmm_(of_second, second)
        of_weight = torch.empty_like(weight)
        for half, gradient in zip(of_weight.chunk(2), (of_first, of_second), strict=True):
            torch.mm(gradient.T, rows, out=half)
        return of_x.view_as(x), of_weight


def residual_std(num_layers: int, std: float = 0.02) -> float:
    """Standard deviation of a map into the residual stream of a network of that depth."""
    return std / (2 * num_layers) ** 0.5


class GatedMLP(nn.Module):
    """SwiGLU: W_down(silu(W_gate x) * W_up x), no biases."""

    def __init__(self, d_model: int, *, width: int, num_layers: int = 1) -> None:
        super().__init__()
        self.gate_projection = linear(d_model, width)
        self.up_projection = linear(d_model, width)
        self.down_projection = linear(width, d_model, std=residual_std(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) to the same shape."""
        return self.down_projection(silu(self.gate_projection(x)) * self.up_projection(x))


class MLP(nn.Module):
    """W_down gelu(W_up x + b_up) + b_down, with the tanh form of GELU."""

    def __init__(self, d_model: int, *, width: int, num_layers: int = 1) -> None:
        super().__init__()
        self.up_projection = linear(d_model, width, bias=True)
        self.down_projection = linear(width, d_model, bias=True, std=residual_std(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) to the same shape."""
        return self.down_projection(gelu(self.up_projection(x), approximate="tanh"))


def rotary_angles(positions: Tensor, width: int, base: float) -> Tensor:
    """Angles positions * base^(-2i/width) of rotary pairs.

    Args:
        positions: (batch, length) or (length,), counted from 0.
        width: K of the vectors to turn, even.
        base: wave-length base.

    Returns:
        (..., length, K/2) float64: at a million positions float32 would lose the angle.

    Source: arXiv 2104.09864.
    """
    half = width // 2
    steps = torch.arange(half, device=positions.device, dtype=torch.float64) / half
    return positions[..., None].double() * base**-steps


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Turn the pairs (i, i + K/2) of vectors.

    Args:
        x: (batch, length, heads, K).
        angle: from rotary_angles, (batch, length, K/2) or (length, K/2).

    Returns:
        x rotated, in its dtype.
    """
    half = x.shape[-1] // 2
    exact = torch.promote_types(x.dtype, torch.float32)
    sine, cosine = (f(angle)[..., None, :].to(exact) for f in (torch.sin, torch.cos))
    first, second = x[..., :half].to(exact), x[..., half:].to(exact)
    turned = torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
    return turned.to(x.dtype)
