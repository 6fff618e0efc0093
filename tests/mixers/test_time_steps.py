import pytest
import torch

from fracdna.mixers.time_steps import inverse_softplus, time_step_bias


def test_inverse_softplus_undoes_softplus():
    """Also where softplus is nearly 0 or nearly its argument; the value at 0.05 is tabled."""
    y = torch.tensor([1e-9, 1e-4, 0.05, 1.0, 50.0, 1e4], dtype=torch.float64)
    x = inverse_softplus(y)
    assert x[2].item() == pytest.approx(-2.97063, abs=1e-5)
    torch.testing.assert_close(torch.log1p(torch.exp(x[:5])), y[:5], rtol=1e-6, atol=0)
    assert x[5].item() == 1e4


def test_no_time_step_is_below_the_floor():
    steps = torch.nn.functional.softplus(time_step_bias(1000, shortest=1e-3, floor=0.05))
    assert steps.min().item() == pytest.approx(0.05, rel=1e-4)
    assert steps.max() > 0.06
