import math

import pytest
import torch
from models import lively, model_config
from numerics import relative_error
from torch.nn.functional import softplus

from fracdna.mixers.mamba3 import Mamba3
from fracdna.model.checkpoint import build_model
from fracdna.training.optimizer import parameter_groups

SIZES = {"num_heads": 4, "state_width": 8}
RANKS = [1, 3]


def build(**options):
    torch.set_default_dtype(torch.float64)
    try:
        return lively(Mamba3(12, **SIZES | options))
    finally:
        torch.set_default_dtype(torch.float32)


def published_layer(layer, h, rank, rate):
    """The layer's equations, one position after another; only the weights are the package's."""
    weight = {name: p.detach() for name, p in layer.named_parameters()}
    E, H, V, N = 24, 4, 6, 8
    sigmoid = lambda y: 1 / (1 + torch.exp(-y))  # noqa: E731
    ones = torch.ones(H, rank, V, dtype=torch.float64)
    mx, mz, mo = (weight.get(f"{n}_mix", ones) for n in ("value", "gate", "output"))

    def placed(rows, name, theta):
        """Norm, bias and turn of R rows, for every head."""
        rms = torch.sqrt((rows**2).mean(-1, keepdim=True) + 1e-5)
        out = weight[f"{name}_norm_weight"] * rows / rms + weight[f"{name}_bias"]
        for i in range(N // 4):
            one, two = (2 * i, 2 * i + 1) if rank == 1 else (i, i + N // 2)
            a, b = out[..., one].clone(), out[..., two].clone()
            sine, cosine = torch.sin(theta[:, i, None]), torch.cos(theta[:, i, None])
            out[..., one], out[..., two] = a * cosine - b * sine, a * sine + b * cosine
        return out  # (H, R, N)

    state = torch.zeros(H, N, V, dtype=torch.float64)
    theta = torch.zeros(H, N // 4, dtype=torch.float64)
    last, outputs = torch.zeros(H, N, V, dtype=torch.float64), []
    for x in h:
        inputs, dynamics = weight["in_projection.weight"] @ x, weight["dynamics.weight"] @ x
        z = (weight["gate_projection.weight"] @ x).view(H, 1, V) * mz
        v = inputs[:E].view(H, 1, V) * mx
        step = torch.log1p(torch.exp(dynamics[:H] + weight["dt_bias"]))
        decay = torch.exp(-rate(dynamics[H : 2 * H]).clamp(min=1e-4) * step)
        phi = sigmoid(dynamics[2 * H : 3 * H])
        theta = theta + step[:, None] * math.pi * torch.tanh(dynamics[3 * H :])
        k, q = (
            placed(inputs[E + n * N * rank :][: N * rank].view(rank, N), name, theta)
            for n, name in enumerate(("key", "query"))
        )
        pairs = torch.zeros(H, N, V, dtype=torch.float64)
        for r in range(rank):
            pairs = pairs + k[:, r, :, None] * v[:, r, None, :]
        carried = (1 - phi) * step * decay
        state = decay[:, None, None] * state + carried[:, None, None] * last
        state = state + (phi * step)[:, None, None] * pairs
        last = pairs
        y = torch.zeros(H, V, dtype=torch.float64)
        for r in range(rank):
            read = (state * q[:, r, :, None]).sum(1) + weight["skip"][:, None] * v[:, r]
            if "output_norm_weight" in weight:
                rms = torch.sqrt((read**2).mean(-1, keepdim=True) + 1e-5)
                read = weight["output_norm_weight"].view(H, V) * read / rms
            y = y + mo[:, r] * read * z[:, r] * sigmoid(z[:, r])
        outputs.append(weight["out_projection.weight"] @ y.flatten())
    return torch.stack(outputs)


def rational(x):
    return torch.stack([1 + y if y >= 0 else 1 / (1 - y) for y in x])


@pytest.mark.parametrize("form", ["chunk", "reference", "recurrent"])
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("rate", ["softplus", "rational"])
def test_published_equations_hold_in_float64(form, rank, rate):
    """The whole layer against an independent loop."""
    layer = build(form=form, rank=rank, rate=rate)
    h = torch.randn(40, 12, dtype=torch.float64)
    function = rational if rate == "rational" else lambda x: torch.log1p(torch.exp(x))
    expected = published_layer(layer, h, rank, function)
    assert relative_error(layer(h[None])[0], expected) < 1e-10


@pytest.mark.parametrize("rank", RANKS)
def test_equations_with_the_optional_norm_hold_in_float64(rank):
    """Of every head and rank, before the gate; E weights more, without weight decay."""
    layer = build(rank=rank, output_norm=True)
    h = torch.randn(40, 12, dtype=torch.float64)
    expected = published_layer(layer, h, rank, lambda x: torch.log1p(torch.exp(x)))
    assert relative_error(layer(h[None])[0], expected) < 1e-10
    count = lambda layer: sum(p.numel() for p in layer.parameters())  # noqa: E731
    assert count(layer) - count(build(rank=rank)) == 24
    exempt = parameter_groups(layer, 0.1)[1]["params"]
    assert any(p is layer.output_norm_weight for p in exempt)


def test_a_rank_that_is_neither_written_nor_read_changes_nothing():
    """One live rank whose scales are 1 is the SISO form, but for which coordinates turn."""
    one, two = build(), build(rank=2)
    with torch.no_grad():
        for name, parameter in two.named_parameters():
            if name in ("key_bias", "query_bias"):
                parameter[:, :1] = one.get_parameter(name)
            elif name == "in_projection.weight":
                values, keys, queries = one.get_parameter(name).split([24, 8, 8])
                parameter[:24], parameter[24:32], parameter[40:48] = values, keys, queries
            elif name.endswith("_mix"):
                parameter.zero_()[:, 0] = 1
            else:
                parameter.copy_(one.get_parameter(name))
        for layer in (one, two):
            layer.dynamics.weight[12:] = 0  # no turns
    h = torch.randn(2, 30, 12, dtype=torch.float64)
    assert relative_error(two(h), one(h)) < 1e-12


@pytest.mark.parametrize("rate", ["softplus", "rational"])
def test_rates_never_vanish(rate):
    """At least 1e-4 for each unit of time."""
    layer = Mamba3(12, rate=rate, **SIZES)
    g = layer.log_decay(torch.full((1, 1, 4), -1e6), torch.ones(1, 1, 4), None, None)
    assert torch.allclose(g, torch.tensor(-1e-4))


def test_initial_time_steps_are_log_uniform():
    """On [1e-3, 0.1]: edges and quartiles."""
    layer = Mamba3(2, num_heads=20_000, state_width=4, expand=10_000)
    quarters = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    positions = (softplus(layer.dt_bias).log10() + 3).quantile(quarters) / 2
    assert torch.allclose(positions, quarters, atol=0.02)


def test_initial_weights():
    """Maps uniform by their inputs, biases of keys and queries 1, ranks averaged."""
    layer = Mamba3(256, num_heads=8, rank=4, num_layers=16)
    for name, parameter in layer.named_parameters():
        if name.endswith("projection.weight") or name == "dynamics.weight":
            bound = parameter.shape[1] ** -0.5 / (4 if name.startswith("out") else 1)
            assert bound * 0.98 < parameter.abs().max().item() <= bound * 1.0001, name
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name
        elif name != "dt_bias":
            value = 0.25 if name in ("value_mix", "output_mix") else 1
            assert (parameter == value).all(), name


@pytest.mark.parametrize("rank", RANKS)
def test_parameters_follow_the_formula(rank):
    """3DE + 2DNR + 3DH + DN/4 + 2HRN + 2N + 2H, and 3RE for R > 1; the pre-norm's D apart."""
    D, E, H, N = 12, 24, 4, 8
    expected = 3 * D * E + 2 * D * N * rank + 3 * D * H + D * N // 4
    expected += 2 * H * rank * N + 2 * N + 2 * H + (3 * rank * E if rank > 1 else 0)
    assert sum(p.numel() for p in build(rank=rank).parameters()) == expected


def test_what_does_not_decay():
    """Time steps, skip, norms, and the biases of keys and queries although they have three axes."""
    layer = Mamba3(12, rank=2, **SIZES)
    exempt = parameter_groups(layer, 0.1)[1]["params"]
    names = {name for name, p in layer.named_parameters() if any(p is e for e in exempt)}
    norms = {"key_norm_weight", "query_norm_weight"}
    assert names == {"dt_bias", "skip", "key_bias", "query_bias"} | norms


@pytest.mark.parametrize("rank", RANKS)
def test_pads_neither_decay_nor_turn_nor_count(rank):
    layer = build(rank=rank)
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    _, state = layer.step(x, layer.initial_state(2), lengths=torch.tensor([0, 4]))
    _, alone = layer.step(x[1:, :4], layer.initial_state(1))
    assert state.count.tolist() == [0, 4]
    for part, expected in zip(state, alone, strict=True):
        assert not part[0].any()
        assert relative_error(part[1:], expected) < 1e-12


@pytest.mark.parametrize("rank", RANKS)
def test_positions_outside_packed_sequences_give_zero(rank):
    x = torch.randn(1, 9, 12, dtype=torch.float64)
    y = build(rank=rank)(x, cu_seqlens=torch.tensor([1, 4, 7]))
    assert not y[:, [0, 7, 8]].any()
    assert y[:, 1:7].all()


def test_sizes_and_rates_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="num_heads=5 must divide the inner width 24"):
        Mamba3(12, num_heads=5)
    with pytest.raises(ValueError, match="state_width=6 be a multiple of 4"):
        Mamba3(12, num_heads=4, state_width=6)
    with pytest.raises(ValueError, match="rate='linear' is unknown"):
        Mamba3(12, num_heads=4, rate="linear")


def test_the_rate_is_a_word_on_the_command_line():
    model = build_model(model_config("mamba3_mimo", "model.mixer.rate=rational"))
    assert model.backbone.blocks[0].mixer.rate == "rational"
