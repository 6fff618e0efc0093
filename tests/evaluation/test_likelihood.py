import math

import pytest
import torch

from fracdna.data.objectives import IGNORED
from fracdna.evaluation.likelihood import TokenLikelihood, bits_per_base, perplexity, token_nll


def test_half_precision_logits_agree_with_float64_over_many_batches():
    """Case 45: bf16 logits are accepted; a thousand batches agree with float64 to 1e-6."""
    torch.manual_seed(0)
    metric, nats, tokens = TokenLikelihood(), 0.0, 0
    for _ in range(1000):
        logits = torch.randn(2, 16, 16).bfloat16()
        targets = torch.randint(7, 11, (2, 16))
        targets[torch.rand(2, 16) < 0.1] = IGNORED
        metric.update(logits, targets)
        kept = targets != IGNORED
        log_p = torch.log_softmax(logits.double(), -1)
        nats -= log_p[kept].gather(-1, targets[kept][:, None]).sum().item()
        tokens += int(kept.sum())
    assert int(metric.tokens) == tokens
    assert float(metric.nll_nats) == pytest.approx(nats, rel=1e-6)
    assert float(metric.compute()) == pytest.approx(nats / tokens, rel=1e-6)


def test_tokens_weigh_not_batches():
    """A batch of one token counts as one token beside a batch of a hundred."""
    metric = TokenLikelihood()
    metric.update(torch.tensor([[1.0] * 100]), torch.full((1, 100), 7))
    metric.update(torch.tensor([[3.0]]), torch.full((1, 1), 7))
    assert float(metric.compute()) == pytest.approx(103 / 101)


def test_ignored_targets_add_neither_nats_nor_counts():
    logits = torch.randn(1, 4, 16)
    targets = torch.tensor([[7, IGNORED, IGNORED, 9]])
    nll = token_nll(logits, targets)
    assert nll[0, 1] == nll[0, 2] == 0
    metric = TokenLikelihood()
    metric.update(logits, targets)
    assert int(metric.tokens) == 2
    assert math.isnan(float(TokenLikelihood().compute()))


def test_uniform_guess_over_the_bases_is_two_bits():
    assert perplexity(math.log(4)) == pytest.approx(4)
    assert bits_per_base(math.log(4)) == pytest.approx(2)
