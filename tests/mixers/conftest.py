from pathlib import Path

import pytest
import torch

MIXERS = sorted(p.stem for p in (Path(__file__).parents[2] / "configs" / "mixer").glob("*.yaml"))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=MIXERS)
def mixer_name(request):
    """Every mixer there is: a new YAML is found by itself."""
    return request.param
