import functools
import math

import post_loop
import pytest
import torch
from models import lively, model_config
from numerics import relative_error

from fracdna.mixers import rwkv7
from fracdna.mixers.low_rank import rounded_rank
from fracdna.mixers.rwkv7 import RWKV7
from fracdna.model.checkpoint import build_model
from fracdna.training.optimizer import parameter_groups

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FUSED = ("shifted_layer_norm", "dplr_gates", "gated_head_norm", "squared_relu")
WIDTH, HEAD, LAYERS = 16, 8, 3
POST = {"post": True, "post_length": 16}


def build(layer_index, *, moved=True, **options):
    torch.set_default_dtype(torch.float64)
    try:
        layer = RWKV7(
            WIDTH, head_width=HEAD, mlp_width=24,
            layer_index=layer_index, num_layers=LAYERS, **options,
        )  # fmt: skip
        return lively(layer) if moved else layer
    finally:
        torch.set_default_dtype(torch.float32)


def decay_bias(weight, t):
    """Of all channels at position t = 0, 1, ..."""
    if "decay_bias" in weight:
        return weight["decay_bias"]
    p, eta = post_loop.of_taper(weight, "taper", WIDTH, POST["post_length"], logits=True)
    return p - eta * math.log(t + 1)


def published_layer(layer, x, first_values):
    """One layer, position by position; only the weights are the package's.

    Args:
        layer: the module.
        x: (length, width), the stream before it.
        first_values: (length, width) of layer 0, or None there.

    Returns:
        The stream after it, and the values of layer 0.
    """
    w = {name: p.detach() for name, p in layer.named_parameters()}

    def norm(y, weight, bias, eps=1e-5):
        y = y - y.mean()
        return weight * y / torch.sqrt((y**2).mean() + eps) + bias

    def sigmoid(y):
        return 1 / (1 + torch.exp(-y))

    def low_rank(name, y, act=lambda z: z):
        return w[f"{name}.up"] @ act(w[f"{name}.down"] @ y) + w.get(f"{name}.bias", 0)

    H, P = WIDTH // HEAD, HEAD
    state, last_time, last_channel = torch.zeros(H, P, P).double(), *torch.zeros(2, WIDTH).double()
    streams, values = [], []
    for t in range(x.shape[0]):
        stream = x[t]
        if first_values is None:
            stream = norm(stream, w["embedding_norm.weight"], w["embedding_norm.bias"])
        now = norm(stream, w["time_norm.weight"], w["time_norm.bias"])
        mixed, last_time = [now + (last_time - now) * s for s in w["time_shares"]], now
        r = w["r_projection.weight"] @ mixed[0]
        k = w["k_projection.weight"] @ mixed[2]
        v = w["v_projection.weight"] @ mixed[3]
        decay = torch.exp(
            -math.exp(-0.5) * sigmoid(decay_bias(w, t) + low_rank("decay", mixed[1], torch.tanh))
        )
        a = sigmoid(low_rank("rate", mixed[4]))
        gate = low_rank("gate", mixed[5], sigmoid)
        if first_values is None:
            values.append(v)
        else:
            v = v + (first_values[t] - v) * sigmoid(low_rank("value_share", mixed[3]))
        removed = k * w["removal_scale"]
        k = k * (1 + (a - 1) * w["rate_scale"])
        out = torch.zeros(WIDTH, dtype=torch.float64)
        for head in range(H):
            part = slice(head * P, (head + 1) * P)
            kappa = removed[part] / removed[part].norm()
            S = decay[part, None] * state[head]
            S = (
                S
                - torch.outer(a[part] * kappa, kappa @ state[head])
                + torch.outer(k[part], v[part])
            )
            state[head] = S
            o = norm(
                S.T @ r[part], w["head_norm_weight"][part], w["head_norm_bias"][part], eps=64e-5
            )
            out[part] = o + (r[part] * k[part] * w["bonus"][part]).sum() * v[part]
        stream = stream + w["out_projection.weight"] @ (out * gate)
        now = norm(stream, w["channel_norm.weight"], w["channel_norm.bias"])
        inner = w["up_projection.weight"] @ (now + (last_channel - now) * w["channel_share"])
        last_channel = now
        stream = stream + w["down_projection.weight"] @ inner.clamp(min=0) ** 2
        streams.append(stream)
    return torch.stack(streams), torch.stack(values) if first_values is None else first_values


