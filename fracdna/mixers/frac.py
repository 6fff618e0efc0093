"""FRAC: exponential modes at geometric time scales, driven by fractional-order routing."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fracdna.mixers.mixer import Mixer, Shared, convolution_tail, valid_positions
from fracdna.mixers.mode_gates import mode_gates
from fracdna.model.layers import linear, paired_linear
from fracdna_kernels import (
    decay_attention,
    exact_linear,
    frac_gates,
    frac_scan,
    gated_rms_norm,
    short_convolution,
)
from fracdna_kernels.frac_gates.reference import GAINS


class FracState(NamedTuple):
    """What FRAC carries from one position to the next."""

    memory: Tensor  # (batch, heads, modes, value width) float32
    convolution: Tensor  # (batch, inner width, taps - 1) float32, inputs of the convolution


class Frac(Mixer):
    """The FRAC layer as published; methods and letters are those of docs/derivation.md.

    Args:
        d_model: width of the stream, D.
        layer_index: number of the layer (unused: all layers are alike).
        num_layers: depth of the network (unused: FRAC's output map is not rescaled).
        num_heads: H; the value width is V = E / H.
        num_modes: M, time scales from tau_range, geometric.
        expand: E = expand * D.
        conv_width: taps of the causal convolution.
        tau_range: fastest and slowest time scale, in positions of the clock.
        alpha_range: bounds of the fractional order.
        lam_range: bounds of the relaxation strength.
        delta_range: bounds of the step.
        gain: "dc" as published, or "zoh", the exact zero-order hold.
        read_gain_init: initial logit of the factor on the read residual.
        write_gain_init: initial logit of the factor on the write residual.
        fixed_alpha: ablation alpha1: alpha = 1 everywhere, its outputs are removed.
        read_prior: ablation no_read_prior when false.
        write_prior: ablation no_write_prior when false.
        free_bank: ablation: time scales of every head and mode are learned, at first log-uniform
            within tau_range; neither alpha nor priors.
        rho_clamp: every decay of a mode stays within [1e-6, 1 - 1e-6], as in the release.
        form: form of frac_scan; with either of the last two of decay_attention, which is slower.

    Raises:
        ValueError: an inner width that the heads do not divide, an unknown gain, a range that does
            not rise from above 0, or a free bank with an ablation of what it has not.

    Source: arXiv 2609.36314; rho_clamp: anasiri/frac-ssm.
    """

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int,
        layer_index: int = 0,
        num_layers: int = 1,
        num_modes: int = 16,
        expand: int = 2,
        conv_width: int = 4,
        tau_range: tuple[float, float] = (1.0, 131072.0),
        alpha_range: tuple[float, float] = (0.1, 0.9),
        lam_range: tuple[float, float] = (0.25, 4.0),
        delta_range: tuple[float, float] = (1e-4, 1.0),
        gain: str = "dc",
        read_gain_init: float = -1.0,
        write_gain_init: float = math.log(0.25 / 0.75),
        fixed_alpha: bool = False,
        read_prior: bool = True,
        write_prior: bool = True,
        free_bank: bool = False,
        rho_clamp: bool = False,
        form: str = "auto",
    ) -> None:
        super().__init__()
        inner = expand * d_model
        if inner % num_heads:
            raise ValueError(f"num_heads={num_heads} does not divide the inner width {inner}")
        if gain not in GAINS:
            raise ValueError(f"gain={gain!r} is unknown; use one of {GAINS}")
        for name, (low, high) in {
            "tau_range": tau_range,
            "alpha_range": alpha_range,
            "lam_range": lam_range,
            "delta_range": delta_range,
        }.items():
            if not 0 < low <= high < math.inf:
                raise ValueError(f"{name}=({low}, {high}) must rise from above 0")
        if free_bank and (fixed_alpha or not read_prior or not write_prior):
            raise ValueError(
                "free_bank=true has neither alpha nor priors: leave fixed_alpha, read_prior and "
                "write_prior as they are"
            )
        self.d_model, self.num_heads, self.num_modes = d_model, num_heads, num_modes
        self.value_width, self.form = inner // num_heads, form
        self.has_alpha, self.rho_clamp = not (fixed_alpha or free_bank), rho_clamp
        self.by_mode = free_bank or rho_clamp
        self.routing = {
            "gain": gain,
            "read_prior": read_prior and not free_bank,
            "write_prior": write_prior and not free_bank,
            "delta_range": tuple(delta_range),
            "alpha_range": tuple(alpha_range),
            "lam_range": tuple(lam_range),
        }
        self.in_projection = linear(d_model, 2 * inner)
        self.conv_weight = nn.Parameter(torch.randn(inner, conv_width) * 0.02)
        self.conv_bias = nn.Parameter(torch.zeros(inner))
        self.dynamics = linear(inner, (2 + self.has_alpha) * num_heads, bias=True)
        self.routes = linear(inner, 2 * num_heads * num_modes)
        self.dt_bias = nn.Parameter(torch.zeros(num_heads))
        self.read_gain = nn.Parameter(torch.tensor(float(read_gain_init)))
        self.write_gain = nn.Parameter(torch.tensor(float(write_gain_init)))
        self.skip = nn.Parameter(torch.zeros(num_heads, self.value_width))
        self.norm_weight = nn.Parameter(torch.ones(inner))
        self.out_projection = linear(inner, d_model)
        fastest, slowest = map(math.log, tau_range)
        if free_bank:
            drawn = torch.empty(num_heads, num_modes).uniform_(fastest, slowest)
            self.log_tau = nn.Parameter(drawn)
            return
        log_tau = torch.linspace(fastest, slowest, num_modes, dtype=torch.float64)
        self.register_buffer("log_tau", log_tau.to(self.skip.dtype), persistent=False)

    @property
    def no_weight_decay(self) -> frozenset[str]:
        """The skip, and time scales where they are learned."""
        learned = isinstance(self.log_tau, nn.Parameter)
        return frozenset({"skip", "log_tau"} if learned else {"skip"})

    def forward(
        self, x: Tensor, *, cu_seqlens: Tensor | None = None, shared: Shared | None = None
    ) -> Tensor:
        """See Mixer.forward."""
        return self._mix(x, None, cu_seqlens, None)[0]

    def initial_state(self, batch: int) -> FracState:
        """An empty memory."""
        inner, taps = self.conv_weight.shape
        exact = torch.promote_types(self.skip.dtype, torch.float32)
        memory = (batch, self.num_heads, self.num_modes, self.value_width)
        return FracState(
            self.skip.new_zeros(memory, dtype=exact),
            self.skip.new_zeros(batch, inner, taps - 1, dtype=exact),
        )

    def step(
        self,
        x: Tensor,
        state: FracState,
        *,
        lengths: Tensor | None = None,
        shared: Shared | None = None,
    ) -> tuple[Tensor, FracState]:
        """See Mixer.step."""
        return self._mix(x, state, None, lengths)

    def state_size(self) -> int:
        """Memory E M plus the convolution's tail."""
        inner, taps = self.conv_weight.shape
        return inner * self.num_modes + inner * (taps - 1)

    def time_scales(self, times: Tensor) -> Tensor:
        """See Mixer.time_scales; the same at all times."""
        inputs = self.skip.new_zeros(1, 1, self.skip.numel())
        decay, _, _ = self.gates(self.dynamics(inputs), inputs)
        scales = -1 / decay if self.by_mode else self.log_tau.exp() / decay[..., None]
        return scales.flatten().expand(len(times), -1)

    def _mix(
        self, x: Tensor, state: FracState | None, cu_seqlens: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, FracState]:
        """Project, convolve, route, scan, gate: whole sequences or a continuation."""
        memory, tail = (None, None) if state is None else state
        inputs, gate = self._project(x)
        inputs, dynamics = exact_linear(inputs, self.dynamics.weight, self.dynamics.bias, tap=True)
        (mixed, values, skipped), next_tail = short_convolution(
            inputs, self.conv_weight, self.conv_bias, activation="silu",
            initial_state=tail, cu_seqlens=cu_seqlens, readers=3,
        )  # fmt: skip
        if lengths is not None:
            next_tail = convolution_tail(tail, inputs, lengths)
        decay, read, write = self.gates(dynamics, mixed)
        if lengths is not None:
            # a pad must neither write nor let the clock advance, whatever a clamp asks for
            valid = valid_positions(lengths, x.shape[1])[..., None, None]
            decay = torch.where(valid if self.by_mode else valid[..., 0], decay, 0.0)
            write = torch.where(valid, write, 0.0)
        values = values.unflatten(-1, (self.num_heads, self.value_width))
        common = {"initial_state": memory, "cu_seqlens": cu_seqlens, "form": self.form}
        if self.by_mode:
            output, memory = decay_attention(read, write, values, decay, **common)
        else:
            output, memory = frac_scan(values, write, read, decay, self.log_tau, **common)
        output = gated_rms_norm(
            output.flatten(2), gate, self.norm_weight, skip=(skipped, self.skip.flatten())
        )
        return self.out_projection(output), FracState(memory, next_tail)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What is mixed, and its gate, (batch, length, inner) each."""
        if not torch.is_grad_enabled():
            # the whole weight, which autocast casts once and keeps for all positions of a decoder
            return self.in_projection(x).chunk(2, dim=-1)
        return paired_linear(x, self.in_projection.weight)

    def gates(self, dynamics: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The clock and the routing of every position and head.

        Args:
            dynamics: (batch, length, 2 or 3 times heads), the step, the fractional order where it
                is free, and the relaxation strength, as logits in full precision.
            mixed: (batch, length, inner), after the convolution.

        Returns:
            u (batch, length, heads) float32, read and write (batch, length, heads, modes); where
            modes decay by themselves, in place of u their log decay -u/tau, of one more axis.
        """
        parts = dynamics.chunk(2 + self.has_alpha, dim=-1)
        delta, alpha, lam = parts if self.has_alpha else (parts[0], None, parts[1])
        # unbind and not two indexings, whose gradients would be two full tensors of zeros to add up
        read, write = (
            self.routes(mixed).unflatten(-1, (2, self.num_heads, self.num_modes)).unbind(-3)
        )
        weights = read, write, self.log_tau, self.dt_bias, self.read_gain, self.write_gain
        if self.by_mode:
            dynamic = delta, alpha, lam
            return mode_gates(dynamic, *weights, clamp=self.rho_clamp, **self.routing)
        return frac_gates(delta, alpha, lam, *weights, **self.routing)
