import pytest
import torch
from numerics import relative_error
from torch import nn

from fracdna.model.backbone import Backbone
from fracdna.model.block import Block
from fracdna.model.layers import GatedMLP, RMSNorm

WIDTH = 16


class Sum(nn.Module):
    """A mixer: a linear map of the running sum; it notes what dtype it was given."""

    def __init__(self, **_):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)
        self.given = []

    def forward(self, x, cu_seqlens=None, shared=None):
        self.given.append(x.dtype)
        return self.map(x.cumsum(1))

    def initial_state(self, batch):
        return torch.zeros(batch, WIDTH)

    def step(self, x, state, lengths=None, shared=None):
        total = x.cumsum(1) + state[:, None]
        return self.map(total), total[:, -1]


@pytest.mark.parametrize("norm", [RMSNorm, nn.LayerNorm, None])
@pytest.mark.parametrize("mlp", [None, GatedMLP])
def test_a_block_adds_its_branches_to_the_stream(norm, mlp):
    """The pair of a block sums to s + mixer(norm(s)), then s + mlp(norm(s)); also in a step."""
    torch.manual_seed(0)
    block = Block(WIDTH, Sum(), norm, mlp and mlp(WIDTH, width=24)).double()
    x, residual = (torch.randn(2, 5, WIDTH, dtype=torch.float64) for _ in range(2))
    for before in (None, residual):
        stream = x if before is None else x + before
        expected = stream + block.mixer(block.mixer_norm(stream))
        if mlp is not None:
            expected = expected + block.mlp(block.mlp_norm(expected))
        branch, rest = block(x, before, None, {})
        assert relative_error(branch + rest, expected) < 1e-14
        branch, rest, _ = block.step(x, before, block.mixer.initial_state(2).double(), None, {})
        assert relative_error(branch + rest, expected) < 1e-14


def test_under_autocast_the_stream_stays_exact_and_branches_get_the_lower_dtype():
    """No block has to cast what a norm gives it; what may be a result is not rounded."""
    model = Backbone(WIDTH, 3, Sum, RMSNorm, lambda **_: GatedMLP(WIDTH, width=24))
    seen = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model(torch.full((1, 4), 7), observe=lambda _, x: seen.append(x.dtype))
    assert hidden.dtype == torch.float32
    assert seen == [torch.float32] * 4
    assert [block.mixer.given for block in model.blocks] == [[torch.bfloat16]] * 3


def test_without_norms_in_blocks_the_end_has_one_of_its_own():
    """The stream reaches mixers as it is; a model without any norm is refused."""
    model = Backbone(WIDTH, 2, Sum, None, final_norm=nn.LayerNorm)
    assert [name for name, _ in model.named_parameters() if "norm" in name] == [
        "final_norm.weight", "final_norm.bias",
    ]  # fmt: skip
    ids = torch.full((1, 4), 7)
    stream = model.embedding(ids)
    for block in model.blocks:
        stream = stream + block.mixer(stream)
    assert relative_error(model(ids), model.final_norm(stream)) < 1e-6
    with pytest.raises(ValueError, match="norm=null needs a final_norm"):
        Backbone(WIDTH, 2, Sum, None)
