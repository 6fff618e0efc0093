import math

import post_loop
import pytest
import torch
from models import lively, model_config
from numerics import relative_error

from fracdna.mixers.gdn import GDN
from fracdna.mixers.gla import GLA
from fracdna.mixers.mamba2 import Mamba2
from fracdna.mixers.post import TaperedSpectrum
from fracdna.mixers.retnet import RetNet
from fracdna.mixers.rwkv7 import RWKV7

T = 2048
BASES = {
    "mamba2": (Mamba2, {"num_heads": 4, "state_width": 8}, "A_log"),
    "gdn": (GDN, {"num_heads": 2, "key_width": 8, "value_width": 12}, "A_log"),
    "rwkv7": (RWKV7, {"head_width": 8, "mlp_width": 24, "layer_index": 1}, "decay_bias"),
}
KEYED = {"num_heads": 2, "key_width": 8, "value_width": 12}
ALL = BASES | {"gla": (GLA, KEYED, None), "retnet": (RetNet, KEYED, None)}


def build(slow=-3.0, fast=2.0, channels=7, **options):
    torch.set_default_dtype(torch.float64)
    try:
        return TaperedSpectrum(slow, fast, channels, **{"length": T} | options)
    finally:
        torch.set_default_dtype(torch.float32)


def log_rates(slow, fast, channels, time):
    """Tapered logarithms of rates at one time, by the package."""
    return build(slow, fast, channels)(torch.tensor([time - 1]))[0]


@pytest.mark.parametrize("logits", [False, True])
def test_the_equations_hold_for_any_spectrum(logits):
    """Against a float64 loop over channels and times, at unequal gaps."""
    taper = lively(build(logits=logits))
    parameters = {f"taper.{name}": p.detach() for name, p in taper.named_parameters()}
    p, eta = post_loop.of_taper(parameters, "taper", 7, T, logits=logits)
    assert relative_error(taper.exponents(taper.spectrum()), eta) < 1e-12
    positions = torch.tensor([[0, 1, 2], [100, T - 1, 16 * T]])
    expected = torch.stack([p - eta * math.log(t + 1) for t in positions.flatten().tolist()])
    assert relative_error(taper(positions).flatten(0, 1), expected) < 1e-12


def test_equal_gaps_give_a_straight_line():
    taper = build()
    assert torch.allclose(taper.spectrum(), torch.linspace(-3, 2, 7, dtype=torch.float64))
    eta = taper.exponents(taper.spectrum())
    assert torch.allclose(eta, torch.linspace(1, 0, 7, dtype=torch.float64))


def test_exponents_stay_between_0_and_1_at_any_gaps():
    """One wide gap at either end would take the formula beyond."""
    for wide in (0, 5):
        taper = build()
        with torch.no_grad():
            taper.gaps[wide] = 30.0
        eta = taper.exponents(taper.spectrum())
        parameters = {f"taper.{name}": p.detach() for name, p in taper.named_parameters()}
        assert relative_error(eta, post_loop.of_taper(parameters, "taper", 7, T)[1]) < 1e-12
        assert (eta.min(), eta.max()) == (0, 1)
        assert ((eta == 0) | (eta == 1)).sum() > 2


def test_the_first_position_has_the_spectrum_itself():
    taper = lively(build())
    assert torch.equal(taper(torch.tensor([0]))[0], taper.spectrum())
    # what stands before the first packed sequence counts below 0, and is finite
    assert torch.equal(taper(torch.tensor([-5]))[0], taper.spectrum())


@pytest.mark.parametrize("name", BASES)
def test_without_exponents_a_mixer_is_its_base(name, monkeypatch):
    """The spectrum stands where the base has its rates or logits, and nothing else differs."""
    mixer, sizes, rates = BASES[name]
    layer = lively(mixer(24, num_layers=2, **sizes, post=True, post_length=T))
    base = mixer(24, num_layers=2, **sizes)
    weights = {k: v for k, v in layer.state_dict().items() if not k.startswith("taper.")}
    weights[rates] = layer.taper.spectrum().detach() + weights.pop("decay.bias", 0)
    if name == "mamba2":
        weights["dt_bias"] = torch.full((4,), layer.dt_bias)
    base.load_state_dict(weights)
    x = torch.randn(2, 40, 24)
    with torch.no_grad():
        assert relative_error(layer(x)[:, :1], base(x)[:, :1]) < 1e-6
        assert relative_error(layer(x), base(x)) > 1e-4
        monkeypatch.setattr(layer.taper, "exponents", torch.zeros_like)
        assert relative_error(layer(x), base(x)) < 1e-6


def test_time_scales_of_mamba2_at_the_length_of_training():
    """T_train = t = 2048: heads 0, 15 and 31 of 32 last 4.19e6, 2619 and 1 positions."""
    slow, fast = -math.log(0.05 * T), -math.log(0.05)
    lives = torch.exp(-log_rates(slow, fast, 32, T)) / 0.05
    assert lives[0].item() == pytest.approx(T * T)
    assert lives[15].item() == pytest.approx(2619, abs=1)
    assert lives[31].item() == pytest.approx(1)
    first = torch.exp(-log_rates(slow, fast, 32, 1)) / 0.05
    assert first[0].item() == pytest.approx(T)


def test_exponents_of_equally_spaced_logits_bend():
    """RWKV-7: w0_0 = -7.12381; of 768 eta_384 = 0.5586, at most 0.0693 off the straight line."""
    slow = -math.log(math.exp(-0.5) * T - 1)
    assert slow == pytest.approx(-7.12381, abs=5e-6)
    taper = build(slow, 0.5, 768, logits=True)
    assert torch.allclose(taper.spectrum(), torch.linspace(slow, 0.5, 768, dtype=torch.float64))
    eta = taper.exponents(taper.spectrum())
    assert eta[384].item() == pytest.approx(0.5586, abs=5e-5)
    off = eta - torch.linspace(1, 0, 768, dtype=torch.float64)
    assert off.abs().max().item() == pytest.approx(0.0693, abs=5e-5)


