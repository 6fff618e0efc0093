import pytest
import torch
from models import CONSUMED, tiny_model

from fracdna.model.checkpoint import description


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tiny tensors: threads that wait for each other cost more than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=CONSUMED)
def mixer_name(request):
    """Every mixer there is, found by its YAML; those like others in the long run alone."""
    return request.param


@pytest.fixture(scope="session")
def models():
    """A tiny model by mixer, the same one all along; what it has read moves its logits far."""
    made = {}

    def get(mixer="frac"):
        if mixer not in made:
            torch.manual_seed(0)
            made[mixer] = tiny_model(mixer)
            with torch.no_grad():
                backbone = made[mixer].backbone
                backbone.final_norm.weight.mul_(5)
                for block in backbone.blocks:
                    block.mixer.out_projection.weight.mul_(60)
        return made[mixer]

    return get


@pytest.fixture
def model(models, mixer_name):
    return models(mixer_name)


@pytest.fixture(scope="session")
def save_checkpoint():
    """Write a model as training does."""

    def save(model, path):
        weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        content = {"state_dict": weights, "fracdna": description(model) | {"recipe": {}}}
        torch.save(content, path)
        return path

    return save


@pytest.fixture(scope="session")
def checkpoint(models, save_checkpoint, tmp_path_factory):
    return save_checkpoint(models(), tmp_path_factory.mktemp("checkpoint") / "tiny.ckpt")
