import pytest
import torch
from models import MIXERS, VARIANTS


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=[*MIXERS, *VARIANTS])
def mixer_name(request):
    """Every mixer there is: a new YAML is found by itself; and layers that options make of them."""
    return request.param
