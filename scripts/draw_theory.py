"""Draw the pictures of docs/derivation.md: python scripts/draw_theory.py [folder, default docs]."""

import math
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fracdna_kernels.frac_gates import frac_gates
from fracdna_kernels.frac_scan import frac_scan

MODES, TAU_MAX = 16, 131_072.0
SPACING = math.log(TAU_MAX) / (MODES - 1)
TAU = np.exp(SPACING * np.arange(MODES))
ORDER = 0.5
BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#c8641b", "#2a7f4f", "#8a8a8a"

Curve = NDArray[np.float64]


def spectral_density(r: Curve) -> Curve:
    """Weight of the rate r in the decay of order ORDER at strength 1."""
    angle = ORDER * math.pi
    weight = r ** (ORDER - 1) * math.sin(angle) / math.pi
    return weight / (r ** (2 * ORDER) + 2 * r**ORDER * math.cos(angle) + 1)


def decay(times: Curve) -> Curve:
    """The Mittag-Leffler function E(-t^ORDER), by the trapezoidal rule in log r at a fine step."""
    step = 0.02
    r = np.exp(np.arange(-200, 40, step))
    weights = step * r * spectral_density(r)
    return np.array([weights @ np.exp(-r * t) for t in times])


def bank_weights(lumped: bool) -> Curve:
    """The rule's coefficients at the sixteen time scales, the last one with or without its tail."""
    weights = SPACING / TAU * spectral_density(1 / TAU)
    if lumped:
        weights[-1] /= 1 - math.exp(-ORDER * SPACING)
    return weights


def bank(times: Curve, weights: Curve) -> Curve:
    """A weighted sum of the sixteen exponentials."""
    return np.exp(-times[:, None] / TAU) @ weights


def draw_kernel(axes: Axes) -> None:
    """Decay of order one half beside one exponential, its power-law tail and the bank's modes."""
    times = np.geomspace(0.1, 1e6, 300)
    weights = bank_weights(lumped=False)
    for weight, tau in zip(weights, TAU, strict=True):
        axes.plot(times, weight * np.exp(-times / tau), color=GREY, lw=0.6)
    axes.plot([], [], color=GREY, lw=0.6, label="the 16 modes")
    axes.plot(times, np.exp(-times), color=ORANGE, label="one exponential, $e^{-t}$")
    axes.plot(times, decay(times), color=BLUE, lw=2, label="fractional decay, order 1/2")
    axes.plot(
        times,
        times**-ORDER / math.gamma(1 - ORDER),
        "k:",
        label="its tail, $t^{-1/2}/\\sqrt{\\pi}$",
    )
    axes.plot(times, bank(times, weights), color=GREEN, ls="--", label="sum of the 16 modes")
    axes.set(xscale="log", yscale="log", ylim=(1e-6, 2), xlabel="time (clock units)")
    axes.set_title("What is left of a memory")
    axes.legend(fontsize=7, loc="lower left")


def draw_error(axes: Axes) -> None:
    """Relative error of the bank with and without the lumped tail."""
    times = np.geomspace(1, 1e6, 300)
    exact = decay(times)
    for lumped, colour, label in ((False, GREEN, "16 modes"), (True, BLUE, "with lumped tail")):
        error = np.abs(bank(times, bank_weights(lumped)) / exact - 1)
        axes.plot(times, error, color=colour, label=label)
    axes.axvline(TAU_MAX, color=GREY, ls=":", label="$\\tau_{max}$")
    axes.set(xscale="log", yscale="log", ylim=(1e-7, 2), xlabel="time (clock units)")
    axes.set_title("Relative error of the bank")
    axes.legend(fontsize=7, loc="lower right")


def impulse_response(gain: str, length: int) -> Curve:
    """Output of the layer's memory n positions after a value of 1, at zero logits and u = 1."""
    log_tau = torch.log(torch.from_numpy(TAU))
    zeros = torch.zeros(1, length, 1, MODES, dtype=torch.float64)
    zero = torch.zeros((), dtype=torch.float64)
    gate = zeros[..., 0]
    u, read, write = frac_gates(
        gate + 5, gate, gate, zeros, zeros, log_tau, zero[None], zero, zero,
        gain=gain, alpha_range=(ORDER, ORDER), lam_range=(1.0, 1.0),
    )  # fmt: skip
    values = torch.zeros(1, length, 1, 1, dtype=torch.float64)
    values[0, 0] = 1
    return frac_scan(values, write, read, u, log_tau)[0].flatten().numpy()


def draw_impulse(axes: Axes) -> None:
    """Impulse responses of the layer for both gains, with the slopes that theory gives."""
    n = np.unique(np.geomspace(1, 2**17, 300).astype(int))
    for gain, slope, colour in (("dc", -1 - 2 * ORDER, ORANGE), ("zoh", -2 * ORDER, BLUE)):
        response = impulse_response(gain, 2**17 + 1)[n]
        axes.plot(n, response, color=colour, label=f"gain {gain}")
        line = response[n == 10] * (n / 10) ** slope
        axes.plot(n, line, color=colour, ls=":", label=f"$n^{{{slope:.0f}}}$")
    axes.set(xscale="log", yscale="log", ylim=(1e-13, 1), xlabel="positions since the write, n")
    axes.set_title("FRAC's impulse response, order 1/2, u = 1")
    axes.legend(fontsize=7, loc="lower left")


def main(folder: Path) -> None:
    """Write derivation_kernel.png and derivation_impulse.png into the folder."""
    mpl.rcParams.update({"font.size": 8, "axes.grid": True, "grid.alpha": 0.25})
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_kernel(left)
    draw_error(right)
    figure.savefig(folder / "derivation_kernel.png", dpi=100)
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    draw_impulse(figure.subplots())
    figure.savefig(folder / "derivation_impulse.png", dpi=100)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
