import pytest
import torch


def full_of_nan(buffer):
    """The buffer, NaN where its type has one; one that asks for gradients stays a leaf."""
    if buffer.is_floating_point():
        buffer.detach().fill_(torch.nan)
    return buffer


@pytest.fixture(autouse=True)
def poisoned_allocations(monkeypatch):
    """Every uninitialised buffer is full of NaN, so that reading one is seen."""
    for name in ("empty", "empty_like"):
        original = getattr(torch, name)

        def poisoned(*args, _original=original, **kwargs):
            return full_of_nan(_original(*args, **kwargs))

        monkeypatch.setattr(torch, name, poisoned)
    create = torch.Tensor.new_empty

    def new_poisoned(*args, **kwargs):
        return full_of_nan(create(*args, **kwargs))

    monkeypatch.setattr(torch.Tensor, "new_empty", new_poisoned)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
