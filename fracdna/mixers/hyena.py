"""Hyena: a gated convolution whose filter is as long as the sequence and computed by a network."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fracdna.mixers.mixer import Mixer, Shared, convolution_tail, valid_positions
from fracdna.model.layers import linear, residual_std
from fracdna_kernels import long_convolution, short_convolution


class HyenaState(NamedTuple):
    """What Hyena carries from one position to the next: all inputs that its filters reach."""

    convolution: Tensor  # (batch, 3 d_model, taps - 1) float32, inputs of the short convolution
    inputs: Tensor  # (batch, d_model, window) float32, those of the long one, oldest first


class ImplicitFilter(nn.Module):
    """Filters as a network's answer to a position, which fade by channel.

    h(n) = network(z_n) (exp(-t_n delta) + shift) with t_n = n / (reach - 1), delta from
    log(100)/1.5 to log(100)/0.3 over channels, and z_n = (t_n, cos(f w_n), -sin(f w_n)) for
    frequencies f and w_n = 2 pi n / reach.

    Args:
        channels: D.
        reach: most taps; positions are measured by it, so it belongs to the weights.
        width: of the network.
        features: of a position, odd.
        frequency: initial factor in the network's sines, learned.
        shift: floor of the fading.

    Raises:
        ValueError: an even number of features, or below 3.
    """

    def __init__(
        self,
        channels: int,
        reach: int,
        *,
        width: int,
        features: int,
        frequency: float,
        shift: float,
    ) -> None:
        super().__init__()
        if features < 3 or features % 2 == 0:
            raise ValueError(f"features={features} must be odd and at least 3")
        self.channels, self.reach, self.shift = channels, reach, shift
        self.bands = (features - 1) // 2
        self.layers = nn.ModuleList(
            linear(inputs, width, bias=True) for inputs in (features, width, width)
        )
        self.frequency = nn.Parameter(torch.full((width,), float(frequency)))
        self.last = linear(width, channels)

    def forward(self, taps: int) -> Tensor:
        """(channels, taps), the first one meets the present position; never rounded by autocast."""
        like = {"device": self.frequency.device, "dtype": self.frequency.dtype}
        with torch.autocast(self.frequency.device.type, enabled=False):
            n = torch.arange(taps, **like)[:, None]
            time = n / (self.reach - 1)
            bands = torch.linspace(1e-4, self.bands - 1, self.bands, **like)
            angle = bands * (2 * math.pi * n / self.reach)
            x = torch.cat([time, torch.cos(angle), -torch.sin(angle)], dim=-1)
            for layer in self.layers:
                x = torch.sin(self.frequency * layer(x))
            slowest, fastest = math.log(100) / 1.5, math.log(100) / 0.3
            rates = torch.linspace(slowest, fastest, self.channels, **like)
            return (self.last(x) * (torch.exp(-time * rates) + self.shift)).T


class Hyena(Mixer):
    """x0 * (h * (x1 v) + bias x1 v), with x0, x1, v after a short convolution: order 2.

    Filters reach as far as a training window with BOS; as published, sequences are not longer. In
    longer ones, what is farther back is forgotten.

    Args:
        d_model: width of the stream, D.
        window: bases of a training window; filters have window + 1 taps.
        layer_index: number of the layer (unused: all layers are alike).
        num_layers: depth, for the initial size of the output map.
        filter_width: width of the filter's network.
        filter_features: of a position, that the network reads; odd.
        filter_frequency: initial factor in its sines.
        filter_shift: floor of the filters' fading.
        filter_rate_factor: on the learning rate of the filter's network.
        conv_width: taps of the short convolution.
        form: form of long_convolution.

    Raises:
        ValueError: a window without bases, a number of features that is even or below 3, or a
            factor that is negative or not finite.

    Source: Poli et al. 2023, arXiv 2302.10866; HyenaDNA, arXiv 2306.15794, whose release leaves the
        short convolution at PyTorch's initial values.
    """

    def __init__(
        self,
        d_model: int,
        *,
        window: int,
        layer_index: int = 0,
        num_layers: int = 1,
        filter_width: int = 64,
        filter_features: int = 5,
        filter_frequency: float = 10.0,
        filter_shift: float = 0.0,
        filter_rate_factor: float = 1.0,
        conv_width: int = 3,
        form: str = "auto",
    ) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window={window} must be at least 1")
        if not 0 <= filter_rate_factor < math.inf:
            raise ValueError(
                f"filter_rate_factor={filter_rate_factor} must be at least 0 and finite"
            )
        self.d_model, self.window, self.form = d_model, window, form
        self.filter_rate_factor = float(filter_rate_factor)
        self.in_projection = linear(d_model, 3 * d_model, bias=True)
        bound = 1 / math.sqrt(conv_width)
        self.conv_weight = nn.Parameter(
            torch.empty(3 * d_model, conv_width).uniform_(-bound, bound)
        )
        self.conv_bias = nn.Parameter(torch.empty(3 * d_model).uniform_(-bound, bound))
        self.filter = ImplicitFilter(
            d_model, window + 1, width=filter_width, features=filter_features,
            frequency=filter_frequency, shift=filter_shift,
        )  # fmt: skip
        self.filter_bias = nn.Parameter(torch.randn(d_model))
        self.out_projection = linear(d_model, d_model, bias=True, std=residual_std(num_layers))

    @property
    def no_weight_decay(self) -> frozenset[str]:
        """The filter's network."""
        return frozenset(f"filter.{name}" for name, _ in self.filter.named_parameters())

    @property
    def learning_rate_factors(self) -> dict[str, float]:
        """The filter's network."""
        return dict.fromkeys(self.no_weight_decay, self.filter_rate_factor)

    def forward(
        self, x: Tensor, *, cu_seqlens: Tensor | None = None, shared: Shared | None = None
    ) -> Tensor:
        """See Mixer.forward."""
        return self._mix(x, None, cu_seqlens, None)[0]

    def initial_state(self, batch: int) -> HyenaState:
        """Zeros before the first position."""
        channels, taps = self.conv_weight.shape
        exact = torch.promote_types(self.conv_weight.dtype, torch.float32)
        return HyenaState(
            self.conv_weight.new_zeros(batch, channels, taps - 1, dtype=exact),
            self.conv_weight.new_zeros(batch, self.d_model, self.window, dtype=exact),
        )

    def step(
        self,
        x: Tensor,
        state: HyenaState,
        *,
        lengths: Tensor | None = None,
        shared: Shared | None = None,
    ) -> tuple[Tensor, HyenaState]:
        """See Mixer.step; a step costs as much as the filters are long."""
        return self._mix(x, state, None, lengths)

    def state_size(self) -> int:
        """Inputs of both convolutions."""
        channels, taps = self.conv_weight.shape
        return channels * (taps - 1) + self.d_model * self.window

    def _mix(
        self,
        x: Tensor,
        state: HyenaState | None,
        cu_seqlens: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, HyenaState]:
        """Project, convolve twice, gate: whole sequences or a continuation."""
        tail, past = (None, None) if state is None else state
        projected = self.in_projection(x)
        mixed, next_tail = short_convolution(
            projected, self.conv_weight, self.conv_bias, initial_state=tail, cu_seqlens=cu_seqlens
        )
        outer, inner, value = mixed.chunk(3, dim=-1)
        inputs = inner * value
        if lengths is not None:
            next_tail = convolution_tail(tail, projected, lengths)
            # a transform mixes rounded pads into all outputs
            inputs = torch.where(valid_positions(lengths, x.shape[1])[..., None], inputs, 0.0)
        reach = self.window + 1
        taps = reach if state is not None else max(1, min(x.shape[1], reach))
        output, after = long_convolution(
            inputs, self.filter(taps), self.filter_bias,
            initial_state=past, cu_seqlens=cu_seqlens, form=self.form,
        )  # fmt: skip
        if lengths is not None:
            after = convolution_tail(past, inputs, lengths)
        return self.out_projection(outer * output), HyenaState(next_tail, after)
