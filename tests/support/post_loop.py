"""Spectrum and exponents of PoST, written from its equations one channel after another."""

import math

import torch


def spectrum(base, gaps):
    """p_0 .. p_{n-1} in float64."""
    p = [float(base)]
    for gap in gaps.tolist():
        p.append(p[-1] + math.log1p(math.exp(gap)))
    return torch.tensor(p, dtype=torch.float64)


def exponents(logs, length):
    """eta_0 .. eta_{n-1} of logarithms of rates."""
    n, eta = len(logs), []
    mean = (logs[-1] - logs[0]).item() / (n - 1)
    for k in range(n):
        rise = (logs[k] - logs[0]).item()
        raw = (n - 1 - k) / (n - 1) + (rise - k * mean) / math.log(length)
        eta.append(min(max(raw, 0.0), 1.0))
    return torch.tensor(eta, dtype=torch.float64)


def linear_exponents(n):
    """Those of equal gaps."""
    return torch.tensor([(n - 1 - k) / (n - 1) for k in range(n)], dtype=torch.float64)


def of_taper(parameters, name, channels, length, *, logits=False):
    """Spectrum and exponents from the parameters of a layer; without gaps, of the strict span."""
    base = parameters[f"{name}.base"]
    if f"{name}.gaps" not in parameters:
        return base.repeat(channels), linear_exponents(channels)
    p = spectrum(base, parameters[f"{name}.gaps"])
    assert len(p) == channels
    return p, exponents(-torch.log1p(torch.exp(-p)) if logits else p, length)
