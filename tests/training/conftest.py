import pytest

from fracdna.training.curve import TrainingCurve

DRAW = TrainingCurve.draw


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """A picture takes longer than the steps of these runs."""
    monkeypatch.setattr(TrainingCurve, "draw", lambda *_: None)


@pytest.fixture
def pictures(no_pictures, monkeypatch):
    """Runs draw their curve after all."""
    monkeypatch.setattr(TrainingCurve, "draw", DRAW)
