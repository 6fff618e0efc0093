import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_allocations(monkeypatch):
    """Every uninitialised buffer is full of NaN, so that reading one is seen."""
    for name in ("empty", "empty_like"):
        original = getattr(torch, name)

        def poisoned(*args, _original=original, **kwargs):
            buffer = _original(*args, **kwargs)
            return buffer.fill_(torch.nan) if buffer.is_floating_point() else buffer

        monkeypatch.setattr(torch, name, poisoned)
    create = torch.Tensor.new_empty

    def new_poisoned(*args, **kwargs):
        buffer = create(*args, **kwargs)
        return buffer.fill_(torch.nan) if buffer.is_floating_point() else buffer

    monkeypatch.setattr(torch.Tensor, "new_empty", new_poisoned)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
