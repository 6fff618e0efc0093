import numpy as np
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from models import CONSUMED, lively, model_config
from omegaconf import OmegaConf

from fracdna import configuration
from fracdna.model.checkpoint import build_model, description
from fracdna_prep.genome import GenomeStore
from fracdna_prep.vocabulary import DNA


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tiny tensors: threads that wait for each other cost more than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def quick_composition(compositions):
    """What a file without groups becomes is the file with its options set: Hydra takes longer."""
    compose = configuration._compose

    def compose_embed(verb, overrides):
        if verb != "embed":
            return compose(verb, overrides)
        config = compose(verb, ())
        for override in OverridesParser.create().parse_overrides(list(overrides)):
            OmegaConf.update(config, override.key_or_group, override.value())
        return config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configuration, "_compose", compose_embed)
        yield


@pytest.fixture(params=CONSUMED)
def mixer_name(request):
    """Every mixer there is, found by its YAML; those like others in the long run alone."""
    return request.param


@pytest.fixture(scope="session")
def models():
    """A tiny model of two or three blocks by mixer, the same one all along."""
    made = {}

    def get(mixer="frac"):
        if mixer not in made:
            torch.manual_seed(0)
            config = model_config(mixer)
            # the pattern of a hybrid takes its three
            config["num_layers"] = min(config["num_layers"], 3 if mixer == "interleaved" else 2)
            made[mixer] = lively(build_model(config)).eval()
        return made[mixer]

    return get


@pytest.fixture
def model(models, mixer_name):
    return models(mixer_name)


# states become vectors in one way, whatever mixer they are of
@pytest.fixture(
    params=[
        *(pytest.param((*mixer.values, "mean"), marks=mixer.marks) for mixer in CONSUMED),
        ("frac", "centre"),
        ("frac", "last"),
    ],
    ids="-".join,
)
def model_and_pooling(request, models):
    """Every mixer, and every pooling."""
    mixer, pooling = request.param
    return models(mixer), pooling


@pytest.fixture(scope="session")
def fasta(tmp_path_factory):
    """chr1 of 3,000 bases with N from 1,000 to 1,010, chr2 of 301, and chrN of N only."""
    letters = np.random.default_rng(3).choice(list("ACGT"), 3301)
    chr1, chr2 = "".join(letters[:3000]), "".join(letters[3000:])
    chr1 = chr1[:1000] + 10 * "N" + chr1[1010:]
    path = tmp_path_factory.mktemp("genome") / "genome.fa"
    path.write_text(f">chr1\n{chr1}\n>chr2\n{chr2}\n>chrN\n{'N' * 40}\n")
    return path


@pytest.fixture(scope="session")
def store(fasta):
    return GenomeStore.build(fasta, fasta.parent / "store")


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


@pytest.fixture(scope="session")
def states_alone():
    """(L, d_model) states of one sequence by one forward pass, without any code of the package."""

    def states(model, ids, layer=-1):
        seen = {}
        row = torch.tensor([[DNA.bos, *ids.tolist()]])
        with torch.no_grad():
            seen[-1] = model.backbone(row, observe=seen.__setitem__)
        return seen[layer][0, 1:].double().numpy()

    return states


@pytest.fixture(scope="session")
def random_ids():
    """Random bases, a few N among them."""

    def ids(length, seed=0):
        return DNA.encode(
            "".join(np.random.default_rng(seed).choice(list("ACGTACGTACGTN"), length))
        )

    return ids
