import pytest
import torch
from models import lively
from numerics import relative_error

from fracdna.mixers.attention import Attention
from fracdna.model.layers import rotary_angles, rotate


@pytest.mark.parametrize("options", [{}, {"num_key_heads": 2}, {"qk_norm": True}], ids=str)
def test_equals_softmax_attention_written_out(options):
    """Position by position and head by head, float64."""
    torch.manual_seed(0)
    layer = lively(Attention(16, num_heads=4, **options)).double()
    x = torch.randn(1, 9, 16, dtype=torch.float64)
    weight = dict(layer.named_parameters())
    heads, width = 4, 4
    groups = heads // layer.num_key_heads

    def project(name, count, norm):
        y = (x[0] @ weight[f"{name}_projection.weight"].T).view(9, count, width)
        if norm is not None and options.get("qk_norm"):
            scale = weight[f"{norm}.weight"]
            y = scale * y / torch.sqrt((y**2).mean(-1, keepdim=True) + 1e-6)
        return y

    def turn(y):
        out = y.clone()
        for t in range(9):
            for i in range(width // 2):
                angle = torch.tensor(t * 10000 ** (-2 * i / width), dtype=torch.float64)
                a, b = y[t, :, i], y[t, :, i + width // 2]
                out[t, :, i] = a * torch.cos(angle) - b * torch.sin(angle)
                out[t, :, i + width // 2] = a * torch.sin(angle) + b * torch.cos(angle)
        return out

    q = turn(project("q", heads, "q_norm"))
    k = turn(project("k", layer.num_key_heads, "k_norm"))
    v = project("v", layer.num_key_heads, None)
    expected = torch.zeros(9, heads, width, dtype=torch.float64)
    for head in range(heads):
        for t in range(9):
            scores = k[: t + 1, head // groups] @ q[t, head] / width**0.5
            expected[t, head] = torch.softmax(scores, 0) @ v[: t + 1, head // groups]
    expected = expected.flatten(1) @ weight["out_projection.weight"].T
    assert relative_error(layer(x)[0], expected) < 1e-12


def test_rotation_depends_on_distance_alone_at_a_million_positions():
    """Float32 angles would be wrong by 0.06 there; the products of turned pairs must not be."""
    x, y = torch.randn(2, 1, 1, 1, 8)
    turn = lambda z, place: rotate(z, rotary_angles(torch.tensor([place]), 8, 1e4))  # noqa: E731
    near, far = turn(x, 3) * turn(y, 0), turn(x, 10**6 + 3) * turn(y, 10**6)
    assert near.sum().item() == pytest.approx(far.sum().item(), abs=1e-5)


def test_heads_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="num_heads=3"):
        Attention(16, num_heads=3)
    with pytest.raises(ValueError, match="num_key_heads=3"):
        Attention(16, num_heads=4, num_key_heads=3)
