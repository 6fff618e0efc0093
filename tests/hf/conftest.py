import pytest
import torch
from models import MIXERS, tiny_model
from transformers.utils import logging

from fracdna import hf
from fracdna.model.checkpoint import description

# one for each kind of state and of weights; the others in the long run
KINDS = ("frac", "attention", "gdn", "mamba2", "rwkv7", "hyena")
logging.disable_progress_bar()


@pytest.fixture(
    params=[pytest.param(x, marks=() if x in KINDS else pytest.mark.slow) for x in MIXERS]
)
def mixer(request):
    return request.param


@pytest.fixture(scope="session")
def networks():
    """A tiny network by mixer, the same one all along; what it has read moves its logits far."""
    made = {}

    def get(name):
        if name not in made:
            torch.manual_seed(1)
            made[name] = tiny_model(name)
            with torch.no_grad():
                made[name].backbone.final_norm.weight.mul_(5)
                for block in made[name].backbone.blocks:
                    block.mixer.out_projection.weight.mul_(60)
        return made[name]

    return get


@pytest.fixture
def network(networks, mixer):
    return networks(mixer)


@pytest.fixture
def model(network):
    return hf.wrap(network)


@pytest.fixture
def frac(networks):
    return hf.wrap(networks("frac"))


@pytest.fixture
def saved(frac, tmp_path):
    """A folder of FRAC."""
    frac.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def checkpoint(networks, tmp_path):
    """What training writes of FRAC."""
    network = networks("frac")
    weights = {f"model.{name}": tensor for name, tensor in network.state_dict().items()}
    recipe = {"recipe": {"data": {"length": 64, "windows_per_step": 2}}}
    path = tmp_path / "tiny.ckpt"
    torch.save({"state_dict": weights, "fracdna": description(network) | recipe}, path)
    return path


@pytest.fixture(scope="session")
def tokenizer():
    return hf.FracdnaTokenizer()


def ids_of(rows, length, seed=0):
    """(rows, length) ids that begin with BOS."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(7, 11, (rows, length), generator=generator)
    ids[:, 0] = 2
    return ids


@pytest.fixture(scope="session")
def draw():
    return ids_of