@pytest.mark.parametrize("form", ["chunk", "reference", "recurrent"])
def test_published_equations_hold_in_float64(form):
    """Three layers against an independent loop: norm of the embedding, values handed on."""
    x = torch.randn(1, 40, WIDTH, dtype=torch.float64)
    expected, first, stream, shared = x[0], None, x, {}
    for index in range(LAYERS):
        layer = build(index, form=form)
        expected, first = published_layer(layer, expected, first)
        stream = stream + layer(stream, shared=shared)
        assert relative_error(stream[0], expected) < 1e-10


@pytest.mark.parametrize("form", ["chunk", "reference", "recurrent"])
@pytest.mark.parametrize("span", ["full", "strict"])
def test_equations_of_post_hold_in_float64(form, span):
    """Also beyond the length of training."""
    x = torch.randn(1, 40, WIDTH, dtype=torch.float64)
    expected, first, stream, shared = x[0], None, x, {}
    for index in range(LAYERS):
        layer = build(index, form=form, post_span=span, **POST)
        expected, first = published_layer(layer, expected, first)
        stream = stream + layer(stream, shared=shared)
        assert relative_error(stream[0], expected) < 1e-10


def test_logits_of_post_begin_at_the_length_of_training():
    """Equally spaced from the rate 1/T up to 0.5, in every layer; the input's map at 2.5 y|y|."""
    width, head, length = 256, 64, 2048
    layer = RWKV7(width, head_width=head, mlp_width=8, layer_index=1, post=True, post_length=length)
    logits = layer.taper.spectrum()
    assert torch.allclose(logits, torch.linspace(-7.12381, 0.5, width), atol=1e-5)
    slowest = math.exp(-0.5) * torch.sigmoid(logits[0]).item()
    assert slowest == pytest.approx(1 / length, rel=1e-4)
    within = (torch.arange(width) % head - 31.5) / 31.5
    assert torch.allclose(layer.decay.bias, 2.5 * within * within.abs())
    strict = RWKV7(16, head_width=8, mlp_width=8, post_span="strict", **POST)
    assert (strict.taper.spectrum() == 0.5).all()


def test_post_adds_the_bias_of_the_map():
    """D more: its spectrum has as many parameters as the published bias."""
    count = lambda layer: sum(p.numel() for p in layer.parameters())  # noqa: E731
    assert count(build(1, **POST)) - count(build(1)) == WIDTH


def test_post_starts_from_the_position_in_the_state():
    layer = build(1, **POST)
    x = torch.randn(2, 12, WIDTH, dtype=torch.float64)
    _, state = layer.step(x[:, :7], layer.initial_state(2))
    onward = layer.step(x[:, 7:], state)[0]
    assert relative_error(onward, layer(x)[:, 7:]) < 1e-12
    elsewhere = layer.step(x[:, 7:], state._replace(count=state.count + 50))[0]
    assert relative_error(elsewhere, onward) > 1e-5


def test_post_without_a_length_or_time_scales_is_refused():
    with pytest.raises(ValueError, match="post_length=None"):
        RWKV7(16, head_width=8, mlp_width=8, post=True)
    with pytest.raises(ValueError, match="post_length=2 is too short"):
        RWKV7(16, head_width=8, mlp_width=8, post=True, post_length=2)


def test_without_values_handed_on_a_layer_takes_its_own():
    """A layer alone equals one that is handed its own values."""
    layer = build(1)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    shared = {}
    assert torch.equal(layer(x), layer(x, shared=shared))
    assert torch.equal(layer(x), layer(x, shared=shared))
    other = {name: value + 1 for name, value in shared.items()}
    assert relative_error(layer(x, shared=other), layer(x)) > 1e-3


def test_initial_decays_are_the_released_ones():
    """Logits -6 + 6 (n/(D-1))^(1 + (l/(L-1))^.3) + .5 + 2.5 y|y|, y from -1 to 1 in each head."""
    layers, width, head = 4, 256, 64
    for index in range(layers):
        layer = RWKV7(width, head_width=head, mlp_width=8, layer_index=index, num_layers=layers)
        for n in (0, 1, 31, 32, 63, 64, 200, 255):
            y = (n % head - 31.5) / 31.5
            power = 1 + (index / (layers - 1)) ** 0.3
            logit = -5.5 + 6 * (n / (width - 1)) ** power + 2.5 * y * abs(y)
            assert layer.decay_bias[n].item() == pytest.approx(logit, abs=1e-5)
            line = n / (width - 1) - 0.5
            a0 = -0.19 + 0.3 * y * abs(y) + 0.4 * line
            assert layer.rate.bias[n].item() == pytest.approx(a0, abs=1e-5)
            assert layer.removal_scale[n].item() == pytest.approx(0.71 - 0.1 * line, abs=1e-5)
            if index:
                assert layer.value_share.bias[n].item() == pytest.approx(
                    0.73 - 0.4 * line, abs=1e-5
                )
        assert layer.decay_bias.min().item() == pytest.approx(-8, abs=0.05)
        assert layer.decay_bias.max().item() == pytest.approx(3, abs=1e-5)


