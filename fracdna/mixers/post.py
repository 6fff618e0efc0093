"""PoST: learned decay spectra in order, tapered by the position: what its five mixers share."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from fracdna.mixers.time_steps import inverse_softplus, time_step_bias
from fracdna.model.layers import linear
from fracdna_kernels import exact_linear

SPANS = ("full", "strict")


class TaperedSpectrum(nn.Module):
    """p_k - eta_k log t with p_0 = base, p_k = p_{k-1} + softplus(gap_{k-1}): slow channels first.

    A rate e^(p_k) becomes e^(p_k) t^(-eta_k): the slower the channel, the more its time scale grows
    with the position t = 1, 2, ... The exponents are computed from the spectrum, and gradients flow
    through them:
    eta_k = clamp((n-1-k)/(n-1) + (p_k - p_0 - k (p_{n-1} - p_0)/(n-1)) / log T, 0, 1).

    Args:
        slow: initial p_0.
        fast: initial p_{n-1}; between them p is equally spaced.
        channels: n.
        length: T, positions of a training sequence.
        span: "full": the spectrum spans all time scales of T and the taper multiplies them, as
            released; "strict": every p_k is that of the fast channel and eta_k = (n-1-k)/(n-1), so
            that time scales at t span [1, t] times the fast one.
        logits: p_k are logits of rates, whose logarithms then stand in eta_k.

    Raises:
        ValueError: no length, one too short to leave time scales to span, or an unknown span.

    Source: arXiv 2604.07658; SiLifen/PoST.
    """

    def __init__(
        self,
        slow: float,
        fast: float,
        channels: int,
        *,
        length: int | None,
        span: str = "full",
        logits: bool = False,
    ) -> None:
        super().__init__()
        if span not in SPANS:
            raise ValueError(f"post_span={span} must be one of {', '.join(SPANS)}")
        if slow >= fast:
            raise ValueError(f"post_length={length} is too short: no time scales to span")
        self.length, self.logits, self.gaps = checked_length(length), logits, None
        strict = span == "strict" or channels == 1
        self.base = nn.Parameter(torch.tensor(fast if span == "strict" else slow))
        if not strict:
            gap = torch.tensor((fast - slow) / (channels - 1), dtype=torch.float64)
            start = inverse_softplus(gap).to(self.base.dtype)
            self.gaps = nn.Parameter(start.repeat(channels - 1))
        self.channels = channels

    def parameter_names(self, prefix: str) -> tuple[str, ...]:
        """Names of all parameters in a module that has this one under the prefix."""
        return tuple(f"{prefix}.{name}" for name, _ in self.named_parameters())

    def spectrum(self) -> Tensor:
        """(channels,) p_k in float32 (float64 in a float64 model), rising."""
        base = self.base.to(torch.promote_types(self.base.dtype, torch.float32))
        if self.gaps is None:
            return base.expand(self.channels)
        rises = softplus(self.gaps.to(base.dtype)).cumsum(0)
        return torch.cat([base[None], base + rises])

    def exponents(self, spectrum: Tensor) -> Tensor:
        """(channels,) eta_k of a spectrum, from 1 at the slowest channel to 0 at the fastest."""
        last = self.channels - 1
        if last == 0:
            return torch.zeros_like(spectrum)
        rank = torch.arange(last + 1, device=spectrum.device, dtype=spectrum.dtype) / last
        logs = logsigmoid(spectrum) if self.logits else spectrum
        rise = logs - logs[0]
        unequal = (rise - rank * rise[-1]) / math.log(self.length)
        return (1 - rank + unequal).clamp(0, 1)

    def forward(self, positions: Tensor) -> Tensor:
        """The tapered spectrum of every position.

        Args:
            positions: (length,) or (batch, length), counted from 0 in each sequence; what stands
                before a sequence may count below 0 and gets the values of its first position.

        Returns:
            (..., channels) p_k - eta_k log(position + 1) in the dtype of spectrum().
        """
        spectrum = self.spectrum()
        times = torch.log1p(positions.clamp(min=0).to(spectrum.dtype))
        return spectrum - self.exponents(spectrum) * times[..., None]


class TaperedGate(nn.Module):
    """g = -e^(p_h) t^(-eta_h) softplus(W x + b): the gate of GLA and RetNet, per key channel.

    Args:
        d_model: width of the stream.
        num_heads: H, the channels of the spectrum; at first p from 0 to log 16.
        key_width: K of each head.
        length: as in TaperedSpectrum.
        span: as in TaperedSpectrum.
    """

    def __init__(
        self, d_model: int, *, num_heads: int, key_width: int, length: int | None, span: str
    ) -> None:
        super().__init__()
        self.taper = TaperedSpectrum(0.0, math.log(16), num_heads, length=length, span=span)
        self.projection = linear(d_model, num_heads * key_width)
        self.dt_bias = nn.Parameter(time_step_bias(num_heads * key_width))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """(batch, length, d_model) to log decays (batch, length, heads, key width)."""
        # in bfloat16 every time scale would be wrong by up to 1 in 256
        steps = softplus(exact_linear(x, self.projection.weight) + self.dt_bias)
        rates = torch.exp(self.taper(positions))
        return -rates[..., None] * steps.unflatten(-1, (rates.shape[-1], -1))


def checked_length(length: int | None) -> int:
    """The length of training sequences, which has to be known.

    Raises:
        ValueError: no length, or one below 2.
    """
    if length is None or length < 2:
        raise ValueError(
            f"post_length={length}: post needs the length of a training sequence, which the files "
            "post_*.yaml of configs/mixer set"
        )
    return length
