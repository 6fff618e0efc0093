"""What the memories of a model's layers are like at an input of 0: by the weights, without data."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import softplus

from fracdna.mixers.frac import Frac
from fracdna.mixers.post import TaperedSpectrum
from fracdna.model.heads import LanguageModel
from fracdna.pictures import bases, save
from fracdna_prep.errors import InputError


class Spectrum(NamedTuple):
    """Time scales of one layer."""

    layer: int  # from 1
    mixer: str
    times: tuple[int, ...]  # places in a sequence, counted from 1
    scales: Tensor  # (times, channels) positions, on the CPU, the slowest at the first time first


class Orders(NamedTuple):
    """What FRAC's heads are set to in one layer."""

    layer: int  # from 1
    alpha: Tensor  # (heads,) fractional order
    lam: Tensor  # (heads,) relaxation strength
    clock: Tensor  # (heads,) how far the clock moves at each position


def fractional_orders(model: LanguageModel) -> list[Orders]:
    """Order, relaxation strength and clock of FRAC's layers at an input of 0; others are left out.

    alpha is 1 where it is fixed. Inputs move all three within their bounds.
    """
    return [
        Orders(number, *_at_zero(block.mixer))
        for number, block in enumerate(model.backbone.blocks, start=1)
        if isinstance(block.mixer, Frac)
    ]


def _at_zero(mixer: Frac) -> tuple[Tensor, Tensor, Tensor]:
    """alpha, lam and clock of each head, on the CPU."""
    with torch.no_grad():
        delta, alpha, lam = (x.float().cpu() for x in settings(mixer, mixer.dynamics.bias))
    return alpha, lam, torch.exp(delta.log() + lam.log() / alpha)


class Settings(NamedTuple):
    """What the logits of a FRAC layer mean, (..., heads) each."""

    delta: Tensor  # step
    alpha: Tensor  # fractional order; 1 where a layer has none
    lam: Tensor  # relaxation strength

    def log10_clock(self) -> Tensor:
        """The decimal logarithm of u = Delta lam^(1/alpha)."""
        return self.delta.log10() + self.lam.log10() / self.alpha


def settings(mixer: Frac, dynamics: Tensor) -> Settings:
    """Delta, alpha and lambda of every position and head, as frac_gates makes them.

    Args:
        mixer: the layer.
        dynamics: (..., 2 or 3 times heads), logits as Frac.gates takes them.
    """
    parts = dynamics.chunk(2 + mixer.has_alpha, dim=-1)
    delta = softplus(parts[0] + mixer.dt_bias).clamp(*mixer.routing["delta_range"])
    lam = _between(parts[-1], mixer.routing["lam_range"])
    if not mixer.has_alpha:
        return Settings(delta, torch.ones_like(lam), lam)
    return Settings(delta, _between(parts[1], mixer.routing["alpha_range"]), lam)


def _between(logits: Tensor, bounds: tuple[float, float]) -> Tensor:
    """What a sigmoid makes of logits between two bounds."""
    low, high = bounds
    return low + (high - low) * torch.sigmoid(logits)


def decay_spectra(model: LanguageModel, times: Sequence[int] | None = None) -> list[Spectrum]:
    """Time scales of all layers whose memory fades by rates (Mixer.time_scales).

    They are those of the weights alone: what the input adds to a decay, or a step that it takes,
    is left out.

    Args:
        model: the network.
        times: where in a sequence, counted from 1; None: at 1, and where layers are tapered by the
            position also at the length of training and 16 times as far.

    Raises:
        InputError: a time below 1, or no layer that fades by rates.
    """
    spectra = layer_spectra(model, times)
    if not spectra:
        raise InputError("no layer of this model fades by rates: there is no spectrum to draw")
    return spectra


def layer_spectra(model: LanguageModel, times: Sequence[int] | None = None) -> list[Spectrum]:
    """As decay_spectra, but empty for a model without such a layer."""
    if times is None:
        lengths = {part.length for part in model.modules() if isinstance(part, TaperedSpectrum)}
        times = sorted({1} | lengths | {16 * length for length in lengths})
    if not times or min(times) < 1:
        raise InputError(f"times={list(times)} must be one or more places from 1 on")
    places = torch.tensor(times, device=model.backbone.embedding.weight.device)
    spectra = []
    for number, block in enumerate(model.backbone.blocks, start=1):
        with torch.no_grad():
            scales = block.mixer.time_scales(places)
        if scales is not None:
            order = scales[0].argsort(descending=True)
            name = type(block.mixer).__name__
            spectra.append(Spectrum(number, name, tuple(times), scales[:, order].cpu()))
    return spectra


def spectra_figure(spectra: Sequence[Spectrum], title: str) -> Figure:
    """Time scales by rank, a line for each layer and a panel for each time.

    Args:
        spectra: from decay_spectra, of one model.
        title: above the panels.
    """
    times = spectra[0].times
    figure = Figure(figsize=(3.6 + 3.2 * len(times), 4.4), layout="constrained")
    panels = figure.subplots(1, len(times), sharey=True, squeeze=False)[0]
    colours = colormaps["viridis"].resampled(max(len(spectra), 2))
    for index, (time, axes) in enumerate(zip(times, panels, strict=True)):
        for colour, spectrum in enumerate(spectra):
            scales = spectrum.scales[index]
            places = torch.linspace(0, 1, len(scales)).tolist()
            style = {"marker": "o", "ms": 3, "lw": 1.2, "color": colours(colour)}
            axes.plot(places, scales.tolist(), label=f"{spectrum.layer} {spectrum.mixer}", **style)
        axes.set(xlabel="rank, slowest to fastest", yscale="log")
        if len(times) > 1:
            axes.set_title(f"at position {bases(time)}", fontsize=9)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("time scale, positions")
    panels[-1].legend(
        title="layer", frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )
    figure.suptitle(title)
    return figure


def draw_spectra(path: Path, spectra: Sequence[Spectrum], *, title: str) -> None:
    """Write spectra_figure as a PNG."""
    save(spectra_figure(spectra, title), path)