def test_an_untrained_layer_decays_by_its_bias_alone():
    """exp(g) from 0.545239 to 1; the slowest channel lives 1 / (e^(-1/2) sg(-8)) positions."""
    layer = RWKV7(256, head_width=64, mlp_width=8, layer_index=0, num_layers=2)
    x = torch.randn(1, 3, 256)
    g = layer.log_decay(layer.decay(x), torch.arange(3))
    expected = -math.exp(-0.5) / (1 + torch.exp(-layer.decay_bias))
    assert torch.allclose(g, expected.expand_as(g))
    assert -1 / g[0, 0, 0].item() == pytest.approx(4916.5, rel=1e-3)
    strong = layer.log_decay(torch.full((1, 1, 256), 50.0), torch.arange(1))
    assert strong.exp().min().item() == pytest.approx(0.545239, abs=1e-6)


@pytest.mark.parametrize("index", [0, 3])
def test_initial_shares_follow_depth_and_channel(index):
    """1 - (n/D)^(e (1 - l/L)); the channel mix has the power (1 - l/L)^4."""
    width, layers = 64, 4
    layer = RWKV7(width, head_width=32, mlp_width=8, layer_index=index, num_layers=layers)
    above = 1 - index / layers
    for row, exponent in enumerate((0.2, 0.9, 0.7, 0.7, 0.9, 0.2)):
        for n in (0, 5, 63):
            share = 1 - (n / width) ** (exponent * above)
            assert layer.time_shares[row, n].item() == pytest.approx(share, abs=1e-6)
    expected = 1 - (5 / width) ** above**4
    assert layer.channel_share[5].item() == pytest.approx(expected, abs=1e-6)


def test_initial_maps_are_orthogonal_or_zero():
    layer = build(1, moved=False)
    identity = torch.eye(WIDTH, dtype=torch.float64)
    for name, scale in (("r", 1.0), ("k", 0.1), ("v", 1.0)):
        weight = getattr(layer, f"{name}_projection").weight
        assert relative_error(weight.T @ weight, scale**2 * identity) < 1e-12
    assert (
        relative_error(layer.up_projection.weight.T @ layer.up_projection.weight, identity) < 1e-12
    )
    for part in (layer.decay, layer.rate, layer.gate, layer.value_share):
        assert not part.down.any()
        assert relative_error(part.up @ part.up.T, 0.01 * identity) < 1e-12
    assert not layer.out_projection.weight.any()
    assert not layer.down_projection.weight.any()
    assert torch.allclose(layer.head_norm_weight, torch.tensor((2 / 3) ** 0.7).double())
    assert (layer.bonus == -0.04).all()
    assert (layer.rate_scale == 1.02).all()


def test_an_untrained_first_layer_normalises_the_embedding_and_others_do_nothing():
    """Both mixes start at 0."""
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    expected = torch.nn.functional.layer_norm(x, (WIDTH,))
    assert relative_error(x + build(0, moved=False)(x), expected) < 1e-12
    assert not build(1, moved=False)(x).any()


@pytest.mark.parametrize(
    ("width", "ranks"), [(256, (32, 32, 64)), (768, (64, 32, 128)), (64, (32, 32, 32))]
)
def test_ranks_of_the_low_rank_maps(width, ranks):
    """Decay and rate, values, gate; halves go to the even multiple of 32."""
    layer = RWKV7(width, head_width=64, mlp_width=8, layer_index=1, num_layers=2)
    parts = (layer.decay, layer.value_share, layer.gate)
    assert tuple(part.down.shape[0] for part in parts) == ranks
    assert layer.rate.down.shape[0] == ranks[0]
    assert rounded_rank(80) == 64


