import math
from itertools import pairwise

import pytest
from models import tiny_model

from fracdna.training.optimizer import parameter_groups, warmup_cosine


def test_only_matrices_decay():
    """Norms, biases, gains, dt_bias and the skip are exempt; everything is in exactly one group."""
    model = tiny_model("frac")
    decayed, exempt = parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.1, 0.0)
    names = {p: name.split(".")[-1] for name, p in model.named_parameters()}
    assert {names[p] for p in exempt["params"]} == {
        "weight", "conv_bias", "bias", "dt_bias", "read_gain", "write_gain", "skip", "norm_weight",
    }  # fmt: skip
    assert all(p.ndim < 2 or names[p] == "skip" for p in exempt["params"])
    assert all(p.ndim >= 2 for p in decayed["params"])
    together = [*decayed["params"], *exempt["params"]]
    assert len(together) == len(set(together)) == len(list(model.parameters()))


def test_schedule_follows_true_steps():
    """Linear to the full rate over the warm-up's steps, cosine to the final factor at the last."""
    factors = [warmup_cosine(s, steps=100, warmup=0.1, final=0.1) for s in range(100)]
    assert factors[:10] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert factors[10] == 1.0
    assert factors[99] == pytest.approx(0.1)
    assert warmup_cosine(55, steps=100, warmup=0.1, final=0.1) == pytest.approx(
        0.1 + 0.45 * (1 + math.cos(math.pi * (55 - 10) / 89))
    )
    assert all(a >= b for a, b in pairwise(factors[10:]))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_schedule_of_the_shortest_runs(steps):
    """Every factor lies between 0 and 1, also where warm-up rounds to nothing."""
    for step in range(steps):
        assert 0 < warmup_cosine(step, steps=steps, warmup=0.02, final=0.1) <= 1
