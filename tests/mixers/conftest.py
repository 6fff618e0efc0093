import pytest
import torch
from models import MIXERS


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=MIXERS)
def mixer_name(request):
    """Every mixer there is: a new YAML is found by itself."""
    return request.param
