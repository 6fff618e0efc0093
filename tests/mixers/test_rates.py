import torch

from fracdna.mixers.rates import rational


def test_values_of_the_rational_rate():
    """0.5, 1 and 3 at -1, 0 and 2; finite, with finite gradients, far out."""
    x = torch.tensor([-1.0, 0.0, 2.0, -1e30, 1e30], requires_grad=True)
    y = rational(x)
    assert y[:3].tolist() == [0.5, 1, 3]
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.isfinite(gradient).all()
    assert gradient[:3].tolist() == [0.25, 1, 1]