def test_a_rate_of_a_half_at_exponent_1_forgets_by_the_square_root_of_the_position():
    """prod_{s=101}^{10000} exp(-.5/s) = 0.100247: rate 1/2, exponent 1."""
    taper = build(math.log(0.5), 3.0, 2)
    logs = taper(torch.arange(100, 10_000))[:, 0]
    assert torch.exp(-torch.exp(logs).sum()).item() == pytest.approx(0.100247, abs=5e-7)


def test_strict_span_has_one_rate_and_linear_exponents():
    """At t time scales go from 1 to t, times that of the fast channel."""
    taper = lively(build(span="strict"))
    assert [name for name, _ in taper.named_parameters()] == ["base"]
    assert build(span="strict").base.item() == 2.0
    lives = torch.exp(taper.base - taper(torch.tensor([99]))[0])
    assert torch.allclose(lives, 100 ** torch.linspace(1, 0, 7, dtype=torch.float64))


def test_one_channel_is_not_tapered():
    """With the slow or, of the strict span, the fast rate."""
    positions = torch.arange(4)
    assert (build(channels=1)(positions) == -3.0).all()
    assert (build(channels=1, span="strict")(positions) == 2.0).all()


def test_gradients_flow_through_the_exponents():
    """In float64 as differences say."""
    taper = lively(build())
    positions, names = torch.tensor([3, 70]), [name for name, _ in taper.named_parameters()]

    def outputs(*values):
        return torch.func.functional_call(taper, dict(zip(names, values, strict=True)), positions)

    assert torch.autograd.gradcheck(outputs, tuple(taper.parameters()))
    eta = taper.exponents(taper.spectrum())
    assert all(g.abs().max() > 1e-3 for g in torch.autograd.grad(eta[2], [taper.gaps]))


def test_a_rounded_model_computes_times_in_float32():
    taper = build().to(torch.bfloat16)
    assert taper(torch.tensor([1000])).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert taper(torch.tensor([1000])).dtype == torch.float32


@pytest.mark.parametrize("length", [None, 1])
def test_a_length_is_needed(length):
    with pytest.raises(ValueError, match="post needs the length of a training sequence"):
        build(length=length)


def test_a_length_without_time_scales_is_refused():
    with pytest.raises(ValueError, match="post_length=2048 is too short"):
        build(slow=0.5, fast=0.5)


def test_an_unknown_span_is_refused():
    with pytest.raises(ValueError, match="post_span=half must be one of full, strict"):
        build(span="half")


def with_and_without_reset(name, **options):
    """A layer that counts afresh in every packed sequence, and the same that does not."""
    mixer, sizes, _ = ALL[name]
    torch.set_default_dtype(torch.float64)
    try:
        layers = [mixer(24, num_layers=2, **sizes, post_reset=r, **options) for r in (True, False)]
    finally:
        torch.set_default_dtype(torch.float32)
    layers[1].load_state_dict(lively(layers[0]).state_dict())
    return layers


@pytest.mark.parametrize("name", ALL)
def test_without_a_reset_positions_count_through_the_borders_of_packed_sequences(name):
    """As released: only the position goes on, memory and neighbours do not cross a border."""
    _, released = with_and_without_reset(name, post=True, post_length=T)
    x = torch.randn(1, 30, 24, dtype=torch.float64)
    packed = released(x, cu_seqlens=torch.tensor([0, 1, 12, 12, 30]))
    for start, end in [(0, 1), (1, 12), (12, 30)]:
        empty = released.initial_state(1)
        onward, _ = released.step(x[:, start:end], empty._replace(count=empty.count + start))
        assert relative_error(packed[:, start:end], onward) < 1e-10


@pytest.mark.parametrize("name", ALL)
def test_a_reset_matters_in_packed_sequences_after_the_first_alone(name):
    """Whole and carried sequences know no borders."""
    here, released = with_and_without_reset(name, post=True, post_length=T)
    x, bounds = torch.randn(1, 30, 24, dtype=torch.float64), torch.tensor([0, 14, 30])
    packed = [layer(x, cu_seqlens=bounds) for layer in (here, released)]
    assert torch.equal(packed[0][:, :14], packed[1][:, :14])
    assert relative_error(packed[0][:, 14:], packed[1][:, 14:]) > 1e-6
    assert torch.equal(here(x), released(x))
    carried = [
        layer.step(x, layer.step(x, layer.initial_state(1))[1])[0] for layer in (here, released)
    ]
    assert torch.equal(*carried)


@pytest.mark.parametrize("name", ALL)
def test_without_post_there_is_nothing_to_reset(name):
    """Turned keys of RetNet and neighbours of RWKV-7 still start afresh."""
    here, released = with_and_without_reset(name)
    x, bounds = torch.randn(1, 30, 24, dtype=torch.float64), torch.tensor([0, 14, 30])
    assert torch.equal(here(x, cu_seqlens=bounds), released(x, cu_seqlens=bounds))


@pytest.mark.parametrize("name", ALL)
def test_the_reset_is_a_word_on_the_command_line(name):
    config = model_config(f"post_{name}")
    assert config["mixer"]["post_reset"] is True
    assert (
        model_config(f"post_{name}", "model.mixer.post_reset=false")["mixer"]["post_reset"] is False
    )