def test_parameters_follow_the_formula():
    """4D^2 + 2D (r_w + r_a + r_v + r_g) + 19D + 2DF; the first layer 2D r_v + D less, 2D more."""
    D, F = WIDTH, 24
    full = 4 * D * D + 2 * D * 4 * 32 + 19 * D + 2 * D * F
    count = lambda layer: sum(p.numel() for p in layer.parameters())  # noqa: E731
    assert count(build(1)) == full
    assert count(build(0)) == full - (2 * D * 32 + D) + 2 * D


@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("index", [0, 1])
def test_only_linear_maps_decay(index, post):
    layer = build(index, post=post, post_length=16)
    decayed = parameter_groups(layer, 0.1)[0]["params"]
    names = {name for name, p in layer.named_parameters() if any(p is d for d in decayed)}
    maps = ("r", "k", "v", "out", "up", "down")
    assert names == {f"{name}_projection.weight" for name in maps}


@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("index", [0, 1])
def test_logits_of_the_decay_learn_twice_as_fast(index, post):
    """And nothing else does; with PoST these are the spectrum's, and not the bias of the map."""
    layer = build(index, post=post, post_length=16)
    groups = parameter_groups(layer, 0.1)
    faster = [p for group in groups if group["rate_factor"] != 1 for p in group["params"]]
    names = {name for name, p in layer.named_parameters() if any(p is f for f in faster)}
    assert names == ({"taper.base", "taper.gaps"} if post else {"decay_bias"})
    assert [group["rate_factor"] for group in groups] == [1, 1, 2]
    assert [group["weight_decay"] for group in groups] == [0.1, 0, 0]


def test_pads_neither_decay_nor_remove_nor_count():
    layer = build(1)
    x = torch.randn(3, 9, WIDTH, dtype=torch.float64)
    _, before = layer.step(x, layer.initial_state(3))
    _, after = layer.step(x, before, lengths=torch.tensor([0, 4, 9]))
    assert after.count.tolist() == [9, 13, 18]
    for part in ("memory", "time_token", "channel_token"):
        assert torch.equal(getattr(after, part)[0], getattr(before, part)[0])
    _, alone = layer.step(x[1:2, :4], type(before)(*(part[1:2] for part in before)))
    for one, other in zip(after, alone, strict=True):
        assert relative_error(one[1:2], other) < 1e-12


def outcome(layer, x, start, **options):
    """Outputs, state and gradients of one layer after another."""
    shared, results = {}, []
    leaves = [x.requires_grad_(), *layer.parameters()]
    for _ in range(2):  # the second takes the first values of the first
        x, state = layer.step(x, start, shared=shared, **options)
        results += [x, *state]
    total = sum(part.float().square().sum() for part in results)
    return results + list(torch.autograd.grad(total, leaves))


@pytest.mark.parametrize("options", [{}, POST], ids=["published", "post"])
def test_fused_and_plain_operators_give_the_same_layer(options, monkeypatch):
    """In float32: outputs, states and gradients of a continued, right-padded batch."""
    layer = lively(RWKV7(WIDTH, head_width=HEAD, mlp_width=24, layer_index=1, **options))
    layer, lengths = layer.to(DEVICE), torch.tensor([0, 5, 7], device=DEVICE)
    prefix, x = torch.randn(2, 3, 7, WIDTH, device=DEVICE)
    found = []
    for form in ("triton", "reference"):
        with monkeypatch.context() as patch:
            for name in FUSED:
                patch.setattr(rwkv7, name, functools.partial(getattr(rwkv7, name), form=form))
            _, start = layer.step(prefix, layer.initial_state(3), lengths=lengths)
            start = type(start)(*(part.detach() for part in start))
            found.append(outcome(layer, x.clone(), start, lengths=lengths))
    for mine, target in zip(*found, strict=True):
        assert relative_error(mine, target) < 2e-5


def test_a_head_width_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="head_width=5 does not divide"):
        RWKV7(16, head_width=5, mlp_width=8)


def test_the_model_hands_values_on_and_ends_in_a_layer_norm():
    """First values reach the last layer's gradient; blocks have no norms of their own."""
    model = lively(build_model(model_config("rwkv7")))
    ids = torch.randint(7, 11, (1, 12))
    model(ids).square().sum().backward()
    last = model.backbone.blocks[-1].mixer
    assert last.value_share.down.grad.abs().max() > 0
    names = [name for name, _ in model.named_parameters() if "norm" in name]
    assert not any("mixer_norm" in name or "mlp_norm" in name for name in names)
    assert isinstance(model.backbone.final_norm, torch.nn.LayerNorm)
